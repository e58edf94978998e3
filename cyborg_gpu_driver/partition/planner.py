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

"""Where the next instance goes: pure."""

from __future__ import annotations

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import geometry


def choose_start(grid: geometry.Geometry, occupancy: geometry.Occupancy,
                 profile: model.GpuInstanceProfile
                 ) -> model.Placement | None:
    """The placement that loses the least of what could be asked for next.

    Each free placement is tried and what is left after it is measured
    (:func:`capacity`); the one that leaves most wins. Where two leave the
    same the higher start wins, as the driver itself fills a grid from its
    end.

    :returns: None only if there is no free placement at all.
    """
    return max(
        grid.free_placements(occupancy, profile), default=None,
        key=lambda placement: (
            capacity(grid, occupancy.add(profile, placement)),
            placement))


def capacity(grid: geometry.Geometry, occupancy: geometry.Occupancy
             ) -> tuple[int, int]:
    """What an occupancy leaves: compute slices, then choices.

    First, over all profiles, how many could still be made of that one
    alone, weighted by its compute slices; then how many free placements
    there are in all, which counts how freely the next one can be placed.
    """
    slices = sum(grid.creatable(occupancy, profile) * profile.slices
                 for profile in grid.profiles)
    choices = sum(len(grid.free_placements(occupancy, profile))
                  for profile in grid.profiles)
    return slices, choices
