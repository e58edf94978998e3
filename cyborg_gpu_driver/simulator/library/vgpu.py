# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""NVML's calls about vGPU types and running vGPUs."""

from __future__ import annotations

import ctypes

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.driver import vgpu as rules

Refused = refusal.Refused
_NONE = 0xffffffff
_NO_PLACEMENT = 0xffff
"""NVML_INVALID_VGPU_PLACEMENT_ID, which pynvml lacks."""
_MIB = 1 << 20
_METADATA_SIZE = 256
"""NVML_VGPU_PGPU_METADATA_OPAQUE_DATA_SIZE."""
_REVISION = 1
_ECC_ON, _SRIOV_ON = 1, 2
"""PGPU_CAP_ECC_ON and PGPU_CAP_SRIOV_ON; their values are not public."""
_LICENSES = {
    'Compute': 'NVIDIA-Virtual-Compute-Server,9.0;Quadro-Virtual-DWS,5.0',
    'Quadro': 'Quadro-Virtual-DWS,5.0',
    'NVS': 'GRID-Virtual-PC,2.0;Quadro-Virtual-DWS,5.0',
}


def vgpu_host(library, handle):
    """The GPU of a handle, whose driver must be able to create vGPUs.

    :raises Refused: NOT_SUPPORTED if the driver cannot.
    """
    gpu = library.gpu(handle)
    if gpu.framework == spec.NO_FRAMEWORK:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu


def vgpu_type(library, type_id):
    number = abi.number(type_id)
    for gpu in library.machine.gpus:
        kind = gpu.model.vgpu_type(number)
        if kind is not None:
            return kind
    raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)


@abi.symbol('nvmlDeviceGetVirtualizationMode')
def virtualization_mode(library, handle, mode):
    gpu = library.gpu(handle)
    if gpu.machine.host.virtual:
        abi.put(mode, pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH)
        return
    abi.put(mode, pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
            if gpu.framework == spec.NO_FRAMEWORK
            else pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU)


@abi.symbol('nvmlDeviceGetHostVgpuMode')
def host_vgpu_mode(library, handle, mode):
    gpu = vgpu_host(library, handle)
    abi.put(mode, pynvml.NVML_HOST_VGPU_MODE_NON_SRIOV
            if gpu.vgpu_on_pf else pynvml.NVML_HOST_VGPU_MODE_SRIOV)


@abi.symbol('nvmlDeviceGetSupportedVgpus')
def supported(library, handle, count, types):
    gpu = vgpu_host(library, handle)
    abi.put_list(types, count, ctypes.c_uint,
                 [kind.type_id for kind in gpu.model.vgpu_types])


@abi.symbol('nvmlDeviceGetCreatableVgpus')
def creatable(library, handle, count, types):
    gpu = vgpu_host(library, handle)
    abi.put_list(types, count, ctypes.c_uint,
                 [kind.type_id for kind in rules.creatable(gpu)])


@abi.symbol('nvmlVgpuTypeGetName')
def type_name(library, type_id, buffer, size):
    kind = vgpu_type(library, type_id)
    abi.put_text(buffer, abi.target(size).value,
                 f'NVIDIA {kind.name}')


@abi.symbol('nvmlVgpuTypeGetClass')
def type_class(library, type_id, buffer, size):
    kind = vgpu_type(library, type_id)
    abi.put_text(buffer, abi.target(size).value, kind.vgpu_class)


@abi.symbol('nvmlVgpuTypeGetLicense')
def type_license(library, type_id, buffer, size):
    kind = vgpu_type(library, type_id)
    abi.put_text(buffer, abi.number(size),
                 _LICENSES[kind.vgpu_class])


@abi.symbol('nvmlVgpuTypeGetFramebufferSize')
def type_framebuffer(library, type_id, size):
    abi.put(size, vgpu_type(library, type_id).framebuffer_mib * _MIB)


@abi.symbol('nvmlVgpuTypeGetGpuInstanceProfileId')
def type_profile(library, type_id, profile_id):
    kind = vgpu_type(library, type_id)
    abi.put(profile_id, _NONE if kind.profile_id is None
            else kind.profile_id)


