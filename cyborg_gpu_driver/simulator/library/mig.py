# SPDX-License-Identifier: Apache-2.0

"""NVML's calls about MIG mode, instances and MIG devices."""

from __future__ import annotations

import ctypes

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator.driver import mig as rules
from cyborg_gpu_driver.simulator.library import device as library_device

Refused = faults.Refused
_VERSIONS = (2, 3)
_PROFILES_OF_580 = 17
"""Driver 580.159.04 says INVALID_ARGUMENT of index 17, seen on an H100 and an
H200."""
_PEER = 0x1
"""NVML_GPU_INSTANCE_PROFILE_CAPS_P2P."""


@abi.symbol('nvmlDeviceSetMigMode', writes=True, privileged=True)
def set_mode(library, handle, mode, activation):
    gpu = library.gpu(handle)
    gpu.mig()
    enable = abi.switch(mode)
    abi.target(activation)
    abi.put(activation, rules.set_mode(gpu, enable))


def _enumerated(library, handle, number):
    """The profile of an index.

    :raises Refused: NOT_SUPPORTED for a gap in NVML's list of profiles,
        INVALID_ARGUMENT for an index outside of the list.
    """
    gpu = library.gpu(handle)
    mig = gpu.mig()
    value = abi.number(number)
    if not 0 <= value < _profile_count(gpu.machine.host.driver_version):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    profile = mig.by_enum(value)
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return profile


def _profile_count(driver_version):
    """The length of NVML's list of profiles, which grows with the driver."""
    if int(driver_version.partition('.')[0]) <= 580:
        return _PROFILES_OF_580
    return pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT


def _fill(info, profile):
    info.id = profile.profile_id
    info.sliceCount = profile.slices
    info.instanceCount = profile.max_instances
    info.multiprocessorCount = profile.multiprocessors
    info.copyEngineCount = profile.copy_engines
    info.decoderCount = profile.decoders
    info.encoderCount = profile.encoders
    info.jpegCount = profile.jpeg
    info.ofaCount = profile.ofa
    info.memorySizeMB = profile.memory_mib


@abi.symbol('nvmlDeviceGetGpuInstanceProfileInfo')
def profile_info(library, handle, number, info):
    profile = _enumerated(library, handle, number)
    info = abi.target(info)
    _fill(info, profile)
    info.isP2pSupported = profile.capabilities & _PEER


@abi.symbol('nvmlDeviceGetGpuInstanceProfileInfoV')
def profile_info_v(library, handle, number, info):
    _fill_versioned(info, _enumerated(library, handle, number))


@abi.symbol('nvmlDeviceGetGpuInstanceProfileInfoByIdV')
def profile_info_by_id(library, handle, profile_id, info):
    gpu = library.gpu(handle)
    _fill_versioned(info, rules.profile_by_id(gpu.mig(),
                                              abi.number(profile_id)))


def _fill_versioned(info, profile):
    """Fill a structure of version 2, which has a name, or of version 3.

    Version 3 has capabilities instead of peer access.
    """
    info = abi.target(info)
    version = info.version >> 24
    if (version not in _VERSIONS
            or info.version & 0xffffff != ctypes.sizeof(info)):
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    _fill(info, profile)
    if version == 3:
        info.capabilities = profile.capabilities
    else:
        info.isP2pSupported = profile.capabilities & _PEER
    info.name = f'MIG {profile.name}'.encode()
    # Seen on an H100 and an H200, driver 580.159.04.
    info.version = 0


@abi.symbol('nvmlDeviceGetGpuInstancePossiblePlacements_v2',
            privileged=True)
def possible_placements(library, handle, profile_id, placements, count):
    gpu = library.gpu(handle)
    profile = rules.profile_by_id(gpu.mig(), abi.number(profile_id))
    put_placements(placements, count, profile.starts, profile.size,
                   pynvml.c_nvmlGpuInstancePlacement_t)


def put_placements(placements, count, starts, size, kind):
    """Fill placements; with NULL, only their number."""
    count = abi.target(count)
    if placements is not None:
        array = abi.array(placements, kind, len(starts), count.value)
        for position, start in enumerate(starts):
            array[position].start = start
            array[position].size = size
    count.value = len(starts)


@abi.symbol('nvmlDeviceGetGpuInstanceRemainingCapacity', privileged=True)
def remaining_capacity(library, handle, profile_id, count):
    gpu = library.gpu(handle)
    number = abi.number(profile_id)
    abi.put(count, rules.profile_by_id(gpu.mig(), number).max_instances
            if _answers_outside(gpu) else rules.remaining(gpu, number))


def _answers_outside(gpu):
    """Whether a GPU has MIG mode off and still answers about instances.

    Seen on an H100 and an H200, driver 580.159.04: the capacity of an empty
    GPU, no instances, and 1 for the field
    IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE.
    No public source says it of Ampere.
    """
    return (not gpu.state.mig
            and gpu.model.architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER)


