# SPDX-License-Identifier: Apache-2.0

"""NVML's calls about vGPU types, running vGPUs and their scheduler."""

from __future__ import annotations

import ctypes
import time

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import mig

Refused = faults.Refused
_NO_PLACEMENT = 0xffff
"""NVML_INVALID_VGPU_PLACEMENT_ID, which pynvml lacks."""
_MIB = 1 << 20
_REVISION = 1


def vgpu_host(library, handle):
    """The GPU of a handle, whose driver must be able to create vGPUs."""
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


@abi.symbol('nvmlDeviceGetSupportedVgpus')
def supported(library, handle, count, types):
    gpu = vgpu_host(library, handle)
    abi.put_list(types, count, ctypes.c_uint,
                 [kind.type_id for kind in gpu.model.vgpu_types])


@abi.symbol('nvmlVgpuTypeGetMaxInstances')
def type_max_instances(library, handle, type_id, count):
    gpu = vgpu_host(library, handle)
    kind = gpu.model.vgpu_type(abi.number(type_id))
    if kind is None:
        # nvml.h: "if vgpuTypeId is invalid or is not supported on target
        # device".
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    abi.put(count, kind.max_instances)


@abi.symbol('nvmlVgpuTypeGetMaxInstancesPerGpuInstance')
def type_max_per_instance(library, info):
    info = abi.versioned(info, pynvml.nvmlVgpuTypeMaxInstance_v1)
    kind = vgpu_type(library, info.vgpuTypeId)
    if kind.per_instance is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    info.maxInstancePerGI = kind.per_instance


@abi.symbol('nvmlDeviceGetVgpuCapabilities')
def device_capabilities(library, handle, capability, value):
    gpu = vgpu_host(library, handle)
    number = abi.number(capability)
    if not 0 <= number < pynvml.NVML_DEVICE_VGPU_CAP_COUNT:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    # The only one that is simulated.
    abi.put(value, int(_mixes_sizes(gpu) and number == (
        pynvml.NVML_DEVICE_VGPU_CAP_HETEROGENEOUS_TIMESLICE_SIZES)))


def _mixes_sizes(gpu):
    return (gpu.model.placement_region is not None and not gpu.vgpu_on_pf)


