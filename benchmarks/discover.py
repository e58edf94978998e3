#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What a report, a bind and an unbind cost on a full DGX A100.

Released Placement and Cyborg run in this process, with our driver loaded by
the agent, around a simulated host whose eight GPUs hold seven 1g.10gb each.
Prints how often NVML is called, against the limits that we set ourselves,
and times: of all, and of our own code without the simulator, Placement and
the disk. The time of discover() stands beside that of Cyborg's in-tree
driver on the same host in the same run.

usage: python benchmarks/discover.py [-f table|json] [--repeat N]

Exits 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import stat
import statistics
import sys
import tempfile
import threading
import time
import warnings

import pynvml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
# What the released services deprecate is not this program's business.
warnings.simplefilter('ignore')

from cyborg_gpu_driver.demo import cloud as demo_cloud  # noqa: E402
from cyborg_gpu_driver.demo import database  # noqa: E402

HOST = 'dgx-a100-80'
INSTANCES_PER_GPU = 7
RESOURCE_CLASS = 'CUSTOM_NVIDIA_1G_10GB'
CALLS_PER_GPU = 8
CALLS_PER_INSTANCE = 2
CALLS_PER_BIND = 8
OWN_BIND_MS = 5
"""What we aim at for our own part of a bind. A busy machine must not make
this program fail, so it is shown and no more."""

_WAITING = 'nvmlEventSetWait'
_SYSTEM_CALLS = ('open', 'read', 'write', 'close', 'listdir', 'readlink',
                 'stat')


class Stopwatch:
    """Adds up the time spent in some functions, one within another once.

    A wait for events is left out: a thread of its own spends its life there.
    """

    def __init__(self):
        self.seconds = 0.0
        self._thread = threading.local()

    def wrap(self, owner, *names):
        """Put a timed function in the place of each of an object's."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function):
        def timed(*arguments, **keywords):
            start = time.perf_counter()
            outermost = not getattr(self._thread, 'inside', False)
            self._thread.inside = True
            try:
                return function(*arguments, **keywords)
            finally:
                if outermost:
                    self._thread.inside = False
                    if not (arguments and str(arguments[0]).startswith(
                            _WAITING)):
                        self.seconds += time.perf_counter() - start
        return timed


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of the answer."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    """Makes the program fail."""
    target: float | None = None

    @property
    def is_exceeded(self):
        return self.limit is not None and self.value > self.limit


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one operation cost; times in milliseconds."""

    calls: int
    total: float
    placement: float
    simulator: float
    disk: float

    @property
    def own(self):
        return self.total - self.placement - self.simulator - self.disk


class Bench:
    """The cloud with its full host, and clocks around what is not ours."""

    def __init__(self, directory):
        templates = database.Templates(_directory(directory, 'templates'))
        templates.make()
        self.cloud = demo_cloud.Cloud(
            _directory(directory, 'cloud'), templates, HOST,
            ['cyborg_gpu_driver'],
            {'gpu': {'simulate': HOST,
                     'state_path': _directory(directory, 'state')}})
        self.driver = self.cloud.agent._rt.acc_drivers[0]
        self.placement, self.simulator, self.disk = (
            Stopwatch(), Stopwatch(), Stopwatch())
        self.placement.wrap(self.driver._running()._keeper._tree.client,
                            'get', 'put')
        # Cyborg makes the providers in the first report.
        self.cloud.report()
        self.cloud.report()
        self.machine = pynvml.nvmlLib.machine
        self.servers = self._fill()
        self.simulator.wrap(self.machine.library, 'call')
        self.simulator.wrap(self.machine.os, *_SYSTEM_CALLS)
        self.disk.wrap(os, 'fsync', 'replace')

    def _fill(self):
        self.cloud.cyborg.create_device_profile(
            'slice', {f'resources:{RESOURCE_CLASS}': '1'})
        return [self.cloud.nova.create_server('slice') for _ in range(
            INSTANCES_PER_GPU * len(self.machine.gpus))]

    def measure(self, operation, *arguments):
        """Carry an operation out and say what it cost."""
        self.machine.reset_calls()
        watches = (self.placement, self.simulator, self.disk)
        for watch in watches:
            watch.seconds = 0.0
        start = time.perf_counter()
        operation(*arguments)
        total = time.perf_counter() - start
        return Cost(sum(self.machine.calls.values()), total * 1e3,
                    *(watch.seconds * 1e3 for watch in watches))


def main(argv=None):
    parser = argparse.ArgumentParser(
        description='What a report, a bind and an unbind cost.')
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    parser.add_argument('--repeat', type=int, default=20, metavar='N',
                        help='how often each is measured (default: 20)')
    options = parser.parse_args(argv)
    # The in-tree driver warns of every function; writing that takes longer
    # than its work.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory)
        try:
            figures = list(measure(bench, directory, options.repeat))
        finally:
            bench.cloud.stop()
    exceeded = [figure for figure in figures if figure.is_exceeded]
    if options.format == 'json':
        json.dump([dataclasses.asdict(figure) for figure in figures],
                  sys.stdout, indent=1)
        print()
    else:
        show(figures)
    for figure in exceeded:
        print(f'{figure.name}: {figure.value:g} is more than {figure.limit}',
              file=sys.stderr)
    return 1 if exceeded else 0


