# SPDX-License-Identifier: Apache-2.0


"""Published measures of fragmentation, applied to GPU instances.

A policy tries each free placement and takes the one with which the measure
grows least. Among equal placements it takes the fullest GPU, then the first.

* ``FGD``: fragmentation gradient descent, Weng et al., "Beware of
  Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
  Descent", USENIX ATC 2023. The fragmentation of a node for a task is the
  part of its free GPUs that the task cannot use. The measure is its
  expectation over the tasks, weighted by how often each is requested. Here a
  task is a request for a profile, and it loses the free compute slices of a
  GPU if the profile fits nowhere on that GPU. (Memory units in place of
  slices do worse, because a 1g cannot use the last of the eight units.)
* ``MFI``: minimum fragmentation increment, Zambianco et al., "An Online
  Fragmentation-Aware GPU Scheduler for Multi-Tenant MIG-based Clouds",
  arXiv 2511.18906, 2025. For each profile that needs no more memory units
  than are free, the measure counts the placements that are blocked although
  they are free on an empty GPU, each weighted by the profile's memory units.
  All profiles count alike.

The programs of the papers also decide between jobs of other kinds. This
module has their measures on the grid of this benchmark, not their programs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from collections.abc import Sequence

import online

from cyborg_gpu_driver.partition import geometry

Measure = Callable[[geometry.Row, Sequence[float]], float]
"""A function that returns how fragmented a GPU is.

Its second argument is the demand: the share of each profile of the table.
"""


def fgd(row: geometry.Row, demand: Sequence[float]) -> float:
    """Return the unusable free compute slices, as a mean over the demand."""
    useless, free = _useless(row)
    return free * sum(itertools.compress(demand, useless))


def mfi(row: geometry.Row, _demand: Sequence[float]) -> float:
    """Return the weighted blocked placements of profiles that could fit."""
    return _blocked(row)


@functools.lru_cache(maxsize=1 << 16)
def _useless(row):
    """Return whether each profile fits nowhere, and the free slices."""
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

    :param measure: the measure that should grow least.
    """

    def __init__(self, table: geometry.Table, gpus, measure: Measure):
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
    """Return each free placement of a profile, with the row after it."""
    profile = row.table.profiles[number]
    return tuple(
        (placement, row.table.row(row.occupancy.add(profile, placement)))
        for placement in row.table.grid.free_placements(
            row.occupancy, profile))
