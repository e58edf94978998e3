# SPDX-License-Identifier: Apache-2.0


"""The best online policy for a few GPUs, computed exactly.

Requests arrive as a Poisson process and lifetimes are exponential, so a
cluster is a Markov decision process. Relative value iteration on the
uniformized process finds the policy that accepts the most compute slices
without moving anything (Puterman, Markov Decision Processes, 1994, sections
8.5 and 11.5). Units 0 and 1 of a GPU are interchangeable with each other and
with units 2 and 3, units 4 and 5 with each other, and GPUs with each other.
States that differ in nothing else count as one state.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence

import numpy

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry

MOST_GPUS = 3
"""One GPU has 109 states, and three have 221,815."""
_ENOUGH = 1e-4
"""The precision, as a share of the requested slices, at which to stop."""
_PAIRS = (0, 2, 4)


def look(occupancy: geometry.Occupancy) -> tuple:
    """Return a key that is equal for occupancies that are one state.

    :param occupancy: an occupancy of the grid of ``packing.PROFILES``.
    """
    pairs: dict[int, list[int]] = {start: [] for start in _PAIRS}
    alone, large = [], []
    for profile, placement in occupancy.taken:
        if placement.size > 2:
            large.append((profile, placement.start))
        elif placement.start < 6:
            pairs[placement.start // 2 * 2].append(profile)
        else:
            alone.append(profile)
    return (tuple(sorted(map(tuple, (pairs[0], pairs[2])))),
            tuple(pairs[4]), tuple(alone), tuple(sorted(large)))


class Process:
    """The decision process of a cluster.

    :param grid: the grid of each GPU.
    :param gpus: the number of GPUs.
    :param slices: compute slices of each profile of the grid.
    :param shares: the share of each profile in the requests. Their sum is 1.
    :param rate: requests in a mean lifetime.
    :param refuses: whether the policy may refuse a request that fits.
    """

    def __init__(self, grid: geometry.Geometry, gpus: int,
                 slices: Sequence[int], shares: Sequence[float],
                 rate: float, refuses: bool = False):
        self._slices = slices
        self._refuses = refuses
        self._read_gpu(grid)
        self._states = numpy.array(list(
            itertools.combinations_with_replacement(
                range(len(self._numbers)), gpus)))
        self._codes = self._code(self._states)
        self.values = self._solve(shares, rate, gpus)

    def value(self, occupancies: Sequence[geometry.Occupancy]) -> float:
        """Return the relative value of a state of the cluster, in slices."""
        numbers = sorted(self._numbers[look(one)] for one in occupancies)
        return float(self.values[numpy.searchsorted(
            self._codes, self._code(numpy.array([numbers]))[0])])

    def prefers_refusal(self, profile: int,
                        occupancies: Sequence[geometry.Occupancy],
                        after: float) -> bool:
        """Whether it is better to refuse a request although it fits.

        :param after: the value of the state with the requested instance.
        """
        return self._refuses and self._slices[profile] + after < self.value(
            occupancies)

    def _read_gpu(self, grid):
        """Find the states of one GPU and the transitions between them."""
        self._numbers = {look(geometry.EMPTY): 0}
        known = [geometry.EMPTY]
        self._after, self._left = [], []
        for occupancy in known:
            after = []
            for profile in grid.profiles:
                nexts = [occupancy.add(profile, placement) for placement
                         in grid.free_placements(occupancy, profile)]
                after.append({self._number(one, known) for one in nexts})
            self._after.append(after)
            taken = occupancy.taken
            self._left.append(collections.Counter(
                self._number(geometry.Occupancy(
                    taken[:index] + taken[index + 1:]), known)
                for index in range(len(taken))))

    def _number(self, occupancy, known):
        key = look(occupancy)
        if key not in self._numbers:
            self._numbers[key] = len(known)
            known.append(occupancy)
        return self._numbers[key]

    def _code(self, states):
        code = numpy.zeros(len(states), dtype=numpy.int64)
        for column in states.T:
            code = code * len(self._numbers) + column
        return code

    def _columns(self, tables, gpus):
        """Yield, for each GPU and transition, the states before and after."""
        for way in range(max(map(len, tables))):
            to = numpy.array([table[way] if way < len(table) else -1
                              for table in tables])
            for gpu in range(gpus):
                number = to[self._states[:, gpu]]
                there, = numpy.nonzero(number >= 0)
                nexts = self._states[there].copy()
                nexts[:, gpu] = number[there]
                nexts.sort(axis=1)
                yield (there, numpy.searchsorted(
                    self._codes, self._code(nexts)), way, gpu)

    def _solve(self, shares, rate, gpus):
        arrivals = [list(self._columns(
            [sorted(after[profile]) for after in self._after], gpus))
            for profile in range(len(shares))]
        ends = []
        for there, nexts, way, gpu in self._columns(
                [sorted(left) for left in self._left], gpus):
            weights = numpy.array([
                sorted(left.items())[way][1] if way < len(left) else 0
                for left in self._left])
            ends.append((there, nexts, weights[self._states[there, gpu]]))
        total = rate + gpus * max(
            sum(left.values()) for left in self._left)
        running = numpy.array([sum(left.values()) for left in self._left])[
            self._states].sum(axis=1)
        asked = rate * sum(share * slices for share, slices in zip(
            shares, self._slices, strict=True))
        values = numpy.zeros(len(self._states))
        while True:
            after = (total - rate - running) * values
            for there, nexts, weights in ends:
                # Each state occurs once in a column.
                after[there] += weights * values[nexts]
            for profile, share in enumerate(shares):
                after += rate * share * self._best(
                    values, arrivals[profile], self._slices[profile])
            after /= total
            change = (after - values) * total
            values = after - after[0]
            if change.max() - change.min() < _ENOUGH * asked:
                self.slice_acceptance = float(
                    change.max() + change.min()) / 2 / asked
                return values

    def _best(self, values, columns, slices):
        best = values.copy() if self._refuses else numpy.full(
            len(values), -numpy.inf)
        for there, nexts, _way, _gpu in columns:
            best[there] = numpy.maximum(best[there], slices + values[nexts])
        return numpy.where(numpy.isinf(best), values, best)


class Optimal:
    """A cluster with the best policy.

    :param process: the process, solved for this number of GPUs.
    """

    def __init__(self, process: Process, grid: geometry.Geometry, gpus: int):
        self._process = process
        self._grid = grid
        self._gpus = [geometry.EMPTY] * gpus

    def request(self, profile: int
                ) -> tuple[int, tuple[int, model.Placement]] | None:
        """Place one more instance of a profile, given by its index.

        :returns: the argument for :meth:`remove`, None if refused.
        """
        kind = self._grid.profiles[profile]
        options = {}
        for gpu, occupancy in enumerate(self._gpus):
            for placement in self._grid.free_placements(occupancy, kind):
                after = occupancy.add(kind, placement)
                options.setdefault(look(occupancy) + look(after), (
                    gpu, placement, after))
        if not options:
            return None
        value, (gpu, placement, after) = max(
            ((self._value(gpu, after), (gpu, placement, after))
             for gpu, placement, after in options.values()),
            key=lambda item: item[0])
        if self._process.prefers_refusal(profile, self._gpus, value):
            return None
        self._gpus[gpu] = after
        return gpu, (kind.profile_id, placement)

    def remove(self, place: tuple[int, tuple[int, model.Placement]]) -> None:
        """Remove an instance."""
        gpu, item = place
        left = list(self._gpus[gpu].taken)
        left.remove(item)
        self._gpus[gpu] = geometry.Occupancy(tuple(left))

    def _value(self, gpu, after):
        return self._process.value(
            [*self._gpus[:gpu], after, *self._gpus[gpu + 1:]])
