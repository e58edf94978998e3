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

"""The cost of starting cyborg-gpu: CPU time and imported modules.

Each command runs in separate processes, in turn with a process that only
imports cliff and oslo.config, which every command needs. The shortest CPU
time (user and system) of each counts, because other load only lengthens it.
The modules are compiled before, as in an installed package.

usage: python benchmarks/startup.py [-f table|json] [--repeat N]

Exits 1 if a command exceeds its limit. The limit is a multiple of the
baseline, so it is the same on a fast machine and on a slow one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT = 120
BASELINE = 'import cliff.app, oslo_config.cfg'
COMMAND = """
import sys
sys.argv = ['cyborg-gpu', *sys.argv[1:]]
from cyborg_gpu_driver.cmd import start
try:
    start.main()
except SystemExit:
    pass
"""
COUNT = """
import sys
print('modules:', len(sys.modules), file=sys.stderr)
"""
LIMITS = {
    ('--version',): 2.5,
    ('gpu', 'list'): 3,
    ('--simulate', 'dgx-a100-80', 'gpu', 'list'): 5,
}
"""Multiples of the baseline. The simulator creates eight GPUs with 160 virtual
functions before the command reads them."""


def measure(repeat: int) -> list[dict]:
    """Return the CPU time and modules of each command.

    :param repeat: how often each process runs.
    :returns: a row for the baseline, and one for each command.
    """
    cases = [(), *LIMITS]
    times = dict.fromkeys(cases, math.inf)
    modules = {}
    with tempfile.TemporaryDirectory() as bytecode:
        for case in cases:
            _run(case, bytecode)
        for _ in range(repeat):
            for case in cases:
                taken, modules[case] = _run(case, bytecode)
                times[case] = min(times[case], taken)
    return [{'command': ' '.join(case) or 'baseline',
             'cpu_ms': round(times[case] * 1000),
             'modules': modules[case],
             'ratio': round(times[case] / times[()], 2),
             'limit': LIMITS.get(case)} for case in cases]


def _run(case, bytecode):
    """Return seconds of CPU time, and the number of imported modules."""
    program = (COMMAND if case else BASELINE) + COUNT
    before = _used()
    done = subprocess.run(
        [sys.executable, '-c', program, *case], capture_output=True,
        text=True, check=True, timeout=TIMEOUT, cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT),
             'PYTHONDONTWRITEBYTECODE': '',
             'PYTHONPYCACHEPREFIX': bytecode})
    taken = _used() - before
    return taken, int(done.stderr.rpartition('modules:')[2])


def _used():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    parser.add_argument('--repeat', type=int, default=10, metavar='N',
                        help='how often each process runs (default: 10)')
    arguments = parser.parse_args()
    if arguments.repeat < 1:
        parser.error('--repeat: expected a number of at least 1')
    rows = measure(arguments.repeat)
    if arguments.format == 'json':
        print(json.dumps(rows, indent=2))
    else:
        print(f'{"command":32} {"CPU ms":>6} {"modules":>7} {"ratio":>5} '
              f'{"limit":>5}')
        for row in rows:
            print(f'{row["command"]:32} {row["cpu_ms"]:6} '
                  f'{row["modules"]:7} {row["ratio"]:5} '
                  f'{row["limit"] or "-":>5}')
    return int(any(row['limit'] and row['ratio'] > row['limit']
                   for row in rows))


if __name__ == '__main__':
    sys.exit(main())
