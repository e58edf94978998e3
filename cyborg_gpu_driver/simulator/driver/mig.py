# SPDX-License-Identifier: Apache-2.0

"""The driver's rules for MIG: mode, GPU instances, compute instances."""

from __future__ import annotations

import errno
import itertools

import pynvml

from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module

Refused = faults.Refused


def set_mode(gpu: gpu_module.Gpu, enable: bool) -> int:
    """Request a MIG mode; return the activation status (nvmlReturn_t).

    See nvmlDeviceSetMigMode in nvml.h. On Ampere the call resets the GPU
    itself, so that handles die. If another process has the GPU open, the mode
    remains pending, with IN_USE. A virtual machine cannot reset a GPU that
    was passed to it: RESET_REQUIRED until it is started again. Hopper and
    later need no reset, and only computing processes keep the mode pending
    (MIG user guide, "Enable MIG Mode").
    """
    mig = gpu.mig()
    state = gpu.state
    if enable == state.mig:
        state.pending = enable
        return pynvml.NVML_SUCCESS
    if state.vgpus or not enable and (state.instances or state.vfs):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    state.pending = enable
    if not mig.needs_reset:
        if state.processes:
            return pynvml.NVML_ERROR_IN_USE
        state.mig = enable
        return pynvml.NVML_SUCCESS
    if gpu.machine.host.virtual:
        return pynvml.NVML_ERROR_RESET_REQUIRED
    if state.vfs or gpu.held_by_others():
        return pynvml.NVML_ERROR_IN_USE
    if not gpu_module.fabric_allows(gpu):
        # No public source says what NVML returns here.
        return pynvml.NVML_ERROR_UNKNOWN
    gpu_module.done(gpu)
    return pynvml.NVML_SUCCESS


def enabled(gpu: gpu_module.Gpu) -> spec.Mig:
    """The MIG capabilities of a GPU, which must be in MIG mode."""
    mig = gpu.mig()
    if not gpu.state.mig:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return mig


def profile_by_id(mig: spec.Mig, profile_id: int) -> spec.InstanceProfile:
    """The profile with one of the board's profile ids."""
    profile = mig.by_id(profile_id)
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return profile


def _units(start, size):
    return ((1 << size) - 1) << start


def _occupied(gpu):
    mask = 0
    for instance in gpu.state.instances.values():
        mask |= _units(instance.start, instance.size)
    return mask


def _has_room(gpu, mig, profile):
    """Whether the profile's maximum and the media engines allow one more.

    The engines of the GPU are divided among the instances. This alone limits
    +me to one instance, and makes +me.all exclude all profiles except -me.
    """
    others = [mig.by_id(instance.profile_id)
              for instance in gpu.state.instances.values()]
    return others.count(profile) < profile.max_instances and all(
        getattr(profile, engine)
        + sum(getattr(other, engine) for other in others)
        <= mig.engines(engine)
        for engine in spec.ENGINES if getattr(profile, engine))


def create(gpu: gpu_module.Gpu, profile_id: int,
           placement: tuple[int, int] | None = None) -> int:
    """Create a GPU instance; return its id.

    :param placement: start and size; None for the driver's own choice.
    """
    mig = enabled(gpu)
    profile = profile_by_id(mig, profile_id)
    if placement is None:
        starts = profile.order
    else:
        start, size = placement
        if size != profile.size or start not in profile.starts:
            raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        starts = (start,)
    mask = _occupied(gpu)
    free = [start for start in starts
            if not mask & _units(start, profile.size)]
    if not free or not _has_room(gpu, mig, profile):
        raise Refused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    # As seen on real boards, ids number the nodes of a binary heap over the
    # grid: the whole is 0, the halves are 1 and 2, and so on.
    instance_id = mig.units // profile.size - 1 + free[0] // profile.size
    gpu.state.instances[instance_id] = state_module.Instance(
        profile_id=profile_id, start=free[0], size=profile.size,
        serial=gpu.machine.state.number())
    return instance_id


