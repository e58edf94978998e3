# SPDX-License-Identifier: Apache-2.0


"""How many GPU requests a cloud accepts with GpuWeigher and without.

Instances are requested and end at random, as in packing.py, on hosts with
several GPUs. Nova chooses a host and claims the first of its allocation
candidates. The agent creates the instance where that GPU loses least. The
benchmark assumes that Nova's own weighers prefer the host with the fewest
servers, and choose at random among equal hosts. Every way gets the same
requests, and knows about a GPU only what Placement knows.

usage: python benchmarks/scheduling.py [-f table|json] [--hosts 8]
           [--gpus 8] [--load 0.85] [--mix uniform,bimodal,small] ...

After that, whole GPUs, vGPUs and slices are requested, on GPUs of fixed modes
and on elastic GPUs (roles.py).

Exits 1 if the weigher closes less than half of the gap between Nova alone
and the requests that could be met if all running instances could be moved,
or if elastic GPUs close less than 70 % of the gap between the best static
split and a clairvoyant split.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
import random
import statistics
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent),
                str(pathlib.Path(__file__).resolve().parent)]

import online  # noqa: E402
import oracle  # noqa: E402
import packing  # noqa: E402
import roles  # noqa: E402

from cyborg_gpu_driver.nova.weighing import cost as weigher_cost  # noqa: E402
from cyborg_gpu_driver.nova.weighing import published as weigher_published  # noqa: E402
from cyborg_gpu_driver.partition import geometry  # noqa: E402

NAMES = ('1g.10gb', '2g.20gb', '3g.40gb', '4g.40gb', '7g.80gb')
"""The names of the profiles of packing.py on a board with 80 GB."""

WITHOUT, WITH = 'Nova alone', 'weigher'
ISOLATED = 'weigher, isolation'
PROJECTS = 3
"""How many projects share the cloud, with equally many requests each."""
REPACKING = packing.REPACKING
LIMIT = 1 / 2
"""The least share of the gap to close; each mix has the same weight."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One way in one case."""

    hosts: int
    gpus: int
    load: float
    mix: str
    way: str
    acceptance: float
    slice_acceptance: float
    ratio: float
    """The acceptance divided by that of Nova alone."""
    gap_closed: float | None
    """The closed part of the gap between Nova alone and repacking."""
    milliseconds: float
    """The mean time of a decision, with everything that leads to it."""


class Cloud:
    """Hosts, their GPUs, and how Nova chooses among them."""

    def __init__(self, hosts: int, gpus: int, chance: random.Random):
        self._grid = geometry.Geometry(packing.PROFILES)
        self._gpus = {(host, number): geometry.EMPTY
                      for host in range(hosts) for number in range(gpus)}
        self._servers = dict.fromkeys(range(hosts), 0)
        self._chance = chance
        self._published = {place: self._publish(place)
                           for place in self._gpus}

    def request(self, profile: int) -> online.Place | None:
        """Schedule a server, and bind its accelerator."""
        candidates = [place for place, gpu in self._published.items()
                      if gpu.offers[profile].free and self.admits(place)]
        if not candidates:
            return None
        gpu = self.choose(candidates, profile)
        kind = packing.PROFILES[profile]
        start = geometry.choose_start(self._grid, self._gpus[gpu], kind)
        self._put(gpu, self._gpus[gpu].add(kind, start), 1)
        return online.Place(gpu, profile, start)

    def remove(self, place: online.Place) -> None:
        """Delete a server."""
        left = list(self._gpus[place.gpu].taken)
        left.remove((place.profile_id, place.placement))
        self._put(place.gpu, geometry.Occupancy(tuple(left)), -1)

    def admits(self, place):
        """Whether a GPU with room may take the server."""
        return True

    def choose(self, candidates, profile):
        """Return the GPU that Nova claims, of those with room."""
        host = self.emptiest({place[0] for place in candidates})
        return next(place for place in candidates if place[0] == host)

    def emptiest(self, hosts):
        """Return the host that Nova's own weighers prefer."""
        return min(sorted(hosts), key=lambda host: (
            self._servers[host], self._chance.random()))

    def cost(self, fleet, place, profile):
        """Return the weigher's cost of one candidate."""
        offer = self._published[place].offers[profile]
        return fleet.cost({offer.provider: {
            'resources': {offer.resource_class: 1}}})

    def fleet(self):
        """Return the fleet as Placement publishes it."""
        return weigher_cost.Fleet(self._published.values())

    def _put(self, place, occupancy, servers):
        self._gpus[place] = occupancy
        self._servers[place[0]] += servers
        self._published[place] = self._publish(place)

    def _publish(self, place):
        occupancy = self._gpus[place]
        host, number = place
        return weigher_published.Gpu(str(host), str(number), tuple(
            weigher_published.Offer(
                f'{host}/{number}/{name}', name, name,
                occupancy.counts[profile.profile_id],
                self._grid.creatable(occupancy, profile))
            for name, profile in zip(NAMES, packing.PROFILES)))