def measure(bench, directory, repeat):
    """Every figure, in the order in which it is shown."""
    gpus, instances = len(bench.machine.gpus), len(bench.servers)
    yield Figure('GPUs', gpus, '')
    yield Figure('instances', instances, '')
    reports = _measured(bench, bench.driver.discover, repeat)
    yield Figure('discover(): NVML calls', max(_all(reports, 'calls')),
                 'calls', CALLS_PER_GPU * gpus
                 + CALLS_PER_INSTANCE * instances)
    yield from _times('discover()', reports)
    # Without and with what lspci lists beside the GPUs on such a host.
    ours = statistics.median(_all(reports, 'total'))
    for name, vfs in (('in-tree discover(), GPUs only', False),
                      ('in-tree discover(), GPUs and VFs', True)):
        seconds, devices = _in_tree(bench, directory, repeat, vfs)
        yield Figure(f'{name}: devices reported', devices, '')
        yield Figure(f'{name}: time', seconds * 1e3, 'ms')
        yield Figure(f'our discover() / {name}', ours / (seconds * 1e3), '')
    binds, unbinds = _binds(bench, repeat)
    for name, costs, calls, own in (
            ('bind', binds, CALLS_PER_BIND, OWN_BIND_MS),
            ('unbind', unbinds, None, None)):
        yield Figure(f'{name}: NVML calls', max(_all(costs, 'calls')),
                     'calls', calls)
        yield from _times(name, costs, own)


def _measured(bench, operation, repeat):
    operation()
    return [bench.measure(operation) for _ in range(repeat)]


def _all(costs, field):
    return [getattr(cost, field) for cost in costs]


def _times(name, costs, own_target=None):
    for field, words, target in (
            ('total', 'time', None), ('own', 'our own time', own_target),
            ('simulator', 'in the simulator', None),
            ('placement', 'in Placement', None),
            ('disk', 'waiting for the disk', None)):
        yield Figure(f'{name}: {words}',
                     statistics.median(_all(costs, field)), 'ms',
                     target=target)


def _binds(bench, repeat):
    """Give handles back and bind them again, one after another."""
    binds, unbinds = [], []
    for number in range(repeat):
        handle = _handle(bench.servers[number % len(bench.servers)])
        unbinds.append(bench.measure(bench.driver.unbind, *handle))
        binds.append(bench.measure(bench.driver.bind, *handle))
    return binds, unbinds


def _handle(server):
    """What the agent is called with for a server's accelerator."""
    (arq,) = server.arqs
    info = arq['attach_handle_info']
    address = '{domain}:{bus}:{device}.{function}'.format(**info)
    return address, info['asked_type'], arq['attach_handle_uuid']


def _in_tree(bench, directory, repeat, vfs):
    """Median seconds of the in-tree driver's discover(), and its devices."""
    # Imported before our demo, Cyborg would choose eventlet.
    from cyborg.accelerator.drivers.gpu.nvidia import driver as in_tree
    programs = _lspci(bench, directory, vfs)
    driver = in_tree.NVIDIAGPUDriver()
    with _path(programs), _in_process():
        devices = len(driver.discover())
        seconds = []
        for _ in range(repeat):
            start = time.perf_counter()
            driver.discover()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), devices


def _lspci(bench, directory, vfs):
    """A directory with the cheapest lspci that there can be."""
    folder = _directory(directory, f'lspci-{vfs}')
    listing = os.path.join(folder, 'listing')
    with open(listing, 'w', encoding='utf-8') as stream:
        stream.writelines(_lines(bench.machine, vfs))
    program = os.path.join(folder, 'lspci')
    with open(program, 'w', encoding='utf-8') as stream:
        stream.write(f'#!/bin/sh\nexec cat {listing}\n')
    os.chmod(program, stat.S_IRWXU)
    return folder


def _lines(machine, vfs):
    devices = '/sys/bus/pci/devices'
    for address in sorted(machine.os.listdir(devices)):
        vendor, device, code = (
            _read(machine, f'{devices}/{address}/{name}')[2:]
            for name in ('vendor', 'device', 'class'))
        is_vf = 'physfn' in machine.os.listdir(f'{devices}/{address}')
        if is_vf and not vfs:
            continue
        kind = '3D controller' if code.startswith('0302') else 'Bridge'
        yield (f'{address} {kind} [{code[:4]}]: NVIDIA Corporation '
               f'GA100 [A100 SXM4 80GB] [{vendor}:{device}] (rev a1)\n')


def _read(machine, path):
    descriptor = machine.os.open(path, os.O_RDONLY)
    try:
        return machine.os.read(descriptor, 64).decode().strip()
    finally:
        machine.os.close(descriptor)


@contextlib.contextmanager
def _path(folder):
    before = os.environ['PATH']
    os.environ['PATH'] = folder + os.pathsep + before
    try:
        yield
    finally:
        os.environ['PATH'] = before


@contextlib.contextmanager
def _in_process():
    """No privsep daemon for Cyborg: one more favour to the in-tree driver."""
    from cyborg import privsep
    context = privsep.sys_admin_pctxt
    before = context.client_mode
    context.set_client_mode(False)
    try:
        yield
    finally:
        context.set_client_mode(before)


def _directory(parent, name):
    path = os.path.join(parent, name)
    os.makedirs(path)
    return path


def show(figures):
    """Print the figures for people."""
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        value = (f'{figure.value:10d}' if isinstance(figure.value, int)
                 else f'{figure.value:10.3f}')
        bound = ''.join(f'  {name} {value_:g}' for name, value_ in (
            ('limit', figure.limit), ('target', figure.target))
            if value_ is not None)
        print(f'{figure.name:{width}}  {value} {figure.unit}{bound}'.rstrip())


if __name__ == '__main__':
    sys.exit(main())
