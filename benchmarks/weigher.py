# SPDX-License-Identifier: Apache-2.0

"""The cost of the weigher's reads for nova-scheduler in a large cloud.

Prepared answers about hosts with eight GPUs and seven profiles each stand in
for Placement, which would itself take most of the time. Each scheduling
request names as many hosts as Nova asks Placement for, drawn at random. There
is one request each second, and two of its hosts have changed. The program
measures the CPU time of a request, its requests to Placement and the memory of
the cache. The baseline reads all hosts of a request, as a weigher without a
cache does. Then each GPU is isolated, each answer takes 10 ms, and the program
measures for how long a decision waits.

usage: python benchmarks/weigher.py [-f table|json] [--repeat N]
           [--hosts 1000,10000] [--candidates 1000]

Exits 1 if a decision sends more requests than its limit, or if the weigher
keeps more hosts than its limit.
"""

from __future__ import annotations

import json
import pathlib
import random
import statistics
import sys
import time
import tracemalloc
import uuid
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import figures

from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.weighing import cost
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import names

GPUS = 8
PROFILES = {'1g.10gb': 7, '1g.10gb.me': 1, '1g.20gb': 4, '2g.20gb': 3,
            '3g.40gb': 2, '4g.40gb': 1, '7g.80gb': 1}
CLASS = 'CUSTOM_NVIDIA_1G_10GB'
TRAITS = ('OWNER_CYBORG', 'CUSTOM_NVIDIA', 'CUSTOM_NVIDIA_20B2',
          'CUSTOM_GPU_ARCH_AMPERE', 'CUSTOM_GPU_KIND_MIG',
          'CUSTOM_GPU_MEMORY_10GB', 'CUSTOM_GPU_MODEL_A100_SXM4_80GB',
          'CUSTOM_GPU_NUMA_1')
CACHE_SECONDS = 5.0
LATENCY = 0.01
"""Seconds for each answer about isolated GPUs."""
CHANGED = 2
"""How many hosts of a request have changed since the previous one."""
_KEPT = 2
"""Hosts to keep, as a multiple of those that a request can name, as in
:mod:`cyborg_gpu_driver.nova.scheduling.chooser`."""


class Answer:
    """An answer of Placement, as the text that Placement sends."""

    status_code = 200

    def __init__(self, text: str):
        self.text = text

    def json(self):
        return json.loads(self.text)


class Placement:
    """Placement's answers about any host; measures its own time.

    :param is_isolated: whether the GPUs must not be shared.
    :param latency: seconds for each answer.
    """

    def __init__(self, is_isolated: bool = False, latency: float = 0.0):
        self.read = 0
        self._latency = latency
        traits = [*TRAITS, *([names.ISOLATED] if is_isolated else [])]
        self.seconds = 0.0
        summaries, listed = {}, []
        for number in range(GPUS):
            for label, total in PROFILES.items():
                name = f'@_gpu_0000:{number:02x}:00.0_{label}'
                uuid = f'@-{number}-{label}-{"0" * 20}'
                listed.append({'uuid': uuid, 'name': name})
                summaries[uuid] = {
                    'parent_provider_uuid': '@', 'root_provider_uuid': '@',
                    'traits': traits, 'resources': {names.custom(
                        names.VENDOR, label): {
                            'capacity': total, 'used': int(
                                number % 2 and label == '1g.10gb')}}}
        summaries['@'] = {
            'parent_provider_uuid': None, 'root_provider_uuid': '@',
            'traits': ['COMPUTE_ACCELERATORS'], 'resources': {
                'VCPU': {'capacity': 256, 'used': 0}}}
        self._candidates = json.dumps({'provider_summaries': summaries})
        self._listed = json.dumps({'resource_providers': listed})

    def get(self, url: str, version: str) -> Answer:
        """Return the answer to a request of the weigher."""
        start = time.process_time()
        time.sleep(self._latency)
        self.read += 1
        path, _question, query = url.partition('?')
        if path.endswith('/allocations'):
            answer = Answer(json.dumps({'allocations': {
                str(uuid.uuid5(uuid.NAMESPACE_URL, path)): {
                    'resources': {CLASS: 1}}}}))
        elif not query:
            answer = Answer('{"project_id": "project"}')
        else:
            host = dict(part.split('=') for part
                        in query.split('&'))['in_tree']
            answer = Answer((
                self._candidates if path == '/allocation_candidates'
                else self._listed).replace('@', host))
        self.seconds += time.process_time() - start
        return answer


