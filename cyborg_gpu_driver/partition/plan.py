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

_Packing = tuple[target.WantedInstance, ...]
_Pair = tuple[model.GpuInstance, target.WantedInstance]
_Cost = tuple[int, int]
"""Compute instances destroyed and created."""


_Solution = tuple[tuple[_Pair, ...], tuple[change.Created, ...]]
"""The instances to keep, with their new purpose, and those to create."""


def solve(grid: geometry.Geometry,
          instances: Sequence[model.GpuInstance],
          in_use: Collection[model.Placement],
          wanted: target.Wanted) -> _Solution | None:
    """Find the way to the wanted state that destroys least.

    It minimizes, in this order: the MIG devices destroyed (compute instances,
    and GPU instances without any); the GPU instances in the end; the GPU
    instances destroyed. Among equals it takes the one that leaves most room
    for later requests (:func:`cyborg_gpu_driver.partition.geometry.cost`).

    :param in_use: placements of instances that must stay as they are.
    :returns: None if there is no way while those instances exist.
    """
    best: tuple[tuple[Any, ...], _Solution] | None = None
    for packing in wanted.packings():
        for lost, keep in _keepable(instances, in_use, packing):
            if best is not None and lost > best[0][0]:
                break
            pairs = _assign(keep, in_use, packing)
            found = pairs and _complete(grid, lost, instances, pairs,
                                        packing)
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
    there = collections.Counter(item.profile_id for item in fixed)
    for packing in wanted.packings():
        missing = collections.Counter(
            item.profile for item in packing)
        for profile in missing:
            missing[profile] -= there[profile.profile_id]
        if next(completions(grid, grid.occupancy_of(fixed), missing),
                None) is not None:
            return True
    return False


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
              in_use: Collection[model.Placement], packing: _Packing
              ) -> list[tuple[int, tuple[model.GpuInstance, ...]]]:
    """Return (MIG devices lost with the others, instances that could stay),
    sorted by the loss.
    """
    counts = collections.Counter(
        item.profile.profile_id for item in packing)
    must = [item for item in instances if item.placement in in_use]
    for item in must:
        counts[item.profile_id] -= 1
    if any(count < 0 for count in counts.values()):
        return []
    may = [item for item in instances if item.placement not in in_use]
    worth = sum(map(_devices, may))
    useful = [item for item in may if counts[item.profile_id] > 0]
    return sorted((
        (worth - sum(map(_devices, chosen)), (*must, *chosen))
        for size in range(len(useful) + 1)
        for chosen in itertools.combinations(useful, size)
        if collections.Counter(item.profile_id for item in chosen)
        <= counts), key=lambda item: item[0])


def _devices(instance: model.GpuInstance) -> int:
    """Return how many MIG devices are lost with an instance."""
    return max(1, len(instance.compute))


def _assign(keep: Iterable[model.GpuInstance],
            in_use: Collection[model.Placement], packing: _Packing
            ) -> tuple[int, list[_Pair]] | None:
    """Return (compute instances lost, the purpose of each instance), at the
    lowest cost; None if an instance in use cannot be as wanted.
    """
    lost, pairs = 0, []
    by_profile = collections.defaultdict(list)
    for item in keep:
        by_profile[item.profile_id].append(item)
    for profile_id, items in by_profile.items():
        wanted = tuple(item for item in packing
                       if item.profile.profile_id == profile_id)
        best = _cheapest(tuple(items), wanted, in_use)
        if best is None:
            return None
        lost += best[0][0]
        pairs += best[1]
    return lost, pairs


def _cheapest(items: tuple[model.GpuInstance, ...], wanted: _Packing,
              in_use: Collection[model.Placement]
              ) -> tuple[_Cost, list[_Pair]] | None:
    if not items:
        return (0, 0), []
    best: tuple[_Cost, list[_Pair]] | None = None
    for choice in dict.fromkeys(wanted):
        cost = change.cost(
            items[0], choice, items[0].placement in in_use)
        left = list(wanted)
        left.remove(choice)
        rest = (None if cost is None
                else _cheapest(items[1:], tuple(left), in_use))
        if cost is not None and rest is not None:
            total = cost[0] + rest[0][0], cost[1] + rest[0][1]
            if best is None or total < best[0]:
                best = total, [(items[0], choice), *rest[1]]
            if total == (0, 0):
                break
    return best


