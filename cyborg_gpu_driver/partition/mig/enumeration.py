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

"""Every way to partition a GPU, by enumeration.

For people (which layouts are there?), for tests and for planning ahead;
nothing that runs at a bind enumerates.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.mig import geometry

Multiset = tuple[tuple[int, int], ...]
"""(profile id, count), by id, counts above 0: what, not where."""


def states(grid: geometry.Geometry,
           profiles: Iterable[model.GpuInstanceProfile] | None = None
           ) -> Iterator[geometry.Occupancy]:
    """Every occupancy that the rules allow, the empty GPU included.

    Each is given once, whatever the order in which it could be made.

    :param profiles: those to create, of the grid's; None for all.
    """
    return _fill(grid, _chosen(grid, profiles), geometry.EMPTY, 0)


def maximal_layouts(grid: geometry.Geometry,
                    profiles: Iterable[model.GpuInstanceProfile]
                    | None = None) -> Iterator[geometry.Occupancy]:
    """Every occupancy to which none of ``profiles`` can be added."""
    chosen = _chosen(grid, profiles)
    for occupancy in states(grid, chosen):
        if not any(grid.free_placements(occupancy, profile)
                   for profile in chosen):
            yield occupancy


def maximal_multisets(grid: geometry.Geometry,
                      profiles: Iterable[model.GpuInstanceProfile]
                      | None = None) -> frozenset[Multiset]:
    """The maximal layouts without regard to where the instances lie."""
    return frozenset(map(multiset, maximal_layouts(grid, profiles)))


def multiset(occupancy: geometry.Occupancy) -> Multiset:
    """How many of each profile there are."""
    return tuple(sorted(occupancy.counts.items()))


def _chosen(grid: geometry.Geometry,
            profiles: Iterable[model.GpuInstanceProfile] | None
            ) -> Sequence[model.GpuInstanceProfile]:
    return tuple(grid.profiles if profiles is None else profiles)


def _fill(grid: geometry.Geometry,
          profiles: Sequence[model.GpuInstanceProfile],
          occupancy: geometry.Occupancy, first: int
          ) -> Iterator[geometry.Occupancy]:
    """``occupancy``, and with it all that adds at or after ``first``."""
    yield occupancy
    for profile in profiles:
        for placement in grid.free_placements(occupancy, profile):
            if placement.start >= first:
                yield from _fill(grid, profiles,
                                 occupancy.add(profile, placement),
                                 placement.start + placement.size)