@abi.symbol('nvmlVgpuTypeGetMaxInstances')
def type_max_instances(library, handle, type_id, count):
    gpu = vgpu_host(library, handle)
    kind = gpu.model.vgpu_type(abi.number(type_id))
    if kind is None:
        # nvml.h: "if vgpuTypeId is invalid or is not supported on target
        # device".
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    abi.put(count, kind.max_instances)


@abi.symbol('nvmlVgpuTypeGetMaxInstancesPerVm')
def type_max_per_vm(library, type_id, count):
    vgpu_type(library, type_id)
    abi.put(count, 1)


@abi.symbol('nvmlVgpuTypeGetMaxInstancesPerGpuInstance')
def type_max_per_instance(library, info):
    info = abi.target(info)
    if info.version != pynvml.nvmlVgpuTypeMaxInstance_v1:
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    kind = vgpu_type(library, info.vgpuTypeId)
    if kind.per_instance is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    info.maxInstancePerGI = kind.per_instance


@abi.symbol('nvmlVgpuTypeGetCapabilities')
def type_capabilities(library, type_id, capability, value):
    kind = vgpu_type(library, type_id)
    number = abi.number(capability)
    if not 0 <= number < pynvml.NVML_VGPU_CAP_COUNT:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    abi.put(value, int(
        number == pynvml.NVML_VGPU_CAP_EXCLUSIVE_SIZE
        and kind.profile_id is None))


@abi.symbol('nvmlVgpuTypeGetNumDisplayHeads')
def type_display_heads(library, type_id, count):
    abi.put(count, 1 if vgpu_type(library, type_id).vgpu_class == 'Compute'
            else 4)


@abi.symbol('nvmlDeviceGetVgpuCapabilities')
def device_capabilities(library, handle, capability, value):
    gpu = vgpu_host(library, handle)
    number = abi.number(capability)
    if not 0 <= number < pynvml.NVML_DEVICE_VGPU_CAP_COUNT:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    abi.put(value, int(number in _capabilities(gpu)))


def _capabilities(gpu):
    """The vGPU capabilities of a GPU. No simulated GPU has any others."""
    found = set()
    if not gpu.vgpu_on_pf:
        found.add(pynvml.NVML_DEVICE_VGPU_CAP_HETEROGENEOUS_TIMESLICE_PROFILES)
    if _mixes_sizes(gpu):
        found.add(pynvml.NVML_DEVICE_VGPU_CAP_HETEROGENEOUS_TIMESLICE_SIZES)
    if any((kind.per_instance or 0) > 1 for kind in gpu.model.vgpu_types):
        found.add(pynvml.NVML_DEVICE_VGPU_CAP_MIG_TIMESLICING_SUPPORTED)
        found.add(pynvml.NVML_DEVICE_VGPU_CAP_MIG_TIMESLICING_ENABLED)
    return found


def _mixes_sizes(gpu):
    return (gpu.model.placement_region is not None and not gpu.vgpu_on_pf)


@abi.symbol('nvmlDeviceGetVgpuMetadata')
def physical_metadata(library, handle, metadata, size):
    """nvml.h: if the buffer is too small, the call returns the needed size.
    """
    gpu = vgpu_host(library, handle)
    needed = ctypes.sizeof(pynvml.c_nvmlVgpuPgpuMetadata_t)
    _check_room(metadata, size, needed)
    found = abi.target(metadata)
    found.version = found.revision = _REVISION
    found.hostDriverVersion = library.machine.host.driver_version.encode()
    found.pgpuVirtualizationCaps = int(gpu.state.migration)
    found.opaqueDataSize = 0


@abi.symbol('nvmlDeviceGetPgpuMetadataString')
def physical_metadata_string(library, handle, text, size):
    """The metadata string; for a GPU without migration, its UUID.

    The parts are those of vgpuConfigGetPgpuMetadataString in NVIDIA's open
    kernel modules. The part for disabled units is left out, because no
    simulated board has any.
    """
    gpu = vgpu_host(library, handle)
    value = gpu.spec.uuid
    if gpu.state.migration:
        capabilities = (_ECC_ON * gpu.state.ecc_modes[0]
                        | _SRIOV_ON * bool(gpu.state.vfs))
        value = (f'{gpu.model.device}{gpu.model.subsystem_device}'
                 f'{capabilities:08X}').upper()
    _check_room(text, size, len(value) + 1)
    abi.put_text(text, _METADATA_SIZE, value)


