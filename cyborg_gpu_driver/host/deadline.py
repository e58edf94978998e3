# SPDX-License-Identifier: Apache-2.0

"""Runs calls that may never return in threads of their own.

A call into NVIDIA's driver cannot be interrupted: while the GPU's firmware
does not answer, the call remains in the kernel. So each GPU has one thread for
its calls, and one more thread makes the calls that concern no GPU. The caller
waits for the answer for a limited time. A stuck thread blocks only its own
GPU; the process neither waits for the thread nor joins it at exit.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from concurrent import futures
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once

LOG = logging.getLogger(__name__)


def run(owner: Hashable, seconds: float, name: str,
        function: Callable[..., Any], *arguments: Any,
        undo: Callable[[], object] | None = None) -> Any:
    """Call ``function`` in the thread of ``owner`` and wait for the answer.

    Within such a call, another call of the same owner is made at once, and
    the time of the first one counts for both.

    :param owner: what the call concerns: the address of a GPU, or a text.
    :param undo: called in the thread if the function returns too late, when
        nobody uses its answer.
    :raises NvmlNotAnswering: if the call takes longer, or an earlier call of
        ``owner`` has not returned yet. A call that has begun may still take
        effect later; a call that has not begun is never made.
    """
    worker = _worker(owner)
    if worker is getattr(_here, 'worker', None):
        return worker.continue_with(name, function, *arguments)
    return worker.run(seconds, _Call(name, function, arguments), undo)


def owner() -> Hashable | None:
    """Return whose thread this is; None in all other threads."""
    worker = getattr(_here, 'worker', None)
    return worker and worker.owner


def stuck(owners: Collection[Hashable] | None = None) -> tuple[str, ...]:
    """Names of the overdue calls of this process that have not returned.

    :param owners: the owners whose calls count; None for all.
    """
    with _making:
        workers = [worker for owner, worker in _workers.items()
                   if owners is None or owner in owners]
    return tuple(sorted(filter(None, (worker.stuck for worker in workers))))


def missed() -> int:
    """Return how many calls of this process have not ended in time so far."""
    return _missed


def each(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Call ``function`` with each item, all in parallel.

    The function limits its own time.

    :raises Exception: the first exception in the order of the items, after
        all calls have ended.
    """
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    # Formatting a whole Gpu would take longer than most calls.
    calls = [_Call(f"cyborg-gpu-{getattr(item, 'address', item)}"[:40],
                   function, (item,)) for item in items]
    for call in calls:
        begin_thread(call.make, name=call.name)
    futures.wait([call.answer for call in calls])
    return [call.answer.result() for call in calls]