def destroy(gpu: gpu_module.Gpu, instance_id: int) -> None:
    """Destroy a GPU instance."""
    state = gpu.state
    if (state.instances[instance_id].compute
            or any(process.instance == instance_id
                   for process in state.processes)
            or any(vgpu.instance == instance_id for vgpu in state.vgpus)):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    del state.instances[instance_id]


def compute_profile(gpu: gpu_module.Gpu, instance: state_module.Instance,
                    number: int) -> spec.ComputeProfile | None:
    """A compute instance profile by its index, which is also its id."""
    profiles = gpu.mig().compute_profiles[_slices(gpu, instance)]
    return next((profile for profile in profiles
                 if profile.enum == number), None)


def compute_starts(gpu: gpu_module.Gpu, instance: state_module.Instance,
                   profile: spec.ComputeProfile) -> list[int]:
    """The compute slices at which compute instances start, end to end."""
    starts = range(0, _slices(gpu, instance) - profile.slices + 1,
                   profile.slices)
    return list(starts)[:profile.max_instances]


def _slices(gpu: gpu_module.Gpu, instance: state_module.Instance) -> int:
    profile = gpu.mig().by_id(instance.profile_id)
    assert profile is not None  # An instance has a profile of its board.
    return profile.slices


def _free_compute_starts(gpu, instance, profile):
    mask = 0
    for compute in instance.compute.values():
        mask |= _units(compute.start, compute.size)
    return [start for start in compute_starts(gpu, instance, profile)
            if not mask & _units(start, profile.slices)]


def create_compute(gpu: gpu_module.Gpu, instance_id: int, number: int,
                   placement: tuple[int, int] | None = None) -> int:
    """Create a compute instance in a GPU instance; return its id."""
    instance = gpu.state.instances[instance_id]
    profile = compute_profile(gpu, instance, number)
    if profile is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    free = _free_compute_starts(gpu, instance, profile)
    if placement is not None:
        start, size = placement
        if (size != profile.slices or start not in
                compute_starts(gpu, instance, profile)):
            raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        free = [start] if start in free else []
    if not free:
        raise Refused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    compute_id = next(number for number in range(len(instance.compute) + 1)
                      if number not in instance.compute)
    serial = gpu.machine.state.number()
    # The UUID is new each time, even for the same placement.
    instance.compute[compute_id] = state_module.ComputeInstance(
        profile_id=profile.enum, start=free[0], size=profile.slices,
        uuid='MIG-' + files.made_up_uuid(gpu.spec.uuid, serial),
        serial=serial)
    return compute_id


def destroy_compute(gpu: gpu_module.Gpu, instance_id: int,
                    compute_id: int) -> None:
    """Destroy a compute instance."""
    if any(process.instance == instance_id
           and process.compute == compute_id
           for process in gpu.state.processes):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    del gpu.state.instances[instance_id].compute[compute_id]


# The placement of vGPUs of mixed sizes (vGPU guide, mixed-size mode).
#
# The GPU's framebuffer is a region of slots of one GiB. A vGPU takes as many
# slots as its framebuffer has GiB. It can start only at some of the slots; the
# number of the first slot is its placement id.
#
# The rules are those of src/nvidia/src/kernel/virtualization/kernel_vgpu_mgr.c
# in NVIDIA's open kernel modules 595.45.04; each function names its source.

_SLOT_MIB = 1024
_WISH = 'vgpu-placement-id'


def size(model: spec.Model, kind: spec.VgpuType) -> int:
    """The number of slots that a vGPU of a type takes.

    A GPU of 96 GiB holds at most 32 vGPUs, so one of 2 GiB takes three slots
    (_kvgpumgrGetplacementSize).
    """
    slots = kind.framebuffer_mib // _SLOT_MIB
    return 3 if (model.placement_region, slots) == (96, 2) else slots


