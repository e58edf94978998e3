# SPDX-License-Identifier: Apache-2.0

"""The cost of boots with this driver and with Cyborg's fake_driver.

The released Placement and Cyborg run in this process. The benchmark plays
Nova's part through their public APIs. First one server at a time boots with
one accelerator. Then many servers boot at once until the host is full, and
all of them are deleted at once. The host offers as many GPU instances as the
fake_driver has accelerators. The fake_driver does nothing for a bind. One
server is placed at a time, as by one worker of nova-scheduler.

usage: python benchmarks/boots.py [-f table|json] [--repeat N]

Exits 1 if a boot with this driver needs more SQL statements of Cyborg or
requests to Placement than its limit. It fails if one driver serves fewer
servers than the other, or if anything is still in use after all servers are
deleted.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import counting
import figures
import full_host
import machines
import pynvml

from cyborg_gpu_driver.simulator.machine import machine as machine_machine
from demo_lib import cloud as demo_cloud
from demo_lib import database
from demo_lib import nova_part

OURS, THEIRS = 'cyborg_gpu_driver', 'fake_driver'
CLASSES = {OURS: full_host.RESOURCE_CLASS, THEIRS: 'FPGA'}
PROFILE = 'one'
AT_ONCE = 14
"""Concurrent users, each of whom boots or deletes one server at a time."""
TIMEOUT = 600
"""Seconds for a boot, however busy this machine is."""
STATEMENTS = 40
"""The limit of SQL statements that Cyborg may need for a boot."""
REQUESTS = 10
"""The limit of requests to Placement for a boot."""


class Nova(nova_part.NovaPart):
    """Nova's part, with a scheduler that places one server at a time."""

    def __init__(self, cloud):
        super().__init__(cloud.placement, cloud.cyborg, cloud.events,
                         cloud.host)
        self._worker = threading.Lock()

    def place(self, server, device_profile):
        with self._worker:
            return super().place(server, device_profile)


@dataclasses.dataclass
class Costs:
    """The cost of the boots and deletions with one driver."""

    servers: int = 0
    """Servers that had an accelerator at the same time."""
    alone: float = 0.0
    """Seconds of a boot while no other server boots (median)."""
    statements: int = 0
    requests: int = 0
    """The maximum for a boot while no other server boots."""
    storm: float = 0.0
    """Seconds until all servers have their accelerators."""
    slowest: float = 0.0
    """99th percentile of a boot in the storm, in seconds."""
    end: float = 0.0
    """Seconds until all servers are deleted."""


def play(driver, directory, count, repeat):
    """Boot and delete all servers with one driver, and return the costs.

    :param count: how many accelerators the host has.
    :raises RuntimeError: if fewer accelerators are in use when the host is
        full, or any after all servers are deleted.
    """
    templates = database.Templates(
        full_host.subdirectory(directory, 'templates'))
    templates.make()
    simulated = {
        'simulate': machines.describe(
            directory, count // full_host.INSTANCES_PER_GPU),
        'state_path': full_host.subdirectory(directory, 'state')}
    cloud = demo_cloud.Cloud(
        full_host.subdirectory(directory, 'cloud'), templates, 'compute1',
        [driver], {'DEFAULT': {'rpc_response_timeout': TIMEOUT},
                   'gpu': simulated})
    try:
        # Cyborg creates the providers at the first report.
        cloud.report()
        cloud.report()
        cloud.cyborg.create_device_profile(
            PROFILE, {f'resources:{CLASSES[driver]}': '1'})
        nova = Nova(cloud)
        costs = Costs()
        _alone(cloud, nova, repeat, costs)
        _check(cloud, driver, 0)
        servers = _storm(nova, count, costs)
        costs.servers = len(servers)
        _check(cloud, driver, count)
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(nova.delete_server, servers))
        costs.end = time.perf_counter() - start
        _check(cloud, driver, 0)
        return costs
    finally:
        cloud.stop()


