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

"""Runs calls into the kernel that may never return in child processes.

A process that hangs in the kernel cannot be interrupted or killed. Here only
the child hangs; the caller continues when its deadline has passed.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from cyborg_gpu_driver import exception

_MOST_FILES = 65536
_left: set[int] = set()
"""Children that had not returned by their deadline."""


def call(seconds: float, act: Callable[[], str | None]) -> str:
    """Call ``act`` in a child process.

    :param act: makes system calls and nothing else, because it runs in a
        fork of a process that may have threads.
    :param seconds: how long to wait for ``act``.
    :returns: what ``act`` returns; empty for None.
    :raises TimeoutError: if ``act`` did not return in time.
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
    """Call ``act`` in a thread; otherwise like :func:`call`."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(_said(act)),
                              daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise TimeoutError(seconds)
    return _result(answers[0])


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
