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

"""NVML calls from one layout to another, against clearing and rebuilding.

A simulated A100 goes from each layout to each other one where instances
can stay, once by a plan that keeps them and once as a tool does
that destroys everything first. Both read the GPU before and after and pay
the same for each instance made or destroyed.

usage: python benchmarks/layout_calls.py [-f table|json]

Exits 1 if keeping what is right takes more calls for any pair, or as many.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition.change import target
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine

with warnings.catch_warnings():
    # oslo.privsep imports eventlet, which complains of itself.
    warnings.simplefilter('ignore')
    from cyborg_gpu_driver.program.privileged import mig as privileged
    from cyborg_gpu_driver.program.ready import apply
    from cyborg_gpu_driver.program.steps import transaction

HOST = 'dgx-a100-80'
LAYOUTS = {
    '7 x 1g': {'1g.10gb': 7},
    '3g + 4 x 1g': {'3g.40gb': 1, '1g.10gb': 4},
    '3g + 2g + 2 x 1g': {'3g.40gb': 1, '2g.20gb': 1, '1g.10gb': 2},
    '3g + 2 x 2g': {'3g.40gb': 1, '2g.20gb': 2},
    '2 x 3g': {'3g.40gb': 2},
    '4g + 2g + 1g': {'4g.40gb': 1, '2g.20gb': 1, '1g.10gb': 1},
}


class Bench:
    """One GPU, and an applier of its own for each process that there is
    thought to be."""

    def __init__(self, state_path: str):
        self._state_path = state_path
        self.machine = machine.Machine.load(HOST)
        self._platform = platform.open_platform(self.machine)
        privileged.run_here(self._platform)
        self.gpu = reader.HostReader(self._platform).snapshot().gpus[0]
        self.transactions = transaction.Transactions(self._platform,
                                                     state_path)
        self.applier = apply.Applier(self.transactions)
        self.go({'7g.80gb': 1})

    def go(self, devices: dict[str, int]) -> None:
        self.applier.apply(self.gpu, target.wanted(self.gpu, True, devices))

    def kept(self, devices: dict[str, int]) -> int:
        """How many instances of now would stay."""
        now = self.transactions.read(self.gpu)
        return len(self.applier.plan(now, target.wanted(
            self.gpu, True, devices)).keep)

    def calls(self, devices: dict[str, int]) -> int:
        """NVML calls of one apply."""
        self.machine.reset_calls()
        self.go(devices)
        return sum(self.machine.calls.values())

    def rebuilding(self, devices: dict[str, int]) -> int:
        """NVML calls of clearing the GPU and making all anew.

        Two applies read the empty GPU between them, the first to check and
        the second to plan, which one tool would not do: left out.
        """
        clearing = self.calls({})
        self.machine.reset_calls()
        self.transactions.read(self.gpu)
        between = sum(self.machine.calls.values())
        return clearing + self.calls(devices) - 2 * between


def measure() -> list[dict]:
    rows = []
    with contextlib.ExitStack() as stack:
        bench = Bench(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(bench.machine.uninstall)
        for devices in LAYOUTS.values():
            # What is asked once a session is known from here on.
            bench.go(devices)
        for name, before in LAYOUTS.items():
            for other, after in LAYOUTS.items():
                bench.go({})
                bench.go(before)
                shared = bench.kept(after)
                if name == other or not shared:
                    continue
                keeping = bench.calls(after)
                bench.go({})
                bench.go(before)
                rows.append({'from': name, 'to': other, 'kept': shared,
                             'keeping': keeping,
                             'rebuilding': bench.rebuilding(after)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    arguments = parser.parse_args()
    rows = measure()
    if arguments.format == 'json':
        print(json.dumps(rows, indent=2))
    else:
        print(f'{"from":18} {"to":18} {"kept":>4} {"keeping":>8} '
              f'{"rebuilding":>11}')
        for row in rows:
            print(f'{row["from"]:18} {row["to"]:18} {row["kept"]:4} '
                  f'{row["keeping"]:8} {row["rebuilding"]:11}')
        print(f'{"all":42} {sum(row["keeping"] for row in rows):8} '
              f'{sum(row["rebuilding"] for row in rows):11}')
    return int(any(row['keeping'] >= row['rebuilding'] for row in rows))


if __name__ == '__main__':
    sys.exit(main())
