# SPDX-License-Identifier: Apache-2.0

"""Locks across threads and processes: one for each GPU and each record.

Every wait for a lock ends. A wait of more than a few seconds is logged with
the name of who holds the lock.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from oslo_concurrency import lockutils

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host.snapshot import model

LOG = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
"""How long a report waits for all GPUs together; the next one tries again."""
COMMAND_SECONDS = 300.0
"""How long a person's command waits for a GPU, which may be in a reset."""
_RECORD_SECONDS = 5.0
"""How long to wait for a record. The holder only reads and writes a file,
unless its process was stopped."""
_SAY_SECONDS = 3.0

_threads = lockutils.Semaphores()
"""The locks between the threads of this process."""
_holders: dict[str, str] = {}
"""The purpose of each lock that this process holds, by its file's path."""
_left: contextvars.ContextVar[list[float] | None] = contextvars.ContextVar(
    'cyborg_gpu_left', default=None)
"""The seconds that the report of this thread may still wait for GPUs."""


@contextlib.contextmanager
def report() -> Iterator[None]:
    """Limit the waits for GPUs in the block to :data:`REPORT_SECONDS` in all.

    A process that was stopped may hold many GPUs. After that time, each lock
    is only tried.
    """
    token = _left.set([REPORT_SECONDS])
    try:
        yield
    finally:
        _left.reset(token)


def gpu(state_path: str, address: model.PciAddress,
        seconds: float | None = None, purpose: str = ''
        ) -> contextlib.AbstractContextManager:
    """Hold one GPU. Every change of its partition needs this lock.

    :param state_path: ``[gpu] state_path``; the files lie below ``locks``.
    :param seconds: how long to wait; None for :data:`REPORT_SECONDS`, or what
        :func:`report` has left of them.
    :raises LockTimeout: on entry, if the wait takes longer.
    :raises JournalError: on entry, if the lock cannot be used at all.
    """
    return _lock(state_path, f'gpu-{address}', f'GPU {address}',
                 _patience() if seconds is None else seconds, purpose)


def _patience() -> float:
    left = _left.get()
    return REPORT_SECONDS if left is None else max(0.0, left[0])


@contextlib.contextmanager
def gpus(state_path: str, addresses: Iterable[model.PciAddress],
         seconds: float | None = None, purpose: str = '') -> Iterator[None]:
    """Hold several GPUs, each as :func:`gpu` does. The order is always the
    same, so that two callers with common GPUs cannot deadlock.

    :param seconds: how long to wait for all of them together; None as in
        :func:`gpu`.
    """
    end = time.monotonic() + (_patience() if seconds is None else seconds)
    with contextlib.ExitStack() as held:
        for address in sorted(addresses):
            held.enter_context(gpu(
                state_path, address, max(0.0, end - time.monotonic()),
                purpose))
        yield


def record(state_path: str, address: model.PciAddress
           ) -> contextlib.AbstractContextManager:
    """Hold the record of one GPU for one read and write of it.

    The holder waits for nothing else, so an unbind or an error can be noted
    while a change of the GPU hangs. A holder of the GPU may take this lock.
    A holder of this lock must not take the GPU.
    """
    return _record(state_path, f'record-{address}')


def audit(state_path: str) -> contextlib.AbstractContextManager:
    """Hold the audit log while a line is added to it.

    A holder of a GPU may take this lock.
    """
    return _record(state_path, 'audit')


def agent(state_path: str) -> Any:
    """Let no other process be the agent while this one keeps the answer.

    Each of two agents would offer, reset and return the same GPUs by its own
    configuration, and Cyborg would call either of them. Processes that this
    one forks may work for it.

    :raises InvalidConfiguration: if another process is the agent.
    :raises JournalError: if the lock cannot be used at all.
    """
    directory, name = os.path.join(state_path, 'locks'), 'cyborg-gpu-agent'
    _prepare(directory, name)
    lock = lockutils.external_lock(name, lock_path=directory)
    if not lock.acquire(blocking=False):
        raise exception.InvalidConfiguration(
            group='gpu', option='state_path', value=state_path,
            reason=f'{_holder(os.path.join(directory, name))} is the agent '
            'of this host already')
    return lock


def _record(state_path: str, name: str
            ) -> contextlib.AbstractContextManager:
    return _lock(state_path, name, f'the record "{name}"', _RECORD_SECONDS)


@contextlib.contextmanager
def _lock(state_path: str, name: str, what: str, seconds: float,
          purpose: str = '') -> Iterator[None]:
    directory = os.path.join(state_path, 'locks')
    name = f'cyborg-gpu-{name}'
    path = os.path.join(directory, name)
    _prepare(directory, name)
    purpose = purpose or threading.current_thread().name
    begun = time.monotonic()
    end = begun + seconds
    left = _left.get()
    with contextlib.ExitStack() as held:
        thread = _threads.get(path)
        file = lockutils.external_lock(name, lock_path=directory)

        def acquire(lock: Any) -> None:
            """Acquire a lock before ``end``, and log a wait that is long."""
            patience = max(0.0, end - time.monotonic())
            if lock.acquire(timeout=min(patience, _SAY_SECONDS)):
                return
            if patience > _SAY_SECONDS:
                LOG.warning('%s waits for %s, which %s holds', purpose, what,
                            _holder(path))
                if lock.acquire(timeout=max(0.0, end - time.monotonic())):
                    return
            raise exception.LockTimeout(what=what, holder=_holder(path),
                                        seconds=f'{round(seconds, 1):g}')

        try:
            acquire(thread)
            held.callback(thread.release)
            held.callback(_close, file)
            acquire(file)
            held.callback(file.release)
        except (OSError, threading.ThreadError) as error:
            raise exception.JournalError(
                path=path, reason=f'cannot be locked: {error}; check that '
                '[gpu] state_path can be written') from error
        finally:
            if left is not None:
                left[0] -= time.monotonic() - begun
        _holders[path] = purpose
        held.callback(_holders.pop, path, None)
        yield


def _close(lock: lockutils.InterProcessLock) -> None:
    """Close the file of a lock that could not be acquired.

    A process loses its lock on a file when it closes any descriptor of the
    file (fcntl(2)). So the file must not be left to the garbage
    collector, which would close it while another thread has the lock.
    """
    if lock.lockfile is not None:
        lock.lockfile.close()


def _holder(path: str) -> str:
    """Who holds a lock, for people."""
    purpose = _holders.get(path)
    if purpose is not None:
        return f'{purpose} (in this process)'
    with contextlib.suppress(OSError):
        found = os.stat(path)
        device = (f'{os.major(found.st_dev):02x}:'
                  f'{os.minor(found.st_dev):02x}:{found.st_ino}')
        for pid in open_files.lock_holders('POSIX', device.__eq__):
            return f'process {pid} ({open_files.process_name(pid)})'
    return 'another process'


def _prepare(directory: str, name: str) -> None:
    """Make the lock's file so that cyborg-agent can lock it too."""
    path = os.path.join(directory, name)
    try:
        durable.make_directory(directory)
        durable.make_file(path)
    except OSError as error:
        raise exception.JournalError(
            path=path, reason=f'cannot be created: {error}; check that [gpu] '
            'state_path exists and belongs to the user that runs '
            'cyborg-agent') from error