@abi.symbol('nvmlDeviceCreateGpuInstance', writes=True, privileged=True)
def create(library, handle, profile_id, instance):
    gpu = library.gpu(handle)
    abi.target(instance)
    _put_created(library, gpu, instance, rules.create(
        gpu, abi.number(profile_id)))


@abi.symbol('nvmlDeviceCreateGpuInstanceWithPlacement', writes=True,
            privileged=True)
def create_with_placement(library, handle, profile_id, placement, instance):
    gpu = library.gpu(handle)
    abi.target(instance)
    placement = abi.target(placement)
    _put_created(library, gpu, instance, rules.create(
        gpu, abi.number(profile_id), (placement.start, placement.size)))


def _put_created(library, gpu, instance, instance_id):
    abi.put_handle(instance, library.instance_handle(gpu, instance_id))
    if library.machine.faults.vanishes(gpu.address):
        rules.destroy(gpu, instance_id)


@abi.symbol('nvmlGpuInstanceDestroy', writes=True, privileged=True)
def destroy(library, handle):
    gpu, instance_id, _ = library.instance(handle)
    rules.destroy(gpu, instance_id)


@abi.symbol('nvmlDeviceGetGpuInstances', privileged=True)
def instances(library, handle, profile_id, array, count):
    gpu = library.gpu(handle)
    number = abi.number(profile_id)
    mig = gpu.mig() if _answers_outside(gpu) else rules.enabled(gpu)
    rules.profile_by_id(mig, number)
    found = [instance_id for instance_id, instance
             in sorted(gpu.state.instances.items())
             if instance.profile_id == number]
    put_handles(array, count, [library.instance_handle(gpu, instance_id)
                               for instance_id in found])


def put_handles(array, count, values):
    """Fill an array of handles.

    The count is only an output. The caller knows the necessary length of the
    array from the profile. The length of Python's own arrays is checked.
    """
    count = abi.target(count)
    kind = pynvml.c_nvmlGpuInstance_t
    memory_ = abi.array(array, kind, len(values))
    for position, value in enumerate(values):
        memory_[position] = abi.as_handle(value, kind)
    count.value = len(values)


@abi.symbol('nvmlDeviceGetGpuInstanceById', privileged=True)
def instance_by_id(library, handle, number, instance):
    gpu = library.gpu(handle)
    if not _answers_outside(gpu):
        rules.enabled(gpu)
    instance_id = abi.number(number)
    if instance_id not in gpu.state.instances:
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    abi.put_handle(instance, library.instance_handle(gpu, instance_id))


@abi.symbol('nvmlGpuInstanceGetInfo')
def instance_info(library, handle, info):
    gpu, instance_id, instance = library.instance(handle)
    info = abi.target(info)
    info.device = abi.as_handle(library.handle_of(gpu),
                                pynvml.c_nvmlDevice_t)
    info.id = instance_id
    info.profileId = instance.profile_id
    info.placement.start = instance.start
    info.placement.size = instance.size


def _mig_device(library, handle):
    gpu, ids = library.device(handle)
    if ids is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return gpu, ids


@abi.symbol('nvmlDeviceGetMigDeviceHandleByIndex')
def mig_device_by_index(library, handle, index, device):
    gpu = library.gpu(handle)
    mig = rules.enabled(gpu)
    number = abi.number(index)
    if number >= max(profile.max_instances for profile in mig.profiles):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    devices = [(instance_id, compute_id)
               for instance_id, instance
               in sorted(gpu.state.instances.items())
               for compute_id in sorted(instance.compute)]
    if number >= len(devices):
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    abi.put_handle(device, library.compute_handle(
        gpu, *devices[number], 'mig'))


@abi.symbol('nvmlDeviceGetDeviceHandleFromMigDeviceHandle')
def parent_device(library, handle, device):
    gpu, _ = _mig_device(library, handle)
    abi.put_handle(device, library.handle_of(gpu))


def _mode(gpu):
    gpu.mig()
    return gpu.state.mig, gpu.state.pending


def _max_devices(gpu):
    # nvml.h: "Returns zero if MIG is not supported or enabled."
    return max(profile.max_instances for profile in gpu.model.mig.profiles
               ) if gpu.state.mig else 0


abi.numbers(library_device.gpu_of, {
    'nvmlDeviceGetMigMode': _mode,
    'nvmlDeviceGetMaxMigDeviceCount': _max_devices})
abi.numbers(_mig_device, {
    'nvmlDeviceGetGpuInstanceId': lambda device: device[1][0],
    'nvmlDeviceGetComputeInstanceId': lambda device: device[1][1]})


# NVML's calls about compute instances.
_REV1 = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1


def _compute_known(gpu, instance, number):
    """The profile with an id, as capacity and instance calls take it."""
    profile = rules.compute_profile(gpu, instance, abi.number(number))
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return profile


