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

It is for people (which layouts exist?), for tests and for planning ahead.
Nothing that runs at a bind enumerates.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.mig import geometry

Multiset = tuple[tuple[int, int], ...]
"""(profile id, count), by id, counts above 0; no placements."""


def states(grid: geometry.Geometry,
           profiles: Iterable[model.GpuInstanceProfile] | None = None
           ) -> Iterator[geometry.Occupancy]:
    """Yield every occupancy that the rules allow, including the empty GPU.

    Each occupancy is yielded once, whatever the order of its creation.

    :param profiles: the grid's profiles to create; None for all.
    """
    return _fill(grid, _chosen(grid, profiles), geometry.EMPTY, 0)


def maximal_layouts(grid: geometry.Geometry,
                    profiles: Iterable[model.GpuInstanceProfile]
                    | None = None) -> Iterator[geometry.Occupancy]:
    """Yield every occupancy to which none of ``profiles`` can be added."""
    chosen = _chosen(grid, profiles)
    for occupancy in states(grid, chosen):
        if not any(grid.free_placements(occupancy, profile)
                   for profile in chosen):
            yield occupancy


def maximal_multisets(grid: geometry.Geometry,
                      profiles: Iterable[model.GpuInstanceProfile]
                      | None = None) -> frozenset[Multiset]:
    """Return the maximal layouts without their placements."""
    return frozenset(map(multiset, maximal_layouts(grid, profiles)))


def multiset(occupancy: geometry.Occupancy) -> Multiset:
    """Return how many instances of each profile there are."""
    return tuple(sorted(occupancy.counts.items()))


def _chosen(grid: geometry.Geometry,
            profiles: Iterable[model.GpuInstanceProfile] | None
            ) -> Sequence[model.GpuInstanceProfile]:
    return tuple(grid.profiles if profiles is None else profiles)


def _fill(grid: geometry.Geometry,
          profiles: Sequence[model.GpuInstanceProfile],
          occupancy: geometry.Occupancy, first: int
          ) -> Iterator[geometry.Occupancy]:
    """Yield ``occupancy`` and all that adds instances from ``first`` on."""
    yield occupancy
    for profile in profiles:
        for placement in grid.free_placements(occupancy, profile):
            if placement.start >= first:
                yield from _fill(grid, profiles,
                                 occupancy.add(profile, placement),
                                 placement.start + placement.size)
