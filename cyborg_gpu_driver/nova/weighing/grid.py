# SPDX-License-Identifier: Apache-2.0

"""The GPU instances on a GPU, as far as Placement's figures tell. Pure.

Placement does not know where GPU instances start. For each profile of a GPU
it knows the name, how many are used and how many more are available. The name
gives the number of compute slices and, compared with the other profiles, the
amount of memory. The possible starts are assumed to be those of NVIDIA's MIG
user guide, for GPUs of seven slices (eight units of memory) and of four. The
figures verify that assumption: the weigher accepts only an arrangement that
has what is used, and leaves room for exactly what is still available.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import names

Counts = tuple[int, ...]
"""One figure for each profile of a GPU, in the order of its profiles."""

_SEVEN = {1: (1, range(7)), 2: (2, (0, 2, 4)), 3: (4, (0, 4)),
          4: (4, (0,)), 7: (8, (0,))}
"""Slices to size and starts, on GPUs of seven slices."""
_FOUR = {1: (1, range(4)), 2: (2, (0, 2)), 4: (4, (0,))}
_DOUBLE = (2, (0, 2, 4, 6))
"""One slice of seven with the memory of two."""
_IS_DOUBLE = 1.5
"""A one-slice profile with at least so many times a unit's memory counts as
double. The limit is below 2 because names round: 1g.18gb and 1g.35gb."""


def rows(profiles: tuple[str, ...], used: Counts, free: Counts
         ) -> tuple[geometry.Row, ...]:
    """Return the possible partitionings of a GPU by Placement's figures.

    Between a claim and its bind, more is used than was created, and what
    is free is still as before. The function then assumes the start that the
    agent will choose for the instance.

    :param used: what servers have.
    :param free: what is still available of each profile alone.
    :returns: rows of one table, all equally possible; none if no known
        grid explains the figures: instances that another tool created, a
        limit that is not the grid's, another board.
    """
    for choose in (_settled, _claimed):
        for table in tables(profiles):
            found = choose(table.grid, free, _arrangements(table.grid, used))
            if found:
                return tuple(map(table.row, found))
    return ()


@functools.lru_cache(maxsize=256)
def tables(profiles: tuple[str, ...]) -> tuple[geometry.Table, ...]:
    """Return the grids that a GPU can have, likeliest first.

    Profiles in a table are in the order of ``profiles``, and their ID is the
    position. Empty if a name is not that of a GPU instance profile.
    """
    try:
        parsed = tuple(map(names.ProfileName.parse, profiles))
    except exception.InvalidValue:
        return ()
    return tuple(
        geometry.Table(geometry.Geometry(
            _profile(number, name, shape) for number, (name, shape)
            in enumerate(zip(parsed, shapes, strict=True))))
        for shapes in _hypotheses(parsed))


def _hypotheses(parsed: tuple[names.ProfileName, ...]
                ) -> Iterator[list[tuple]]:
    """Yield one list per hypothesis: the size and starts of each profile."""
    if all(name.slices in _SEVEN for name in parsed):
        unit = min(name.memory_gb / _SEVEN[name.slices][0]
                   for name in parsed)
        yield [_DOUBLE if name.slices == 1
               and name.memory_gb >= _IS_DOUBLE * unit
               else _SEVEN[name.slices] for name in parsed]
    if all(name.slices in _FOUR for name in parsed):
        yield [_FOUR[name.slices] for name in parsed]


def _profile(number: int, name: names.ProfileName, shape: tuple
             ) -> model.GpuInstanceProfile:
    size, starts = shape
    # Every board with media extensions has exactly one set of them.
    most = 1 if name.attributes & {'+me', '+me.all'} else len(starts)
    return model.GpuInstanceProfile(
        profile_id=number, name=str(name), slices=name.slices, memory_mib=0,
        max_instances=most, placements=tuple(
            model.Placement(start, size) for start in starts))


def _arrangements(grid: geometry.Geometry, used: Counts
                  ) -> list[geometry.Occupancy]:
    """Return every occupancy with exactly that many of each profile."""
    found = {geometry.EMPTY}
    for profile, count in zip(grid.profiles, used, strict=True):
        for _ in range(count):
            found = {occupancy.add(profile, placement)
                     for occupancy in found for placement
                     in grid.free_placements(occupancy, profile)}
    return sorted(found, key=lambda occupancy: occupancy.taken)


def _settled(grid: geometry.Geometry, free: Counts,
             occupancies: list[geometry.Occupancy]
             ) -> list[geometry.Occupancy]:
    return [occupancy for occupancy in occupancies
            if _left(grid, occupancy) == free]


def _claimed(grid: geometry.Geometry, free: Counts,
             occupancies: list[geometry.Occupancy]
             ) -> list[geometry.Occupancy]:
    possible = [occupancy for occupancy in occupancies
                if all(map(int.__le__, _left(grid, occupancy), free))]
    costs = [geometry.cost(grid, occupancy) for occupancy in possible]
    return [occupancy for occupancy, cost
            in zip(possible, costs, strict=True) if cost == min(costs)]


def _left(grid: geometry.Geometry, occupancy: geometry.Occupancy) -> Counts:
    return tuple(grid.creatable(occupancy, profile)
                 for profile in grid.profiles)
