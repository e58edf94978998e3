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

"""Compare the NVML calls of ``cyborg-gpu layout apply`` and mig-parted.

Eight simulated A100 change from layout to layout, once with ``cyborg-gpu``
and once with the calls that NVIDIA's mig-parted makes. Calls are counted at
the C library, for the whole process including its start. Both tools must end
with the same instances on every GPU.

usage: python benchmarks/layout_calls.py [-f table|json]

Exits 1 if ``cyborg-gpu`` makes more calls than mig-parted for a layout that
the GPUs have already, makes more than a quarter of its calls for a change
from one layout to another, or destroys an instance that could remain.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import io
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import figures
import mig_parted

from cyborg_gpu_driver.cmd import main as command
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator.library import library
from cyborg_gpu_driver.simulator.machine import machine as simulator

HOST = 'dgx-a100-80'
PROFILES = {'1g.10gb': (0, 1), '2g.20gb': (1, 2), '3g.40gb': (2, 3),
            '4g.40gb': (3, 4), '7g.80gb': (4, 7)}
"""The NVML_GPU_INSTANCE_PROFILE_* and the slices of each profile."""
LAYOUTS = {
    'seven': {'1g.10gb': 7},
    'four and one': {'3g.40gb': 1, '1g.10gb': 4},
    'balanced': {'3g.40gb': 1, '2g.20gb': 1, '1g.10gb': 2},
}
WALK = ('seven', 'seven', 'four and one', 'seven', 'balanced', 'balanced')
"""The layouts to apply in sequence, from empty GPUs in MIG mode."""
DESTROY = 'nvmlGpuInstanceDestroy'


class Ours:
    """``cyborg-gpu``, each time with all that a new process does."""

    def __init__(self, directory: pathlib.Path):
        self._state = directory / 'machine'
        self._layouts = directory / 'layouts.yaml'
        self._layouts.write_text(json.dumps({
            'version': 'v1', 'mig-configs': {
                name: [{'devices': 'all', 'mig-enabled': True,
                        'mig-devices': layout}]
                for name, layout in LAYOUTS.items()}}))
        (directory / 'state').mkdir()
        self._conf = directory / 'gpu.conf'
        self._conf.write_text(f'[gpu]\nstate_path = {directory / "state"}\n')

    def apply(self, name: str) -> None:
        said = io.StringIO()
        with simulator.kept(), contextlib.redirect_stdout(said), (
                contextlib.redirect_stderr(said)):
            code = command.main([
                '--simulate', HOST, '--state', str(self._state),
                '--config-file', str(self._conf), 'layout', 'apply', '-f',
                str(self._layouts), '-c', name])
            # Close what the end of a process would close.
            privileged.machine().nvml.reset()
            gc.collect()
            gate.close_abandoned()
            privileged._platform = None
        if code:
            raise RuntimeError(f'layout apply -c {name}: {said.getvalue()}')

    def instances(self) -> list[list[tuple[int, int]]]:
        return instances(simulator.Machine.load(HOST, str(self._state)))


class Theirs:
    """mig-parted, on another simulated machine."""

    def __init__(self) -> None:
        self._machine = simulator.Machine.load(HOST)
        self._tool = mig_parted.MigParted(
            [gpu.address for gpu in self._machine.gpus], PROFILES)

    def apply(self, name: str) -> None:
        with self._machine:
            self._tool.apply(LAYOUTS[name])

    def instances(self) -> list[list[tuple[int, int]]]:
        return instances(self._machine)


def instances(machine: simulator.Machine) -> list[list[tuple[int, int]]]:
    """Return, by GPU, profile id and compute instances of each instance."""
    with machine.operation():
        return [sorted((item.profile_id, len(item.compute))
                       for item in gpu.state.instances.values())
                for gpu in machine.gpus]


@contextlib.contextmanager
def counted() -> Iterator[collections.Counter]:
    """Count the calls of C symbols in the block."""
    calls: collections.Counter = collections.Counter()
    original = library.Library.call

    def call(self, name, *arguments):
        calls[name] += 1
        return original(self, name, *arguments)

    library.Library.call = call
    try:
        yield calls
    finally:
        library.Library.call = original


def measure(directory: pathlib.Path) -> Iterator[figures.Figure]:
    """Yield the figures of the walk.

    :param directory: an empty directory, for the files of ``cyborg-gpu``.
    """
    ours, theirs = Ours(directory), Theirs()
    before = None
    for name in WALK:
        with counted() as mine:
            ours.apply(name)
        with counted() as other:
            theirs.apply(name)
        if ours.instances() != theirs.instances():
            raise RuntimeError(f'{name}: the two tools differ')
        yield from _step(before, name, mine, other)
        before = name


def _step(before: str | None, name: str, mine: collections.Counter,
          other: collections.Counter) -> Iterator[figures.Figure]:
    """Yield the calls of a step and its limits."""
    baseline, limit = other.total(), None
    words = f'{before or "empty"} to {name}'
    if name == before:
        words, limit = f'{name}, again', baseline
    elif before:
        limit = baseline // 4
    yield figures.Figure(words, mine.total(), 'NVML calls',
                         baseline=baseline, limit=limit)
    if before and name != before:
        yield figures.Figure(
            f'{words}: instances destroyed', mine[DESTROY], '',
            baseline=other[DESTROY], floor=(least := needless(before, name)),
            limit=least)


def needless(before: str, name: str) -> int:
    """Return how many instances of all GPUs any tool has to destroy."""
    gone = (collections.Counter(LAYOUTS[before])
            - collections.Counter(LAYOUTS[name]))
    return gone.total() * len(simulator.Machine.load(HOST).gpus)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        return figures.show(measure(pathlib.Path(directory)),
                            options.format)


if __name__ == '__main__':
    sys.exit(main())
