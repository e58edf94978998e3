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


"""Reads all useful facts about a machine from NVML in one pass."""

from __future__ import annotations

import ctypes
from typing import Any

from cyborg_gpu_driver.host.nvml import modes as nvml_modes
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.support.hardware import calls

_ENUMS = range(0x18)
"""GPU instance profiles, up to more than the last of NVML 13 (0x11)."""
_COMPUTE_ENUMS = range(0xc)
_COMPUTE_ENGINES = 0
"""NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, the only engine profile."""
_FABRIC_VERSIONS = (3, 2)
_MAX_LINKS = 64
_LINK_CAPABILITIES = range(6)
_P2P = {0: 'read', 1: 'write', 2: 'nvlink', 3: 'atomics', 4: 'pci'}
"""NVML_P2P_CAPS_INDEX_*."""
_VGPU_CAPABILITIES = range(12)
_VGPU_TYPE_CAPABILITIES = range(5)
_PLACEMENT_VERSIONS = ((0, 1), (0, 2), (1, 2))
"""Pairs of a mode (0: mixed sizes, 1: equal sizes) and the version of the
structure."""

_SYSTEM = (
    'nvmlSystemGetDriverVersion', 'nvmlSystemGetNVMLVersion',
    'nvmlSystemGetCudaDriverVersion', 'nvmlSystemGetCudaDriverVersion_v2',
    'nvmlSystemGetDriverBranch', 'nvmlSystemGetConfComputeState',
    'nvmlSystemGetConfComputeCapabilities',
    'nvmlSystemGetConfComputeGpusReadyState',
    'nvmlGetExcludedDeviceCount')

_DEVICE = (
    'nvmlDeviceGetName', 'nvmlDeviceGetUUID', 'nvmlDeviceGetSerial',
    'nvmlDeviceGetBoardPartNumber', 'nvmlDeviceGetMinorNumber',
    'nvmlDeviceGetPciInfo_v3', 'nvmlDeviceGetBrand',
    'nvmlDeviceGetArchitecture', 'nvmlDeviceGetCudaComputeCapability',
    'nvmlDeviceGetBusType', 'nvmlDeviceGetNumGpuCores',
    'nvmlDeviceGetMemoryInfo', 'nvmlDeviceGetBAR1MemoryInfo',
    'nvmlDeviceGetMemoryBusWidth', 'nvmlDeviceGetAttributes_v2',
    'nvmlDeviceGetVbiosVersion', 'nvmlDeviceGetInforomImageVersion',
    'nvmlDeviceGetGspFirmwareVersion', 'nvmlDeviceGetGspFirmwareMode',
    'nvmlDeviceGetNumaNodeId', 'nvmlDeviceGetPersistenceMode',
    'nvmlDeviceGetComputeMode', 'nvmlDeviceGetDisplayMode',
    'nvmlDeviceGetDisplayActive', 'nvmlDeviceGetCurrPcieLinkGeneration',
    'nvmlDeviceGetMaxPcieLinkGeneration', 'nvmlDeviceGetCurrPcieLinkWidth',
    'nvmlDeviceGetMaxPcieLinkWidth', 'nvmlDeviceGetPerformanceState',
    'nvmlDeviceGetPowerUsage', 'nvmlDeviceGetPowerManagementLimit',
    'nvmlDeviceGetPowerManagementDefaultLimit',
    'nvmlDeviceGetPowerManagementLimitConstraints',
    'nvmlDeviceGetEnforcedPowerLimit', 'nvmlDeviceGetUtilizationRates',
    'nvmlDeviceGetEccMode', 'nvmlDeviceGetDefaultEccMode',
    'nvmlDeviceGetRemappedRows',
    'nvmlDeviceGetRowRemapperHistogram',
    'nvmlDeviceGetRetiredPagesPendingStatus',
    'nvmlDeviceGetMigMode', 'nvmlDeviceIsMigDeviceHandle',
    'nvmlDeviceGetVirtualizationMode', 'nvmlDeviceGetHostVgpuMode',
    'nvmlDeviceGetVgpuHeterogeneousMode',
    'nvmlDeviceGetVgpuSchedulerCapabilities',
    'nvmlDeviceGetVgpuSchedulerState')

