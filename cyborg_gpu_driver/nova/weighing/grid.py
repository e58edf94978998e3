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

"""What lies on a GPU, as far as Placement's figures tell. Pure.

Placement has no placements. It has, for each profile of a GPU, how many
are used and how many more can be had, and the name. The name says how many
compute slices there are and, beside its siblings, how much memory; where
such instances may start is as in NVIDIA's MIG user guide, for GPUs of
seven slices (eight units of memory) and of four. That is a supposition,
and the figures are its proof: only an arrangement that has what is used,
and leaves room for exactly what can still be had, is believed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import names
from cyborg_gpu_driver.partition.mig import geometry
from cyborg_gpu_driver.partition.mig import score

Counts = tuple[int, ...]
"""One figure for each profile of a GPU, in the order of its profiles."""

_SEVEN = {1: (1, range(7)), 2: (2, (0, 2, 4)), 3: (4, (0, 4)),
          4: (4, (0,)), 7: (8, (0,))}
"""Slices to size and starts, on GPUs of seven slices."""
_FOUR = {1: (1, range(4)), 2: (2, (0, 2)), 4: (4, (0,))}
_DOUBLE = (2, (0, 2, 4, 6))
"""One slice of seven with the memory of two."""
_IS_DOUBLE = 1.5
"""How many times a unit's memory one slice has if it has the double; names
round, such as 1g.18gb and 1g.35gb."""


def rows(profiles: tuple[str, ...], used: Counts, free: Counts
         ) -> tuple[score.Row, ...]:
    """The ways in which a GPU can be partitioned, seen from outside.

    Between a claim and its bind, more is used than was created, and what
    is free is still as before. The instance is then taken to lie where the
    agent will put it.

    :param profiles: names, such as ``1g.10gb+me``.
    :param used: what servers have.
    :param free: what can still be had, of each profile alone.
    :returns: rows of one table, all equally possible; none if no known
        grid explains the figures: instances of somebody else, a limit that
        is not the grid's, another board.
    """
    for choose in (_settled, _claimed):
        for table in tables(profiles):
            found = choose(table.grid, free, _arrangements(table.grid, used))
            if found:
                return tuple(map(table.row, found))
    return ()


@functools.lru_cache(maxsize=256)
def tables(profiles: tuple[str, ...]) -> tuple[score.Table, ...]:
    """The grids that a GPU of these profiles can have, likeliest first.

    Profiles in a table are in the order of ``profiles`` and have their
    number as id. None if one of the names is not of a GPU instance.
    """
    try:
        parsed = tuple(map(names.ProfileName.parse, profiles))
    except exception.InvalidValue:
        return ()
    return tuple(
        score.Table(geometry.Geometry(
            _profile(number, name, shape) for number, (name, shape)
            in enumerate(zip(parsed, shapes, strict=True))))
        for shapes in _hypotheses(parsed))


def _hypotheses(parsed) -> Iterator[list[tuple]]:
    """Size and starts of each profile; one list for each supposition."""
    if all(name.slices in _SEVEN for name in parsed):
        unit = min(name.memory_gb / _SEVEN[name.slices][0]
                   for name in parsed)
        yield [_DOUBLE if name.slices == 1
               and name.memory_gb >= _IS_DOUBLE * unit
               else _SEVEN[name.slices] for name in parsed]
    if all(name.slices in _FOUR for name in parsed):
        yield [_FOUR[name.slices] for name in parsed]


def _profile(number, name, shape):
    size, starts = shape
    # There is one set of media extensions on all boards that have them.
    most = 1 if name.attributes & {'+me', '+me.all'} else len(starts)
    return model.GpuInstanceProfile(
        profile_id=number, name=str(name), slices=name.slices, memory_mib=0,
        max_instances=most, placements=tuple(
            model.Placement(start, size) for start in starts))


def _arrangements(grid, used):
    """Every occupancy that has just that many of each profile."""
    found = {geometry.EMPTY}
    for profile, count in zip(grid.profiles, used, strict=True):
        for _ in range(count):
            found = {occupancy.add(profile, placement)
                     for occupancy in found for placement
                     in grid.free_placements(occupancy, profile)}
    return sorted(found, key=lambda occupancy: occupancy.taken)


def _settled(grid, free, occupancies):
    return [occupancy for occupancy in occupancies
            if _left(grid, occupancy) == free]


def _claimed(grid, free, occupancies):
    possible = [occupancy for occupancy in occupancies
                if all(map(int.__le__, _left(grid, occupancy), free))]
    costs = [score.cost(grid, occupancy) for occupancy in possible]
    return [occupancy for occupancy, cost
            in zip(possible, costs, strict=True) if cost == min(costs)]


def _left(grid, occupancy):
    return tuple(grid.creatable(occupancy, profile)
                 for profile in grid.profiles)