@abi.symbol('nvmlDeviceGetVgpuMetadata')
def physical_metadata(library, handle, metadata, size):
    """nvml.h: if the buffer is too small, the call returns the needed size."""
    gpu = vgpu_host(library, handle)
    needed = ctypes.sizeof(pynvml.c_nvmlVgpuPgpuMetadata_t)
    count = abi.target(size)
    room, count.value = count.value, needed
    if room < needed:
        raise Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    found = abi.target(metadata)
    found.version = found.revision = _REVISION
    found.hostDriverVersion = library.machine.host.driver_version.encode()
    found.pgpuVirtualizationCaps = int(gpu.state.migration)
    found.opaqueDataSize = 0


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
    info = abi.versioned(info, pynvml.VgpuHeterogeneousMode_v1)
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
    """
    number = abi.number(vgpu_id)
    for gpu in library.visible():
        for vgpu in gpu.state.vgpus:
            if vgpu.vgpu_id == number and vgpu.guest:
                return gpu, vgpu
    raise Refused(pynvml.NVML_ERROR_NOT_FOUND if number
                  else pynvml.NVML_ERROR_INVALID_ARGUMENT)


def running_vgpu(library, vgpu_id):
    """The vGPU of :func:`active_vgpu`, as the subject of a table."""
    return active_vgpu(library, vgpu_id)[1]


@abi.symbol('nvmlVgpuInstanceGetPlacementId')
def instance_placement(library, vgpu_id, info):
    gpu, vgpu = active_vgpu(library, vgpu_id)
    info = abi.versioned(info, pynvml.VgpuPlacementId_v1)
    info.placementId = (vgpu.placement if gpu.state.heterogeneous
                        else _NO_PLACEMENT)


def _mdev_uuid(vgpu):
    if vgpu.uuid is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return vgpu.uuid


abi.texts(vgpu_type, {
    'nvmlVgpuTypeGetName': lambda kind: f'NVIDIA {kind.name}',
    'nvmlVgpuTypeGetClass': lambda kind: kind.vgpu_class})
abi.numbers(vgpu_type, {
    'nvmlVgpuTypeGetFramebufferSize':
        lambda kind: kind.framebuffer_mib * _MIB,
    'nvmlVgpuTypeGetGpuInstanceProfileId':
        lambda kind: abi.or_none(kind.profile_id)})
abi.texts(running_vgpu, {'nvmlVgpuInstanceGetMdevUUID': _mdev_uuid})
abi.numbers(running_vgpu, {
    'nvmlVgpuInstanceGetType': lambda vgpu: vgpu.type_id,
    'nvmlVgpuInstanceGetFbUsage': lambda vgpu: vgpu.used_mib * _MIB,
    'nvmlVgpuInstanceGetGpuInstanceId':
        lambda vgpu: abi.or_none(vgpu.instance)})


@abi.symbol('nvmlDeviceGetVgpuUtilization')
def vgpu_utilization(library, handle, since, kind, count, samples):
    """Return one current sample for each vGPU on which a guest runs."""
    gpu = vgpu_host(library, handle)
    now = time.time_ns() // 1000
    running = [vgpu for vgpu in gpu.state.vgpus if vgpu.guest]
    found = []
    for vgpu in running:
        sample = pynvml.c_nvmlVgpuInstanceUtilizationSample_t()
        sample.vgpuInstance, sample.timeStamp = vgpu.vgpu_id, now
        for name, percent in zip(('smUtil', 'memUtil', 'encUtil', 'decUtil'),
                                 vgpu.percents, strict=True):
            getattr(sample, name).uiVal = percent
        found.append(sample)
    if found and abi.number(since) >= now:
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    abi.put(kind, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    abi.put_list(samples, count,
                 pynvml.c_nvmlVgpuInstanceUtilizationSample_t, found)


@abi.symbol('nvmlVgpuInstanceGetVmID')
def vm_id(library, vgpu_id, buffer, size, kind):
    """nvml.h: the id's format varies by platform; ``kind`` says which it is.
    """
    _, vgpu = active_vgpu(library, vgpu_id)
    abi.put_text(buffer, abi.number(size), vgpu.vm)
    abi.put(kind, pynvml.NVML_VGPU_VM_ID_DOMAIN_ID if vgpu.vm.isdecimal()
            else pynvml.NVML_VGPU_VM_ID_UUID)


# NVML's calls about the placement of vGPUs of mixed sizes.


class _ListV1(ctypes.Structure):
    """nvmlVgpuPlacementList_v1_t of nvml.h.

    The caller's memory is read with the layout of C, not with the layout of
    pynvml: releases of pynvml differ in the order of the fields.
    """

    _fields_ = [('version', ctypes.c_uint),
                ('size', ctypes.c_uint),
                ('count', ctypes.c_uint),
                ('ids', ctypes.POINTER(ctypes.c_uint))]


class _ListV2(ctypes.Structure):
    """nvmlVgpuPlacementList_v2_t."""

    _fields_ = [*_ListV1._fields_, ('mode', ctypes.c_uint)]


def _placement_list(library, argument):
    """The caller's list, in the structure of its version."""
    argument = abi.target(argument)
    version = argument.version
    if version == pynvml.VgpuPlacementList_v1:
        return _ListV1.from_buffer(argument)
    if (version == pynvml.VgpuPlacementList_v2
            and library.machine.host.driver_since(565)):
        return _ListV2.from_buffer(argument)
    raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


def _time_sliced(library, handle, type_id):
    """A GPU and a vGPU type that has placements on the GPU."""
    gpu = vgpu_host(library, handle)
    kind = gpu.model.vgpu_type(
        vgpu_type(library, type_id).type_id)
    if (kind is None or gpu.vgpu_on_pf
            or not mig.supported(gpu.model, kind)):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu, kind


