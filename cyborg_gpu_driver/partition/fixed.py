# SPDX-License-Identifier: Apache-2.0

"""Which virtual function carries which fixed vGPU: pure.

This is for GPUs of vendor VFIO. The agent creates their vGPUs when it starts
and leaves them to Nova's own PCI code. Nova knows a function by its address,
so a function that had a type keeps it as long as the policy wants that type.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import plan as partition_plan
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_type

_Refuse = Callable[[str], exception.InvalidConfiguration]
_Given = dict[model.VirtualFunction, model.VgpuType]


@dataclasses.dataclass(frozen=True)
class FixedPlan:
    """All fixed vGPUs of one GPU."""

    vgpus: tuple[spec.VgpuSpec, ...] = ()
    """The wanted vGPUs, existing or not, by virtual function."""
    instances: tuple[spec.MigInstanceSpec, ...] = ()
    """The GPU instances that do not exist yet."""


def is_left(gpu: model.Gpu, policy: policies.Policy) -> bool:
    """Whether Nova, not Cyborg, hands out the vGPUs of a GPU."""
    return (bool(policy.fixed_vgpus)
            and gpu.framework is model.Framework.VENDOR_VFIO)


def plan(gpu: model.Gpu, policy: policies.Policy,
         remembered: Mapping[model.PciAddress, str]) -> FixedPlan:
    """Decide which virtual function of ``gpu`` carries which fixed vGPU.

    A wanted vGPU that exists keeps its function, whatever created it. Then
    each empty function gets the wanted type that it had before. The rest
    take the lowest empty functions, in the policy's order. A vGPU that
    exists and is not wanted is also kept.

    :param remembered: the type (name or mdev type) that each function had.
    :returns: an empty plan for a GPU that makes vGPUs through mdev.
    :raises InvalidConfiguration: if they do not all fit, with the reason.
    """
    if not policy.fixed_vgpus or gpu.framework in (
            model.Framework.MDEV_PF, model.Framework.MDEV_VF):
        return FixedPlan()
    refuse = functools.partial(_refusal, gpu, policy)
    wanted = _wanted(gpu, policy, refuse)
    given = _assign(gpu, wanted, remembered, refuse)
    if policy.mode is policies.Mode.MIG:
        return FixedPlan(_listed(given), _instances(gpu, given, refuse))
    if policy.mixed_sizes:
        return FixedPlan(_listed(given, _places(gpu, given, refuse)))
    _check_one_size(gpu, given, refuse)
    return FixedPlan(_listed(given))


def surplus(gpu: model.Gpu, policy: policies.Policy | None,
            remembered: Mapping[model.PciAddress, str]
            ) -> tuple[model.PciAddress, ...]:
    """Return the functions whose fixed vGPU is no longer wanted.

    If fewer vGPUs of a type are wanted, these are the last functions.

    :param remembered: as for :func:`plan`. A vGPU that is not the remembered
        one is never surplus, because another tool created it.
    """
    known = vgpu_type.by_id(gpu)
    left: collections.Counter[model.VgpuType] = collections.Counter()
    for text, number in policy.fixed_vgpus if policy else ():
        for entry in known.values():
            if entry.is_called(text):
                left[entry] += number
    found = []
    for function in _functions(gpu):
        carried = known.get(_carried(function))
        if carried is not None:
            left[carried] -= 1
            if left[carried] < 0 and carried.is_called(
                    remembered.get(function.address, '')):
                found.append(function.address)
    return tuple(found)


def _refusal(gpu: model.Gpu, policy: policies.Policy, reason: str
             ) -> exception.InvalidConfiguration:
    return exception.InvalidConfiguration(
        f'GPU {gpu.address}: fixed_vgpus of policy {policy.name} cannot be '
        f'created: {reason}')


def _wanted(gpu: model.Gpu, policy: policies.Policy, refuse: _Refuse
            ) -> dict[model.VgpuType, int]:
    """Return how many of each type to have, in the policy's order."""
    types = vgpu_type.of_mode(gpu, policy.mode)
    wanted: dict[model.VgpuType, int] = {}
    for text, number in policy.fixed_vgpus:
        entry = next((entry for entry in types if entry.is_called(text)),
                     None)
        if entry is None:
            raise refuse(vgpu_type.unknown(types, text))
        wanted[entry] = wanted.get(entry, 0) + number
    for entry, number in wanted.items():
        most = vgpu_type.most(entry, policy)
        if most is not None and number > most:
            raise refuse(f'{number} of {entry.name}, but at most {most} fit '
                         'on one GPU')
    return wanted


