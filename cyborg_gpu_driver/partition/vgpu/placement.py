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

"""Where the next vGPU goes on a GPU of mixed sizes: pure.

A placement id is where on the GPU's framebuffer a vGPU begins, in slots; a
type has a few that it may have (vGPU user guide, mixed-size mode). A type is
to this what a profile of GPU instances is to MIG, so the same geometry
counts what is left.
"""

from __future__ import annotations

from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.mig import geometry


def choose(types: Iterable[model.VgpuType], wanted: model.VgpuType,
           taken: Iterable[model.Placement] = ()) -> int | None:
    """The placement id that loses the least of what may be asked for next.

    What is left is counted for the largest type first: what a small vGPU
    needs is in many places, what a large one needs in few. Where that is
    equal the lowest id wins.

    :param types: those that may be asked for, with or without ``wanted``;
        of each what is free comes from its ``free_placements``.
    :param wanted: the type of the vGPU that is to be made.
    :param taken: what else is spoken for, start and size in slots.
    :returns: None if there is no place for it.
    """
    taken = tuple(taken)
    mine = _profile(wanted, taken)
    grid = geometry.Geometry(sorted(
        {mine, *(_profile(entry, taken) for entry in types)},
        key=lambda profile: (-profile.slices, profile.placements)))
    place = max(mine.placements, default=None, key=lambda place: (
        [grid.creatable(geometry.EMPTY.add(mine, place), profile)
         for profile in grid.profiles], -place.start))
    return None if place is None else place.start


def profile_of(entry: model.VgpuType, starts: Iterable[int]
               ) -> model.GpuInstanceProfile:
    """A type of mixed sizes as a profile on a grid of slots.

    Types of one size are the same, whatever their series.

    :param starts: the placement ids that it may have.
    """
    size = entry.placement_size or 0
    places = tuple(model.Placement(start, size) for start in starts)
    return model.GpuInstanceProfile(
        profile_id=size, name=str(size), slices=size,
        memory_mib=entry.framebuffer_mib, max_instances=len(places),
        placements=places)


def _profile(entry: model.VgpuType, taken: Iterable[model.Placement]
             ) -> model.GpuInstanceProfile:
    return profile_of(entry, (
        start for start in entry.free_placements or ()
        if not any(start < place.start + place.size
                   and place.start < start + (entry.placement_size or 0)
                   for place in taken)))