def _alone(cloud, nova, repeat, costs):
    """Boot servers one after another, each deleted before the next boots."""
    taken = []
    # The first boot is not counted: it opens sessions and prepares
    # statements.
    for number in range(repeat + 1):
        with counting.statements() as statements, (
                counting.requests_sent(cloud.placement_service.url)) as sent:
            start = time.perf_counter()
            server = nova.create_server(PROFILE, TIMEOUT)
            seconds = time.perf_counter() - start
        if number:
            taken.append(seconds)
            costs.statements = max(costs.statements, len(statements))
            costs.requests = max(costs.requests, len(sent))
        nova.delete_server(server.uuid)
    costs.alone = statistics.median(taken)


def _storm(nova, count, costs):
    """Boot servers until the host is full, and return their UUIDs."""
    def boot(_number):
        start = time.perf_counter()
        server = nova.create_server(PROFILE, TIMEOUT)
        return server.uuid, time.perf_counter() - start

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(boot, range(count)))
    costs.storm = time.perf_counter() - start
    costs.slowest = statistics.quantiles(
        [seconds for _server, seconds in made], n=100)[98]
    return [server for server, _seconds in made]


def _check(cloud, driver, count):
    """:raises RuntimeError: unless ``count`` accelerators are in use."""
    found = {
        'units in use in Placement': sum(
            provider['usages'].get(CLASSES[driver], 0)
            for provider in cloud.placement.snapshot().values()),
        'attach handles in use in Cyborg': len(cloud.handles_in_use())}
    if driver == OURS:
        machine = pynvml.nvmlLib.machine
        with machine.operation():
            found['GPU instances'] = sum(
                len(gpu.instances) for gpu in machine.state.gpus.values())
    for what, number in found.items():
        if number != count:
            raise RuntimeError(f'{driver}: {number} {what}, not {count}')


def measure(repeat, gpus=4):
    """Return every figure, in the order in which it is shown.

    :param gpus: how many GPUs the host has.
    """
    # If imported before demo_lib, Cyborg would select eventlet.
    from cyborg.accelerator.drivers import fake
    count = gpus * full_host.INSTANCES_PER_GPU
    before = fake.FakeDriver.NUM_ACCELERATORS
    fake.FakeDriver.NUM_ACCELERATORS = count
    costs = {}
    try:
        for driver in (THEIRS, OURS):
            print(f'{driver}: {count} servers', file=sys.stderr)
            with (tempfile.TemporaryDirectory() as directory,
                  machine_machine.kept()):
                costs[driver] = play(driver, directory, count, repeat)
    finally:
        fake.FakeDriver.NUM_ACCELERATORS = before
    return show(costs[OURS], costs[THEIRS])


def show(ours, theirs):
    """Yield the figures of both drivers.

    :raises RuntimeError: if they have not done the same work.
    """
    if ours.servers != theirs.servers:
        raise RuntimeError(f'{ours.servers} servers with {OURS}, '
                           f'{theirs.servers} with {THEIRS}')
    yield figures.Figure('servers', ours.servers, 'at a time',
                         baseline=theirs.servers)
    yield figures.Figure('a boot alone: SQL statements of Cyborg',
                         ours.statements, baseline=theirs.statements,
                         limit=STATEMENTS)
    yield figures.Figure('a boot alone: requests to Placement',
                         ours.requests, baseline=theirs.requests,
                         limit=REQUESTS)
    storm = f'{ours.servers} boots, {AT_ONCE} at once'
    for name, field in (
            ('a boot alone: time', 'alone'), (f'{storm}: time', 'storm'),
            (f'{storm}: 99th percentile of one', 'slowest'),
            (f'{ours.servers} deletions, {AT_ONCE} at once: time', 'end')):
        yield figures.Figure(name, 1e3 * getattr(ours, field), 'ms',
                             baseline=1e3 * getattr(theirs, field))


def main(argv=None):
    options = figures.parser(
        'Compare boots with this driver and with fake_driver.',
        10).parse_args(argv)
    with figures.without_logs():
        return figures.show(measure(options.repeat), options.format)


if __name__ == '__main__':
    sys.exit(main())