_VGPU_TYPE = (
    'nvmlVgpuTypeGetName', 'nvmlVgpuTypeGetClass',
    'nvmlVgpuTypeGetLicense', 'nvmlVgpuTypeGetDeviceID',
    'nvmlVgpuTypeGetFramebufferSize', 'nvmlVgpuTypeGetFbReservation',
    'nvmlVgpuTypeGetGspHeapSize', 'nvmlVgpuTypeGetFrameRateLimit',
    'nvmlVgpuTypeGetNumDisplayHeads',
    'nvmlVgpuTypeGetGpuInstanceProfileId',
    'nvmlVgpuTypeGetMaxInstancesPerVm',
    'nvmlVgpuTypeGetMaxInstancesPerGpuInstance')

_VGPU = (
    'nvmlVgpuInstanceGetType', 'nvmlVgpuInstanceGetMdevUUID',
    'nvmlVgpuInstanceGetGpuInstanceId', 'nvmlVgpuInstanceGetPlacementId',
    'nvmlVgpuInstanceGetFbUsage', 'nvmlVgpuInstanceGetGpuPciId')

_MIG_DEVICE = (
    'nvmlDeviceGetName', 'nvmlDeviceGetUUID', 'nvmlDeviceGetGpuInstanceId',
    'nvmlDeviceGetComputeInstanceId', 'nvmlDeviceGetAttributes_v2',
    'nvmlDeviceGetMemoryInfo', 'nvmlDeviceIsMigDeviceHandle')


def collect(session: nvml.NvmlSession) -> list[dict[str, Any]]:
    """Make all calls and return their records.

    Never raises if NVML or pynvml does not support a call; the records of
    :class:`cyborg_gpu_driver.support.hardware.calls.Recorder` have the error.
    Without an NVML library, the only record says so.
    """
    recorder = calls.Recorder(session)
    recorder.call(_SYSTEM[0])
    if recorder.records[-1]['call'] != calls.INIT:
        _collect(recorder)
    return recorder.records


def _collect(recorder):
    for name in _SYSTEM[1:]:
        recorder.call(name)
    for capability in range(2):
        recorder.call('nvmlGetVgpuDriverCapabilities', capability)
    _confidential_computing(recorder)
    devices = []
    for index in range(recorder.call('nvmlDeviceGetCount') or 0):
        handle = recorder.call('nvmlDeviceGetHandleByIndex', index)
        if handle is not None:
            devices.append(calls.Named(f'gpu:{index}', handle))
    types = set()
    for device in devices:
        _device(recorder, device)
        _mig(recorder, device)
        types.update(_vgpus(recorder, device))
        _links(recorder, device)
    for type_id in sorted(types):
        _vgpu_type(recorder, type_id)
    for number, device in enumerate(devices):
        for other in devices[number + 1:]:
            recorder.call('nvmlDeviceGetTopologyCommonAncestor', device,
                          other)
            for index in _P2P:
                recorder.call('nvmlDeviceGetP2PStatus', device, other, index)


def _confidential_computing(recorder):
    found = nvml_modes.settings()
    if found is not None:
        recorder.call('nvmlSystemGetConfComputeSettings',
                      calls.Out(ctypes.byref(found)),
                      read=lambda code: (nvml_modes.check(code), found)[1])


def _fabric(recorder, device):
    """Record whether NVSwitches know the GPU, with the newest structure.

    The UUID of the GPU's NVLink domain identifies a machine, so the record
    only has whether there is one.
    """
    for version in _FABRIC_VERSIONS:
        found = nvml_modes.fabric_info(version)
        if found is not None and recorder.call(
                'nvmlDeviceGetGpuFabricInfoV', device,
                calls.Out(ctypes.byref(found)),
                read=lambda _code, found=found: {
                    **calls.plain(found),
                    'clusterUuid': any(found.clusterUuid)}) is not None:
            return


def _device(recorder, device):
    for name in _DEVICE:
        recorder.call(name, device)
    _fabric(recorder, device)
    # One counter counts since the driver was loaded, the other over the
    # board's life.
    for kind in range(2):
        for counter in range(2):
            recorder.call('nvmlDeviceGetTotalEccErrors', device, kind,
                          counter)
    recorder.call('nvmlDeviceGetTemperature', device, 0)
    recorder.call('nvmlDeviceGetMemoryAffinity', device, 1, 0)
    # Record only the number of processes; their identity is private.
    recorder.call('nvmlDeviceGetComputeRunningProcesses_v3', device,
                  read=len)


