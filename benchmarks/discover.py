#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0


"""The cost of a report, a bind and an unbind on a full DGX A100.

The released Placement and Cyborg run in this process, and the agent loads
this driver. The simulated host has eight GPUs with seven 1g.10gb each. The
program prints the number of NVML calls beside its limits, the total times,
and the times of the driver's own code without the simulator, Placement and
the disk. The baseline of discover() is the time of Cyborg's in-tree driver
on the same host in the same run.

usage: python benchmarks/discover.py [-f table|json] [--repeat N]

Exits 1 if a limit is exceeded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import stat
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import figures
import full_host

CALLS_PER_GPU = 8
CALLS_PER_INSTANCE = 2
CALLS_PER_BIND = 40
OWN_BIND_MS = 5
"""The target for the driver's own part of a bind. It is only shown, because a
busy machine must not make this program fail."""


def main(argv=None):
    options = figures.parser(
        'Measure a report, a bind and an unbind.', 20).parse_args(argv)
    # The in-tree driver logs a warning for every PCI function, which takes
    # longer than its work.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        bench = full_host.FullHost(directory)
        try:
            measured = list(measure(bench, directory, options.repeat))
        finally:
            bench.close()
            logging.disable(logging.NOTSET)
    return figures.show(measured, options.format)


def measure(bench, directory, repeat):
    """Yield every figure, in the order in which it is shown."""
    gpus, instances = len(bench.machine.gpus), len(bench.servers)
    yield figures.Figure('GPUs', gpus)
    yield figures.Figure('instances', instances)
    reports = _measured(bench, bench.driver.discover, repeat)
    yield figures.Figure('discover(): NVML calls', max(_all(reports, 'calls')),
                         'calls', limit=CALLS_PER_GPU * gpus
                         + CALLS_PER_INSTANCE * instances)
    # Without and with the virtual functions that lspci also lists on such a
    # host.
    for name, vfs in (('GPUs only', False), ('GPUs and VFs', True)):
        seconds, devices = _in_tree(bench, directory, repeat, vfs)
        yield figures.Figure(f'in-tree discover(), {name}: devices reported',
                             devices)
        yield figures.Figure(
            f'discover(): time, beside in-tree with {name}',
            statistics.median(_all(reports, 'total')), 'ms', seconds * 1e3)
    yield from _times('discover()', reports)
    binds, unbinds = _binds(bench, repeat)
    for name, costs, calls, own in (
            ('bind', binds, CALLS_PER_BIND, OWN_BIND_MS),
            ('unbind', unbinds, None, None)):
        yield figures.Figure(f'{name}: NVML calls',
                             max(_all(costs, 'calls')), 'calls', limit=calls)
        yield from _times(name, costs, own)


def _measured(bench, operation, repeat):
    operation()
    return [bench.measure(operation) for _ in range(repeat)]


def _all(costs, field):
    return [getattr(cost, field) for cost in costs]


def _times(name, costs, own_target=None):
    for field, words, target in (
            ('total', 'time', None), ('own', 'our own time', None),
            ('cpu', 'our own CPU', own_target),
            ('simulator', 'in the simulator', None),
            ('placement', 'in Placement', None),
            ('disk', 'waiting for the disk', None)):
        yield figures.Figure(
            f'{name}: {words}', statistics.median(_all(costs, field)), 'ms',
            target=target)


def _binds(bench, repeat):
    """Unbind handles and bind them again, one after another."""
    binds, unbinds = [], []
    for number in range(repeat):
        handle = full_host.handle(bench.servers[number % len(bench.servers)])
        unbinds.append(bench.measure(bench.driver.unbind, *handle))
        binds.append(bench.measure(bench.driver.bind, *handle))
    return binds, unbinds


def _in_tree(bench, directory, repeat, vfs):
    """Return median seconds and devices of the in-tree driver's discover()."""
    # If imported before demo_lib, Cyborg would select eventlet.
    from cyborg.accelerator.drivers.gpu.nvidia import driver as in_tree
    programs = lspci(bench.machine, directory, vfs)
    driver = in_tree.NVIDIAGPUDriver()
    with _path(programs), in_process():
        devices = len(driver.discover())
        seconds = []
        for _ in range(repeat):
            start = time.perf_counter()
            driver.discover()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), devices


def lspci(machine, directory, vfs):
    """Create a directory with the cheapest possible lspci, and return it.

    :param vfs: whether lspci also lists virtual functions.
    """
    folder = full_host.subdirectory(directory, f'lspci-{vfs}')
    listing = os.path.join(folder, 'listing')
    with open(listing, 'w', encoding='utf-8') as stream:
        stream.writelines(_lines(machine, vfs))
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
def in_process():
    """Run Cyborg without a privsep daemon, which favors the in-tree driver."""
    from cyborg import privsep
    context = privsep.sys_admin_pctxt
    before = context.client_mode
    context.set_client_mode(False)
    try:
        yield
    finally:
        context.set_client_mode(before)


if __name__ == '__main__':
    sys.exit(main())
