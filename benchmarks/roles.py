# SPDX-License-Identifier: Apache-2.0

"""Whole GPUs, vGPUs and slices on GPUs of fixed modes and on elastic GPUs.

Some users request whole GPUs, some a vGPU, some a MIG slice. A static split
dedicates GPUs to each kind. Elastic GPUs (mode auto) take the role that
their first server requests, and are idle again when their last server is
deleted. The weigher chooses among them by what Placement publishes. The
clairvoyant split changes at each moment to fit exactly the servers that
exist, and moves all running servers freely.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import math
import pathlib
import random
import statistics
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent),
                str(pathlib.Path(__file__).resolve().parent)]

import online  # noqa: E402
import oracle  # noqa: E402
import packing  # noqa: E402

from cyborg_gpu_driver.nova.weighing import cost as weigher_cost  # noqa: E402
from cyborg_gpu_driver.nova.weighing import published  # noqa: E402
from cyborg_gpu_driver.partition import geometry  # noqa: E402

WHOLE, VGPU = 'passthrough', 'A100DX-20C'
SLICES = ('1g.10gb', '2g.20gb', '3g.40gb')
KINDS = (WHOLE, VGPU, *SLICES)
VGPUS = 4
"""How many vGPUs of the type fit on one GPU of 80 GB."""
SHARES = (1, 1 / VGPUS, 1 / 7, 1 / 3, 1 / 2)
"""The share of a GPU for the load: 1 / the number that fits on a GPU."""

MIXES = {
    'all alike': ((2, 8, 6, 4, 4), (2, 8, 6, 4, 4)),
    # Users train on whole GPUs at night.
    'day and night': ((1, 12, 8, 5, 5), (6, 2, 2, 1, 1)),
}
"""The requests for each kind as parts of a whole, by day and by night."""
DAY = 6.0
"""The length of a day or a night (12 hours), in mean lifetimes of a server."""
LIMIT = 0.70
"""The least share of the gap to close; each mix has the same weight."""
GPUS, REQUESTS = 16, 3000
STATIC, ELASTIC, CLAIRVOYANT = 'static split', 'elastic', 'clairvoyant split'
NOVA = 'elastic, Nova alone'


@dataclasses.dataclass(frozen=True)
class Line:
    """One way in one mix."""

    gpus: int
    load: float
    mix: str
    way: str
    acceptance: float
    share_acceptance: float
    """The accepted part of the requests, weighted with :data:`SHARES`."""
    gap_closed: float | None


@dataclasses.dataclass
class Score:
    """How many requests of each kind were offered and accepted."""

    offered: list[int] = dataclasses.field(
        default_factory=lambda: [0] * len(KINDS))
    accepted: list[int] = dataclasses.field(
        default_factory=lambda: [0] * len(KINDS))

    @property
    def acceptance(self):
        return sum(self.accepted) / sum(self.offered)

    @property
    def share_acceptance(self):
        return sum(map(math.prod, zip(self.accepted, SHARES))) / sum(
            map(math.prod, zip(self.offered, SHARES)))


def requests(chance, gpus, load, mix):
    """Yield Poisson arrivals, forever; day and night have their own mix."""
    now = 0.0
    while True:
        parts = MIXES[mix][int(now / DAY) % 2]
        rate = load * gpus * sum(parts) / sum(
            map(math.prod, zip(parts, SHARES)))
        now += chance.expovariate(rate)
        kind, = chance.choices(range(len(KINDS)), parts)
        yield packing.Request(now, kind, now + chance.expovariate(1.0))


class Elastic:
    """A cloud of GPUs in mode auto, with the weigher."""

    def __init__(self, gpus: int, chance: random.Random):
        self._grid = geometry.Geometry(packing.PROFILES[:len(SLICES)])
        self._chance = chance
        self._gpus = {number: collections.Counter()
                      for number in range(gpus)}
        self._slices = dict.fromkeys(self._gpus, geometry.EMPTY)
        self._published = {number: self._publish(number)
                           for number in self._gpus}

    def request(self, kind: int):
        """Schedule a server, and bind its accelerator.

        :param kind: the index in :data:`KINDS`.
        :returns: the argument for :meth:`remove`, None if nothing fits.
        """
        candidates = [number for number, gpu in self._published.items()
                      if gpu.offers[kind].free]
        if not candidates:
            return None
        number = self.choose(candidates, kind)
        place = None
        if KINDS[kind] in SLICES:
            profile = self._grid.profiles[kind - 2]
            start = geometry.choose_start(self._grid, self._slices[number],
                                          profile)
            place = profile.profile_id, start
            self._slices[number] = self._slices[number].add(profile, start)
        self._gpus[number][kind] += 1
        self._published[number] = self._publish(number)
        return number, kind, place

    def remove(self, had) -> None:
        """Delete a server."""
        number, kind, place = had
        self._gpus[number][kind] -= 1
        if place is not None:
            left = list(self._slices[number].taken)
            left.remove(place)
            self._slices[number] = geometry.Occupancy(tuple(left))
        self._published[number] = self._publish(number)

    def choose(self, candidates, kind):
        """Return the GPU that costs least."""
        fleet = weigher_cost.Fleet(self._published.values())
        return min(candidates, key=lambda number: fleet.cost({
            f'{number}/{kind}': {'resources': {KINDS[kind]: 1}}}).packing)

    def _publish(self, number):
        used = self._gpus[number]
        roles = {published.role_of(KINDS[kind])
                 for kind, count in used.items() if count}
        return published.Gpu(str(number), str(number), tuple(
            published.Offer(
                f'{number}/{kind}', name, name, used[kind],
                self._left(number, kind)
                if not roles - {published.role_of(name)} else 0)
            for kind, name in enumerate(KINDS)))

    def _left(self, number, kind):
        if KINDS[kind] in SLICES:
            return self._grid.creatable(self._slices[number],
                                        self._grid.profiles[kind - 2])
        return (1, VGPUS)[kind] - self._gpus[number][kind]


class Unweighed(Elastic):
    """Elastic GPUs without the weigher.

    Each host has one GPU, and Nova prefers the host with the fewest servers.
    """

    def choose(self, candidates, kind):
        return min(candidates, key=lambda number: (
            sum(self._gpus[number].values()), self._chance.random()))


class Clairvoyant:
    """A cloud that accepts all that fits if other servers may be moved."""

    def __init__(self, gpus: int):
        self._gpus = gpus
        self._counts = [0] * len(KINDS)

    def request(self, kind: int):
        """See :meth:`Elastic.request`."""
        self._counts[kind] += 1
        whole, vgpus, *slices = self._counts
        left = self._gpus - whole - math.ceil(vgpus / VGPUS)
        if left >= 0 and oracle.fits((*slices, 0, 0), left):
            return (kind,)
        self._counts[kind] -= 1
        return None

    def remove(self, had) -> None:
        """See :meth:`Elastic.remove`."""
        self._counts[had[0]] -= 1


class Pool:
    """GPUs of a fixed mode, of which each server gets the same share."""

    def __init__(self, places: int):
        self._left = places

    def request(self, kind: int):
        """See :meth:`Elastic.request`."""
        if not self._left:
            return None
        self._left -= 1
        return (kind,)

    def remove(self, _had) -> None:
        """See :meth:`Elastic.remove`."""
        self._left += 1


class Slices:
    """GPUs in mode mig, which place each slice where it loses least."""

    def __init__(self, gpus: int):
        grid = geometry.Geometry(packing.PROFILES[:len(SLICES)])
        self._cluster = online.Cluster(geometry.Table(grid), dict.fromkeys(
            range(gpus), geometry.EMPTY))

    def request(self, kind: int):
        """See :meth:`Elastic.request`."""
        return self._cluster.request(kind - 2)

    def remove(self, had) -> None:
        """See :meth:`Elastic.remove`."""
        self._cluster.remove(had)


def play(cloud, traffic) -> Score:
    """Send the requests to a cloud, one after another."""
    found = Score()
    running: list = []
    for number, request in enumerate(traffic):
        while running and running[0][0] <= request.arrival:
            cloud.remove(heapq.heappop(running)[-1])
        had = cloud.request(request.profile)
        if had is not None:
            heapq.heappush(running, (request.end, number, had))
        if request.arrival >= packing.WARM_UP:
            found.offered[request.profile] += 1
            found.accepted[request.profile] += had is not None
    return found


def best_split(gpus: int, traffic) -> tuple[Score, tuple[int, int, int]]:
    """Return the static split that accepts most, chosen in hindsight.

    The pools do not compete, so each is played alone with every number of
    GPUs.
    """
    alone = [[request for request in traffic if min(request.profile, 2)
              == pool] for pool in range(3)]
    scores = [[play(make(count), alone[pool]) for count in range(gpus + 1)]
              for pool, make in enumerate((
                  Pool, lambda count: Pool(count * VGPUS), Slices))]
    best, split = None, (0, 0, 0)
    for whole, vgpus in itertools.product(range(gpus + 1), repeat=2):
        if whole + vgpus > gpus:
            continue
        chosen = whole, vgpus, gpus - whole - vgpus
        parts = [scores[pool][count] for pool, count in enumerate(chosen)]
        found = Score(*([*map(sum, zip(*(getattr(part, name)
                                         for part in parts)))]
                        for name in ('offered', 'accepted')))
        if best is None or found.acceptance > best.acceptance:
            best, split = found, chosen
    return best, split


def measure(gpus: int, load: float, mix: str, seeds, count: int
            ) -> list[Line]:
    """Return the lines of one mix: every way with the same requests."""
    scores = collections.defaultdict(list)
    for seed in seeds:
        traffic = list(itertools.islice(requests(
            random.Random(f'{seed}/{gpus}/{load}/{mix}'), gpus, load, mix),
            count))
        scores[STATIC].append(best_split(gpus, traffic)[0])
        for way, cloud in ((NOVA, Unweighed(gpus, random.Random(seed))),
                           (ELASTIC, Elastic(gpus, random.Random(seed))),
                           (CLAIRVOYANT, Clairvoyant(gpus))):
            scores[way].append(play(cloud, traffic))
    means = {way: [statistics.fmean(getattr(one, name) for one in found)
                   for name in ('acceptance', 'share_acceptance')]
             for way, found in scores.items()}
    low, high = means[STATIC][0], means[CLAIRVOYANT][0]
    return [Line(gpus, load, mix, way, *found,
                 _part(low, found[0], high)) for way, found in means.items()]


def total(lines: list[Line]) -> float | None:
    """Return the share of the gap that elastic GPUs close in all mixes."""
    return _part(*(statistics.fmean(
        line.acceptance for line in lines if line.way == way)
        for way in (STATIC, ELASTIC, CLAIRVOYANT)))


def show(lines: list[Line]) -> None:
    """Print the figures for people."""
    for mix, case in itertools.groupby(lines, key=lambda line: line.mix):
        case = list(case)
        print(f'{case[0].gpus} GPUs, load {case[0].load:g}, whole GPUs, '
              f'vGPUs and slices, {mix}')
        print(f'  {"":24}  accepted  by shares  gap closed')
        for line in case:
            gap = ('-' if line.gap_closed is None
                   else f'{line.gap_closed:.3f}')
            print(f'  {line.way:24}  {line.acceptance:8.4f}  '
                  f'{line.share_acceptance:9.4f}  {gap:>10}')


def _part(low, value, high):
    return (value - low) / (high - low) if (
        high - low >= packing.LEAST_GAP) else None