def _mig(recorder, device):
    found = set()
    for enum in _ENUMS:
        for version in (1, 2, 3):
            info = recorder.call('nvmlDeviceGetGpuInstanceProfileInfo',
                                 device, enum, version)
            if info is not None:
                found.add(info.id)
    instances = {}
    for profile_id in sorted(found):
        recorder.call('nvmlDeviceGetGpuInstanceProfileInfoById', device,
                      profile_id)
        recorder.placements('nvmlDeviceGetGpuInstancePossiblePlacements',
                            device, profile_id)
        recorder.call('nvmlDeviceGetGpuInstanceRemainingCapacity', device,
                      profile_id)
        for handle in recorder.instances('nvmlDeviceGetGpuInstances', device,
                                         profile_id):
            name = f'{device.name}/gi:{len(instances)}'
            instances[name] = calls.Named(name, handle)
    for instance in instances.values():
        _instance(recorder, instance)
    for index in range(
            recorder.call('nvmlDeviceGetMaxMigDeviceCount', device) or 0):
        handle = recorder.call('nvmlDeviceGetMigDeviceHandleByIndex',
                               device, index)
        if handle is not None:
            child = calls.Named(f'{device.name}/mig:{index}', handle)
            for name in _MIG_DEVICE:
                recorder.call(name, child)


def _instance(recorder, instance):
    recorder.call('nvmlGpuInstanceGetInfo', instance)
    found = set()
    for enum in _COMPUTE_ENUMS:
        for version in (1, 2):
            info = recorder.call(
                'nvmlGpuInstanceGetComputeInstanceProfileInfo', instance,
                enum, _COMPUTE_ENGINES, version)
            if info is not None:
                found.add(info.id)
    number = 0
    for profile_id in sorted(found):
        recorder.placements(
            'nvmlGpuInstanceGetComputeInstancePossiblePlacements', instance,
            profile_id)
        recorder.call('nvmlGpuInstanceGetComputeInstanceRemainingCapacity',
                      instance, profile_id)
        for handle in recorder.instances(
                'nvmlGpuInstanceGetComputeInstances', instance, profile_id):
            recorder.call('nvmlComputeInstanceGetInfo_v2', calls.Named(
                f'{instance.name}/ci:{number}', handle))
            number += 1


def _vgpus(recorder, device):
    """Record the facts about the GPU's vGPUs; return the ids of its types."""
    for capability in _VGPU_CAPABILITIES:
        recorder.call('nvmlDeviceGetVgpuCapabilities', device, capability)
    types = recorder.call('nvmlDeviceGetSupportedVgpus', device) or []
    recorder.call('nvmlDeviceGetCreatableVgpus', device)
    for type_id in types:
        recorder.call('nvmlVgpuTypeGetMaxInstances', device, type_id)
        for mode, version in _PLACEMENT_VERSIONS:
            recorder.call('nvmlDeviceGetVgpuTypeSupportedPlacements', device,
                          type_id, mode, version, read=_placements)
        for version in (1, 2):
            recorder.call('nvmlDeviceGetVgpuTypeCreatablePlacements', device,
                          type_id, version, read=_placements)
    for vgpu in recorder.call('nvmlDeviceGetActiveVgpus', device) or []:
        for name in _VGPU:
            recorder.call(name, vgpu)
    return types


def _placements(found):
    """Return the list in nvmlVgpuPlacementList, a pointer and a size."""
    listed = nvml_vgpu.PlacementList.from_buffer(found)
    return {'size': listed.placement_size, 'starts': list(listed.ids())}


def _vgpu_type(recorder, type_id):
    for name in _VGPU_TYPE:
        recorder.call(name, type_id)
    for capability in _VGPU_TYPE_CAPABILITIES:
        recorder.call('nvmlVgpuTypeGetCapabilities', type_id, capability)


def _links(recorder, device):
    for link in range(_MAX_LINKS):
        active = recorder.call('nvmlDeviceGetNvLinkState', device, link)
        if active is None:
            # This is past the last link, or the GPU has no links.
            return
        if active:
            for name in ('nvmlDeviceGetNvLinkRemotePciInfo',
                         'nvmlDeviceGetNvLinkRemoteDeviceType',
                         'nvmlDeviceGetNvLinkVersion'):
                recorder.call(name, device, link)
        for capability in _LINK_CAPABILITIES:
            recorder.call('nvmlDeviceGetNvLinkCapability', device, link,
                          capability)
