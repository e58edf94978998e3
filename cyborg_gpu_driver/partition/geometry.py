# SPDX-License-Identifier: Apache-2.0

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
import math
import operator
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


# The cost of an instance's placement: the room that it takes.
#
# This one measure decides every choice between places: the start of an
# instance on a GPU in a bind, the choice between layouts that are otherwise
# equal, and the host and GPU that the weigher in Nova's scheduler prefers.
#
# *Room* is how many more instances of a profile a GPU could hold, of that
# profile alone. It is a mean over the instances that may end, each with the
# probability :data:`ENDING`.
#
# The *price* of a unit of room is ``demand / (1/2 + room)``: scarce room is
# expensive. The room is that of all GPUs between which there is a choice, so a
# bind considers its own GPU and the scheduler the whole cloud. Demand is the
# same for each profile, unless it has been measured.
#
# The *loss* of a choice is the room that it takes, each unit at its price. The
# choice that loses least is best.
#
# A mask of the memory units cannot replace an occupancy. Two GPUs with the
# same mask can differ in which units are freed together (a 3g, or a 2g and two
# 1g) and in what the media engines still allow.

ENDING = 1 / 16
"""The assumed probability that an instance ends before its room is wanted.

A value above 0 distinguishes room that is missing now from room that may
soon exist. Acceptance is flat around this value (1/16 to 1/6,
benchmarks/packing.py). With a far larger value, possible room counts like
existing room. Because it is a power of two, every sum of rooms is exact in
floating point, whatever its order.
"""

_MOST = 8
"""Instances that may end. Further ones are assumed to stay, because the work
doubles with each. No board of NVIDIA's has had more than 7 (MIG user guide).
"""

_SPARE = 0.5
"""Added to room, which may be 0, so that a price is never infinite."""


def prices(room: Iterable[float], demand: Iterable[float] | None = None
           ) -> tuple[float, ...]:
    """Return the price of one unit of room, for each profile.

    :param room: of all GPUs between which there is a choice.
    :param demand: how much each profile is requested; equal by default.
    """
    if demand is None:
        return tuple(1 / (_SPARE + left) for left in room)
    return tuple(wanted / (_SPARE + left)
                 for wanted, left in zip(demand, room, strict=True))


def loss(taken: Iterable[float], at: Iterable[float]) -> float:
    """Return the cost of room.

    :param taken: units of room, for each profile.
    """
    # Rounded once, so that the order of the profiles does not matter.
    return math.fsum(map(operator.mul, taken, at))


def choose_start(grid: Geometry, occupancy: Occupancy,
                 profile: model.GpuInstanceProfile
                 ) -> model.Placement | None:
    """Return the placement that loses least on a GPU; see :attr:`Row.best`.

    :returns: None only if there is no free placement at all.
    """
    best = of_grid(grid.profiles).row(occupancy).best[
        grid.profiles.index(profile)]
    return None if best is None else best.placement


def cost(grid: Geometry, occupancy: Occupancy) -> float:
    """Return the room that an occupancy as a whole takes of an empty GPU.

    This compares layouts, which need not have anything in common.
    """
    table = of_grid(grid.profiles)
    empty = table.row(EMPTY)
    return loss(empty.lost(table.row(occupancy)), prices(empty.room))


@functools.lru_cache(maxsize=64)
def of_grid(profiles: tuple[model.GpuInstanceProfile, ...]) -> Table:
    """Return the table of a grid, which all GPUs of a kind share."""
    return Table(Geometry(profiles))


@dataclasses.dataclass(frozen=True, eq=False)
class Option:
    """The result of adding one instance of a profile to a row."""

    placement: model.Placement
    after: Row
    lost: tuple[float, ...]
    """Room lost, for each profile of the table."""


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """An occupancy and the room that it leaves; unique within its table."""

    table: Table
    occupancy: Occupancy
    taken: int
    """Memory units in use."""
    room: tuple[float, ...]
    """For each profile of the table."""

    @functools.cached_property
    def options(self) -> tuple[tuple[Option, ...], ...]:
        """For each profile, the starts worth choosing from, best first.

        A start is omitted if it costs at least as much room of every
        profile as another. If two cost the same, the higher start is kept.
        """
        return tuple(_undominated(self._option(profile, placement)
                                  for placement in self.table.grid
                                  .free_placements(self.occupancy, profile))
                     for profile in self.table.profiles)

    @functools.cached_property
    def best(self) -> tuple[Option | None, ...]:
        """For each profile, the start that loses least; None without room.

        The prices are those of this GPU alone. If two starts lose the same,
        the higher one is best, because the driver itself fills a grid from
        its end.
        """
        at = prices(self.room)
        return tuple(min(
            options, default=None, key=lambda option: (
                loss(option.lost, at), -option.placement.start))
            for options in self.options)

    def lost(self, after: Row) -> tuple[float, ...]:
        """Return the room that is lost on the way to another row."""
        return tuple(map(operator.sub, self.room, after.room))

    def _option(self, profile: model.GpuInstanceProfile,
                placement: model.Placement) -> Option:
        after = self.table.row(self.occupancy.add(profile, placement))
        return Option(placement, after, self.lost(after))


class Table:
    """The rows of one grid, created on first use and then kept.

    A decision that has been made before needs only lookups and additions. A
    grid has some hundreds of rows that matter, and thousands at most.

    :param grid: the grid, of any size that NVML describes.
    :param profiles: the offered profiles, whose room counts; None for all
        of the grid's.
    """

    def __init__(self, grid: Geometry,
                 profiles: Iterable[model.GpuInstanceProfile] | None = None
                 ):
        self.grid = grid
        self.profiles = tuple(grid.profiles if profiles is None
                              else profiles)
        self._rows: dict[Occupancy, Row] = {}
        self._creatable: dict[Occupancy, tuple[int, ...]] = {}

    def row(self, occupancy: Occupancy) -> Row:
        """Return the row of an occupancy, whatever created it."""
        row = self._rows.get(occupancy)
        if row is None:
            row = self._rows[occupancy] = Row(
                self, occupancy, occupancy.mask.bit_count(),
                self._room(occupancy))
        return row

    def _room(self, occupancy: Occupancy) -> tuple[float, ...]:
        room = [0.0] * len(self.profiles)
        for left, chance in _endings(occupancy):
            for number, count in enumerate(self._counts(left)):
                room[number] += chance * count
        return tuple(room)

    def _counts(self, occupancy: Occupancy) -> tuple[int, ...]:
        counts = self._creatable.get(occupancy)
        if counts is None:
            counts = self._creatable[occupancy] = (
                self.grid.creatable_of_each(occupancy, self.profiles))
        return counts


def _endings(occupancy: Occupancy
             ) -> list[tuple[Occupancy, float]]:
    """Return what may be left of an occupancy, with probabilities."""
    outcomes = [(occupancy.taken[_MOST:], 1.0)]
    for item in occupancy.taken[:_MOST]:
        outcomes = [outcome for left, chance in outcomes for outcome in (
            (left, chance * ENDING),
            ((*left, item), chance * (1 - ENDING)))]
    return [(Occupancy(left), chance) for left, chance in outcomes]


def _undominated(options: Iterable[Option]) -> tuple[Option, ...]:
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (
            sum(option.lost), -option.placement.start)):
        if not any(all(one <= other for one, other in
                       zip(better.lost, option.lost, strict=True))
                   for better in kept):
            kept.append(option)
    return tuple(kept)