class _Call:
    """One call that a caller passes to a thread, with its answer."""

    def __init__(self, name: str, function: Callable[..., Any],
                 arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.function = function
        self.arguments = arguments
        self.answer: futures.Future[Any] = futures.Future()

    def make(self) -> None:
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            self.answer.set_result(self.function(*self.arguments))
        except BaseException as error:
            self.answer.set_exception(error)


class _Worker:
    """The thread of one owner."""

    def __init__(self, owner: Hashable) -> None:
        self.owner = owner
        self._owner = owner if isinstance(owner, str) else f'GPU {owner}'
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._late: tuple[_Call, float] | None = None
        """A call that did not end in time, and its time limit in seconds."""
        self._call: _Call | None = None
        """The call that is being made."""
        threading.Thread(target=self._work, daemon=True,
                         name=f'cyborg-gpu-nvml {owner}').start()

    @property
    def stuck(self) -> str:
        """The name of the overdue call that has not returned, or ``''``."""
        late = self._late
        if late is None or late[0].answer.done():
            return ''
        return f'{late[0].name} ({self._owner})'

    def run(self, seconds: float, call: _Call,
            undo: Callable[[], object] | None) -> Any:
        self._refuse_while_stuck()
        self._calls.put(call)
        answer = call.answer
        try:
            return answer.result(seconds)
        except TimeoutError:
            if answer.done():
                # The function itself raised it, or has ended at this moment.
                return answer.result()
        if answer.cancel():
            # The call has not begun: another call is ahead of it.
            _count_missed()
            self._refuse_while_stuck()
            raise self._error(call.name, seconds)
        if undo is not None:
            # Called at once if the call has ended at this moment.
            answer.add_done_callback(
                lambda late: None if late.exception() else undo())
        _count_missed()
        self._late = (call, seconds)
        error = self._error(call.name, seconds)
        LOG.error('%s. No other call is made until that one returns.', error)
        raise error

    def continue_with(self, name: str, function: Callable[..., Any],
                      *arguments: Any) -> Any:
        """Make a call as a part of the present one.

        :raises NvmlNotAnswering: if nobody waits for the answer any more.
        """
        call, late = self._call, self._late
        assert call is not None
        if late is not None and late[0] is call:
            raise self._error(call.name, late[1])
        call.name = name
        return function(*arguments)

    def _work(self) -> None:
        _here.worker = self
        while True:
            self._call = self._calls.get()
            self._call.make()

    def _refuse_while_stuck(self) -> None:
        late = self._late
        if late is None:
            return
        call, seconds = late
        if not call.answer.done():
            raise self._error(call.name, seconds)
        if self._late is late:
            self._late = None
            LOG.warning('%(owner)s answers again: %(call)s has returned.',
                        {'owner': self._owner, 'call': call.name})

    def _error(self, name: str, seconds: float) -> exception.NvmlNotAnswering:
        return exception.NvmlNotAnswering(
            owner=self._owner, call=name,
            seconds=f'{math.ceil(10 * seconds) / 10:g}')


def _count_missed() -> None:
    global _missed
    with _making:
        _missed += 1


_here = threading.local()
_workers: dict[Hashable, _Worker] = {}
_making = threading.Lock()
_missed = 0


def _worker(owner: Hashable) -> _Worker:
    worker = _workers.get(owner)
    if worker is None:
        with _making:
            worker = _workers.get(owner)
            if worker is None:
                worker = _workers[owner] = _Worker(owner)
    return worker


def _after_fork() -> None:
    # The threads remain in the parent. One may have held the lock.
    global _making
    _making = threading.Lock()
    _workers.clear()


os.register_at_fork(after_in_child=_after_fork)


# Runs calls into the kernel that may never return in child processes.
#
# A process that hangs in the kernel cannot be interrupted or killed. Here only
# the child hangs; the caller continues when its deadline has passed.

_MOST_FILES = 65536
_STOP_SECONDS = 5.0
"""How long to wait for a thread that may be stuck in a call."""
_left: set[int] = set()
"""Children that had not returned by their deadline."""


def call_apart(seconds: float, act: Callable[[], str | None]) -> str:
    """Call ``act`` in a child process.

    :param act: makes system calls and nothing else, because it runs in a
        fork of a process that may have threads.
    :raises SysfsError: if ``act`` raised it, or there can be no child.
    """
    _reap()
    mine, theirs = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(mine)
        os.close(theirs)
        raise exception.SysfsError(
            action='call', path='child process', errno=error.errno,
            reason=error.strerror) from error
    if child == 0:
        _run(act, theirs)
    os.close(theirs)
    try:
        answer = _answer(mine, time.monotonic() + seconds)
    except TimeoutError:
        _left.add(child)
        _reap()
        raise
    finally:
        os.close(mine)
    os.waitpid(child, 0)
    return _result(answer.decode('utf-8', 'replace'))


def call_in_thread(seconds: float, act: Callable[[], str | None]) -> str:
    """Call ``act`` in a thread; otherwise like :func:`call_apart`."""
    call = _Call('cyborg-gpu-call', act, ())
    begin_thread(call.make, name=call.name)
    return call.answer.result(seconds) or ''


def _run(act: Callable[[], str | None], pipe: int) -> None:
    """Run ``act`` in the child, and write to ``pipe`` how it ended."""
    try:
        # Inherited descriptors would stay open while the child hangs.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.closerange(3, pipe)
        os.closerange(pipe + 1, _MOST_FILES)
        os.write(pipe, _said(act).encode())
    finally:
        os._exit(0)


def _said(act: Callable[[], str | None]) -> str:
    """Run ``act``; return its answer after ``.``, or a SysfsError's values."""
    try:
        return '.' + (act() or '')
    except exception.SysfsError as error:
        return '\0'.join(str(error.kwargs[key]) for key in
                         ('action', 'path', 'errno', 'reason'))
    except BaseException as error:
        return f'call\0{type(error).__name__}\0{0}\0{error}'


def _result(answer: str) -> str:
    """Return the answer of :func:`_said`, or raise the error."""
    if answer.startswith('.'):
        return answer[1:]
    action, path, errno, reason = answer.split('\0') if answer else (
        'call', 'child process', '0', 'it ended without an answer')
    raise exception.SysfsError(action=action, path=path, errno=int(errno),
                               reason=reason)


def _answer(pipe: int, deadline: float) -> bytes:
    """Return all that the child writes until it closes the pipe."""
    said = b''
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise TimeoutError
        piece = os.read(pipe, 4096)
        if not piece:
            return said
        said += piece


def _reap() -> None:
    """Reap the late children that have ended meanwhile."""
    for child in list(_left):
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                _left.discard(child)
        except ChildProcessError:
            _left.discard(child)


class Repeated:
    """Calls a function in a thread of its own again and again.

    :param act: an error of it is logged once, and the next call tries again.
    :param seconds: between the end of a call and the next one.
    """

    def __init__(self, act: Callable[[], object], seconds: float, name: str):
        self._act = act
        self._seconds = seconds
        self._name = name
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_stopping = False
        """Whether the thread is to end; a long call looks at it."""
        self._said = log_once.LogOnce()

    def start(self) -> None:
        """Start the thread, or a new one if it has died.

        :raises RuntimeError: if the operating system starts no thread now: a
            container's limit of processes, ``TasksMax`` of systemd or missing
            memory. The next call tries again.
        """
        self.is_stopping = False
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name=self._name,
                                      daemon=True)
            thread.start()
            self._thread = thread

    def ask(self) -> None:
        """Make the next call at once."""
        self._wake.set()

    def stop(self) -> bool:
        """End the thread, and return whether it has ended."""
        self.is_stopping = True
        self._wake.set()
        if self._thread is None:
            return True
        self._thread.join(_STOP_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._seconds)
            self._wake.clear()
            if self.is_stopping:
                return
            try:
                self._act()
            except Exception as error:
                if self._said.is_new(exception.steady(error)):
                    LOG.exception('%s: %s', self._name, error)
            else:
                self._said.over()


def begin_thread(run: Callable[..., object], *arguments: Any, name: str
                 ) -> None:
    """Call a function in a thread of its own. Never raises.

    If no thread can be started now, the function runs in the caller's
    thread: the caller waits for the work, and does not lose it. The threads
    of concurrent.futures are no daemons: a command whose GPU hangs would
    never end.
    """
    try:
        threading.Thread(target=run, args=arguments, name=name,
                         daemon=True).start()
    except RuntimeError:
        try:
            run(*arguments)
        except Exception:
            LOG.exception('%s', name)
