# SPDX-License-Identifier: Apache-2.0

"""How many GPU requests Nova refuses with slices on demand and static slices.

The released nova-scheduler and Placement get the same requests for instances
of 1g to 7g on the same GPUs. The requests arrive and end at random as in
packing.py:

* with static slices, as Nova has them without this library: each GPU instance
  is a separate provider, created once. Of all possible layouts, the GPUs have
  the one that refuses the fewest of exactly these requests, so no operator
  could choose a better one.
* with the agents of this library, which report simulated GPUs, bind and
  unbind, and with Nova's own weighers, or these and GpuWeigher and GpuFilter.

The floor is the refusals if all running instances could be moved.

usage: python benchmarks/refusals.py [-f table|json] [--requests N]
           [--hosts N] [--mix uniform,small] [--load 0.85]

Exits 1 if Nova refuses more than nine tenths of what it refuses with static
slices, or a request for which a GPU has room. It fails if the ways do not
get the same requests, if static slices refuse another number than counting
predicts, or if Placement or the GPUs hold anything but the running servers.
"""

from __future__ import annotations

import itertools
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import agent_process
import figures
import machines
import nova_cloud
import oracle
import packing

from demo_lib import database

PROFILES = ('1g.10gb', '2g.20gb', '3g.40gb', '4g.40gb', '7g.80gb')
"""The names of the profiles of packing.py on the simulated boards."""
GPUS_PER_HOST = 2
WARM_UP = 3.0
"""Mean lifetimes before anything is counted. It is shorter than that of
packing.py because each request costs time."""
MIXES = ('uniform', 'small')
SHARE = 0.9
"""The limit of refusals, as a share of those with static slices."""
BALANCED = (2, 1, 1, 0, 0)
"""The number of each of PROFILES in mig-parted's all-balanced for 80 GB."""
STATIC, ALL_BALANCED = 'static slices', 'static slices, all-balanced'
ALONE, WEIGHED = 'ours, Nova alone', 'ours, with the weigher'
WAYS = (STATIC, ALL_BALANCED, ALONE, WEIGHED, packing.REPACKING)


def resource_class(profile: int) -> str:
    """Return the resource class of a profile, given by its index."""
    return 'CUSTOM_NVIDIA_' + PROFILES[profile].upper().replace('.', '_')


class Static:
    """Slices that are created once, each a provider as Nova creates them.

    :param layouts: for each GPU, the number of slices of each profile.
    """

    def __init__(self, cloud: nova_cloud.Cloud, layouts):
        self._cloud = cloud
        self._running: set[str] = set()
        for number, layout in enumerate(layouts):
            host = f'compute{number // GPUS_PER_HOST}'
            for profile, count in enumerate(layout):
                for index in range(count):
                    cloud.publish(
                        host, f'{host}_{number}_{profile}_{index}',
                        resource_class(profile), 1)

    def request(self, profile: int) -> str | None:
        """Schedule a server.

        :returns: the argument for :meth:`remove`, None if no host is valid.
        """
        placed = self._cloud.schedule(resource_class(profile))
        if placed is None:
            return None
        self._running.add(placed[0])
        return placed[0]

    def remove(self, server: str) -> None:
        """Delete a server."""
        self._cloud.delete(server)
        self._running.remove(server)

    def check(self) -> None:
        """:raises RuntimeError: if the units in use in Placement are not those
            of the running servers.
        """
        _same(f'{STATIC}: units in use', len(self._running),
              self._cloud.allocations())