def _complete(grid: geometry.Geometry, lost: int,
              instances: Sequence[model.GpuInstance],
              assigned: tuple[int, list[_Pair]], packing: _Packing
              ) -> tuple[tuple[Any, ...], _Solution] | None:
    """Return (cost, solution) for the best way to place the missing
    instances; None if there is none.
    """
    lost_inside, pairs = assigned
    missing = collections.Counter(packing)
    missing.subtract(choice for _item, choice in pairs)
    counts: collections.Counter[model.GpuInstanceProfile] = (
        collections.Counter())
    for choice, count in missing.items():
        counts[choice.profile] += count
    before = grid.occupancy_of(item for item, _choice in pairs)
    ways = [((geometry.cost(grid, occupancy), _descending(occupancy)),
             occupancy)
            for occupancy in completions(grid, before, counts)]
    if not ways:
        return None
    room, best = min(ways, key=lambda way: way[0])
    return ((lost + lost_inside, len(packing), len(instances) - len(pairs),
             room),
            (tuple(sorted(pairs, key=lambda pair: pair[0])),
             _placed(best, before, missing)))


def _placed(after: geometry.Occupancy, before: geometry.Occupancy,
            missing: collections.Counter[target.WantedInstance]
            ) -> tuple[change.Created, ...]:
    """Return which missing instance gets which placement of its profile."""
    new = list((collections.Counter(after.taken)
                - collections.Counter(before.taken)).elements())
    result = []
    for choice, count in sorted(
            missing.items(), key=lambda item: item[0].compute, reverse=True):
        for _number in range(count):
            taken = next(item for item in new
                         if item[0] == choice.profile.profile_id)
            new.remove(taken)
            result.append(change.Created(taken[1], choice))
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
    pairs, create = solution
    keep = tuple(change.Kept(item, choice, in_use.get(item.placement))
                 for item, choice in pairs)
    staying = {item.instance for item in keep}
    destroy = tuple(sorted(item for item in mig.instances
                           if item not in staying))
    steps = change.steps(mig, keep, destroy, create)
    if not (mig.enabled and mig.pending):
        steps = (change.Step(change.Action.ENABLE_MIG), *steps)
    return change.Change(gpu, wanted, keep, destroy, create, steps)


def mode(gpu: model.Gpu, enabled: bool, in_use: _InUse = _NOBODY
         ) -> change.Change:
    """Plan the change of the MIG mode alone, which keeps all instances.

    Turning the mode off destroys the idle ones.

    :param gpu: with another mode, current or pending.
    :raises ChangeRefused: if an instance in use prevents the change.
    """
    wanted = target.Wanted(enabled)
    if gpu.mig is None:
        return change.Change(gpu, wanted)
    if not enabled:
        return _disable(gpu, gpu.mig, wanted, in_use)
    return dataclasses.replace(
        keeping_others(gpu, gpu.mig, in_use),
        steps=(change.Step(change.Action.ENABLE_MIG),))


def keeping_others(gpu: model.Gpu, mig: model.Mig, in_use: _InUse,
                   destroy: tuple[model.GpuInstance, ...] = (),
                   create: tuple[change.Created, ...] = ()
                   ) -> change.Change:
    """Plan a change that leaves all other instances as they are."""
    keep = tuple(change.Kept(item, in_use=in_use.get(item.placement))
                 for item in mig.instances if item not in destroy)
    return change.Change(gpu, target.Wanted(True), keep, destroy, create,
                         change.steps(mig, (), destroy, create))


def _disable(gpu: model.Gpu, mig: model.Mig, wanted: target.Wanted,
             in_use: _InUse) -> change.Change:
    used = [item for item in sorted(mig.instances)
            if item.placement in in_use]
    if used:
        raise _unreachable(gpu, wanted, '; '.join(
            _described(mig, item, in_use) for item in used))
    destroy = tuple(sorted(mig.instances))
    steps = change.steps(mig, (), destroy, ())
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