def _check_room(buffer, size, needed):
    count = abi.target(size)
    room, count.value = count.value, needed
    if room < needed:
        raise Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    abi.target(buffer)


@abi.symbol('nvmlDeviceGetVgpuHeterogeneousMode')
def heterogeneous_mode(library, handle, info):
    gpu = vgpu_host(library, handle)
    info = _heterogeneous(gpu, info)
    info.mode = int(gpu.state.heterogeneous)


@abi.symbol('nvmlDeviceSetVgpuHeterogeneousMode', writes=True,
            privileged=True)
def set_heterogeneous_mode(library, handle, info):
    gpu = vgpu_host(library, handle)
    info = _heterogeneous(gpu, info)
    if info.mode not in (0, 1):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    # The guide requires that the virtual functions exist first, and does not
    # allow the fixed share scheduler. NVML's error code for either is not
    # documented; this one fits.
    if info.mode and (not gpu.state.vfs or gpu.state.scheduler.policy
                      == pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if gpu.state.vgpus:
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    gpu.state.heterogeneous = bool(info.mode)


def _heterogeneous(gpu, info):
    info = abi.target(info)
    if info.version != pynvml.VgpuHeterogeneousMode_v1:
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    if gpu.state.mig or not _mixes_sizes(gpu):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return info


@abi.symbol('nvmlDeviceGetActiveVgpus')
def active(library, handle, count, vgpus):
    gpu = vgpu_host(library, handle)
    abi.put_list(vgpus, count, ctypes.c_uint,
                 [vgpu.vgpu_id for vgpu in gpu.state.vgpus
                  if vgpu.guest])


def active_vgpu(library, vgpu_id):
    """A GPU and its vGPU on which a virtual machine runs.

    NVML knows no other vGPUs.

    :raises Refused: INVALID_ARGUMENT for 0, NOT_FOUND for any other id.
    """
    number = abi.number(vgpu_id)
    for gpu in library.visible():
        for vgpu in gpu.state.vgpus:
            if vgpu.vgpu_id == number and vgpu.guest:
                return gpu, vgpu
    raise Refused(pynvml.NVML_ERROR_NOT_FOUND if number
                  else pynvml.NVML_ERROR_INVALID_ARGUMENT)


@abi.symbol('nvmlVgpuInstanceGetType')
def instance_type(library, vgpu_id, type_id):
    abi.put(type_id, active_vgpu(library, vgpu_id)[1].type_id)


@abi.symbol('nvmlVgpuInstanceGetMdevUUID')
def instance_mdev_uuid(library, vgpu_id, buffer, size):
    _, vgpu = active_vgpu(library, vgpu_id)
    if vgpu.uuid is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    abi.put_text(buffer, abi.number(size), vgpu.uuid)


@abi.symbol('nvmlVgpuInstanceGetGpuInstanceId')
def instance_gpu_instance(library, vgpu_id, number):
    _, vgpu = active_vgpu(library, vgpu_id)
    abi.put(number, _NONE if vgpu.instance is None else vgpu.instance)


@abi.symbol('nvmlVgpuInstanceGetPlacementId')
def instance_placement(library, vgpu_id, info):
    gpu, vgpu = active_vgpu(library, vgpu_id)
    info = abi.target(info)
    if info.version != pynvml.VgpuPlacementId_v1:
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    info.placementId = (vgpu.placement if gpu.state.heterogeneous
                        else _NO_PLACEMENT)


@abi.symbol('nvmlVgpuInstanceGetGpuPciId')
def instance_pci_id(library, vgpu_id, buffer, size):
    # This is the address within the guest, whose driver would have to run.
    # It says nothing about the function that carries the vGPU.
    active_vgpu(library, vgpu_id)
    abi.put_text(buffer, abi.target(size).value, '00000000:00:00.0')
