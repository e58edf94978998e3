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
"""The cost of an instance's placement: the room that it takes.

This one measure decides every choice between places: the start of an instance
on a GPU (a bind, ``instance create``), the choice between layouts that are
otherwise equal, and the host and GPU that the weigher in Nova's scheduler
prefers.

*Room* is how many more instances of a profile a GPU could hold, of that
profile alone. It is a mean over the instances that may end, each with the
probability :data:`ENDING`.

The *price* of a unit of room is ``demand / (1/2 + room)``: scarce room is
expensive. The room is that of all GPUs between which there is a choice, so a
bind considers its own GPU and the scheduler the whole cloud. Demand is the
same for each profile, unless it has been measured.

The *loss* of a choice is the room that it takes, each unit at its price. The
choice that loses least is best.

A mask of the memory units cannot replace an occupancy. Two GPUs with the same
mask can differ in which units are freed together (a 3g, or a 2g and two 1g)
and in what the media engines still allow.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.mig import geometry

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
    :param at: the prices, in the same order.
    """
    # Rounded once, so that the order of the profiles does not matter.
    return math.fsum(map(operator.mul, taken, at))


def choose_start(grid: geometry.Geometry, occupancy: geometry.Occupancy,
                 profile: model.GpuInstanceProfile
                 ) -> model.Placement | None:
    """Return the placement that loses least on a GPU; see :attr:`Row.best`.

    :param profile: one of the grid's profiles.
    :returns: None only if there is no free placement at all.
    """
    best = of_grid(grid.profiles).row(occupancy).best[
        grid.profiles.index(profile)]
    return None if best is None else best.placement


def cost(grid: geometry.Geometry, occupancy: geometry.Occupancy) -> float:
    """Return the room that an occupancy as a whole takes of an empty GPU.

    This compares layouts, which need not have anything in common.
    """
    table = of_grid(grid.profiles)
    empty = table.row(geometry.EMPTY)
    return loss(empty.lost(table.row(occupancy)), prices(empty.room))


@functools.lru_cache(maxsize=64)
def of_grid(profiles: tuple[model.GpuInstanceProfile, ...]) -> Table:
    """Return the table of a grid, which all GPUs of a kind share."""
    return Table(geometry.Geometry(profiles))


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
    occupancy: geometry.Occupancy
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

    def __init__(self, grid: geometry.Geometry,
                 profiles: Iterable[model.GpuInstanceProfile] | None = None
                 ):
        self.grid = grid
        self.profiles = tuple(grid.profiles if profiles is None
                              else profiles)
        self._rows: dict[geometry.Occupancy, Row] = {}
        self._creatable: dict[geometry.Occupancy, tuple[int, ...]] = {}

    def row(self, occupancy: geometry.Occupancy) -> Row:
        """Return the row of an occupancy, whatever created it."""
        row = self._rows.get(occupancy)
        if row is None:
            row = self._rows[occupancy] = Row(
                self, occupancy, occupancy.mask.bit_count(),
                self._room(occupancy))
        return row

    def _room(self, occupancy: geometry.Occupancy) -> tuple[float, ...]:
        room = [0.0] * len(self.profiles)
        for left, chance in _endings(occupancy):
            for number, count in enumerate(self._counts(left)):
                room[number] += chance * count
        return tuple(room)

    def _counts(self, occupancy: geometry.Occupancy) -> tuple[int, ...]:
        counts = self._creatable.get(occupancy)
        if counts is None:
            counts = self._creatable[occupancy] = (
                self.grid.creatable_of_each(occupancy, self.profiles))
        return counts


def _endings(occupancy: geometry.Occupancy
             ) -> list[tuple[geometry.Occupancy, float]]:
    """Return what may be left of an occupancy, with probabilities."""
    outcomes = [(occupancy.taken[_MOST:], 1.0)]
    for item in occupancy.taken[:_MOST]:
        outcomes = [outcome for left, chance in outcomes for outcome in (
            (left, chance * ENDING),
            ((*left, item), chance * (1 - ENDING)))]
    return [(geometry.Occupancy(left), chance) for left, chance in outcomes]


def _undominated(options: Iterable[Option]) -> tuple[Option, ...]:
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (
            sum(option.lost), -option.placement.start)):
        if not any(all(one <= other for one, other in
                       zip(better.lost, option.lost, strict=True))
                   for better in kept):
            kept.append(option)
    return tuple(kept)
