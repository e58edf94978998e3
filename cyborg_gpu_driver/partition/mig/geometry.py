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

"""Which instances fit together on one GPU's grid of memory slices.

This module knows no particular board. The rules follow from NVML's figures:

* two instances never share a memory unit
  (nvmlDeviceGetGpuInstancePossiblePlacements);
* a profile never has more instances than its ``instanceCount``;
* each media engine exists only a limited number of times
  (nvmlGpuInstanceProfileInfo_t). NVML does not say how many the GPU has,
  but they suffice for ``instanceCount`` instances of any one profile. The
  largest such product is used as the total. It makes ``+me`` exclusive
  where there is one OFA, and ``+me.all`` exclude every profile with any
  engine, although neither is a special case.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec

_ENGINES = tuple(field.name for field in dataclasses.fields(model.Engines))


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """The instances on one GPU: a multiset of profiles and placements.

    It holds no instance ids, because the driver assigns and reuses them
    freely. Two GPUs that are partitioned alike have equal occupancies.
    """

    taken: tuple[tuple[int, model.Placement], ...] = ()
    """(profile id, placement), sorted by placement."""

    def __post_init__(self) -> None:
        object.__setattr__(self, 'taken', tuple(sorted(
            self.taken, key=lambda item: (item[1], item[0]))))

    @functools.cached_property
    def mask(self) -> int:
        """The memory units in use, bit n for unit n."""
        return functools.reduce(
            lambda mask, item: mask | item[1].mask, self.taken, 0)

    @functools.cached_property
    def counts(self) -> collections.Counter[int]:
        """How many instances exist of each profile id."""
        return collections.Counter(
            profile_id for profile_id, _placement in self.taken)

    def add(self, profile: model.GpuInstanceProfile,
            placement: model.Placement) -> Occupancy:
        """Return the occupancy with one more instance; checks nothing."""
        return Occupancy((*self.taken, (profile.profile_id, placement)))

    def without(self, instances: Iterable[model.GpuInstance]) -> Occupancy:
        """Return the occupancy once these instances are destroyed."""
        gone = {(item.profile_id, item.placement) for item in instances}
        return Occupancy(tuple(
            item for item in self.taken if item not in gone))


EMPTY = Occupancy()


class Geometry:
    """The rules of one GPU.

    :param profiles: every profile that NVML lists for the GPU, even if it
        is not offered, because its instances take room and engines.
    """

    def __init__(self, profiles: Iterable[model.GpuInstanceProfile]):
        self.profiles = tuple(profiles)
        self.units = max(
            (place.start + place.size for profile in self.profiles
             for place in profile.placements), default=0)
        """Memory units of the grid: the highest end of any placement."""
        self._rules = {profile.profile_id: _Rules(profile)
                       for profile in self.profiles}
        self._engines = tuple(
            max((rules.engines[number] * rules.profile.max_instances
                 for rules in self._rules.values()), default=0)
            for number in range(len(_ENGINES)))
        self.engines = model.Engines(*self._engines)
        """The number of each media engine, as far as profiles show it."""

    def occupancy_of(
            self, instances: Iterable[model.GpuInstance
                                      | spec.MigInstanceSpec]) -> Occupancy:
        """Return the occupancy that instances cause.

        An instance of an unknown profile, or at a placement that its
        profile does not allow, still takes its memory units: the GPU's
        answer counts.
        """
        return Occupancy(tuple(
            (instance.profile_id, instance.placement)
            for instance in instances))

    def can_place(self, occupancy: Occupancy,
                  profile: model.GpuInstanceProfile, start: int) -> bool:
        """Whether an instance of ``profile`` can be created at ``start``."""
        return any(placement.start == start for placement in
                   self.free_placements(occupancy, profile))

    def free_placements(self, occupancy: Occupancy,
                        profile: model.GpuInstanceProfile
                        ) -> tuple[model.Placement, ...]:
        """Return where an instance of ``profile`` can be created, by start."""
        rules = self._rules_of(profile)
        if not self._allowance(occupancy, rules, self._used(occupancy)):
            return ()
        taken = occupancy.mask
        return tuple(placement for placement, mask in rules.by_start
                     if not mask & taken)

    def creatable(self, occupancy: Occupancy,
                  profile: model.GpuInstanceProfile) -> int:
        """Return how many instances of only ``profile`` can still be created.

        The number is exact. Placements are intervals, and always taking the
        interval that ends first gives the most that do not overlap.
        """
        return self.creatable_of_each(occupancy, (profile,))[0]

    def creatable_of_each(self, occupancy: Occupancy,
                          profiles: Iterable[model.GpuInstanceProfile]
                          ) -> tuple[int, ...]:
        """Return how many instances of each profile alone can be created."""
        used = self._used(occupancy)
        return tuple(
            min(self._allowance(occupancy, rules, used),
                rules.fitting(occupancy.mask))
            for rules in map(self._rules_of, profiles))

    def _rules_of(self, profile: model.GpuInstanceProfile) -> _Rules:
        """Return a profile's rules; they are new if the grid lacks it."""
        rules = self._rules.get(profile.profile_id)
        if rules is None or rules.profile is not profile:
            rules = _Rules(profile)
        return rules

    def _used(self, occupancy: Occupancy) -> tuple[int, ...]:
        """Return how much of each media engine is known to be in use."""
        known = [(self._rules[profile_id].engines, count)
                 for profile_id, count in occupancy.counts.items()
                 if profile_id in self._rules]
        return tuple(
            sum(engines[number] * count for engines, count in known)
            if there_are else 0
            for number, there_are in enumerate(self._engines))

    def _allowance(self, occupancy: Occupancy, rules: _Rules,
                   used: Sequence[int]) -> int:
        """Return how many more may exist, regardless of memory units."""
        allowance = (rules.profile.max_instances
                     - occupancy.counts[rules.profile.profile_id])
        for engine, each in rules.needs:
            allowance = min(allowance,
                            (self._engines[engine] - used[engine]) // each)
        return max(0, allowance)


class _Rules:
    """Facts of one profile that are needed often, computed once."""

    def __init__(self, profile: model.GpuInstanceProfile) -> None:
        self.profile = profile
        self.engines = tuple(getattr(profile.engines, name)
                             for name in _ENGINES)
        self.needs = tuple((engine, each) for engine, each
                           in enumerate(self.engines) if each)
        self.by_start = tuple((placement, placement.mask) for placement
                              in sorted(profile.placements))
        self._by_end = sorted(
            ((placement.start, placement.start + placement.size,
              placement.mask) for placement in profile.placements),
            key=lambda place: place[1])
        self._fitting: dict[int, int] = {}

    def fitting(self, taken: int) -> int:
        """Return how many instances fit beside the units taken."""
        count = self._fitting.get(taken)
        if count is None:
            count, free_from = 0, 0
            for start, end, mask in self._by_end:
                if start >= free_from and not mask & taken:
                    count += 1
                    free_from = end
            self._fitting[taken] = count
        return count
