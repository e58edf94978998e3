# SPDX-License-Identifier: Apache-2.0


"""How many requests each online policy accepts, and how many are possible.

Instances are requested and end at random on GPUs with the 8-unit grid. Each
policy gets the same requests. First-fit is the common policy. Repacking is
the result if all running instances could be moved. The rating of a policy is
the share of the gap between these two that it closes. "FGD" and "MFI" are
published measures of fragmentation (measures.py). "1 move" and "2 moves" are
capacity-loss with at most this number of moves for a refused request, planned
as "openstack gpu defragment" does. For up to three GPUs, "optimum" is the
best policy that moves nothing and refuses nothing that fits, and "optimum,
refusing" is the best policy that moves nothing (optimum.py).

usage: python benchmarks/packing.py [-f table|json] [--gpus 3,8,100]
           [--load 0.85] [--mix uniform,bimodal,small,6:1:1:1:3]
           [--lifetime exponential|lognormal] [--seeds N] [--moves 1,2] ...

Exits 1 if capacity-loss, without moves or with one, misses a limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import json
import math
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent),
                str(pathlib.Path(__file__).resolve().parent)]

import measures  # noqa: E402
import online  # noqa: E402
import optimum  # noqa: E402
import oracle  # noqa: E402
import relocation  # noqa: E402

from cyborg_gpu_driver.host.snapshot import model  # noqa: E402
from cyborg_gpu_driver.partition import geometry  # noqa: E402

SLICES = (1, 2, 3, 4, 7)
SLICES_PER_GPU = 7
PROFILES = tuple(
    model.GpuInstanceProfile(
        profile_id=number, name=name, slices=slices, memory_mib=0,
        max_instances=len(starts), placements=tuple(
            model.Placement(start, size) for start in starts))
    for number, (name, slices, size, starts) in enumerate(zip(
        oracle.PROFILES, SLICES, (1, 2, 4, 4, 8),
        (range(7), (0, 2, 4), (0, 4), (0,), (0,)), strict=True)))
GRID = geometry.Geometry(PROFILES)
DRIVER_STARTS = {0: (6, 4, 5, 0, 1, 2, 3), 1: (4, 0, 2), 2: (4, 0)}
"""The order in which NVIDIA's driver tries starts if it is not told one."""

MIXES = {
    'uniform': (1, 1, 1, 1, 1),
    'bimodal': (6, 3, 2, 3, 6),
    'small': (16, 8, 4, 2, 1),
}
"""The requests for each profile, as parts of a whole."""

LIFETIMES: dict[str, Callable[[random.Random], float]] = {
    'exponential': lambda chance: chance.expovariate(1.0),
    # Mean 1; one in forty lives longer than four times the mean.
    'lognormal': lambda chance: chance.lognormvariate(-0.5, 1.0),
}

TARGET_LOAD = 0.85
LIMITS = {8: 1 / 2, 100: 2 / 3}
"""By number of GPUs, the least share of the gap, over :data:`MIXES`."""
TARGET_MICROSECONDS = 100
"""Only shown, because a busy machine must not make this program fail."""

LEAST_GAP = 0.001
"""A smaller gap is noise, and a share of it means nothing."""

WARM_UP = 12.0
"""Mean lifetimes before anything is counted."""

FIRST_FIT, REPACKING = 'first-fit', 'repacking'
OURS = 'capacity-loss'
OPTIMUM, REFUSING = 'optimum', 'optimum, refusing'
MOVES = {1: 'capacity-loss, 1 move', 2: 'capacity-loss, 2 moves'}
POINTS = {
    3: (OURS, REFUSING, 0.6), 8: (MOVES[1], REPACKING, 2.0),
    100: (MOVES[1], REPACKING, 0.5)}
"""By number of GPUs: a policy, its reference, and how many percentage points
of slices it may accept less than the reference, over :data:`MIXES`."""
MOST_MOVES = 0.1
"""The limit of moves per accepted request, in the cases of :data:`POINTS`."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for an instance. Times are in mean lifetimes."""

    arrival: float
    profile: int
    end: float


@dataclasses.dataclass
class Score:
    """How many requests one policy has accepted, and at what cost."""

    offered: list[int] = dataclasses.field(
        default_factory=lambda: [0] * len(SLICES))
    accepted: list[int] = dataclasses.field(
        default_factory=lambda: [0] * len(SLICES))
    seconds: float = 0.0
    """The time of all decisions, including taking the place."""
    decisions: int = 0
    moves: int = 0
    """Moves of instances that made room."""

    @property
    def acceptance(self):
        return sum(self.accepted) / sum(self.offered)

    @property
    def slice_acceptance(self):
        return _slices(self.accepted) / _slices(self.offered)

    @property
    def microseconds(self):
        return self.seconds / self.decisions * 1e6

    def __add__(self, other):
        return Score([*map(sum, zip(self.offered, other.offered))],
                     [*map(sum, zip(self.accepted, other.accepted))],
                     self.seconds + other.seconds,
                     self.decisions + other.decisions,
                     self.moves + other.moves)