class Cloud:
    """Hosts that change, and the reader of a weigher.

    :param hosts: the number of hosts.
    :param candidates: how many hosts a request names at most.
    :param placement: what the reader asks.
    """

    def __init__(self, hosts: int, candidates: int,
                 placement: Placement | None = None):
        self._chance = random.Random(16)
        self._marks = {f'host{number:05}': 0 for number in range(hosts)}
        self._named = min(hosts, candidates)
        self.placement = placement or Placement()
        self.seconds = 0.0
        self._most = _KEPT * candidates
        # The second call of a decision waits for what the first has left of
        # the limit, so the time of the calls themselves counts.
        self.reader = weigher_reader.Reader(
            self.placement.get, CACHE_SECONDS, self._most,
            lambda: self.seconds + time.monotonic())

    def request(self) -> tuple[float, int]:
        """Make one scheduling request.

        :returns: the seconds of CPU time, without those of Placement, and
            the number of requests to it.
        """
        self.seconds += 1
        hosts = self.candidates()
        for host in self._chance.sample(hosts, min(CHANGED, len(hosts))):
            self._marks[host] += 1
        marks = {host: self._marks[host] for host in hosts}
        read, own = self.placement.read, self.placement.seconds
        start = time.process_time()
        fleet = self.reader.fleet(CLASS, marks)
        self.idle()
        spent = time.process_time() - start - self.placement.seconds + own
        if fleet is None:
            raise RuntimeError('the weigher could not read')
        return spent, self.placement.read - read

    def idle(self) -> None:
        """Wait until nothing more is read."""
        while self.reader.is_reading:
            time.sleep(0.001)

    def decide(self) -> tuple[float, int]:
        """Call the reader as the filter and then the weigher do.

        :returns: the seconds for which they waited, and the number of
            requests to Placement.
        """
        marks = {host: self._marks[host] for host in self.candidates()}
        read = self.placement.read
        start = time.monotonic()
        for _ in range(2):
            self.reader.fleet(CLASS, marks)
        spent = time.monotonic() - start
        self.idle()
        self.seconds += 1
        return spent, self.placement.read - read

    def candidates(self) -> list[str]:
        """Return the hosts that one request names."""
        return self._chance.sample(list(self._marks), self._named)

    def learn(self) -> list[tuple[float, int]]:
        """Make requests until the reader keeps as many hosts as it may.

        :returns: for each request, the result of :meth:`request`.
        """
        found = []
        while self.reader.hosts < min(len(self._marks), self._most):
            found.append(self.request())
        return found

    def everything(self) -> float:
        """Return the seconds of CPU time to read all hosts of one request."""
        own = self.placement.seconds
        start = time.process_time()
        gpus = []
        for host in self.candidates():
            known = {item['uuid']: item['name'] for item in self.placement.get(
                f'/resource_providers?in_tree={host}', '').json()[
                    'resource_providers']}
            gpus += published.gpus(self.placement.get(
                f'/allocation_candidates?in_tree={host}', '').json()[
                    'provider_summaries'], known)
        cost.Fleet(gpus)
        return time.process_time() - start - self.placement.seconds + own


def measure(sizes: tuple[int, ...], candidates: int, repeat: int
            ) -> Iterator[figures.Figure]:
    for hosts in sizes:
        cloud = Cloud(hosts, candidates)
        learning = cloud.learn()
        baseline = 1000 * Cloud(hosts, candidates).everything()
        requests = [cloud.request() for _ in range(repeat)]
        title = f'{hosts} hosts'
        yield figures.Figure(
            f'{title}: a request', 1000 * statistics.median(
                spent for spent, _ in requests), 'ms CPU', baseline)
        yield figures.Figure(
            f'{title}: the longest request, with the first ones',
            1000 * max(spent for spent, _ in (*learning, *requests)),
            'ms CPU', baseline)
        yield figures.Figure(
            f'{title}: requests to Placement for a request',
            statistics.fmean(read for _, read in requests), '',
            min(hosts, candidates))
        yield figures.Figure(
            f'{title}: requests to Placement, most',
            max(read for _, read in (*learning, *requests)), '',
            min(hosts, candidates), limit=weigher_reader.SHARE)
        isolated = Cloud(hosts, candidates, Placement(True, LATENCY))
        decisions = [isolated.decide() for _ in range(min(repeat, 5))]
        yield figures.Figure(
            f'{title}, isolated: the longest wait of a decision',
            max(spent for spent, _ in decisions), 's',
            target=weigher_reader.LIMIT)
        yield figures.Figure(
            f'{title}, isolated: requests to Placement, most',
            max(read for _, read in decisions), '',
            limit=2 * weigher_reader.SHARE)
        yield figures.Figure(
            f'{title}: hosts kept', cloud.reader.hosts, '', hosts,
            limit=_KEPT * candidates)
        yield figures.Figure(f'{title}: memory', memory(hosts, candidates),
                             'MiB')


def memory(hosts: int, candidates: int) -> float:
    """Return the MiB that the reader keeps once it has all hosts it may keep.
    """
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        cloud = Cloud(hosts, candidates)
        cloud.learn()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / 2 ** 20


def _numbers(text):
    return tuple(map(figures.at_least(1), text.split(',')))


def main(argv: list[str] | None = None) -> int:
    parser = figures.parser(__doc__.splitlines()[0], 60)
    parser.add_argument('--hosts', type=_numbers, default=(1000, 10000))
    parser.add_argument('--candidates', type=figures.at_least(1),
                        default=1000, help='hosts that a request names')
    options = parser.parse_args(argv)
    return figures.show(measure(options.hosts, options.candidates,
                                options.repeat), options.format)


if __name__ == '__main__':
    sys.exit(main())