class OnDemand:
    """Slices that agents create; each agent has a process of its own."""

    def __init__(self, cloud: nova_cloud.Cloud, directory: str, hosts: int):
        self._cloud = cloud
        self._running: dict[str, tuple] = {}
        self._handles: dict[str, tuple] = {}
        self.refused_with_room = 0
        """Refused requests for which a GPU had room."""
        machine = machines.describe(directory, GPUS_PER_HOST)
        self._agents = [agent_process.AgentProcess(
            cloud.url, f'compute{number}', machine, PROFILES)
            for number in range(hosts)]
        try:
            for number, started in enumerate(self._agents):
                self._publish(f'compute{number}', started)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the agents."""
        for started in self._agents:
            started.close()

    def _publish(self, host, started):
        """Create an agent's providers, as cyborg-conductor does at first."""
        for item in started.report():
            provider = self._cloud.publish(
                host, item.name, item.resource_class, len(item.handles),
                item.traits, item.provider_uuid)
            self._handles[provider] = (started, list(item.handles))
        started.report()

    def request(self, profile: int) -> str | None:
        """Schedule a server, and bind its accelerator.

        :returns: the argument for :meth:`remove`, None if no host is valid.
        """
        placed = self._cloud.schedule(resource_class(profile))
        if placed is None:
            self.refused_with_room += self._has_room(profile)
            return None
        server, provider = placed
        started, handles = self._handles[provider]
        handle = handles.pop()
        started.bind(*handle, server)
        self._running[server] = provider, handle
        return server

    def remove(self, server: str) -> None:
        """Delete a server."""
        provider, handle = self._running.pop(server)
        started, handles = self._handles[provider]
        started.unbind(*handle, server)
        handles.append(handle)
        self._cloud.delete(server)

    def check(self) -> None:
        """:raises RuntimeError: if the units in use in Placement or the GPU
            instances are not those of the running servers.
        """
        _same('units in use', len(self._running), self._cloud.allocations())
        _same('GPU instances', len(self._running), sum(
            map(len, self._taken())))

    def _has_room(self, profile):
        return any(not any(placement.mask & other for other in taken)
                   for taken in self._taken()
                   for placement in packing.PROFILES[profile].placements)

    def _taken(self):
        """Return, for each GPU, the masks of its actual GPU instances."""
        return [taken for started in self._agents
                for taken in started.masks()]


