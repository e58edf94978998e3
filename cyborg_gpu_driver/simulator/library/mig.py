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


@abi.symbol('nvmlDeviceGetGpuInstanceProfileInfo',
            'nvmlDeviceGetGpuInstanceProfileInfoV')
def profile_info(library, handle, number, info):
    """Fill a structure of version 1, or of a later one, which has a name.

    Version 3 has capabilities instead of peer access. NOT_SUPPORTED is a gap
    in NVML's list of profiles.
    """
    gpu = library.gpu(handle)
    mig = gpu.mig()
    number = abi.number(number)
    # The list of profiles grows with the driver.
    if not 0 <= number < (pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
                          if gpu.machine.host.driver_since(581)
                          else _PROFILES_OF_580):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    profile = mig.by_enum(number)
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    info = abi.target(info)
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
    if isinstance(info, pynvml.c_nvmlGpuInstanceProfileInfo_t):
        info.isP2pSupported = profile.capabilities & _PEER
        return
    version = info.version >> 24
    if (version not in _VERSIONS
            or info.version & 0xffffff != ctypes.sizeof(info)):
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
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
    count = abi.target(count)
    # With NULL, only the number is filled in.
    if placements is not None:
        array = abi.array(placements, pynvml.c_nvmlGpuInstancePlacement_t,
                          len(profile.starts), count.value)
        for position, start in enumerate(profile.starts):
            array[position].start = start
            array[position].size = profile.size
    count.value = len(profile.starts)


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
    _put_handles(array, count, [library.instance_handle(gpu, instance_id)
                               for instance_id in found])


def _put_handles(array, count, values):
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
    'nvmlDeviceGetGpuInstanceId': lambda device: device[1][0]})


# NVML's calls about compute instances.
_REV1 = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1


def _compute_known(gpu, instance, number):
    """The profile with an id, as capacity and instance calls take it."""
    profile = rules.compute_profile(gpu, instance, abi.number(number))
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return profile


@abi.symbol('nvmlGpuInstanceGetComputeInstanceProfileInfo',
            'nvmlGpuInstanceGetComputeInstanceProfileInfoV')
def compute_profile_info(library, handle, number, engines, info):
    gpu, _, instance = library.instance(handle)
    number = abi.number(number)
    if (not 0 <= number < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
            or abi.number(engines) !=
            pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    profile = rules.compute_profile(gpu, instance, number)
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    parent = gpu.mig().by_id(instance.profile_id)
    info = abi.target(info)
    info.id = profile.enum
    info.sliceCount = profile.slices
    info.instanceCount = profile.max_instances
    info.multiprocessorCount = (
        parent.multiprocessors * profile.slices // parent.slices)
    info.sharedCopyEngineCount = parent.copy_engines
    info.sharedDecoderCount = parent.decoders
    info.sharedEncoderCount = parent.encoders
    info.sharedJpegCount = parent.jpeg
    info.sharedOfaCount = parent.ofa
    if isinstance(info, pynvml.c_nvmlComputeInstanceProfileInfo_t):
        return
    info = abi.versioned(info, pynvml.nvmlComputeInstanceProfileInfo_v2)
    name = parent.name
    if profile.slices != parent.slices:
        name = f'{profile.slices}c.{name}'
    if profile.enum == _REV1 and '+' not in name:
        name += '+me'
    info.name = f'MIG {name}'.encode()


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
    _put_handles(array, count, [
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
