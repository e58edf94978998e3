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

"""What cyborg-agent takes of a host: memory, CPU, and what it keeps.

The released agent reports the same eight GPUs in a process of its own, with
our driver and with Cyborg's nvidia_gpu_driver. Ours meets 56 GPU instances
in use, of which the in-tree driver sees nothing. The floor is an agent
without a driver. A conductor that forgets what it is told stands in for
Cyborg's; the Placement that our driver asks is the released one, in another
process.

usage: python benchmarks/footprint.py [-f table|json] [--repeat N]

Exits 1 if an unchanged report sends more requests than its limit, or if
reports leave objects behind. It fails if the two sides do not report the same
number of devices.
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

from cyborg_gpu_driver.demo import configfile

AGENT = pathlib.Path(__file__).with_name('footprint_agent.py')
OURS, IN_TREE, NONE = 'cyborg_gpu_driver', 'nvidia_gpu_driver', ''
TIMEOUT = 600
"""Seconds for one agent."""
REQUESTS = 4
"""To Placement and Cyborg: limit of an unchanged report."""
KEPT = 10
"""Python objects: limit of what a report leaves behind, beside an agent
without a driver. A list of what was reported would be hundreds."""


def main(argv=None):
    parser = figures.parser('What cyborg-agent takes of a host.', 20)
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as directory:
            return figures.show(list(measure(directory, options.repeat)),
                                options.format)
    finally:
        logging.disable(logging.NOTSET)


def measure(directory, repeat, host=full_host.HOST):
    """Every figure, in the order in which it is shown."""
    bench = full_host.FullHost(full_host.subdirectory(directory, 'host'),
                               host, shared=True)
    try:
        programs = discover.lspci(bench.machine, directory, False)
        # The agents are others' processes: this one asks nothing meanwhile.
        bench.driver.stop()
        found = {driver: run(bench, directory, host, driver, programs, repeat)
                 for driver in (OURS, IN_TREE, NONE)}
    finally:
        bench.close()
    return show(found[OURS], found[IN_TREE], found[NONE])


def run(bench, directory, host, driver, programs, repeat):
    """What an agent with a driver says of itself."""
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
    """The figures of all three.

    :raises RuntimeError: if two sides have not done the same work.
    """
    if ours['devices'] != in_tree['devices'] or not ours['devices']:
        raise RuntimeError(f'{ours["devices"]} devices beside '
                           f'{in_tree["devices"]}')
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