def layouts(gpus: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the possible static layouts of all GPUs together."""
    counts = [counts for counts in itertools.product(
        *(range(len(profile.placements) + 1)
          for profile in packing.PROFILES)) if oracle.fits(counts, 1)]
    # Skip a layout in which one more instance would fit.
    full = [held for held in counts if not any(
        other != held and all(map(int.__ge__, other, held))
        for other in counts)]
    return itertools.combinations_with_replacement(full, gpus)


class Counted:
    """Static slices in theory: a number of each profile, on any GPU."""

    def __init__(self, counts):
        self._free = list(counts)

    def request(self, profile: int) -> int | None:
        if not self._free[profile]:
            return None
        self._free[profile] -= 1
        return profile

    def remove(self, profile: int) -> None:
        self._free[profile] += 1


def best_layouts(gpus: int, traffic) -> tuple[tuple[int, ...], ...]:
    """Return the layout of each GPU with which fewest requests are refused.

    Static slices of different profiles do not compete, so each profile is
    played alone with each count.
    """
    most = gpus * max(len(profile.placements)
                      for profile in packing.PROFILES)
    refused = [[_refused(packing.play(
        Counted([count if number == profile else 0
                 for number in range(len(PROFILES))]),
        [request for request in traffic if request.profile == profile],
        WARM_UP))
        for count in range(most + 1)] for profile in range(len(PROFILES))]
    return min(layouts(gpus), key=lambda layout: sum(
        refused[profile][sum(held[profile] for held in layout)]
        for profile in range(len(PROFILES))))


def counted(layout, traffic) -> int:
    """Return how many requests static slices refuse, by counting alone."""
    return _refused(packing.play(Counted(
        [sum(counts) for counts in zip(*layout, strict=True)]), traffic,
        WARM_UP))


def _refused(score):
    return sum(score.offered) - sum(score.accepted)


def measure(hosts: int, load: float, mixes, count: int
            ) -> Iterator[figures.Figure]:
    """Yield every figure, in the order in which it is shown."""
    gpus = hosts * GPUS_PER_HOST
    with tempfile.TemporaryDirectory() as directory:
        templates = database.Templates(
            _folder(directory, 'templates'))
        templates.make()
        for mix in mixes:
            traffic = list(itertools.islice(packing.requests(
                random.Random(f'{gpus}/{load}/{mix}'), gpus, load,
                packing.parts_of(mix), packing.LIFETIMES['exponential']),
                count))
            yield from _compare(hosts, load, mix, traffic, templates,
                                _folder(directory, mix))


def _compare(hosts, load, mix, traffic, templates, directory):
    """Return the figures of one mix."""
    gpus = hosts * GPUS_PER_HOST
    static = best_layouts(gpus, traffic)
    where = f'{hosts} hosts of {GPUS_PER_HOST} GPUs, load {load:g}, {mix}'
    offered, refused, room = None, {
        ALL_BALANCED: counted([BALANCED] * gpus, traffic),
        packing.REPACKING: _refused(packing.play(
            oracle.Repacking(gpus), traffic, WARM_UP))}, 0
    for way in (STATIC, ALONE, WEIGHED):
        print(f'{where}: {way}', file=sys.stderr)
        score, found = _play(
            way, hosts, static, traffic, templates,
            _folder(directory, way.replace(' ', '-')))
        offered = offered or score.offered
        _same(f'{way}: requests by profile', offered, score.offered)
        refused[way] = _refused(score)
        room += found
    _same(f'{STATIC}: refused', counted(static, traffic), refused[STATIC])
    return show(where, sum(offered), refused, room)


def show(where: str, count: int, refused: dict[str, int], room: int
         ) -> Iterator[figures.Figure]:
    """Yield the figures of one mix.

    :param count: how many requests each way had.
    :param refused: the refused ones, by :data:`WAYS`.
    :param room: how many requests for which a GPU had room the two ways with
        the agents have refused.
    """
    yield figures.Figure(f'{where}: requests', count, baseline=count)
    floor = refused[packing.REPACKING]
    yield figures.Figure(f'{where}: refused, {ALL_BALANCED}',
                         refused[ALL_BALANCED], floor=floor)
    for way in (ALONE, WEIGHED):
        yield figures.Figure(
            f'{where}: refused, {way}', refused[way],
            baseline=refused[STATIC], floor=floor,
            limit=int(SHARE * refused[STATIC]) if way == WEIGHED else None)
    yield figures.Figure(f'{where}: refused though a GPU had room', room,
                         limit=0)


def _play(way, hosts, static, traffic, templates, directory):
    """Play one way; return its score, and the refusals despite room."""
    cloud = nova_cloud.Cloud(
        _folder(directory, 'cloud'), templates,
        [f'compute{number}' for number in range(hosts)], way == WEIGHED)
    try:
        if way == STATIC:
            side = Static(cloud, static)
            score = packing.play(side, traffic, WARM_UP)
            side.check()
            return score, 0
        side = OnDemand(cloud, directory, hosts)
        try:
            score = packing.play(side, traffic, WARM_UP)
            side.check()
            return score, side.refused_with_room
        finally:
            side.close()
    finally:
        cloud.close()


def _folder(parent, name):
    """Create a directory in another one, and return its path."""
    # full_host has the same, but imports Cyborg: the options of Cyborg and
    # Nova conflict.
    path = pathlib.Path(parent, name)
    path.mkdir()
    return str(path)


def _same(what, expected, found):
    """:raises RuntimeError: if two sides of a comparison differ."""
    if expected != found:
        raise RuntimeError(f'{what}: {found!r} and not {expected!r}')


def main(argv=None):
    parser = figures.parser('Count the GPU requests that Nova refuses.', 1)
    parser.add_argument('--hosts', type=figures.at_least(1), default=2,
                        metavar='N', help='hosts with two GPUs (default: 2)')
    parser.add_argument('--load', type=float, default=packing.TARGET_LOAD,
                        metavar='X', help='requested compute slices, as a '
                        'share of all (default: 0.85)')
    parser.add_argument('--mix', type=packing.mixes, default=MIXES,
                        metavar='MIX,...', help='mixes of packing.py '
                        f'(default: {",".join(MIXES)})')
    parser.add_argument('--requests', type=figures.at_least(1), default=150,
                        metavar='N',
                        help='requests of each mix (default: 150)')
    options = parser.parse_args(argv)
    with figures.without_logs():
        return figures.show(list(measure(
            options.hosts, options.load, options.mix, options.requests)),
            options.format)


if __name__ == '__main__':
    sys.exit(main())
