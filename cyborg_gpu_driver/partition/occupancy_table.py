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


"""The table of one kind of GPU: what each occupancy leaves room for.

A row is an occupancy. It says, for each profile, how much room there is for
it and where one more can go, with the row that this leads to and the room
that it costs. Rows are made when they are first asked for and then kept, so
that a decision looks up and adds, and computes no geometry.

A mask of the units alone would not do for a row. Two GPUs with the same
mask can differ in what ends together (a 3g, or a 2g and two 1g) and in what
the engines still allow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import geometry

ENDING = 1 / 8
"""How likely each instance is taken to end before its room is wanted.

Above 0 it tells apart what merely has no room now from what is about to
have some. Acceptance is flat around it (1/16 to 1/6); far above, room that
is only hoped for counts like room that is there. Being a power of two it
makes every sum of rooms exact in floating point, whatever its order.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Option:
    """One more instance of a profile on a GPU of some row."""

    placement: model.Placement
    after: Row
    loss: tuple[float, ...]
    """Room lost, for each profile of the table."""


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """An occupancy and what it leaves; a table has one of each."""

    table: Table
    occupancy: geometry.Occupancy
    taken: int
    """Memory units in use."""
    room: tuple[float, ...]
    """How many instances of each profile of the table could be made alone:
    the mean over what ends, each instance with the chance
    :data:`ENDING`."""

    @functools.cached_property
    def options(self) -> tuple[tuple[Option, ...], ...]:
        """For each profile, the starts worth choosing from, best first.

        A start that costs at least as much room of every profile as
        another is left out; where two cost the same the higher stays, as
        the driver itself fills a grid from its end.
        """
        return tuple(_undominated(self._option(profile, placement)
                                  for placement in self._free(profile))
                     for profile in self.table.profiles)

    def _free(self, profile):
        return self.table.grid.free_placements(self.occupancy, profile)

    def _option(self, profile, placement):
        after = self.table.row(self.occupancy.add(profile, placement))
        return Option(placement, after, tuple(
            before - left for before, left in
            zip(self.room, after.room, strict=True)))


class Table:
    """The rows of one grid.

    :param grid: the grid, of any size that NVML describes.
    :param profiles: those that are offered, whose room counts; None for
        all of the grid's.
    """

    def __init__(self, grid: geometry.Geometry,
                 profiles: Iterable[model.GpuInstanceProfile] | None = None
                 ):
        self.grid = grid
        self.profiles = tuple(grid.profiles if profiles is None
                              else profiles)
        self._index = {profile.profile_id: number
                       for number, profile in enumerate(self.profiles)}
        self._rows: dict[geometry.Occupancy, Row] = {}
        self._creatable: dict[geometry.Occupancy, tuple[int, ...]] = {}

    def index(self, profile_id: int) -> int:
        """Where the profile stands in every tuple of the table.

        :raises InvalidValue: if the table has no such profile.
        """
        try:
            return self._index[profile_id]
        except KeyError:
            raise exception.InvalidValue(
                what='profile id', value=profile_id,
                expected='expected one of '
                + ', '.join(map(str, sorted(self._index)))) from None

    def row(self, occupancy: geometry.Occupancy) -> Row:
        """The row of an occupancy, whoever made it."""
        row = self._rows.get(occupancy)
        if row is None:
            row = self._rows[occupancy] = Row(
                self, occupancy, occupancy.mask.bit_count(),
                self._room(occupancy))
        return row

    def _room(self, occupancy):
        room = [0.0] * len(self.profiles)
        for left, chance in _endings(occupancy):
            for number, count in enumerate(self._counts(left)):
                room[number] += chance * count
        return tuple(room)

    def _counts(self, occupancy):
        counts = self._creatable.get(occupancy)
        if counts is None:
            counts = self._creatable[occupancy] = tuple(
                self.grid.creatable(occupancy, profile)
                for profile in self.profiles)
        return counts


def _endings(occupancy):
    """What may be left of an occupancy, and how likely."""
    outcomes = [((), 1.0)]
    for item in occupancy.taken:
        outcomes = [outcome for left, chance in outcomes for outcome in (
            (left, chance * ENDING),
            ((*left, item), chance * (1 - ENDING)))]
    return [(geometry.Occupancy(left), chance) for left, chance in outcomes]


def _undominated(options):
    kept = []
    for option in sorted(options, key=lambda option: (
            sum(option.loss), -option.placement.start)):
        if not any(all(one <= other for one, other in
                       zip(better.loss, option.loss, strict=True))
                   for better in kept):
            kept.append(option)
    return tuple(kept)