def supported(model: spec.Model, kind: spec.VgpuType) -> tuple[int, ...]:
    """All placement ids that a vGPU of a type can have, ascending."""
    if model.placement_region is None or kind.profile_id is not None:
        return ()
    if model.architecture >= pynvml.NVML_DEVICE_ARCH_BLACKWELL:
        # _kvgpumgrSetHeterogeneousResources_GB100
        return tuple(model.placement_region * number // kind.max_instances
                     for number in range(kind.max_instances))
    return tuple(start for start in _halved(model, kind)
                 if not _is_denied(model, kind, start))


def _halved(model, kind):
    """The placement ids before Blackwell.

    The region is halved until a part holds two vGPUs of the type, at its
    ends. If their largest number is not a power of two, the next lower one
    counts, and the parts hold one each: at the beginning of a left half and
    at the end of a right half (_kvgpumgrSetHeterogeneousResources).
    """
    most = kind.max_instances
    power = 1 << most.bit_length() - 1
    pairs = most == power > 1
    edges = [0, model.placement_region]
    while len(edges) <= (power // 2 if pairs else power):
        edges = sorted([*edges, *((low + high) // 2 for low, high
                                  in itertools.pairwise(edges))])
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        if pairs or not number % 2:
            yield low
        if pairs or number % 2:
            yield high - size(model, kind)


def _is_denied(model, kind, start):
    """Whether a vGPU of 1 GiB would overlap its neighbour's framebuffer.

    On GPUs that have more than 1 GiB for each of its vGPUs, the driver takes
    nothing from them for itself (_kvgpumgrIsPlacementValid).
    """
    slots = size(model, kind)
    if slots > 1 or kind.max_instances * slots == model.placement_region:
        return False
    if model.architecture >= pynvml.NVML_DEVICE_ARCH_ADA:
        return start % 6 in (2, 3)
    return start % 24 == 8


def free(gpu: gpu_module.Gpu, kind: spec.VgpuType,
         but: state_module.Vgpu | None = None) -> list[int]:
    """The placement ids of a type that no vGPU overlaps now.

    :param but: a vGPU that is ignored.
    """
    model = gpu.model
    slots = size(model, kind)
    taken = [(vgpu.placement, size(model, _kind(gpu, vgpu)))
             for vgpu in gpu.state.vgpus if vgpu is not but]
    return [start for start in supported(model, kind)
            if all(start + slots <= other or other + length <= start
                   for other, length in taken)]


def settle(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> None:
    """Place a vGPU at the requested placement, or at the driver's choice.

    The driver chooses the lowest free placement if the requested one is not
    free, or if none is requested.
    """
    places = free(gpu, _kind(gpu, vgpu), vgpu)
    wish = _wish(vgpu)
    vgpu.placement = wish if wish in places else places[0]


def check(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> None:
    """Place a vGPU permanently, when its virtual machine starts.

    :raises OSError: EINVAL if its type cannot have the requested placement,
        or mixed-size mode is off; EBUSY if another vGPU overlaps.
    """
    wish = _wish(vgpu)
    if wish is None:
        return
    kind = _kind(gpu, vgpu)
    if (not gpu.state.heterogeneous
            or wish not in supported(gpu.model, kind)):
        raise OSError(errno.EINVAL, f'{_WISH} is not valid', vgpu.function)
    if wish not in free(gpu, kind, vgpu):
        raise OSError(errno.EBUSY, f'{_WISH} is taken', vgpu.function)
    vgpu.placement = wish


def _kind(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> spec.VgpuType:
    kind = gpu.model.vgpu_type(vgpu.type_id)
    assert kind is not None  # A vGPU has a type of its board.
    return kind


def _wish(vgpu):
    """The requested placement; None without one, -1 if it is not a number."""
    params = dict(param.strip().split('=')
                  for param in vgpu.params.split(',') if param)
    wish = params.get(_WISH)
    if wish is None:
        return None
    return int(wish) if wish.isdecimal() else -1
