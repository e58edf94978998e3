# SPDX-License-Identifier: Apache-2.0

"""Start, find and end the processes of a cloud.

Each service is the leader of a session, and all processes that it starts
remain in that session. This module finds and ends whole sessions. The ID of a
session is the PID of its leader. The PID file contains this PID and the start
time of the leader, because the kernel reuses PIDs. The new process writes the
file before it becomes the service, so every running service has a PID file.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

from minicloud_lib import error
from minicloud_lib import settings as settings_module

_PROC = pathlib.Path('/proc')
_POLL = 0.05
"""Seconds between two checks of a condition."""
_STARTED = 300
"""Seconds until a new process must have written its PID file."""
_GRACE = 15
"""Seconds from SIGTERM to SIGKILL."""
# The shell's builtins do not fork, so the line describes the shell, which
# becomes the service with exec.
_LAUNCHER = 'read -r stat <"/proc/$$/stat" && echo "$stat" >"$0" && exec "$@"'


@dataclasses.dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat, as proc_pid_stat(5) describes it."""

    pid: int
    state: str
    session: int
    threads: int
    started: int
    """In clock ticks since the machine's start."""

    @property
    def ended(self) -> bool:
        """Whether the process has ended and only waits to be reaped.

        The first thread may be a zombie while other threads still hold the
        files and ports of the process.
        """
        return self.state == 'X' or (self.state == 'Z' and self.threads < 2)

    @classmethod
    def parse(cls, line: str) -> Process:
        """:raises ValueError: if it is not a line of /proc/PID/stat."""
        # The command's name is in parentheses and may contain any character.
        before, _, after = line.rpartition(')')
        fields = after.split()
        if len(fields) < 20:
            raise ValueError(f'not a line of /proc/PID/stat: {line!r}')
        return cls(int(before.partition(' ')[0]), fields[0], int(fields[3]),
                   int(fields[17]), int(fields[19]))


def environment(directory: pathlib.Path, more: dict[str, str]
                ) -> dict[str, str]:
    """Return the environment of a service, the same for every caller."""
    binaries = str(pathlib.Path(sys.prefix, 'bin'))
    return {'PATH': f'{binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:'
                    '/usr/bin:/sbin:/bin',
            'HOME': str(directory / 'data'), 'LANG': 'C.UTF-8',
            'TMPDIR': str(directory / 'tmp'), 'PYTHONWARNINGS': 'ignore',
            **more}


def spawn(settings: settings_module.Settings, name: str, command: list[str],
          more_environment: dict[str, str]) -> None:
    """Start a command in the background, in a new session.

    :raises MinicloudError: if the process writes no PID file.
    """
    pid_file = settings.pid_file(name)
    pid_file.unlink(missing_ok=True)
    with settings.log(name).open('ab') as log:
        subprocess.Popen(
            ['/bin/sh', '-c', _LAUNCHER, str(pid_file), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=settings.data(),
            env=environment(settings.directory, more_environment),
            start_new_session=True)
    if not _until(lambda: _recorded(settings, name) is not None, _STARTED):
        raise error.MinicloudError(
            f'{name} could not be started; see {settings.log(name)}')


def leader(settings: settings_module.Settings, name: str) -> Process | None:
    """Return the leader of a service, None if it is not running."""
    recorded = _recorded(settings, name)
    if recorded is None:
        return None
    _reap(recorded.pid)
    process = _read(recorded.pid)
    if process is None or process.started != recorded.started:
        return None
    return process


def members(settings: settings_module.Settings, name: str) -> list[Process]:
    """Return all processes of a service, even if its leader is gone."""
    recorded = _recorded(settings, name)
    if recorded is None:
        return []
    _reap(recorded.pid)
    return [process for process in _all()
            if process.session == recorded.pid
            and process.started >= recorded.started]


def end(settings: settings_module.Settings, names: list[str],
        sign: signal.Signals = signal.SIGTERM) -> None:
    """End services and wait until they are gone.

    Services that are not running are ignored.

    :param sign: the first signal to send. After a while SIGKILL follows.
    """
    for name in names:
        first = leader(settings, name)
        if first is not None and sign != signal.SIGKILL:
            _send(first, sign)
    if sign == signal.SIGKILL or not _until(
            lambda: not _running(settings, names), _GRACE):
        _until(lambda: not _killed(settings, names), _GRACE)
    for name in names:
        settings.pid_file(name).unlink(missing_ok=True)


def names(settings: settings_module.Settings) -> list[str]:
    """Return the services that were started and not ended by :func:`end`."""
    return sorted(path.stem for path
                  in settings.directory.glob('run/*.pid'))


def _running(settings, services):
    return [process for name in services
            for process in members(settings, name)]


def _killed(settings, services):
    """Send SIGKILL to the running processes, and return them.

    One of them may have started another process meanwhile, so call again.
    """
    running = _running(settings, services)
    for process in running:
        _send(process, signal.SIGKILL)
    return running


def _recorded(settings, name):
    try:
        return Process.parse(
            settings.pid_file(name).read_text(encoding='utf-8'))
    except (FileNotFoundError, ValueError):
        return None


def _send(process, sign):
    try:
        os.kill(process.pid, sign)
    except ProcessLookupError:
        pass


def _reap(pid):
    """Reap a child of this process if it has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _all():
    for path in _PROC.iterdir():
        if path.name.isdigit():
            process = _read(path.name)
            if process is not None:
                yield process


def _read(pid):
    """Return a running process, None if it is gone or waits to be reaped."""
    try:
        process = Process.parse(
            (_PROC / str(pid) / 'stat').read_text(encoding='utf-8',
                                                  errors='replace'))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if process.ended else process


def _until(condition, seconds):
    """Wait for a condition; return whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True