class Weighed(Cloud):
    """A cloud with the weigher, which also puts the best candidate first."""

    def choose(self, candidates, profile):
        fleet = self.fleet()
        return min(candidates, key=lambda place: self.cost(
            fleet, place, profile).packing)


class Isolated(Weighed):
    """A cloud with ``isolation = project``, and several projects."""

    def __init__(self, hosts: int, gpus: int, chance: random.Random):
        super().__init__(hosts, gpus, chance)
        self._owners: dict[tuple[int, int], int] = {}
        self._project = 0

    def request(self, profile: int) -> online.Place | None:
        self._project = self._chance.randrange(PROJECTS)
        place = super().request(profile)
        if place is not None:
            self._owners[place.gpu] = self._project
        return place

    def remove(self, place: online.Place) -> None:
        super().remove(place)
        if not self._gpus[place.gpu].taken:
            del self._owners[place.gpu]

    def admits(self, place):
        return self._owners.get(place, self._project) == self._project


class Spread(Cloud):
    """A cloud whose weigher has a negative multiplier."""

    def choose(self, candidates, profile):
        fleet = self.fleet()
        return max(candidates, key=lambda place: self.cost(
            fleet, place, profile).spreading)


class AnyHost(Cloud):
    """A cloud that chooses a random host, as Nova does if weights are equal.
    """

    def emptiest(self, hosts):
        return self._chance.choice(sorted(hosts))


WAYS = {WITHOUT: Cloud, 'random host': AnyHost,
        WITH: Weighed, 'weigher, spread': Spread, ISOLATED: Isolated}


def contestants(hosts: int, gpus: int, seed: str) -> dict[str, object]:
    """Return a new cloud for each way and for the best cases."""
    table = geometry.Table(geometry.Geometry(packing.PROFILES))
    return {
        **{name: way(hosts, gpus, random.Random(seed))
           for name, way in WAYS.items()},
        packing.OURS: online.Cluster(table, dict.fromkeys(
            range(hosts * gpus), geometry.EMPTY)),
        REPACKING: oracle.Repacking(hosts * gpus)}


def measure(hosts, gpus, load, mix, options):
    """Return the lines of one case: every way with the same requests."""
    scores = {}
    for number in range(options.first_seed,
                        options.first_seed + options.seeds):
        seed = f'{number}/{hosts}/{gpus}/{load}/{mix}'
        traffic = list(itertools.islice(packing.requests(
            random.Random(seed), hosts * gpus, load, packing.parts_of(mix),
            packing.LIFETIMES[options.lifetime]), options.requests))
        for name, cloud in contestants(hosts, gpus, seed).items():
            scores[name] = (scores.get(name, packing.Score())
                            + packing.play(cloud, traffic))
    low, high = (scores[name].acceptance for name in (WITHOUT, REPACKING))
    return [Line(hosts, gpus, load, mix, name, score.acceptance,
                 score.slice_acceptance, score.acceptance / low,
                 gap_closed(low, score.acceptance, high),
                 score.microseconds / 1000)
            for name, score in scores.items()]


def gap_closed(low: float, value: float, high: float) -> float | None:
    """Return the closed part of a gap, None if the gap is only noise."""
    if high - low < packing.LEAST_GAP:
        return None
    return (value - low) / (high - low)


def total(lines: list[Line]) -> float | None:
    """Return the share of the gap that the weigher closes in all mixes."""
    return gap_closed(*(
        statistics.fmean(line.acceptance for line in lines
                         if line.way == way)
        for way in (WITHOUT, WITH, REPACKING)))