def _functions(gpu: model.Gpu) -> list[model.VirtualFunction]:
    return sorted(gpu.vfs, key=lambda function: function.index)


def _carried(function: model.VirtualFunction) -> str:
    """Return the mdev type of the vGPU on a function; empty for none."""
    number = function.current_vgpu_type
    return f'nvidia-{number}' if number else ''


def _assign(gpu: model.Gpu, wanted: Mapping[model.VgpuType, int],
            remembered: Mapping[model.PciAddress, str], refuse: _Refuse
            ) -> _Given:
    """Return the type of each function that is to carry a vGPU."""
    left = collections.Counter(wanted)
    usable = [function for function in _functions(gpu)
              if function.current_vgpu_type is not None]
    given: _Given = {}

    def give(function: model.VirtualFunction, entry: model.VgpuType) -> None:
        if left[entry] > 0:
            left[entry] -= 1
            given[function] = entry

    for function in usable:
        for entry in wanted:
            if entry.mdev_type_id == _carried(function):
                give(function, entry)
    empty = [function for function in usable if not _carried(function)]
    for function in empty:
        for entry in wanted:
            if entry.is_called(remembered.get(function.address, '')):
                give(function, entry)
    free = [function for function in empty if function not in given]
    missing = [entry for entry in wanted for _ in range(left[entry])]
    if len(missing) > len(free):
        raise refuse(f'{sum(wanted.values())} vGPUs need as many virtual '
                     f"functions; {len(given) + len(free)} of the GPU's "
                     f'{len(gpu.vfs)} are available')
    given.update(zip(free, missing))
    return given


def _listed(given: _Given,
            places: Mapping[model.VirtualFunction, int] | None = None
            ) -> tuple[spec.VgpuSpec, ...]:
    return tuple(
        spec.VgpuSpec(function.address, entry.mdev_type_id, name=entry.name,
                      placement_id=(places or {}).get(function))
        for function, entry in sorted(
            given.items(), key=lambda item: item[0].index))


def _others(gpu: model.Gpu, given: _Given) -> list[model.VirtualFunction]:
    """Return the functions that carry a vGPU that is not wanted."""
    return [function for function in _functions(gpu)
            if _carried(function) and function not in given]


def _check_one_size(gpu: model.Gpu, given: _Given, refuse: _Refuse) -> None:
    """Refuse what does not fit: the first vGPU decides the size of all."""
    known = vgpu_type.by_id(gpu)
    others = _others(gpu, given)
    entries = [*given.values(),
               *(known[_carried(function)] for function in others
                 if _carried(function) in known)]
    sizes = sorted({entry.framebuffer_mib for entry in entries})
    if len(sizes) > 1:
        raise refuse(
            'vGPUs of several framebuffer sizes ('
            + ', '.join(f'{size} MiB' for size in sizes)
            + ') need mixed_sizes = true' + _said(others))
    most = min((entry.max_instances for entry in entries
                if entry.max_instances is not None), default=None)
    if most is not None and len(entries) > most:
        raise refuse(f'{len(entries)} vGPUs, but at most {most} fit on one '
                     'GPU' + _said(others))


def _said(others: Sequence[model.VirtualFunction]) -> str:
    """Describe the existing vGPUs that are not wanted, for people."""
    if not others:
        return ''
    return '; existing vGPUs that are not in fixed_vgpus: ' + ', '.join(
        f'{_carried(function)} on {function.address}' for function in others)