@dataclasses.dataclass(frozen=True)
class Line:
    """One policy in one case. Shares of the gap are fractions of 1."""

    gpus: int
    load: float
    mix: str
    policy: str
    acceptance: float
    slice_acceptance: float
    gap_closed: float | None
    gap_closed_spread: float
    """Standard deviation between seeds."""
    slice_gap_closed: float | None
    microseconds: float
    """The mean time of a decision; for repacking, of the closed form alone."""
    moves: float
    """Moves of other instances per accepted request."""
    by_profile: dict[str, float | None]


def rate_of(gpus: int, load: float, mix: tuple[float, ...]) -> float:
    """Return the requests in a mean lifetime; see :func:`requests`."""
    return load * SLICES_PER_GPU * gpus * sum(mix) / _slices(mix)


def requests(chance: random.Random, gpus: int, load: float,
             mix: tuple[float, ...],
             lifetime: Callable[[random.Random], float]
             ) -> Iterator[Request]:
    """Yield requests with Poisson arrivals, forever.

    :param load: the share of all compute slices that is requested at any
        one time, on average.
    """
    rate = rate_of(gpus, load, mix)
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        profile, = chance.choices(range(len(mix)), mix)
        yield Request(now, profile, now + lifetime(chance))


def play(cluster, traffic: list[Request],
         warm_up: float = WARM_UP) -> Score:
    """Send the requests to a cluster in sequence.

    :param warm_up: mean lifetimes before anything is counted.
    """
    score, running, clock = Score(), [], time.perf_counter
    for number, request in enumerate(traffic):
        while running and running[0][0] <= request.arrival:
            cluster.remove(heapq.heappop(running)[-1])
        moved = getattr(cluster, 'moves', 0)
        start = clock()
        place = cluster.request(request.profile)
        score.seconds += clock() - start
        score.decisions += 1
        if place is not None:
            heapq.heappush(running, (request.end, number, place))
        if request.arrival >= warm_up:
            score.offered[request.profile] += 1
            score.accepted[request.profile] += place is not None
            score.moves += getattr(cluster, 'moves', 0) - moved
    return score


def contestants(gpus: int, moves: Iterable[int] = MOVES
                ) -> dict[str, object]:
    """Return a new cluster for each policy.

    :param moves: the limits of moves for a refused request, each a policy.
    """
    table = geometry.Table(GRID)
    empty = dict.fromkeys(range(gpus), geometry.EMPTY)
    first, best, ours = online.Policy
    return {
        FIRST_FIT: online.Cluster(table, empty, first),
        'first-fit, driver starts': online.Cluster(
            table, empty, first, DRIVER_STARTS),
        'best-fit': online.Cluster(table, empty, best),
        'best-fit, driver starts': online.Cluster(
            table, empty, best, DRIVER_STARTS),
        'FGD': measures.Steepest(table, empty, measures.fgd),
        'MFI': measures.Steepest(table, empty, measures.mfi),
        OURS: online.Cluster(table, empty, ours),
        **{MOVES[most]: relocation.Relocating(
            online.Cluster(table, empty, ours), empty, most)
            for most in moves},
        REPACKING: oracle.Repacking(gpus),
    }


def optima(gpus: int, load: float, mix: tuple[float, ...]
           ) -> dict[str, optimum.Process]:
    """Return the best policies without moves; none for many GPUs."""
    if gpus > optimum.MOST_GPUS:
        return {}
    return {name: optimum.Process(
        GRID, gpus, SLICES, [part / sum(mix) for part in mix],
        rate_of(gpus, load, mix), refuses)
        for name, refuses in ((OPTIMUM, False), (REFUSING, True))}


def measure(gpus, load, mix, options):
    """Return the lines of one case: every policy with the same requests."""
    runs = []
    solved = optima(gpus, load, parts_of(mix))
    for seed in range(options.first_seed, options.first_seed
                      + options.seeds):
        chance = random.Random(f'{seed}/{gpus}/{load}/{mix}')
        traffic = list(itertools.islice(
            requests(chance, gpus, load, parts_of(mix),
                     LIFETIMES[options.lifetime]), options.requests))
        clusters = contestants(gpus, options.moves)
        clusters.update((name, optimum.Optimal(process, GRID, gpus))
                        for name, process in solved.items())
        runs.append({name: play(cluster, traffic)
                     for name, cluster in clusters.items()})
    scores = {name: sum((run[name] for run in runs), Score())
              for name in runs[0]}
    return [_line(gpus, load, mix, name, scores, runs) for name in scores]


