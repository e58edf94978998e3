# SPDX-License-Identifier: Apache-2.0

"""The plan of a change of one GPU: what is kept, and where the rest goes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import target

# An exact search for what to keep and where to create the rest.
#
# A grid has at most a dozen units and a GPU as few instances. So the search
# tries every set of instances that can be kept, the one that loses least
# first, with every way to place the rest.

_Solution = tuple[tuple[model.GpuInstance, ...], tuple[change.Created, ...]]
"""The instances to keep, and those to create."""


def solve(grid: geometry.Geometry,
          instances: Sequence[model.GpuInstance],
          in_use: Collection[model.Placement],
          wanted: target.Wanted) -> _Solution | None:
    """Find the way to the wanted state that destroys least.

    An instance is kept with all of its compute instances, or destroyed.

    It minimizes, in this order: the MIG devices destroyed; the GPU instances
    in the end; the GPU instances destroyed. Among equals it takes the one
    that leaves most room for later requests
    (:func:`cyborg_gpu_driver.partition.geometry.cost`).

    :param in_use: placements of instances that must stay as they are.
    :returns: None if there is no way while those instances exist.
    """
    best: tuple[tuple[Any, ...], _Solution] | None = None
    for lost, keep in _keepable(instances, in_use):
        if best is not None and lost > best[0][0]:
            break
        missing = _missing(wanted, keep)
        found = None if missing is None else _complete(
            grid, (lost, len(keep) + len(missing),
                   len(instances) - len(keep)), keep, missing)
        if found and (best is None or found[0] < best[0]):
            best = found
    return best and best[1]


def completions(grid: geometry.Geometry, occupancy: geometry.Occupancy,
                counts: Mapping[model.GpuInstanceProfile, int]
                ) -> Iterator[geometry.Occupancy]:
    """Yield every occupancy that has additional instances, each once.

    :param counts: how many instances of each profile to add.
    """
    # Large ones first, to find soonest what fits nowhere.
    profiles = sorted(counts, key=lambda profile: (
        -profile.slices, profile.profile_id))
    return _completions(grid, occupancy, [
        profile for profile in profiles for _ in range(counts[profile])], -1)


def fits_empty(mig: model.Mig, wanted: target.Wanted) -> bool:
    """Whether an empty GPU can get the wanted devices."""
    return _has_room(geometry.Geometry(mig.profiles), (), wanted)


def largest(mig: model.Mig, wanted: target.Wanted,
            fixed: Iterable[model.GpuInstance] = ()) -> dict[str, int]:
    """Return the largest part of what is wanted that there is room for.

    Largest by compute slices, then by number of MIG devices.

    :param fixed: instances that remain; the wanted ones among them count.
    :returns: MIG devices by name, empty if nothing fits.
    """
    grid = geometry.Geometry(mig.profiles)
    fixed = tuple(fixed)
    parts = [tuple(dataclasses.replace(entry, count=count)
                   for entry, count in zip(wanted.devices, counts,
                                           strict=True) if count)
             for counts in itertools.product(*(
                 range(min(entry.count, entry.most) + 1)
                 for entry in wanted.devices))]
    parts.sort(key=lambda part: (
        sum(entry.slices * entry.count for entry in part),
        sum(entry.count for entry in part)), reverse=True)
    return next((found.counts for found in (
        target.Wanted(True, part) for part in parts)
        if _has_room(grid, fixed, found)), {})


def _has_room(grid: geometry.Geometry, fixed: Sequence[model.GpuInstance],
              wanted: target.Wanted) -> bool:
    packed = wanted.packed()
    if packed is None:
        return False
    there = collections.Counter(item.profile_id for item in fixed)
    missing = collections.Counter(item.profile for item in packed)
    for profile in missing:
        missing[profile] -= there[profile.profile_id]
    return next(completions(grid, grid.occupancy_of(fixed), missing),
                None) is not None


def _completions(grid: geometry.Geometry, occupancy: geometry.Occupancy,
                 missing: Sequence[model.GpuInstanceProfile], above: int
                 ) -> Iterator[geometry.Occupancy]:
    """Yield the completions whose next instance starts above a unit.

    Instances of one profile are placed from low to high, so that no
    occupancy is yielded twice.

    :param missing: profiles of the instances, those of a profile together.
    """
    if not missing:
        yield occupancy
        return
    profile, *rest = missing
    for placement in grid.free_placements(occupancy, profile):
        if placement.start > above:
            yield from _completions(
                grid, occupancy.add(profile, placement), rest,
                placement.start if rest and rest[0] is profile else -1)


def _keepable(instances: Sequence[model.GpuInstance],
              in_use: Collection[model.Placement]
              ) -> list[tuple[int, tuple[model.GpuInstance, ...]]]:
    """Return (MIG devices lost with the others, instances that could stay),
    sorted by the loss.
    """
    must = [item for item in instances if item.placement in in_use]
    may = [item for item in instances
           if item.placement not in in_use and item.compute]
    worth = sum(len(item.compute) for item in may)
    return sorted((
        (worth - sum(len(item.compute) for item in chosen), (*must, *chosen))
        for size in range(len(may) + 1)
        for chosen in itertools.combinations(may, size)),
        key=lambda item: item[0])


def _missing(wanted: target.Wanted, keep: Iterable[model.GpuInstance]
             ) -> list[target.WantedInstance] | None:
    """Return the GPU instances that are wanted beside those kept.

    An instance in use that has no compute instances is as wanted, because its
    user manages them: the guest of a MIG-backed vGPU creates its own.

    :returns: None if an instance that is kept is not wanted.
    """
    there = collections.Counter(
        (item.profile_id, part.size) for item in keep
        for part in item.compute)
    left = []
    for entry in wanted.devices:
        count = entry.count - there.pop(
            (entry.profile.profile_id, entry.slices), 0)
        if count < 0:
            return None
        left.append(dataclasses.replace(entry, count=count))
    packed = target.Wanted(True, tuple(left)).packed()
    if there or packed is None:
        return None
    missing = list(packed)
    for item in keep:
        if not item.compute:
            fitting = next((one for one in missing if
                            one.profile.profile_id == item.profile_id), None)
            if fitting is None:
                return None
            missing.remove(fitting)
    return missing


def _complete(grid: geometry.Geometry, cost: tuple[int, ...],
              keep: tuple[model.GpuInstance, ...],
              missing: Sequence[target.WantedInstance]
              ) -> tuple[tuple[Any, ...], _Solution] | None:
    """Return (cost, solution) for the best way to place the missing
    instances; None if there is none.
    """
    before = grid.occupancy_of(keep)
    ways = [((geometry.cost(grid, occupancy), _descending(occupancy)),
             occupancy)
            for occupancy in completions(grid, before, collections.Counter(
                item.profile for item in missing))]
    if not ways:
        return None
    room, best = min(ways, key=lambda way: way[0])
    return (*cost, room), (tuple(sorted(keep)),
                           _placed(best, before, missing))


def _placed(after: geometry.Occupancy, before: geometry.Occupancy,
            missing: Iterable[target.WantedInstance]
            ) -> tuple[change.Created, ...]:
    """Return which missing instance gets which placement of its profile."""
    new = list((collections.Counter(after.taken)
                - collections.Counter(before.taken)).elements())
    result = []
    for item in sorted(missing, key=lambda item: item.compute, reverse=True):
        taken = next(place for place in new
                     if place[0] == item.profile.profile_id)
        new.remove(taken)
        result.append(change.Created(taken[1], item))
    return tuple(sorted(result, key=lambda item: item.placement))


def _descending(occupancy: geometry.Occupancy) -> tuple[int, ...]:
    """Return a sort key that puts higher starts first."""
    return tuple(-place.start for _profile, place in occupancy.taken)


# Plan the change of one GPU to what is wanted, as a whole.
#
# Pure: takes a snapshot (with the compute instances of each GPU instance) and
# returns a value that can be inspected before anything is changed.

_InUse = Mapping[model.Placement, str]
_NOBODY: _InUse = {}


def plan(gpu: model.Gpu, wanted: target.Wanted,
         in_use: _InUse = _NOBODY) -> change.Change:
    """Plan the change that destroys least and keeps everything in use.

    :param gpu: its current state, with its instances' compute instances.
    :param in_use: what uses the instance at a placement. Such an instance
        stays as it is; if that is impossible, there is no plan.
    :raises ChangeRefused: with the instance that prevents the change and
        what would fit beside it.
    """
    mig = gpu.mig
    if mig is None:
        if wanted.enabled:
            raise _unreachable(gpu, wanted, 'this GPU does not support MIG')
        return change.Change(gpu, wanted)
    if not wanted.enabled:
        return _disable(gpu, mig, wanted, in_use)
    solution = solve(
        geometry.Geometry(mig.profiles), mig.instances, in_use, wanted)
    if solution is None:
        raise _unreachable(gpu, wanted, _reason(mig, wanted, in_use))
    keep, create = solution
    destroy = tuple(sorted(item for item in mig.instances
                           if item not in keep))
    steps = change.steps(mig, destroy, create)
    if not (mig.enabled and mig.pending):
        steps = (change.Step(change.Action.ENABLE_MIG), *steps)
    return change.Change(gpu, wanted, _kept(keep, in_use), destroy, create,
                         steps)


def mode(gpu: model.Gpu, enabled: bool, in_use: _InUse = _NOBODY
         ) -> change.Change:
    """Plan the change of the MIG mode alone, which keeps all instances.

    Turning the mode off destroys the idle ones.

    :raises ChangeRefused: if an instance in use prevents the change.
    """
    wanted = target.Wanted(enabled)
    mig = gpu.mig
    if mig is None or mig.enabled == mig.pending == enabled:
        return change.Change(gpu, wanted)
    if not enabled:
        return _disable(gpu, mig, wanted, in_use)
    return change.Change(gpu, wanted, _kept(mig.instances, in_use), steps=(
        change.Step(change.Action.ENABLE_MIG),))


def _kept(instances: Iterable[model.GpuInstance], in_use: _InUse
          ) -> tuple[change.Kept, ...]:
    return tuple(change.Kept(item, in_use.get(item.placement))
                 for item in instances)


def _disable(gpu: model.Gpu, mig: model.Mig, wanted: target.Wanted,
             in_use: _InUse) -> change.Change:
    used = [item for item in sorted(mig.instances)
            if item.placement in in_use]
    if used:
        raise _unreachable(gpu, wanted, '; '.join(
            _described(mig, item, in_use) for item in used))
    destroy = tuple(sorted(mig.instances))
    steps = change.steps(mig, destroy, ())
    if mig.enabled or mig.pending:
        steps = (*steps, change.Step(change.Action.DISABLE_MIG))
    return change.Change(gpu, wanted, destroy=destroy, steps=steps)


def _unreachable(gpu: model.Gpu, wanted: target.Wanted, reason: str
                 ) -> exception.ChangeRefused:
    return exception.ChangeRefused(
        f'{gpu.address}: cannot change to {wanted}: {reason}')


def _reason(mig: model.Mig, wanted: target.Wanted, in_use: _InUse) -> str:
    """Return why no plan exists, and what comes nearest."""
    if not fits_empty(mig, wanted):
        return ('it does not fit on this GPU even when the GPU is empty; '
                'there is room '
                'for ' + _named(largest(mig, wanted)))
    used = [item for item in sorted(mig.instances)
            if item.placement in in_use]
    blocking = _blocking(mig, used, wanted)
    part = largest(mig, wanted, used)
    return ('blocked by '
            + '; '.join(_described(mig, item, in_use) for item in blocking)
            + '; next to the instances in use there is room for '
              f'{_named(part)}')


def _blocking(mig: model.Mig, used: list[model.GpuInstance],
              wanted: target.Wanted) -> list[model.GpuInstance]:
    """Return each instance that alone prevents it; if none does, all."""
    grid = geometry.Geometry(mig.profiles)
    alone = []
    for item in used:
        others = {other.placement for other in used if other != item}
        if solve(grid, mig.instances, others, wanted):
            alone.append(item)
    return alone or used


def _described(mig: model.Mig, item: model.GpuInstance, in_use: _InUse) -> str:
    profile = mig.profile_by_id(item.profile_id)
    name = spec.profile_name(mig, item.profile_id)
    if profile and item.compute:
        sizes = sorted((compute.size for compute in item.compute),
                       reverse=True)
        name = str(target.WantedInstance(profile, tuple(sizes)))
    return f'{name} at {item.placement}, in use by {in_use[item.placement]}'


def _named(counts: Mapping[str, int]) -> str:
    return target.listed(counts) or 'nothing'