def _fill_places(wanted, gpu, kind, ids):
    """Fill the caller's list with placement ids.

    Version 1 has no length of the array: the array must have the length that
    nvmlVgpuTypeGetMaxInstances returns.
    """
    room = wanted.count if isinstance(wanted, _ListV2) else (
        kind.max_instances)
    wanted.count = len(ids)
    wanted.size = mig.size(gpu.model, kind)
    if ids:
        abi.array(wanted.ids, ctypes.c_uint, len(ids), room)[:] = ids


@abi.symbol('nvmlDeviceGetVgpuTypeSupportedPlacements')
def supported_places(library, handle, type_id, argument):
    gpu, kind = _time_sliced(library, handle, type_id)
    wanted = _placement_list(library, argument)
    mode = getattr(wanted, 'mode', pynvml.NVML_VGPU_PGPU_HETEROGENEOUS_MODE)
    if mode == pynvml.NVML_VGPU_PGPU_HOMOGENEOUS_MODE:
        # This is a separate capability (NVML_DEVICE_VGPU_CAP_HOMOGENEOUS_
        # PLACEMENTS), which GPUs have since Ada. The simulator has none.
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if mode != pynvml.NVML_VGPU_PGPU_HETEROGENEOUS_MODE:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    _fill_places(wanted, gpu, kind, mig.supported(gpu.model, kind))


@abi.symbol('nvmlDeviceGetVgpuTypeCreatablePlacements')
def creatable_places(library, handle, type_id, argument):
    gpu, kind = _time_sliced(library, handle, type_id)
    wanted = _placement_list(library, argument)
    if not gpu.state.heterogeneous:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    _fill_places(wanted, gpu, kind, mig.free(gpu, kind))


# NVML's calls about the scheduler of time-sliced vGPUs.
#
# The ranges and defaults are those of the vGPU guide (changing scheduling
# behavior for time-sliced vGPUs).
#
# A GPU instance that several vGPUs share has its own scheduler. nvml.h says of
# nvmlGpuInstanceSetVgpuSchedulerState: for Blackwell GB20x or newer; only
# while no virtual machine runs within the GPU instance; the setting is lost
# with the GPU instance and when the driver is unloaded.

_POLICIES = (pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT,
             pynvml.NVML_VGPU_SCHEDULER_POLICY_EQUAL_SHARE,
             pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE)
_ARR = (pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT,
        pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE,
        pynvml.NVML_VGPU_SCHEDULER_ARR_ENABLE)
_SLICES = (1_000_000, 30_000_000)
_SLICE = 2_000_000
"""The default time slice, in nanoseconds like all time slices."""
_AVERAGES = (1, 60)
_AVERAGE = 33
_FREQUENCIES = (63, 960)
_ENGINES = (pynvml.NVML_VGPU_SCHEDULER_ENGINE_TYPE_GRAPHICS, 2, 3)
"""NVML_VGPU_SCHEDULER_ENGINE_TYPE_*; pynvml 13.580 lacks the encoders."""


@abi.symbol('nvmlDeviceGetVgpuSchedulerCapabilities')
def capabilities(library, handle, info):
    vgpu_host(library, handle)
    info = abi.target(info)
    for position, policy in enumerate(_POLICIES):
        info.supportedSchedulers[position] = policy
    info.minTimeslice, info.maxTimeslice = _SLICES
    info.isArrModeSupported = 1
    info.minFrequencyForARR, info.maxFrequencyForARR = _FREQUENCIES
    info.minAvgFactorForARR, info.maxAvgFactorForARR = _AVERAGES


def _scheduled(library, handle):
    """The GPU of a handle, which must have time-sliced vGPUs."""
    gpu = vgpu_host(library, handle)
    if gpu.state.mig:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu


@abi.symbol('nvmlDeviceGetVgpuSchedulerState')
def scheduler_state(library, handle, info):
    _fill(abi.target(info), _scheduled(library, handle).state.scheduler)


def _fill(info, scheduler):
    """Write the scheduler's state of a GPU or of a GPU instance."""
    info.schedulerPolicy = scheduler.policy
    info.arrMode = scheduler.arr
    data = info.schedulerParams
    if scheduler.policy == pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT:
        # This policy has no time slices, so all their values are 0.
        data.vgpuSchedDataWithARR.avgFactor = 0
        data.vgpuSchedDataWithARR.timeslice = 0
    elif scheduler.arr == pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE:
        data.vgpuSchedData.timeslice = scheduler.time_slice or _SLICE
    else:
        data.vgpuSchedDataWithARR.avgFactor = _AVERAGE
        data.vgpuSchedDataWithARR.timeslice = _SLICE


@abi.symbol('nvmlDeviceSetVgpuSchedulerState', writes=True,
            privileged=True)
def set_state(library, handle, info):
    gpu = _scheduled(library, handle)
    wanted = _wanted(abi.target(info))
    if (gpu.state.heterogeneous and wanted.policy
            == pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE):
        # vGPUs of different sizes have no fixed shares.
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if any(vgpu.guest for vgpu in gpu.state.vgpus):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    gpu.state.scheduler = wanted


def _wanted(info):
    """The setting that the caller requests.

    The two forms of the parameters are a union: if a caller sets a time slice
    without disabling adaptive round robin, the value is read as an averaging
    factor.
    """
    policy, arr = info.schedulerPolicy, info.enableARRMode
    if policy not in _POLICIES or arr not in _ARR:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    if policy == pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT:
        return state_module.Scheduler()
    data = info.schedulerParams
    if arr == pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE:
        return state_module.Scheduler(
            policy, arr,
            time_slice=_within(data.vgpuSchedData.timeslice, _SLICES))
    # The simulator keeps the defaults of adaptive round robin.
    _within(data.vgpuSchedDataWithARR.avgFactor, _AVERAGES)
    _within(data.vgpuSchedDataWithARR.frequency, _FREQUENCIES)
    return state_module.Scheduler(
        policy, pynvml.NVML_VGPU_SCHEDULER_ARR_ENABLE)


def _within(value, bounds):
    """Return ``value`` if it is within the bounds, or 0 for the default."""
    if value and not bounds[0] <= value <= bounds[1]:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return value


def _shared(library, handle, info, version):
    """The GPU and the GPU instance of a handle, and the structure.

    :raises Refused: NOT_SUPPORTED if no vGPU type shares such a GPU
        instance, or for an engine without a software scheduler: nvml.h
        says that a GPU instance may have a subset of the engines.
    """
    gpu, number, instance = library.instance(handle)
    info = abi.versioned(info, version)
    if info.engineId not in _ENGINES:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    if (info.engineId != pynvml.NVML_VGPU_SCHEDULER_ENGINE_TYPE_GRAPHICS
            or gpu.framework == spec.NO_FRAMEWORK
            or not any(kind.profile_id == instance.profile_id
                       and (kind.per_instance or 0) > 1
                       for kind in gpu.model.vgpu_types)):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu, number, instance, info


@abi.symbol('nvmlGpuInstanceGetVgpuSchedulerState')
def instance_state(library, handle, info):
    _gpu, _number, instance, info = _shared(
        library, handle, info, pynvml.nvmlVgpuSchedulerStateInfo_v1)
    _fill(info, instance.scheduler)


@abi.symbol('nvmlGpuInstanceSetVgpuSchedulerState', writes=True,
            privileged=True)
def set_instance_state(library, handle, info):
    gpu, number, instance, info = _shared(
        library, handle, info, pynvml.nvmlVgpuSchedulerState_v1)
    wanted = _wanted(info)
    if any(vgpu.guest for vgpu in gpu.state.vgpus
           if vgpu.instance == number):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    instance.scheduler = wanted
