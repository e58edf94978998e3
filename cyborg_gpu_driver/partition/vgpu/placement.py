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

A placement id is the start of a vGPU in the GPU's framebuffer, in slots. A
type has a few possible ones (vGPU user guide, mixed-size mode). A type
corresponds to a GPU instance profile of MIG, so the same geometry counts the
remaining room.
"""

from __future__ import annotations

from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.mig import geometry


def choose(types: Iterable[model.VgpuType], wanted: model.VgpuType,
           taken: Iterable[model.Placement] = ()) -> int | None:
    """Return the placement id that leaves the most room for later requests.

    The room for the largest type counts first: a small vGPU fits in many
    places, a large one in few. If placements are equal, the lowest id wins.

    :param types: the types that may be requested, with or without
        ``wanted``; their free places come from their ``free_placements``.
    :param wanted: the type of the vGPU that is to be created.
    :param taken: other places that are reserved, start and size in slots.
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


def _profile(entry: model.VgpuType, taken: Iterable[model.Placement]
             ) -> model.GpuInstanceProfile:
    """Return a type as a profile on a grid of slots, with its free places.

    Types of one size are equal, whatever their series.
    """
    size = entry.placement_size or 0
    places = tuple(
        place for place in (model.Placement(start, size)
                            for start in entry.free_placements or ())
        if not any(place.mask & other.mask for other in taken))
    return model.GpuInstanceProfile(
        profile_id=size, name=str(size), slices=size,
        memory_mib=entry.framebuffer_mib, max_instances=len(places),
        placements=places)
