# SPDX-License-Identifier: Apache-2.0

"""The store of a machine's state: memory, or a file that processes share."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import stat
import threading
import weakref
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module

_KEPT = 8
"""How many machines of one process keep their files open. A test process may
have hundreds of machines."""
_OPEN: collections.deque[weakref.ref[Store]] = collections.deque()


class Store:
    """One machine's state, which one operation at a time can use.

    :param host: the machine; the state file of another one is refused.
    :param path: the state file, which is created if it does not exist; None
        keeps the state in memory. Each operation locks ``PATH.lock`` beside
        it.
    """

    def __init__(self, host: spec.Host, path: str | None = None):
        self.state = state_module.first(host)
        self._host = host
        self._path = os.path.abspath(path) if path else ''
        self._text: str | None = None
        self._loaded: _KeptFile | None = None
        self._held: _KeptFile | None = None
        self._depth = 0
        self._write = False
        self.lock = threading.RLock()
        """Keeps the other threads of this process out of operations."""
        # A fork while another thread is inside an operation would leave
        # the child with a lock that no thread releases.
        reference = weakref.ref(self)
        os.register_at_fork(
            after_in_child=lambda: _renew_lock(reference()))

    @property
    def writable(self) -> bool:
        """Whether this process may change the state.

        Each change replaces the state file by a new one.
        """
        return not self._path or os.access(
            os.path.dirname(self._path), os.W_OK, effective_ids=True)

    def operation(self, write: bool = False
                  ) -> contextlib.AbstractContextManager[object]:
        """Hold the machine for one operation; operations may nest.

        :param write: whether the operation may change the state.
        :raises HostUnusable: if the state file cannot be used.
        """
        if not self._path:
            return self.lock
        return self._operation_on_file(write)

    @contextlib.contextmanager
    def _operation_on_file(self, write: bool) -> Iterator[None]:
        with self.lock:
            self._write = self._write or write
            if self._depth:
                yield
                return
            self._depth += 1
            try:
                held = self._hold_file()
                try:
                    self._load()
                    try:
                        yield
                    finally:
                        if self._write:
                            self._save()
                finally:
                    fcntl.flock(held.descriptor, fcntl.LOCK_UN)
            finally:
                self._depth -= 1
                self._write = False

    def _hold_file(self):
        """Lock the lock file, and reopen it first if it was replaced."""
        path = self._path + '.lock'
        try:
            while True:
                held = self._held
                if held is None:
                    flags = (os.O_RDWR | os.O_CREAT if self.writable
                             else os.O_RDONLY)
                    held = self._held = _KeptFile(path, flags)
                    _close_others(self)
                fcntl.flock(held.descriptor, fcntl.LOCK_EX)
                # The lock of an unlinked file excludes no other process.
                with contextlib.suppress(FileNotFoundError):
                    if held.is_file(os.stat(path)):
                        return held
                self._held = None
        except OSError as error:
            raise self._refusal(f'cannot be locked: {error.strerror}'
                                ) from error

    def _load(self):
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self.state = state_module.first(self._host)
            self._text = None
            return
        if not stat.S_ISREG(found.st_mode):
            # Devices such as /dev/full have no end.
            raise self._refusal('not a file; give another one')
        loaded = self._loaded
        if loaded is not None and loaded.is_file(found):
            return
        try:
            loaded = self._loaded = _KeptFile(self._path)
            text = loaded.read()
        except (OSError, ValueError) as error:
            raise self._refusal(f'cannot be read: {error}') from error
        self.state = self._parse(text)
        self._text = text

    def _parse(self, text):
        try:
            value = json.loads(text)
            if value['format'] != state_module.FORMAT:
                raise self._refusal(
                    f'format {value["format"]} is not '
                    f'{state_module.FORMAT}; remove the file')
            if value['digest'] != self._host.digest:
                raise self._refusal(
                    f'it is the state of a host {value["host"]!r} whose '
                    f'description is not that of {self._host.name!r}; give '
                    'another file, or remove it')
            return state_module.from_json(value['state'])
        except ValueError as error:
            raise self._refusal(f'not a state file: {error}; give another '
                                'file, or remove it') from error
        except (TypeError, KeyError, AttributeError) as error:
            raise self._refusal('not a state file: required keys are missing; '
                                'give another file, or remove it'
                                ) from error

    def _save(self):
        text = json.dumps(
            {'format': state_module.FORMAT, 'host': self._host.name,
             'digest': self._host.digest,
             'state': state_module.to_json(self.state)})
        if text == self._text:
            return
        temporary = f'{self._path}.new'
        try:
            with open(temporary, 'w', encoding='utf-8') as file:
                file.write(text)
            os.replace(temporary, self._path)
            self._loaded = _KeptFile(self._path)
        except OSError as error:
            raise self._refusal(f'cannot be written: {error.strerror}'
                                ) from error
        self._text = text

    def _refusal(self, reason):
        return exception.HostUnusable(
            f'simulated machine {self._path!r}: {reason}')


def _close_others(store: Store) -> None:
    """Close the files of other stores, which reopen them when needed."""
    _OPEN.append(weakref.ref(store))
    while len(_OPEN) > _KEPT:
        other = _OPEN.popleft()()
        if other is not None and other is not store:
            other._held = other._loaded = None


class _KeptFile:
    """A file that stays open: the state read or written last, or the lock.

    As long as the file is open, no newer file gets its inode. So the inode
    alone shows whether the file was replaced.
    """

    def __init__(self, path, flags=os.O_RDONLY):
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        weakref.finalize(self, os.close, self.descriptor)
        self._identity = _identity(os.fstat(self.descriptor))

    def is_file(self, found):
        """Whether a result of stat() is this file's."""
        return self._identity == _identity(found)

    def read(self):
        with open(self.descriptor, encoding='utf-8', closefd=False) as file:
            return file.read()


def _identity(found):
    return found.st_dev, found.st_ino


def _renew_lock(store):
    if store is not None:
        store.lock = threading.RLock()
        store._depth = 0
        # A lock on the parent's descriptor is a lock of both processes.
        store._held = None
