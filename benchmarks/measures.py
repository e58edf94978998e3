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


"""Published measures of fragmentation, applied to GPU instances.

A policy tries each free placement and takes the one after which the measure
grows least. Where two are equal the fullest GPU is taken, then the first.

* ``FGD``: fragmentation gradient descent, Weng et al., "Beware of
  Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
  Descent", USENIX ATC 2023. The fragmentation of a node for a task is the
  part of its free GPUs that the task cannot use; the measure is its
  expectation over the tasks, by how often each is asked for. Here a task is
  a request for a profile, and the free compute slices of a GPU are lost to it
  if the profile fits nowhere on that GPU. (Memory units in place of slices
  do worse, because the last of eight units is of no use to a 1g.)
* ``MFI``: minimum fragmentation increment, Zambianco et al., "An Online
  Fragmentation-Aware GPU Scheduler for Multi-Tenant MIG-based Clouds",
  arXiv 2511.18906, 2025. For each profile that has no more memory units than
  are free, it counts the placements that are blocked although they would
  not be on an empty GPU, each with the profile's memory units. All profiles
  count alike.

The papers decide between jobs of other kinds, too. These are their measures
on the grid of this benchmark, not their programs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from collections.abc import Sequence

import online

from cyborg_gpu_driver.partition.mig import score

Measure = Callable[[score.Row, Sequence[float]], float]
"""How fragmented a GPU is.

:param demand: the share of each profile of the table.
"""


def fgd(row: score.Row, demand: Sequence[float]) -> float:
    """Free compute slices that cannot be used, the mean over the demand."""
    useless, free = _useless(row)
    return free * sum(itertools.compress(demand, useless))


def mfi(row: score.Row, _demand: Sequence[float]) -> float:
    """Blocked placements of what has enough memory units, weighted."""
    return _blocked(row)


@functools.lru_cache(maxsize=1 << 16)
def _useless(row):
    """Whether each profile fits nowhere, and how many slices are free."""
    slices = {profile.profile_id: profile.slices
              for profile in row.table.profiles}
    return (tuple(not options for options in row.options),
            max(slices.values()) - sum(
                slices[profile_id]
                for profile_id, _placement in row.occupancy.taken))


@functools.lru_cache(maxsize=1 << 16)
def _blocked(row):
    mask = row.occupancy.mask
    free = row.table.grid.units - row.taken
    return float(sum(
        placement.size
        for profile in row.table.profiles
        for placement in profile.placements
        if placement.size <= free and placement.mask & mask))


class Steepest(online.Cluster):
    """A cluster whose policy is a measure of fragmentation.

    :param measure: what should grow least.
    """

    def __init__(self, table: score.Table, gpus, measure: Measure):
        super().__init__(table, gpus)
        self._measure = measure
        self._choosers[self.policy] = self._steepest

    def _steepest(self, number):
        counts = [root * root for root in self.demand.roots]
        best = chosen = None
        for row in self._open[number]:
            before = self._measure(row, counts)
            for placement, after in _after(row, number):
                rank = (self._measure(after, counts) - before,
                        online.rank(row), placement.start)
                if best is None or rank < best:
                    best, chosen = rank, (row, placement, after)
        return chosen and (self._first(chosen[0]), *chosen[1:])


@functools.lru_cache(maxsize=1 << 16)
def _after(row, number):
    """Each free placement of a profile, and the row after it."""
    profile = row.table.profiles[number]
    return tuple(
        (placement, row.table.row(row.occupancy.add(profile, placement)))
        for placement in row.table.grid.free_placements(
            row.occupancy, profile))
