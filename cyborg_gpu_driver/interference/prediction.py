# SPDX-License-Identifier: Apache-2.0

"""How long applications run together, and which GPU is best for each. Pure.

The placement policy ``quiet`` uses the same model: each neighbour adds its
measured slowdown minus 1. An application that runs beside two others with
slowdowns of 1.2 and 1.5 takes 1.7 times as long. Only pairs are measured; the
model assumes that the slowdowns of three add up. When an application ends, the
others continue faster, by the slowdowns of those that still run.

A measured slowdown below 1 counts as 1 here: it is noise. So more neighbours
never make a predicted end earlier.

There are three placements, for comparison: ``predicted`` minimises the
predicted makespan, ``pack`` and ``spread`` ignore interference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.nova.weighing import published


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of an application.

    :ivar seconds: its run time alone.
    :ivar memory_mib: the GPU memory that it needs; None if unknown.
    """

    application: str
    seconds: float
    memory_mib: int | None = None


class Predictor:
    """Predicts run times on GPUs that are alike.

    :param slowdowns: as measured; None for a pair that does not fit together.
    :param memory_mib: memory of a GPU; None ignores memory.
    """

    def __init__(self, slowdowns: Mapping[str, Mapping[str, float | None]],
                 memory_mib: int | None = None):
        self._matrix = published.Matrix({
            name: {beside: math.inf if value is None else max(1.0, value)
                   for beside, value in row.items()}
            for name, row in slowdowns.items()})
        self._memory_mib = memory_mib

    def slowdowns(self, jobs: Sequence[Job]) -> list[float]:
        """Return the slowdown of each job while all of them run.

        It is infinite for a job that does not fit.
        """
        if not self._is_room(jobs):
            return [math.inf] * len(jobs)
        return [self._slowdown(jobs, index, range(len(jobs)))
                for index in range(len(jobs))]

    def ends(self, jobs: Sequence[Job]) -> list[float]:
        """Return when each job ends, in seconds after the common start.

        All ends are infinite if some of the jobs do not fit together.
        """
        if math.inf in self.slowdowns(jobs):
            return [math.inf] * len(jobs)
        left = {index: job.seconds for index, job in enumerate(jobs)}
        found, now = [0.0] * len(jobs), 0.0
        while left:
            slowdowns = {index: self._slowdown(jobs, index, left)
                         for index in left}
            first = min(left, key=lambda index: left[index]
                        * slowdowns[index])
            passed = left.pop(first) * slowdowns[first]
            now += passed
            found[first] = now
            left = {index: max(0.0, seconds - passed / slowdowns[index])
                    for index, seconds in left.items()}
        return found

    def makespan(self, jobs: Sequence[Job]) -> float:
        """Return when the last job ends."""
        return max(self.ends(jobs), default=0.0)

    def _is_room(self, jobs: Sequence[Job]) -> bool:
        return (self._memory_mib is None or sum(
            job.memory_mib or 0 for job in jobs) <= self._memory_mib)

    def _slowdown(self, jobs: Sequence[Job], index: int,
                  running: Iterable[int]) -> float:
        return self._matrix.slowdown(
            jobs[index].application,
            (jobs[other].application for other in running if other != index))


Groups = tuple[tuple[Job, ...], ...]


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """A placement of all jobs.

    :ivar groups: the jobs of each GPU.
    :ivar makespan: predicted, in seconds; infinite if the jobs do not fit.
    """

    name: str
    groups: Groups
    makespan: float


def compare(jobs: Sequence[Job], gpus: int, predictor: Predictor
            ) -> list[Arrangement]:
    """Return the three placements: ``predicted``, ``pack``, ``spread``.

    Each places one job after the other. ``pack`` puts the largest first, onto
    the fullest GPU where it fits: memory decides, and if that is unknown, the
    number of jobs. ``spread`` puts the longest first, onto the GPU with the
    least work. ``predicted`` is the best of these two and of a greedy
    placement: the longest first, onto the GPU whose jobs then end first.
    """
    longest = sorted(jobs, key=lambda job: (-job.seconds, job.application))
    others = {
        'pack': _one_by_one(
            sorted(jobs, key=lambda job: -(job.memory_mib or 0)), gpus,
            predictor, lambda group, _job: (
                -sum(job.memory_mib or 0 for job in group), -len(group))),
        'spread': _one_by_one(
            longest, gpus, predictor, lambda group, _job: (
                sum(job.seconds for job in group), len(group)))}
    greedy = _one_by_one(
        longest, gpus, predictor, lambda group, job: (
            predictor.makespan([*group, job]), len(group)))
    best = min([greedy, *others.values()],
               key=lambda groups: _makespan(groups, predictor))
    return [Arrangement(name, groups, _makespan(groups, predictor))
            for name, groups in {'predicted': best, **others}.items()]


def _one_by_one(jobs: Sequence[Job], gpus: int,
                predictor: Predictor,
                cost: Callable[[Sequence[Job], Job], tuple[float, ...]]
                ) -> Groups:
    """Place each job onto the cheapest GPU, if possible one where it fits."""
    groups: list[list[Job]] = [[] for _ in range(gpus)]
    for job in jobs:
        min(groups, key=lambda group: (
            math.inf in predictor.slowdowns([*group, job]),
            *cost(group, job))).append(job)
    return tuple(map(tuple, groups))


def _makespan(groups: Groups, predictor: Predictor) -> float:
    return max(map(predictor.makespan, groups), default=0.0)
