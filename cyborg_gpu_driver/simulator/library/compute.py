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

"""NVML's calls about compute instances."""

from __future__ import annotations

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator.driver import mig as rules
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.library import mig as library_mig

Refused = refusal.Refused
_REV1 = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1


def _known(gpu, instance, number):
    """The profile with an id, as capacity and instance calls take it."""
    profile = rules.compute_profile(gpu, instance, abi.number(number))
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return profile


def _enumerated(library, handle, number, engines):
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


def _fill(info, parent, profile):
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


@abi.symbol('nvmlGpuInstanceGetComputeInstanceProfileInfo')
def profile_info(library, handle, number, engines, info):
    parent, profile = _enumerated(library, handle, number, engines)
    _fill(abi.target(info), parent, profile)


@abi.symbol('nvmlGpuInstanceGetComputeInstanceProfileInfoV')
def profile_info_v(library, handle, number, engines, info):
    parent, profile = _enumerated(library, handle, number, engines)
    info = abi.target(info)
    if info.version != pynvml.nvmlComputeInstanceProfileInfo_v2:
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    _fill(info, parent, profile)
    name = parent.name
    if profile.slices != parent.slices:
        name = f'{profile.slices}c.{name}'
    if profile.enum == _REV1 and '+' not in name:
        name += '+me'
    info.name = f'MIG {name}'.encode()


@abi.symbol('nvmlGpuInstanceGetComputeInstanceRemainingCapacity',
            privileged=True)
def remaining_capacity(library, handle, number, count):
    gpu, _, instance = library.instance(handle)
    abi.put(count, rules.compute_remaining(
        gpu, instance, _known(gpu, instance, number)))


@abi.symbol('nvmlGpuInstanceGetComputeInstancePossiblePlacements',
            privileged=True)
def possible_placements(library, handle, number, placements, count):
    gpu, _, instance = library.instance(handle)
    profile = _known(gpu, instance, number)
    library_mig.put_placements(
        placements, count, rules.compute_starts(gpu, instance, profile),
        profile.slices, pynvml.c_nvmlComputeInstancePlacement_t)


@abi.symbol('nvmlGpuInstanceCreateComputeInstance', writes=True,
            privileged=True)
def create(library, handle, number, compute):
    gpu, instance_id, _ = library.instance(handle)
    abi.target(compute)
    abi.put_handle(compute, library.compute_handle(
        gpu, instance_id, rules.create_compute(
            gpu, instance_id, abi.number(number))))


@abi.symbol('nvmlGpuInstanceCreateComputeInstanceWithPlacement',
            writes=True, privileged=True)
def create_with_placement(library, handle, number, placement, compute):
    gpu, instance_id, _ = library.instance(handle)
    abi.target(compute)
    placement = abi.target(placement)
    abi.put_handle(compute, library.compute_handle(
        gpu, instance_id, rules.create_compute(
            gpu, instance_id, abi.number(number),
            (placement.start, placement.size))))


@abi.symbol('nvmlComputeInstanceDestroy', writes=True,
            privileged=True)
def destroy(library, handle):
    rules.destroy_compute(*library.compute(handle))


@abi.symbol('nvmlGpuInstanceGetComputeInstances', privileged=True)
def instances(library, handle, number, array, count):
    gpu, instance_id, instance = library.instance(handle)
    profile = _known(gpu, instance, number)
    library_mig.put_handles(array, count, [
        library.compute_handle(gpu, instance_id, compute_id)
        for compute_id, compute in sorted(instance.compute.items())
        if compute.profile_id == profile.enum])


@abi.symbol('nvmlGpuInstanceGetComputeInstanceById', privileged=True)
def instance_by_id(library, handle, number, compute):
    gpu, instance_id, instance = library.instance(handle)
    compute_id = abi.number(number)
    if compute_id not in instance.compute:
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    abi.put_handle(compute, library.compute_handle(
        gpu, instance_id, compute_id))


@abi.symbol('nvmlComputeInstanceGetInfo_v2')
def info_of(library, handle, info):
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
