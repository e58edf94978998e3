# SPDX-License-Identifier: Apache-2.0

"""The cost of a host's report for Cyborg and Placement in a large cloud.

Hosts with one GPU, offered in MIG profiles, report to one conductor of the
released Cyborg. So do as many hosts with the accelerator of Cyborg's
fake_driver. The program counts the statements of Cyborg's database and the
requests to Placement for a host's first report, for a report without changes
and for a full report. They must not grow with the number of hosts.

usage: python benchmarks/reports.py [-f table|json] [--hosts 10,30,100]

Exits 1 if a report without changes costs more SELECTs than its limit or
writes to Placement, or if the SELECTs of a report grow with the number of
hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import logging
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import counting
import figures
import full_host

from cyborg_gpu_driver.report import drift
from demo_lib import cloud as demo_cloud
from demo_lib import database

HOSTS = (10, 30, 100)
FIRST = 'compute1'
SIMULATED = full_host.HOST
SELECTS = 18
"""The limit for an unchanged GPU: DriverDevice.list and the host's provider.
"""


@dataclasses.dataclass
class Cost:
    """The cost of one report."""

    selects: int = 0
    writes: int = 0
    requests: int = 0
    """Requests to Placement."""
    changes: int = 0
    """Requests to Placement other than GET."""
    seconds: float = 0.0


class Fleet:
    """Hosts that all report the GPU that one host has found.

    :param directory: an empty directory.
    :param driver: the name of the Cyborg driver.
    """

    def __init__(self, directory: str, driver: str):
        self._stack = contextlib.ExitStack()
        drift.INTERVAL = 0.0  # Each report is a full one.
        templates = database.Templates(
            full_host.subdirectory(directory, 'templates'))
        templates.make()
        simulated = {'simulate': SIMULATED, 'policies': 'slices',
                     'state_path': full_host.subdirectory(
                         directory, 'state')}
        self.cloud = demo_cloud.Cloud(
            full_host.subdirectory(directory, 'cloud'), templates, FIRST,
            [driver], {'gpu': simulated, 'gpu_policy:slices': {
                'mode': 'mig'}} if driver == 'cyborg_gpu_driver' else {})
        self._stack.callback(self.cloud.stop)
        self._conductor = self.cloud.conductor
        self._driver = self.cloud.agent._rt.acc_drivers[0]
        # One GPU is enough, because each costs the same.
        self._full = self._driver.discover()[:1]
        self.providers = len(self._full[0].deployable_list)

    def close(self) -> None:
        self._stack.close()

    def add(self, host: str) -> Cost:
        """Add a host, and return the cost of its first report."""
        if host != FIRST:
            self.cloud.nova.host = host
            self.cloud.nova.create_compute_node()
        return self.full(host)

    def full(self, host: str) -> Cost:
        """Return the cost of a full report of one host."""
        return self._report(host, self._renamed(host))

    def unchanged(self, host: str) -> Cost:
        """Return the cost of a report without changes.

        A driver that does not support stubs sends everything again.
        """
        devices = self._renamed(host)
        if hasattr(self._driver, 'bind'):
            for device in devices:
                device.stub = True
                device.deployable_list = []
        return self._report(host, devices)

    def _renamed(self, host):
        devices = copy.deepcopy(self._full)
        for device in devices:
            for deployable in device.deployable_list:
                deployable.name = deployable.name.replace(FIRST, host, 1)
        return devices

    def _report(self, host, devices):
        cost = Cost()
        with counting.statements() as asked, _requests(self._conductor, cost):
            start = time.perf_counter()
            self._conductor.report_data(full_host.admin(), host, devices)
            cost.seconds = time.perf_counter() - start
        cost.selects = sum(statement.startswith('SELECT')
                           for statement in asked)
        cost.writes = len(asked) - cost.selects
        return cost


@contextlib.contextmanager
def _requests(conductor, cost):
    """Count the conductor's requests to Placement."""
    session = conductor.placement_client._client.session
    request = session.request

    def counted(url, method, *arguments, **named):
        cost.requests += 1
        cost.changes += method != 'GET'
        return request(url, method, *arguments, **named)

    session.request = counted
    try:
        yield
    finally:
        session.request = request


