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

"""Locks across threads and processes, one a GPU."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator

from oslo_concurrency import lockutils

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model

_HEALTH_SECONDS = 5


def gpu(state_path: str, address: model.PciAddress
        ) -> contextlib.AbstractContextManager:
    """Hold one GPU: whoever changes its partition or speaks of it does.

    :param state_path: ``[gpu] state_path``; the files lie below ``locks``.
    """
    return _lock(state_path, f'gpu-{address}')


def journal(state_path: str) -> contextlib.AbstractContextManager:
    """Hold the journal for one read and write of it."""
    return _lock(state_path, 'journal')


def checkpoint(state_path: str) -> contextlib.AbstractContextManager:
    """Hold the checkpoint for one read and write of it."""
    return _lock(state_path, 'checkpoint')


def fixed(state_path: str) -> contextlib.AbstractContextManager:
    """Hold the record of fixed vGPUs for one read and write of it."""
    return _lock(state_path, 'fixed')


def health(state_path: str) -> contextlib.AbstractContextManager:
    """Hold the record of sick GPUs for one read and write of it.

    Whoever waits for it for some seconds goes on without: a report must not
    wait for a command that somebody has stopped.

    :raises JournalError: on entry, if another process keeps it.
    """
    return _lock(state_path, 'health', _HEALTH_SECONDS)


@contextlib.contextmanager
def _lock(state_path, name, seconds=None) -> Iterator[None]:
    directory = os.path.join(state_path, 'locks')
    name = f'cyborg-gpu-{name}'
    _prepare(directory, name)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(
                lockutils.lock(name, external=True, lock_path=directory)
                if seconds is None else _in_time(directory, name, seconds))
        except (OSError, threading.ThreadError) as error:
            raise exception.JournalError(
                path=os.path.join(directory, name),
                reason=f'cannot be locked: {error}; check that [gpu] '
                'state_path can be written') from error
        yield


@contextlib.contextmanager
def _in_time(directory, name, seconds):
    """As lockutils.lock(), which waits for other processes for ever."""
    with lockutils.internal_lock(name):
        lock = lockutils.external_lock(name, lock_path=directory)
        if not lock.acquire(timeout=seconds):
            raise OSError(errno.ETIMEDOUT, 'another process has held it for '
                          f'{seconds} s')
        try:
            yield
        finally:
            lock.release()


def _prepare(directory, name):
    """Make the lock's file so that cyborg-agent can lock it too."""
    path = os.path.join(directory, name)
    try:
        durable.make_directory(directory)
        durable.make_file(path)
    except OSError as error:
        raise exception.JournalError(
            path=path, reason=f'cannot be made: {error}; check that [gpu] '
            'state_path exists and belongs to the user that runs '
            'cyborg-agent') from error
