# SPDX-License-Identifier: Apache-2.0

"""Runs the commands of applications on this machine.

Each command has a process group of its own. It runs as the calling user,
without a shell. When the command has ended or must end, every process of its
group is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import results

_FIRST_INTERVAL, _INTERVAL = 0.01, 0.2
"""Seconds between two samples, at first and later. Shorter intervals would
disturb the measurement."""
_MIB = 1 << 20
_JOIN = 60.0
"""Seconds to wait for the last sample: NVML calls have their own deadline."""
_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a process."""
_SHELL_KILLED = _SIGNALLED + signal.SIGKILL
"""The exit code of a shell whose command SIGKILL has ended."""
_DIGITS = 6
"""Decimals of a run time in seconds. Starting a process takes longer."""
_TEXT = 300
"""Characters of a command's last error line that are kept."""

Outcome = results.Outcome
GpuMemory = Callable[[Collection[int]], 'int | None']
"""Returns the bytes of GPU memory that processes have, by their IDs; None if
unknown."""


def tree(pid: int, proc: str = '/proc') -> set[int]:
    """Return a process and all its descendants that are still visible.

    Without CONFIG_PROC_CHILDREN in the kernel the result is only the process
    itself (proc(5), ``/proc/PID/task/TID/children``).
    """
    found: set[int] = set()
    left = [pid]
    while left:
        parent = left.pop()
        if parent in found:
            continue
        found.add(parent)
        with contextlib.suppress(OSError):
            for thread in os.listdir(f'{proc}/{parent}/task'):
                left += map(int, _words(
                    f'{proc}/{parent}/task/{thread}/children'))
    return found


def oom_kills(proc: str = '/proc', cgroups: str = '/sys/fs/cgroup'
              ) -> tuple[int, ...]:
    """Return counts of kills for lack of memory; a kill changes one of them.

    ``oom_kill`` in ``/proc/vmstat`` counts all kills of the machine, also
    those of cgroups (__oom_kill_process in mm/oom_kill.c of Linux). It may be
    missing in a container; then ``memory.events`` of the process's own cgroup
    exists (Documentation/admin-guide/cgroup-v2.rst).
    """
    own = next((line[3:].strip('/') for line in _lines(f'{proc}/self/cgroup')
                if line.startswith('0::')), '')
    return tuple(
        int(words[1])
        for path in (f'{proc}/vmstat', f'{cgroups}/{own}/memory.events')
        for line in _lines(path)
        if (words := line.split())[:1] == ['oom_kill'])


class Peak:
    """Watches the GPU memory of a command's processes, in a thread.

    :param pid: ID of the first process.
    :param gpu_memory: asks NVML for the GPU memory of processes.
    :ivar bytes: the peak; None if NVML does not know it.
    """

    def __init__(self, pid: int, gpu_memory: GpuMemory):
        self._pid = pid
        self._gpu_memory = gpu_memory
        self.bytes: int | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._thread.join(_JOIN)

    def _watch(self) -> None:
        interval = _FIRST_INTERVAL
        while True:
            used = self._gpu_memory(tree(self._pid))
            if used is not None:
                self.bytes = max(self.bytes or 0, used)
            if self._end.wait(interval):
                return
            interval = min(2 * interval, _INTERVAL)


def _words(path: str) -> list[str]:
    return ' '.join(_lines(path)).split()


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding='utf-8') as stream:
            return stream.read().splitlines()
    except OSError:
        return []


