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


"""The order of the steps of a change: each is valid when its turn comes.

An instance is destroyed only when its room is needed, or at the end. If a
step fails, as many instances as possible still exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.partition.change import change
from cyborg_gpu_driver.partition.change import compute as compute_change
from cyborg_gpu_driver.partition.mig import geometry

Step = action.Step
Action = action.Action


def steps(mig: model.Mig, keep: Iterable[change.Kept],
          destroy: Iterable[model.GpuInstance],
          create: Iterable[change.Created]) -> tuple[Step, ...]:
    """Return the steps between two changes of mode."""
    grid = geometry.Geometry(mig.profiles)
    there = sorted(mig.instances)
    doomed, waiting = sorted(destroy), sorted(
        create, key=lambda item: item.placement)
    result: list[Step] = []
    made: list[change.Created] = []
    while waiting:
        occupancy = _occupancy(grid, there, made)
        item = min(waiting, key=lambda item: len(
            _in_the_way(grid, occupancy, doomed, item)))
        for instance in _in_the_way(grid, occupancy, doomed, item):
            result += _destruction(mig, instance)
            doomed.remove(instance)
            there.remove(instance)
        result += _creation(item)
        waiting.remove(item)
        made.append(item)
    for kept in keep:
        result += _compute(mig, kept)
    for instance in doomed:
        result += _destruction(mig, instance)
    return tuple(result)


def _occupancy(grid: geometry.Geometry, there: Iterable[model.GpuInstance],
               made: Iterable[change.Created]) -> geometry.Occupancy:
    occupancy = grid.occupancy_of(there)
    for item in made:
        occupancy = occupancy.add(item.wanted.profile, item.placement)
    return occupancy


def _in_the_way(grid: geometry.Geometry, occupancy: geometry.Occupancy,
                doomed: Iterable[model.GpuInstance], item: change.Created
                ) -> list[model.GpuInstance]:
    """Return the instances to destroy before another can be created: those
    at its placement, and as many more as engines or its number require.
    """
    first = [instance for instance in doomed
             if instance.placement.mask & item.placement.mask]
    others = [instance for instance in doomed if instance not in first]
    others.sort(key=lambda instance:
                instance.profile_id != item.wanted.profile.profile_id)
    for count in range(len(others) + 1):
        gone = first + others[:count]
        if grid.can_place(occupancy.without(gone), item.wanted.profile,
                          item.placement.start):
            return gone
    return first


def _destruction(mig: model.Mig, instance: model.GpuInstance
                 ) -> Iterator[Step]:
    profile = mig.profile_by_id(instance.profile_id)
    for compute in instance.compute:
        yield Step(Action.DESTROY_COMPUTE, profile, instance.placement,
                   compute.size, compute.start)
    yield Step(Action.DESTROY_INSTANCE, profile, instance.placement)


def _creation(item: change.Created) -> Iterator[Step]:
    profile = item.wanted.profile
    yield Step(Action.CREATE_INSTANCE, profile, item.placement)
    for slices in item.wanted.compute:
        yield Step(Action.CREATE_COMPUTE, profile, item.placement, slices)


def _compute(mig: model.Mig, kept: change.Kept) -> Iterator[Step]:
    if kept.wanted is None or kept.in_use is not None:
        return
    profile = mig.profile_by_id(kept.instance.profile_id)
    needed = compute_change.change(kept.instance, kept.wanted)
    for compute in needed.destroy:
        yield Step(Action.DESTROY_COMPUTE, profile,
                   kept.instance.placement, compute.size, compute.start)
    for slices in needed.create:
        yield Step(Action.CREATE_COMPUTE, profile, kept.instance.placement,
                   slices)
