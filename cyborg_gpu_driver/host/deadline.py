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

"""Calls that may never return, made in threads that nobody has to wait for.

A call into NVIDIA's driver cannot be interrupted: while the GPU's firmware
does not answer, the call stays in the kernel. So each GPU has one thread for
its calls, and one more thread makes the calls that are about no GPU. Whoever
wants an answer waits for it for a limited time. A thread that is stuck holds
up its own GPU only; the process neither waits for it nor joins it at exit.

The threads are the operating system's, also where eventlet has replaced those
of Python (cyborg-agent before 2026.1): a call that blocks in a green thread
stops the whole process. Therefore nothing but the call itself runs in them:
no lock of Python's and no logging, which eventlet has replaced too.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception

LOG = logging.getLogger(__name__)

_SHORTEST_NAP = 0.0002
_LONGEST_NAP = 0.02


def on_green_threads() -> bool:
    """Whether eventlet has replaced Python's threads."""
    patcher = sys.modules.get('eventlet.patcher')
    return patcher is not None and patcher.is_monkey_patched('thread')


def native(name: str) -> Any:
    """A module of the standard library as it is without eventlet."""
    if on_green_threads():
        return sys.modules['eventlet.patcher'].original(name)
    return importlib.import_module(name)


def run(owner: Hashable, seconds: float, name: str,
        function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function`` in the thread of ``owner`` and wait for the answer.

    :param owner: what the call is about: the address of a GPU, or a text.
    :param seconds: how long to wait.
    :param name: what the function is called, for people.
    :raises NvmlNotAnswering: if it takes longer, or an earlier call about
        ``owner`` has not returned yet. A call that has begun may still have
        its effect later; one that has not begun never will.
    """
    return _worker(owner).run(seconds, name, function, arguments)


def stuck() -> tuple[str, ...]:
    """Calls of this process that have not returned in time, for people."""
    with _making:
        workers = [worker for worker in _workers.values()
                   if worker.is_here()]
    return tuple(sorted(filter(None, (worker.stuck for worker in workers))))


def missed() -> int:
    """How many calls of this process did not end in time, until now."""
    return _missed


def each(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Call ``function`` with each item, all at the same time.

    The function limits its own time.

    :returns: the answers, in the order of the items.
    :raises Exception: what the first of them raised, once all have ended.
    """
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    branches = [_Branch(function, item) for item in items]
    for branch in branches:
        branch.join()
    return [branch.result() for branch in branches]


class _Branch(threading.Thread):
    """One of several functions that run at the same time."""

    def __init__(self, function: Callable[[Any], Any], item: Any) -> None:
        # The text of a whole GPU would take longer than most calls.
        about = getattr(item, 'address', item)
        super().__init__(name=f'cyborg-gpu-{about}'[:40], daemon=True)
        self._function = function
        self._item = item
        self._answer = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._function(self._item)
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer


class _Call:
    """One call on its way to a thread and back."""

    __slots__ = ('answer', 'arguments', 'claim', 'ended', 'error',
                 'function', 'name')

    def __init__(self, name: str, function: Callable[..., Any],
                 arguments: tuple[Any, ...]) -> None:
        new_lock = native('threading').Lock
        self.name = name
        self.function = function
        self.arguments = arguments
        self.answer = None
        self.error: BaseException | None = None
        self.claim = new_lock()
        """Whoever acquires it decides: the thread, that the call is made;
        who has waited in vain, that it is not."""
        self.ended = new_lock()
        self.ended.acquire()

    def make(self) -> None:
        if not self.claim.acquire(blocking=False):
            return
        try:
            self.answer = self.function(*self.arguments)
        except BaseException as error:
            self.error = error
        self.ended.release()

    def has_ended(self) -> bool:
        return not self.ended.locked()

    def wait(self, seconds: float) -> bool:
        """Whether the call ends within that time."""
        if not on_green_threads():
            return self.ended.acquire(timeout=seconds)
        end, nap = time.monotonic() + seconds, 0.0
        while not self.ended.acquire(blocking=False):
            if time.monotonic() >= end:
                return False
            # eventlet's sleep, in which the other green threads run.
            time.sleep(nap)
            nap = min(max(2 * nap, _SHORTEST_NAP), _LONGEST_NAP)
        return True

    def result(self) -> Any:
        error, self.error = self.error, None
        if error is None:
            return self.answer
        try:
            raise error
        finally:
            # Its traceback has this frame: no cycle for the collector.
            del error


class _Worker:
    """The thread of one owner."""

    def __init__(self, owner: Hashable) -> None:
        self._owner = owner if isinstance(owner, str) else f'GPU {owner}'
        self.process = os.getpid()
        self._calls = native('queue').SimpleQueue()
        self._late: tuple[_Call, float] | None = None
        """A call that did not end in time, and what that time was."""
        native('threading').Thread(
            target=_work, args=(self._calls,), daemon=True,
            name=f'cyborg-gpu-nvml {owner}').start()

    @property
    def stuck(self) -> str:
        """The call that has not returned, for people; or ``''``."""
        late = self._late
        if late is None or late[0].has_ended():
            return ''
        return f'{late[0].name} ({self._owner})'

    def run(self, seconds: float, name: str, function: Callable[..., Any],
            arguments: tuple[Any, ...]) -> Any:
        self._refuse_while_stuck()
        call = _Call(name, function, arguments)
        self._calls.put(call)
        if call.wait(seconds):
            return call.result()
        _count_missed()
        if call.claim.acquire(blocking=False):
            # It was never begun: another call is before it.
            self._refuse_while_stuck()
            raise self._error(name, seconds)
        self._late = (call, seconds)
        error = self._error(name, seconds)
        LOG.error('%s. No other call is made before that one returns.', error)
        raise error

    def is_here(self) -> bool:
        """Whether its thread is in this process, not in its parent."""
        return self.process == os.getpid()

    def _refuse_while_stuck(self) -> None:
        late = self._late
        if late is None:
            return
        call, seconds = late
        if not call.has_ended():
            raise self._error(call.name, seconds)
        if self._late is late:
            self._late = None
            LOG.warning('%(owner)s answers again: %(call)s has returned.',
                        {'owner': self._owner, 'call': call.name})

    def _error(self, name: str, seconds: float) -> exception.NvmlNotAnswering:
        return exception.NvmlNotAnswering(
            owner=self._owner, call=name,
            seconds=f'{math.ceil(10 * seconds) / 10:g}')


def _work(calls: Any) -> None:
    while True:
        calls.get().make()


def _count_missed() -> None:
    global _missed
    with _making:
        _missed += 1


_workers: dict[Hashable, _Worker] = {}
_making = threading.Lock()
_missed = 0


def _worker(owner: Hashable) -> _Worker:
    worker = _workers.get(owner)
    if worker is None or not worker.is_here():
        with _making:
            worker = _workers.get(owner)
            if worker is None or not worker.is_here():
                worker = _workers[owner] = _Worker(owner)
    return worker


def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