def _line(gpus, load, mix, name, scores, runs):
    score = scores[name]
    shares = [share for share in (_share(run, name, 'acceptance')
                                  for run in runs) if share is not None]
    return Line(
        gpus, load, mix, name, score.acceptance, score.slice_acceptance,
        _share(scores, name, 'acceptance'),
        statistics.stdev(shares) if len(shares) > 1 else 0.0,
        _share(scores, name, 'slice_acceptance'), score.microseconds,
        score.moves / max(1, sum(score.accepted)),
        {profile: accepted / offered if offered else None
         for profile, accepted, offered in zip(
             oracle.PROFILES, score.accepted, score.offered)})


def _share(scores, name, figure):
    low, value, high = (getattr(scores[which], figure)
                        for which in (FIRST_FIT, name, REPACKING))
    return _part(low, value, high)


def _part(low, value, high):
    return (value - low) / (high - low) if high - low >= LEAST_GAP else None


def _slices(counts):
    return sum(map(math.prod, zip(counts, SLICES)))


def summaries(lines: list[Line]) -> Iterator[dict]:
    """Yield the share of the gap that capacity-loss closes in all mixes."""
    for gpus, load in dict.fromkeys((line.gpus, line.load)
                                    for line in lines):
        means = {}
        for figure in ('acceptance', 'slice_acceptance'):
            low, value, high = (statistics.fmean(
                getattr(line, figure) for line in lines
                if (line.gpus, line.load, line.policy) == (
                    gpus, load, policy))
                for policy in (FIRST_FIT, OURS, REPACKING))
            means[figure] = _part(low, value, high)
        yield {
            'gpus': gpus, 'load': load,
            'gap_closed': means['acceptance'],
            'slice_gap_closed': means['slice_acceptance'],
            'limit': LIMITS.get(gpus) if load == TARGET_LOAD and {
                line.mix for line in lines} == set(MIXES) else None,
            'microseconds': max(
                line.microseconds for line in lines
                if (line.gpus, line.load, line.policy) == (
                    gpus, load, OURS)),
            'target_microseconds': TARGET_MICROSECONDS,
        }


def points(lines: list[Line]) -> Iterator[dict]:
    """Yield how far policies are below their references, by slices.

    Each mix has the same weight. Only the default load and mixes count.
    """
    for gpus, (policy, reference, limit) in POINTS.items():
        ours, best = ([line for line in lines if (
            line.gpus, line.load, line.policy) == (gpus, TARGET_LOAD, name)]
            for name in (policy, reference))
        if {line.mix for line in ours} == set(MIXES) == {
                line.mix for line in best}:
            yield {
                'gpus': gpus, 'policy': policy, 'reference': reference,
                'points': 100 * statistics.fmean(
                    above.slice_acceptance - line.slice_acceptance
                    for line, above in zip(ours, best, strict=True)),
                'limit': limit, 'most_moves': MOST_MOVES,
                'moves': max(line.moves for line in ours)}


def main(argv=None):
    options = _parser().parse_args(argv)
    lines = []
    cases = list(itertools.product(options.gpus, options.load, options.mix))
    for number, (gpus, load, mix) in enumerate(cases, start=1):
        print(f'{number} of {len(cases)}: {gpus} GPUs, load {load:g}, '
              f'{mix}', file=sys.stderr)
        lines.extend(measure(gpus, load, mix, options))
    totals, distances = list(summaries(lines)), list(points(lines))
    if options.format == 'json':
        json.dump({'cases': [dataclasses.asdict(line) for line in lines],
                   'summaries': totals, 'points': distances},
                  sys.stdout, indent=1)
        print()
    else:
        show(lines, totals, distances)
    missed = [total for total in totals if total['limit'] is not None
              and total['gap_closed'] is not None
              and total['gap_closed'] < total['limit']]
    for total in missed:
        print('{gpus} GPUs: {gap_closed:.2f} of the gap closed is less than '
              '{limit:.2f}'.format(**total), file=sys.stderr)
    far = [one for one in distances if one['points'] > one['limit']
           or one['moves'] > one['most_moves']]
    for one in far:
        print('{gpus} GPUs, {policy}: {points:.2f} points below {reference} '
              'with {moves:.3f} moves; at most {limit} points and '
              '{most_moves} moves'.format(**one), file=sys.stderr)
    return 1 if missed or far else 0


