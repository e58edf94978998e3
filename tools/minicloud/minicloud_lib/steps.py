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

"""What a start consists of, and in which order: steps and services.

Both name the ones that have to be done, or up, before them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

from minicloud_lib import error
from minicloud_lib import probes
from minicloud_lib import processes
from minicloud_lib import settings as settings_module

PYTHON_PATH = str(pathlib.Path(__file__).resolve().parent.parent)
"""Where this package is, for what is run from it."""
_POLL = 0.1
_TAIL = 15
"""Lines of a log that a message quotes."""


@dataclasses.dataclass(frozen=True)
class Step:
    """Something to do. ``once`` is for the whole life of the cloud."""

    name: str
    needs: tuple[str, ...]
    act: Callable[[], None]
    once: bool = True

    def run(self, settings: settings_module.Settings) -> bool:
        """Do it, unless it was done; whether there was something to do.

        :raises MinicloudError: if it fails.
        """
        mark = settings.done(self.name)
        if self.once and mark.exists():
            return False
        self.act()
        if self.once:
            mark.touch()
        return True


@dataclasses.dataclass(frozen=True)
class Service:
    """A daemon. It is up when its probe finds nothing missing."""

    name: str
    needs: tuple[str, ...]
    command: list[str]
    probe: probes.Probe
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    timeout: int = 300
    """Seconds in which it has to be up."""

    def run(self, settings: settings_module.Settings) -> bool:
        """Start it, unless it runs, and wait until it is up.

        :raises MinicloudError: if it ends, or is not up in time.
        """
        running = processes.leader(settings, self.name) is not None
        if not running:
            # What an earlier one has left would be in the way.
            processes.end(settings, [self.name])
            processes.spawn(settings, self.name, self.command,
                            self.environment)
        self.wait(settings)
        return not running

    def wait(self, settings: settings_module.Settings) -> None:
        """Wait until it is up.

        :raises MinicloudError: if it ends, or is not up in time.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            missing = self.probe()
            # Asked even if all is well: then something else may answer.
            if processes.leader(settings, self.name) is None:
                raise failure(settings, self.name, 'has ended')
            if missing is None:
                return
            if time.monotonic() > deadline:
                raise failure(settings, self.name, f'is not up after '
                              f'{self.timeout} s: {missing}')
            time.sleep(_POLL)


def failure(settings: settings_module.Settings, name: str, what: str
            ) -> error.MinicloudError:
    """An error that quotes the end of a log."""
    path = settings.log(name)
    try:
        lines = path.read_text(encoding='utf-8',
                               errors='replace').splitlines()
    except FileNotFoundError:
        lines = []
    return error.MinicloudError('\n'.join([
        f'{name} {what}; the end of {path}:',
        *(f'  {line}' for line in lines[-_TAIL:])]))


def command(settings: settings_module.Settings, name: str,
            arguments: list[str], environment: dict[str, str] | None = None,
            timeout: int = 300) -> None:
    """Run a program to its end, with its output in the log ``name``.

    It runs as services do, so that a wipe finds it.

    :raises MinicloudError: if it fails.
    """
    status = settings.directory / 'run' / f'{name}.status'
    # A start that was interrupted may have left one at work.
    processes.end(settings, [name])
    status.unlink(missing_ok=True)
    processes.spawn(
        settings, name,
        ['/bin/sh', '-c', '"$@"; echo $? >"$0"', str(status), *arguments],
        environment or {})
    deadline = time.monotonic() + timeout
    while processes.leader(settings, name) is not None:
        if time.monotonic() > deadline:
            processes.end(settings, [name])
            raise failure(settings, name, f'is not done after {timeout} s')
        time.sleep(_POLL)
    processes.end(settings, [name])
    try:
        code = status.read_text(encoding='utf-8').strip()
    except FileNotFoundError:
        code = 'a signal'
    if code != '0':
        raise failure(settings, name, f'ended with {code}')


def output(arguments: list[str],
           settings: settings_module.Settings) -> str:
    """What a program prints.

    :raises MinicloudError: if it fails.
    """
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, cwd=settings.data(),
        env=processes.environment(settings.directory, {}))
    if done.returncode:
        raise error.MinicloudError(
            f'{" ".join(arguments)} ended with {done.returncode}:\n'
            f'{done.stderr.strip()}')
    return done.stdout


def binary(name: str) -> str:
    """A program of the environment whose Python runs this one.

    :raises MinicloudError: if it has none of that name.
    """
    path = pathlib.Path(sys.prefix, 'bin', name)
    if not path.exists():
        raise error.MinicloudError(
            f'there is no {name} in {path.parent}: install '
            'minicloud-requirements.txt there, and run minicloud with the '
            'Python of that environment')
    return str(path)


def shipped(name: str) -> str:
    """A file that a service's package installs below etc.

    :raises MinicloudError: if it is not there.
    """
    path = pathlib.Path(sys.prefix, 'etc', name)
    if not path.exists():
        raise error.MinicloudError(
            f'there is no {path}: install minicloud-requirements.txt in '
            'this environment')
    return str(path)