def main(argv=None):
    options = _parser().parse_args(argv)
    lines = []
    for mix in options.mix:
        print(f'{options.hosts} hosts of {options.gpus} GPUs, {mix}',
              file=sys.stderr)
        lines += measure(options.hosts, options.gpus, options.load, mix,
                         options)
    elastic = []
    for mix in roles.MIXES:
        print(f'{options.role_gpus} GPUs, {mix}', file=sys.stderr)
        elastic += roles.measure(
            options.role_gpus, options.load, mix,
            range(options.first_seed, options.first_seed + options.seeds),
            options.role_requests)
    closed = {'weigher': (total(lines), LIMIT),
              'elastic': (roles.total(elastic), roles.LIMIT)}
    if options.format == 'json':
        _dump(lines, elastic, closed)
    else:
        show(lines)
        roles.show(elastic)
        for name, (share, limit) in closed.items():
            print(f'{name}, each mix counting alike: gap closed '
                  f'{_fraction(share)}, limit {limit:.2f}')
    return _judge(closed)


def _dump(lines, elastic, closed):
    share, limit = closed['weigher']
    roles_share, roles_limit = closed['elastic']
    json.dump({
        'cases': [dataclasses.asdict(line) for line in lines],
        'gap_closed': share, 'limit': limit,
        'elastic': {
            'cases': [dataclasses.asdict(line) for line in elastic],
            'gap_closed': roles_share, 'limit': roles_limit}},
        sys.stdout, indent=1)
    print()


def _judge(closed):
    """Return the exit code, and print each figure that misses its limit."""
    code = 0
    for name, (share, limit) in closed.items():
        if share is not None and share < limit:
            print(f'{name}: {share:.2f} of the gap closed is less than '
                  f'{limit:.2f}', file=sys.stderr)
            code = 1
    return code


def show(lines):
    """Print the figures for people."""
    for mix, case in itertools.groupby(lines, key=lambda line: line.mix):
        case = list(case)
        print(f'{case[0].hosts} hosts of {case[0].gpus} GPUs, '
              f'load {case[0].load:g}, {mix}')
        print(f'  {"":24}  accepted  by slices  to Nova alone  gap closed'
              '  a decision')
        for line in case:
            print(f'  {line.way:24}  {line.acceptance:8.4f}  '
                  f'{line.slice_acceptance:9.4f}  {line.ratio:13.4f}  '
                  f'{_fraction(line.gap_closed):>10}  '
                  f'{line.milliseconds:7.3f} ms')


def _fraction(value):
    return '-' if value is None else f'{value:.3f}'


def _parser():
    parser = argparse.ArgumentParser(
        description='Compare how many GPU requests a cloud accepts.')
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    parser.add_argument('--hosts', type=int, default=8, metavar='N')
    parser.add_argument('--gpus', type=int, default=8, metavar='N',
                        help='GPUs of each host (default: 8)')
    parser.add_argument('--load', type=float, default=packing.TARGET_LOAD,
                        metavar='X', help='requested compute slices, as a '
                        'share of all (default: 0.85)')
    parser.add_argument('--mix', type=packing.mixes,
                        default=list(packing.MIXES), metavar='MIX,...',
                        help='mixes of packing.py (default: its three)')
    parser.add_argument('--lifetime', choices=tuple(packing.LIFETIMES),
                        default='exponential')
    parser.add_argument('--requests', type=int, default=6000, metavar='N',
                        help='requests for each seed (default: 6000)')
    parser.add_argument('--role-gpus', type=int, default=roles.GPUS,
                        metavar='N', help='GPUs for whole GPUs, vGPUs and '
                        f'slices (default: {roles.GPUS})')
    parser.add_argument('--role-requests', type=int, metavar='N',
                        default=roles.REQUESTS,
                        help='requests for these GPUs '
                        f'(default: {roles.REQUESTS})')
    parser.add_argument('--seeds', type=int, default=2, metavar='N',
                        help='number of seeds (default: 2)')
    parser.add_argument('--first-seed', type=int, default=1, metavar='N')
    return parser


if __name__ == '__main__':
    sys.exit(main())