class Endings:
    """Notes signals that end this program, within a block.

    An exception during a start would leave a process behind. So a signal only
    ends the current or the next :func:`wait`. An ignored signal remains
    ignored (nohup).
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Endings:
        self.descriptor, self._end = os.pipe()
        for number in self._SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._end)

    def check(self) -> None:
        """End the program if a signal was noted.

        :raises KeyboardInterrupt: for SIGINT.
        :raises SystemExit: for the other signals, with a shell's exit code.
        """
        if self._number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._number is not None:
            raise SystemExit(_SIGNALLED + self._number)

    def wait(self, seconds: float) -> None:
        """Wait for a number of seconds, or until a signal is noted.

        :raises KeyboardInterrupt, SystemExit: as :meth:`check`.
        """
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        poll.poll(int(seconds * 1000))
        self.check()

    def _note(self, number: int, _frame: object) -> None:
        if self._number is None:
            self._number = number
            os.write(self._end, b'.')


class Child:
    """One run of an application.

    :param oom_kills: counts the kernel's kills for lack of memory.
    :ivar seconds: how long the application ran.
    :ivar outcome: how the run has ended; timed out while it continues.
    :raises InvalidValue: if its command cannot be started.
    """

    def __init__(self, application: apps.Application,
                 oom_kills: Callable[[], tuple[int, ...]] = oom_kills):
        self.application = application
        self._oom_kills = oom_kills
        self._kills_before = oom_kills()
        self._errors = tempfile.TemporaryFile()
        try:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                application.command, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=self._errors,
                start_new_session=True)
        except OSError as error:
            self._errors.close()
            raise exception.InvalidValue(
                what=f'command of {application.name}',
                value=application.command[0],
                expected=f'cannot be run: {error.strerror}') from error
        self.pid = self._process.pid
        self.exit_code: int | None = None
        self.seconds = 0.0
        self.outcome = Outcome.TIMED_OUT
        self.descriptor = os.pidfd_open(self.pid)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def ended(self) -> None:
        """Record the end of the process, after it has ended."""
        self.seconds = round(time.monotonic() - self.started, _DIGITS)
        self._finish()

    def stop(self) -> None:
        """End the process if it runs."""
        if self.exit_code is not None:
            return
        self._signal(signal.SIGTERM)
        if not wait([self], time.monotonic() + _GRACE):
            self._signal(signal.SIGKILL)
        self._finish()

    @property
    def problem(self) -> str:
        """How the run has ended, for people; empty if it succeeded."""
        code = self.exit_code
        if not code:
            return ''
        how = (f'exit code {code}' if code > 0
               else f'ended by signal {-code}')
        return f'{self.application.name}: {how}{self._complaint}'

    def _finish(self) -> None:
        os.close(self.descriptor)
        # Until its first process is waited for, no other group can get the
        # number of this group.
        self._signal(signal.SIGKILL)
        self.exit_code = self._process.wait()
        self.outcome = self._outcome()
        self._complaint = self._last_line()
        self._errors.close()

    def _outcome(self) -> Outcome:
        if self.exit_code == 0:
            return Outcome.MEASURED
        killed = self.exit_code in (-signal.SIGKILL, _SHELL_KILLED)
        if (self.exit_code in self.application.out_of_memory_exit_codes
                or killed and self._oom_kills() != self._kills_before):
            return Outcome.OUT_OF_MEMORY
        return Outcome.FAILED

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _last_line(self) -> str:
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - 4 * _TEXT))
        lines = self._errors.read().decode(errors='replace').split('\n')
        last = next((line for line in reversed(lines) if line.strip()), '')
        text = ''.join(filter(str.isprintable, last))[:_TEXT]
        return f': {text}' if text else ''


class Repeated:
    """An application that runs again and again, until the block is left."""

    def __init__(self, application: apps.Application):
        self._application = application
        self.child = Child(application)

    def __enter__(self) -> Repeated:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.child.stop()

    def ended(self) -> bool:
        """Record the end of the application, and start it again.

        :returns: False if it has failed; then it is not started again.
        """
        self.child.ended()
        if self.child.outcome is not Outcome.MEASURED:
            return False
        self.child = Child(self._application)
        return True


def wait(children: list[Child], deadline: float,
         endings: Endings | None = None) -> list[Child]:
    """Wait until a child has ended, and return those that have.

    :param deadline: by the monotonic clock; the result is empty after it.
    :param endings: signals that also end the wait.
    :raises KeyboardInterrupt, SystemExit: as :meth:`Endings.check`.
    """
    by_descriptor = {child.descriptor: child for child in children}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    if endings:
        poll.register(endings.descriptor, select.POLLIN)
    left = max(0.0, deadline - time.monotonic())
    ready = {descriptor for descriptor, _ in poll.poll(1 + int(left * 1000))}
    if endings:
        endings.check()
    return [child for descriptor, child in by_descriptor.items()
            if descriptor in ready]


def run(application: apps.Application, companion: Repeated | None,
        timeout: float, gpu_memory: GpuMemory,
        endings: Endings | None = None) -> results.Runs:
    """Run an application once.

    :param companion: the application beside it, started again when it ends.
    :param timeout: seconds.
    :raises InvalidValue: if its command cannot be started.
    """
    with Child(application) as child, Peak(child.pid, gpu_memory) as peak:
        found = _watched(child, companion, child.started + timeout,
                         endings)
    used = None if peak.bytes is None else -(-peak.bytes // _MIB)
    if found is None:
        return results.Runs(
            Outcome.TIMED_OUT, (), used,
            f'{application.name}: took more than {timeout:g} s')
    return results.Runs(
        found.outcome, (found.seconds,) if found.outcome is Outcome.MEASURED
        else (), used, found.problem)


def _watched(child: Child, companion: Repeated | None, deadline: float,
             endings: Endings | None) -> Child | None:
    """Return what decided the run: the child, or a failed companion.

    None if the deadline passes first.
    """
    while True:
        running = [child] + ([companion.child] if companion else [])
        ended = wait(running, deadline, endings)
        if child in ended:
            child.ended()
            return child
        if not ended or companion is None:
            return None
        other = companion.child
        if not companion.ended():
            return other


@dataclasses.dataclass(frozen=True)
class Machine:
    """This machine, as a :class:`.measuring.Runner`.

    :ivar timeout: seconds that each run may take.
    :ivar endings: signals that end the measurement.
    """

    timeout: float
    gpu_memory: GpuMemory = lambda _pids: None
    gpu_memory_mib: int | None = None
    endings: Endings | None = None

    def runs(self, application: apps.Application,
             other: apps.Application | None, count: int
             ) -> list[results.Runs]:
        """Run an application ``count`` times, as the calling user.

        :raises InvalidValue: if a command cannot be started.
        """
        found: list[results.Runs] = []
        with contextlib.ExitStack() as stack:
            companion = (None if other is None
                         else stack.enter_context(Repeated(other)))
            for _ in range(count):
                found.append(run(
                    application, companion, self.timeout, self.gpu_memory,
                    self.endings))
                if found[-1].outcome is not results.Outcome.MEASURED:
                    break
        return found
