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

"""What fits beside what on one GPU's grid of memory slices.

Nothing here knows a board. The rules are those that NVML's figures imply:

* two instances never share a memory unit
  (nvmlDeviceGetGpuInstancePossiblePlacements);
* of one profile there are never more than its ``instanceCount``;
* of each media engine there are only so many
  (nvmlGpuInstanceProfileInfo_t). NVML does not say how many the GPU has,
  but they suffice for ``instanceCount`` instances of any one profile, and
  the largest such product is taken for the whole. It makes ``+me``
  exclusive where there is one OFA, and ``+me.all`` exclude all that have
  any engine, without either being a special case.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import spec

_ENGINES = tuple(field.name for field in dataclasses.fields(model.Engines))


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """What lies where on one GPU: a multiset of profiles and placements.

    It holds no instance ids, which the driver gives out and reuses as it
    likes: two GPUs cut alike have equal occupancies.
    """

    taken: tuple[tuple[int, model.Placement], ...] = ()
    """(profile id, placement), sorted by placement."""

    def __post_init__(self):
        object.__setattr__(self, 'taken', tuple(sorted(
            self.taken, key=lambda item: (item[1], item[0]))))

    @functools.cached_property
    def mask(self) -> int:
        """The memory units taken, bit n for unit n."""
        return functools.reduce(
            lambda mask, item: mask | item[1].mask, self.taken, 0)

    @functools.cached_property
    def counts(self) -> collections.Counter[int]:
        """How many instances there are of each profile id."""
        return collections.Counter(
            profile_id for profile_id, _placement in self.taken)

    def add(self, profile: model.GpuInstanceProfile,
            placement: model.Placement) -> Occupancy:
        """The occupancy with one more instance; nothing is checked."""
        return Occupancy((*self.taken, (profile.profile_id, placement)))

    def without(self, instances: Iterable[model.GpuInstance]) -> Occupancy:
        """The occupancy once these instances are destroyed."""
        gone = {(item.profile_id, item.placement) for item in instances}
        return Occupancy(tuple(
            item for item in self.taken if item not in gone))


EMPTY = Occupancy()


class Geometry:
    """The rules of one GPU.

    :param profiles: every profile that NVML lists for the GPU; those that
        are not offered too, because their instances take room and engines.
    """

    def __init__(self, profiles: Iterable[model.GpuInstanceProfile]):
        self.profiles = tuple(profiles)
        self.units = max(
            (place.start + place.size for profile in self.profiles
             for place in profile.placements), default=0)
        """Memory units of the grid: the highest end of any placement."""
        self._engines = {profile.profile_id: _engines(profile)
                         for profile in self.profiles}
        self.engines = model.Engines(**{
            engine: max((getattr(profile.engines, engine)
                         * profile.max_instances
                         for profile in self.profiles), default=0)
            for engine in _ENGINES})
        """What there is of each media engine, as far as profiles tell."""

    def occupancy_of(
            self, instances: Iterable[model.GpuInstance
                                      | spec.MigInstanceSpec]) -> Occupancy:
        """What instances take.

        One of an unknown profile, or where its profile cannot lie, takes
        its memory units all the same: the GPU is right, not we.
        """
        return Occupancy(tuple(
            (instance.profile_id, instance.placement)
            for instance in instances))

    def can_place(self, occupancy: Occupancy,
                  profile: model.GpuInstanceProfile, start: int) -> bool:
        """Whether an instance of ``profile`` can be made at ``start``."""
        return any(placement.start == start for placement in
                   self.free_placements(occupancy, profile))

    def free_placements(self, occupancy: Occupancy,
                        profile: model.GpuInstanceProfile
                        ) -> tuple[model.Placement, ...]:
        """Where an instance of ``profile`` can be made, by start."""
        if not self._allowance(occupancy, profile):
            return ()
        taken = occupancy.mask
        return tuple(sorted(placement for placement in profile.placements
                            if not placement.mask & taken))

    def creatable(self, occupancy: Occupancy,
                  profile: model.GpuInstanceProfile) -> int:
        """How many instances of ``profile`` alone can still be made.

        Exact: placements are intervals, and of intervals taking the one
        that ends first gives the largest number that do not overlap.
        """
        allowance = self._allowance(occupancy, profile)
        fitting, end = 0, 0
        if allowance:
            taken = occupancy.mask
            for placement in sorted(
                    profile.placements,
                    key=lambda place: place.start + place.size):
                if placement.start >= end and not placement.mask & taken:
                    fitting += 1
                    end = placement.start + placement.size
        return min(fitting, allowance)

    def _allowance(self, occupancy, profile):
        """How many more there may be, room left aside."""
        allowance = max(
            0, profile.max_instances - occupancy.counts[profile.profile_id])
        wanted = _engines(profile)
        if not allowance or not any(wanted):
            return allowance
        for engine, (each, there_are) in enumerate(
                zip(wanted, _engines(self), strict=True)):
            if each:
                used = sum(
                    self._engines[profile_id][engine] * count
                    for profile_id, count in occupancy.counts.items()
                    if profile_id in self._engines)
                allowance = min(allowance,
                                max(0, there_are - used) // each)
        return allowance


def _engines(owner):
    """Engine counts of a profile, or of a whole GPU, in one order."""
    return tuple(getattr(owner.engines, name) for name in _ENGINES)