def _parser():
    parser = argparse.ArgumentParser(
        description='Compare how many requests each online policy accepts.')
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    parser.add_argument('--gpus', type=_list(int, 1), default=[3, 8, 100],
                        metavar='N,...', help='default: 3,8,100')
    parser.add_argument('--load', type=_list(float, 0.01),
                        default=[TARGET_LOAD], metavar='X,...',
                        help='requested compute slices, as a share of all '
                        '(default: 0.85)')
    parser.add_argument('--mix', type=mixes, default=list(MIXES),
                        metavar='MIX,...', help=', '.join(MIXES)
                        + f", or the parts {':'.join(oracle.PROFILES)} "
                        '(default: the three names)')
    parser.add_argument('--lifetime', choices=tuple(LIFETIMES),
                        default='exponential')
    parser.add_argument('--moves', type=_moves, default=list(MOVES),
                        metavar='N,...', help='maximum number of moves for a '
                        'refused request; 0 omits the policies with moves '
                        '(default: 1,2)')
    parser.add_argument('--requests', type=_at_least(1000),
                        default=80000, metavar='N',
                        help='requests for each seed (default: 80000)')
    parser.add_argument('--seeds', type=_at_least(1), default=5,
                        metavar='N', help='number of seeds (default: 5)')
    parser.add_argument('--first-seed', type=int, default=1, metavar='N')
    return parser


def _list(kind, least):
    def read(text):
        values = [kind(item) for item in text.split(',')]
        if min(values) < least:
            raise argparse.ArgumentTypeError(
                f'{text}: expected at least {least}')
        return values
    read.__name__ = kind.__name__
    return read


def _moves(text):
    found = [most for most in _list(int, 0)(text) if most]
    if not {*found} <= {*MOVES}:
        raise argparse.ArgumentTypeError(f'{text}: expected 0, 1 or 2')
    return found


def _at_least(least):
    def read(text):
        value, = _list(int, least)(text)
        return value
    read.__name__ = 'int'
    return read


def mixes(text: str) -> list[str]:
    """Return the names of mixes from an option, separated by commas."""
    for name in (names := text.split(',')):
        parts_of(name)
    return names


def parts_of(mix: str) -> tuple[float, ...]:
    """Return the parts of a mix: one of :data:`MIXES`, or ``1:0:0:0:1``."""
    if mix in MIXES:
        return MIXES[mix]
    try:
        parts = tuple(map(float, mix.split(':')))
    except ValueError:
        parts = ()
    if len(parts) != len(SLICES) or min(parts) < 0 or not sum(parts):
        raise argparse.ArgumentTypeError(
            f'{mix}: expected {", ".join(MIXES)}, or parts of '
            f'{":".join(oracle.PROFILES)} such as 1:0:0:0:1')
    return parts


def show(lines, totals, distances):
    """Print the figures for people."""
    for (gpus, load, mix), case in itertools.groupby(
            lines, key=lambda line: (line.gpus, line.load, line.mix)):
        print(f'{gpus} GPUs, load {load:g}, {mix}')
        print(f'  {"":24}  accepted  by slices  gap closed         '
              'by slices    moves  a decision')
        for line in case:
            print(f'  {line.policy:24}  {line.acceptance:8.4f}  '
                  f'{line.slice_acceptance:9.4f}  '
                  f'{_fraction(line.gap_closed)} '
                  f'(+-{line.gap_closed_spread:5.3f})    '
                  f'{_fraction(line.slice_gap_closed)} {line.moves:8.4f} '
                  f'{line.microseconds:8.1f} us')
    print('capacity-loss, each mix counting alike')
    for total in totals:
        limit = ('' if total['limit'] is None
                 else f', limit {total["limit"]:.2f}')
        print(f'  {total["gpus"]} GPUs, load {total["load"]:g}: gap closed '
              f'{_fraction(total["gap_closed"]).strip()}{limit}; by slices '
              f'{_fraction(total["slice_gap_closed"]).strip()}; at most '
              f'{total["microseconds"]:.1f} us a decision, target '
              f'{TARGET_MICROSECONDS}')
    for one in distances:
        print('  {gpus} GPUs, {policy}: {points:.2f} points by slices below '
              '{reference}, limit {limit}; {moves:.3f} moves an accepted '
              'request, limit {most_moves}'.format(**one))


def _fraction(value):
    return '      -' if value is None else f'{value:7.3f}'


if __name__ == '__main__':
    sys.exit(main())