def _compute_enumerated(library, handle, number, engines):
    gpu, _, instance = library.instance(handle)
    value = abi.number(number)
    if (not 0 <= value < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
            or abi.number(engines) !=
            pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    profile = rules.compute_profile(gpu, instance, value)
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu.mig().by_id(instance.profile_id), profile


def _compute_fill(info, parent, profile):
    info.id = profile.enum
    info.sliceCount = profile.slices
    info.instanceCount = profile.max_instances
    info.multiprocessorCount = (
        parent.multiprocessors * profile.slices // parent.slices)
    library_device.put_shared_engines(info, parent)


@abi.symbol('nvmlGpuInstanceGetComputeInstanceProfileInfo')
def compute_profile_info(library, handle, number, engines, info):
    parent, profile = _compute_enumerated(library, handle, number, engines)
    _compute_fill(abi.target(info), parent, profile)


@abi.symbol('nvmlGpuInstanceGetComputeInstanceProfileInfoV')
def compute_profile_info_v(library, handle, number, engines, info):
    parent, profile = _compute_enumerated(library, handle, number, engines)
    info = abi.versioned(info, pynvml.nvmlComputeInstanceProfileInfo_v2)
    _compute_fill(info, parent, profile)
    name = parent.name
    if profile.slices != parent.slices:
        name = f'{profile.slices}c.{name}'
    if profile.enum == _REV1 and '+' not in name:
        name += '+me'
    info.name = f'MIG {name}'.encode()


@abi.symbol('nvmlGpuInstanceGetComputeInstanceRemainingCapacity',
            privileged=True)
def compute_remaining_capacity(library, handle, number, count):
    gpu, _, instance = library.instance(handle)
    abi.put(count, rules.compute_remaining(
        gpu, instance, _compute_known(gpu, instance, number)))


@abi.symbol('nvmlGpuInstanceGetComputeInstancePossiblePlacements',
            privileged=True)
def compute_possible_placements(library, handle, number, placements, count):
    gpu, _, instance = library.instance(handle)
    profile = _compute_known(gpu, instance, number)
    put_placements(
        placements, count, rules.compute_starts(gpu, instance, profile),
        profile.slices, pynvml.c_nvmlComputeInstancePlacement_t)


@abi.symbol('nvmlGpuInstanceCreateComputeInstance', writes=True,
            privileged=True)
def compute_create(library, handle, number, compute):
    gpu, instance_id, _ = library.instance(handle)
    abi.target(compute)
    abi.put_handle(compute, library.compute_handle(
        gpu, instance_id, rules.create_compute(
            gpu, instance_id, abi.number(number))))


@abi.symbol('nvmlGpuInstanceCreateComputeInstanceWithPlacement',
            writes=True, privileged=True)
def compute_create_with_placement(library, handle, number, placement, compute):
    gpu, instance_id, _ = library.instance(handle)
    abi.target(compute)
    placement = abi.target(placement)
    abi.put_handle(compute, library.compute_handle(
        gpu, instance_id, rules.create_compute(
            gpu, instance_id, abi.number(number),
            (placement.start, placement.size))))


@abi.symbol('nvmlComputeInstanceDestroy', writes=True,
            privileged=True)
def compute_destroy(library, handle):
    rules.destroy_compute(*library.compute(handle))


@abi.symbol('nvmlGpuInstanceGetComputeInstances', privileged=True)
def compute_instances(library, handle, number, array, count):
    gpu, instance_id, instance = library.instance(handle)
    profile = _compute_known(gpu, instance, number)
    put_handles(array, count, [
        library.compute_handle(gpu, instance_id, compute_id)
        for compute_id, compute in sorted(instance.compute.items())
        if compute.profile_id == profile.enum])


@abi.symbol('nvmlGpuInstanceGetComputeInstanceById', privileged=True)
def compute_instance_by_id(library, handle, number, compute):
    gpu, instance_id, instance = library.instance(handle)
    compute_id = abi.number(number)
    if compute_id not in instance.compute:
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    abi.put_handle(compute, library.compute_handle(
        gpu, instance_id, compute_id))


@abi.symbol('nvmlComputeInstanceGetInfo_v2')
def compute_info_of(library, handle, info):
    gpu, instance_id, compute_id = library.compute(handle)
    compute = gpu.state.instances[instance_id].compute[compute_id]
    info = abi.target(info)
    info.device = abi.as_handle(
        library.compute_handle(gpu, instance_id, compute_id, 'mig'),
        pynvml.c_nvmlDevice_t)
    info.gpuInstance = abi.as_handle(
        library.instance_handle(gpu, instance_id),
        pynvml.c_nvmlGpuInstance_t)
    info.id = compute_id
    info.profileId = compute.profile_id
    info.placement.start = compute.start
    info.placement.size = compute.size
