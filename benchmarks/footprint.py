# SPDX-License-Identifier: Apache-2.0

"""The cost of cyborg-agent for a host: memory, CPU and leftover objects.

The released agent reports the same eight GPUs in a process of its own, with
this driver and with Cyborg's in-tree nvidia_gpu_driver. This driver reads 56
GPU instances in use, which the in-tree driver does not see. The floor is an
agent without a driver. A conductor that discards the reports stands in for
Cyborg's. The Placement that this driver asks is the released one, in another
process.

usage: python benchmarks/footprint.py [-f table|json] [--repeat N]

Exits 1 if an unchanged report sends more requests than its limit, or if
reports leave more objects behind than their limit. It fails if the two
drivers do not report the same number of devices.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import discover
import figures
import full_host

from demo_lib import configfile

AGENT = pathlib.Path(__file__).with_name('footprint_agent.py')
OURS, IN_TREE, NONE = 'cyborg_gpu_driver', 'nvidia_gpu_driver', ''
TIMEOUT = 600
"""Seconds for one agent."""
REQUESTS = 4
"""The limit of requests to Placement and Cyborg for an unchanged report."""
KEPT = 10
"""The limit of Python objects that a report leaves behind, beyond those of an
agent without a driver. A list of the reported devices would be hundreds."""


def main(argv=None):
    parser = figures.parser('Measure the cost of cyborg-agent.', 20)
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as directory:
            return figures.show(list(measure(directory, options.repeat)),
                                options.format)
    finally:
        logging.disable(logging.NOTSET)


def measure(directory, repeat, host=full_host.HOST):
    """Return every figure, in the order in which it is shown."""
    bench = full_host.FullHost(full_host.subdirectory(directory, 'host'),
                               host, shared=True)
    try:
        programs = discover.lspci(bench.machine, directory, False)
        # The agents are other processes. The driver of this process must
        # ask nothing meanwhile.
        bench.driver.stop()
        found = {driver: run(bench, directory, host, driver, programs, repeat)
                 for driver in (OURS, IN_TREE, NONE)}
    finally:
        bench.close()
    return show(found[OURS], found[IN_TREE], found[NONE])


def run(bench, directory, host, driver, programs, repeat):
    """Run an agent with a driver, and return what it prints."""
    configuration = configfile.write(
        os.path.join(directory, f'agent-{driver}.conf'),
        {'agent': {'enabled_drivers': driver}})
    print(f'agent with {driver or "no driver"}', file=sys.stderr)
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', AGENT, host, str(repeat),
         bench.cloud.config_path, configuration],
        stdout=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT,
        env={**os.environ, 'PATH': programs + os.pathsep
             + os.environ['PATH']})
    if done.returncode:
        raise RuntimeError(f'the agent with {driver or "no driver"} ended '
                           f'with {done.returncode}')
    return json.loads(done.stdout)


def show(ours, in_tree, none):
    """Yield the figures of all three agents.

    :raises RuntimeError: if the two drivers have not done the same work.
    """
    if ours['devices'] != in_tree['devices'] or not ours['devices']:
        raise RuntimeError(f'{ours["devices"]} devices with {OURS}, '
                           f'{in_tree["devices"]} with {IN_TREE}')
    yield figures.Figure('devices reported', ours['devices'],
                         baseline=in_tree['devices'])
    yield figures.Figure('resident memory of the agent', ours['memory'],
                         'MiB', baseline=in_tree['memory'],
                         floor=none['memory'])
    yield figures.Figure('resident memory of the simulated machine',
                         none['simulator_memory'], 'MiB')
    yield figures.Figure('an unchanged report: CPU', ours['cpu'], 'ms CPU',
                         baseline=in_tree['cpu'], floor=none['cpu'])
    yield figures.Figure('an unchanged report: CPU of the simulated machine',
                         ours['simulator_cpu'], 'ms CPU')
    yield figures.Figure('an unchanged report: HTTP requests',
                         ours['requests'], baseline=in_tree['requests'],
                         floor=none['requests'], limit=REQUESTS)
    left, theirs = (max(0, side['kept'] - none['kept']) / side['reports']
                    for side in (ours, in_tree))
    yield figures.Figure('a report: Python objects left behind', left,
                         baseline=theirs, limit=KEPT)
    yield figures.Figure('threads of the agent', ours['threads'],
                         baseline=in_tree['threads'],
                         floor=none['threads'])


if __name__ == '__main__':
    sys.exit(main())