def main(argv=None):
    parser = figures.parser(
        'Measure the cost of a report in a large cloud.', 3)
    parser.add_argument('--hosts', type=_numbers, default=HOSTS,
                        metavar='N,...', help='ascending numbers of hosts '
                        '(default: 10,30,100)')
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        return figures.show(measure(options.hosts, options.repeat),
                            options.format)
    finally:
        logging.disable(logging.NOTSET)


def _numbers(text):
    number = figures.at_least(1)
    found = [number(part) for part in text.split(',')]
    if found != sorted(set(found)):
        raise argparse.ArgumentTypeError('expected numbers that grow')
    return found


def measure(hosts, repeat):
    """Yield every figure, in the order in which it is shown."""
    costs = {}
    for driver in ('fake_driver', 'cyborg_gpu_driver'):
        with tempfile.TemporaryDirectory() as directory:
            fleet = Fleet(directory, driver)
            try:
                costs[driver] = list(_grow(fleet, hosts, repeat, driver))
                providers = fleet.providers
            finally:
                fleet.close()
    theirs, ours = costs.values()
    yield figures.Figure('providers of a host', providers, baseline=1)
    for count, them, us in zip(hosts, theirs, ours, strict=True):
        where = f'{count} hosts'
        first, unchanged, full = us
        yield figures.Figure(
            f'{where}: first report, requests to Placement',
            first.requests, baseline=them[0].requests * providers)
        yield figures.Figure(
            f'{where}: first report, time', 1e3 * first.seconds, 'ms',
            baseline=1e3 * them[0].seconds * providers)
        yield figures.Figure(
            f'{where}: unchanged, SELECTs', unchanged.selects,
            baseline=them[1].selects,
            limit=min(SELECTS, ours[0][1].selects))
        yield figures.Figure(
            f'{where}: unchanged, writes to Placement', unchanged.changes,
            baseline=them[1].changes, limit=0)
        yield figures.Figure(
            f'{where}: unchanged, time', 1e3 * unchanged.seconds, 'ms',
            baseline=1e3 * them[1].seconds)
        yield figures.Figure(
            f'{where}: full, SELECTs', full.selects,
            baseline=them[2].selects * providers,
            limit=ours[0][2].selects)
    if len(hosts) > 1:
        yield figures.Figure(
            'slope of an unchanged report',
            1e3 * _slope(hosts, [cost[1].seconds for cost in ours]),
            'ms a host', baseline=1e3 * _slope(
                hosts, [cost[1].seconds for cost in theirs]))


def _grow(fleet, hosts, repeat, driver):
    """Yield the costs of the last host: first, unchanged and full report."""
    count = 0
    for wanted in hosts:
        while count < wanted:
            count += 1
            host = f'compute{count}'
            first = fleet.add(host)
            print(f'\r{driver}: {count} hosts ', end='', file=sys.stderr)
        fleet.full(host)
        yield (first, _least(fleet.unchanged, host, repeat),
               _least(fleet.full, host, repeat))
    print(file=sys.stderr)


def _least(report, host, repeat):
    """Return the cost of the fastest report; the counts are all the same."""
    return min((report(host) for _ in range(repeat)),
               key=lambda cost: cost.seconds)


def _slope(hosts, seconds):
    """Return the growth per host, by least squares."""
    mean_x, mean_y = (sum(values) / len(values)
                      for values in (hosts, seconds))
    return (sum((x - mean_x) * (y - mean_y)
                for x, y in zip(hosts, seconds, strict=True))
            / sum((x - mean_x) ** 2 for x in hosts))


if __name__ == '__main__':
    sys.exit(main())
