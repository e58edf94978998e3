# SPDX-License-Identifier: Apache-2.0

"""The parts of a start: steps and services.

Each part names the steps and services that it needs before it can start.
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
"""The directory of this package, for modules of it that run as programs."""
_POLL = 0.25
_OUTPUT_DEADLINE = 900
"""Seconds for a program whose output is read."""
_TAIL = 15
"""The number of lines of a log that a message quotes."""


@dataclasses.dataclass(frozen=True)
class Step:
    """An action. ``once`` is whether it runs only once per cloud."""

    name: str
    needs: tuple[str, ...]
    act: Callable[[], None]
    once: bool = True

    def run(self, settings: settings_module.Settings) -> bool:
        """Run the step unless it is done; return whether it ran.

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
    """A daemon. It is up when its probe returns None."""

    name: str
    needs: tuple[str, ...]
    command: list[str]
    probe: probes.Probe
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    timeout: int = 900
    """Seconds until it must be up."""

    def run(self, settings: settings_module.Settings) -> bool:
        """Start the service unless it is running, and wait until it is up.

        :returns: whether the service was started.
        :raises MinicloudError: if it ends, or is not up in time.
        """
        running = processes.leader(settings, self.name) is not None
        if not running:
            # End the processes that an earlier leader has left behind.
            processes.end(settings, [self.name])
            processes.spawn(settings, self.name, self.command,
                            self.environment)
        self.wait(settings)
        return not running

    def wait(self, settings: settings_module.Settings) -> None:
        """Wait until the service is up.

        :raises MinicloudError: if it ends, or is not up in time.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            missing = self.probe()
            # Check this even if the probe succeeds, because something else
            # may have answered it.
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
    """Return an error that quotes the end of a log."""
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
            timeout: int = 900) -> None:
    """Run a program to its end, with its output in the log ``name``.

    The program runs in the same way as a service, so that a wipe finds it.

    :raises MinicloudError: if it fails.
    """
    status = settings.directory / 'run' / f'{name}.status'
    # An interrupted start may have left this program running.
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
    """Return what a program prints.

    :raises MinicloudError: if it fails or takes too long.
    """
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, cwd=settings.data(),
            env=processes.environment(settings.directory, {}),
            timeout=_OUTPUT_DEADLINE)
    except subprocess.TimeoutExpired as late:
        raise error.MinicloudError(str(late)) from late
    if done.returncode:
        raise error.MinicloudError(
            f'{" ".join(arguments)} ended with {done.returncode}:\n'
            f'{done.stderr.strip()}')
    return done.stdout


def binary(name: str) -> str:
    """Return the path of a program in the Python environment of minicloud.

    :raises MinicloudError: if the environment has no such program.
    """
    path = pathlib.Path(sys.prefix, 'bin', name)
    if not path.exists():
        raise error.MinicloudError(
            f'there is no {name} in {path.parent}: install '
            'services-requirements.txt there, and run minicloud with the '
            'Python of that environment')
    return str(path)


def shipped(name: str) -> str:
    """Return the path of a file that a service's package installs below etc.

    :raises MinicloudError: if the file does not exist.
    """
    path = pathlib.Path(sys.prefix, 'etc', name)
    if not path.exists():
        raise error.MinicloudError(
            f'there is no {path}: install services-requirements.txt in '
            'this environment')
    return str(path)