def _places(gpu: model.Gpu, given: _Given, refuse: _Refuse
            ) -> dict[model.VirtualFunction, int]:
    """Return placement ids by function; new vGPUs are placed largest first."""
    known = {entry.mdev_type_id: entry for entry in gpu.vgpu_types}
    places, taken = {}, []
    for function in _functions(gpu):
        entry = known.get(_carried(function))
        if entry is not None and function.placement_id is not None:
            places[function] = function.placement_id
            taken.append(model.Placement(function.placement_id,
                                         entry.placement_size or 0))
    types = {function: known[entry.mdev_type_id]
             for function, entry in given.items()
             if entry.mdev_type_id in known and not _carried(function)}
    empty = [dataclasses.replace(entry, free_placements=entry.placements)
             for entry in types.values()]
    for function, entry in sorted(types.items(), key=lambda item: (
            -(item[1].placement_size or 0), item[0].index)):
        if not entry.placements:
            raise refuse('this GPU does not support mixed sizes, or cannot '
                         'mix them now')
        start = vgpu_type.choose(empty, dataclasses.replace(
            entry, free_placements=entry.placements), taken)
        if start is None:
            raise refuse(f'there is no placement left for {entry.name} on '
                         f'{function.address} next to the others'
                         + _said(_others(gpu, given)))
        places[function] = start
        taken.append(model.Placement(start, entry.placement_size or 0))
    return places


def _instances(gpu: model.Gpu, given: _Given, refuse: _Refuse
               ) -> tuple[spec.MigInstanceSpec, ...]:
    """Return the GPU instances to create.

    The vGPUs of one instance all have the same framebuffer size.
    """
    if gpu.mig is None:
        raise refuse('this GPU does not support MIG')
    missing: collections.Counter[tuple[Any, int, int]] = collections.Counter(
        (entry.gi_profile_id, entry.framebuffer_mib, entry.per_instance or 1)
        for function, entry in given.items() if not _carried(function))
    known = vgpu_type.by_id(gpu)
    carried = collections.defaultdict(list)
    for function in gpu.vfs:
        if _carried(function) in known:
            carried[function.gpu_instance_id].append(
                known[_carried(function)])
    spare: collections.Counter[int] = collections.Counter()
    for instance in gpu.mig.instances:
        there = carried[instance.instance_id]
        if not there:
            spare[instance.profile_id] += 1
            continue
        kind = (instance.profile_id, there[0].framebuffer_mib,
                there[0].per_instance or 1)
        missing[kind] -= kind[2] - len(there)
    counts: collections.Counter[model.GpuInstanceProfile] = (
        collections.Counter())
    for (profile_id, _size, each), number in sorted(missing.items()):
        count = max(0, -(-number // each))
        kept = min(count, spare[profile_id])
        spare[profile_id] -= kept
        profile = gpu.mig.profile_by_id(profile_id)
        if profile is None:
            raise refuse(f'this GPU has no profile with id {profile_id}')
        counts[profile] += count - kept
    return _packed(gpu.mig, counts, refuse)


def _packed(mig: model.Mig,
            counts: Mapping[model.GpuInstanceProfile, int],
            refuse: _Refuse) -> tuple[spec.MigInstanceSpec, ...]:
    grid = geometry.Geometry(mig.profiles)
    before = grid.occupancy_of(mig.instances)
    after = max(partition_plan.completions(grid, before, counts),
                key=lambda occupancy: (-geometry.cost(grid, occupancy),
                                       occupancy.taken), default=None)
    if after is None:
        raise refuse('there is no room for '
                     + ', '.join(f'{count} x {profile.name}'
                                 for profile, count in counts.items()
                                 if count)
                     + ' next to the existing GPU instances ('
                     + (', '.join(str(item.placement) for item in
                                  mig.instances) or 'none') + ')')
    return tuple(
        spec.MigInstanceSpec(placement, profile_id)
        for profile_id, placement in (
            collections.Counter(after.taken)
            - collections.Counter(before.taken)).elements())
