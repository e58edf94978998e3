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

"""Where a machine's state lives: in memory, or in a file that processes share.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import fcntl
import json
import os
import weakref
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module

_KEPT = 8
"""How many machines of one process keep their files open. A test process has
hundreds of machines."""
_OPEN: collections.deque[weakref.ref[Store]] = collections.deque()


class Store:
    """One machine's state, seen by one operation at a time.

    :param host: what the machine is; a state file of another is refused.
    :param path: the state file, made when it is not there; None keeps the
        state in memory. ``PATH.lock`` beside it is locked around each
        operation.
    """

    def __init__(self, host: spec.Host, path: str | None = None):
        self.state = state_module.first(host)
        self._host = host
        self._path = path and os.path.abspath(path)
        self._text = None
        self._loaded = None
        self._held = None
        self._depth = 0
        self._write = False
        # Not the one of threading, which eventlet replaces: NVML is called
        # by threads of the operating system too.
        self._lock = _thread.RLock()
        # A fork while another thread is inside an operation would leave
        # the child with a lock that nobody opens.
        reference = weakref.ref(self)
        os.register_at_fork(
            after_in_child=lambda: _renew_lock(reference()))

    @property
    def writable(self) -> bool:
        """Whether this process may change the state.

        Each change puts a new file in the place of the old one.
        """
        return self._path is None or os.access(
            os.path.dirname(self._path), os.W_OK, effective_ids=True)

    @contextlib.contextmanager
    def operation(self, write: bool = False
                  ) -> Iterator[state_module.State]:
        """Hold the machine for one operation; operations may nest.

        :param write: whether the operation may change the state.
        :raises SimulationError: if the state file cannot be used.
        """
        with self._lock:
            self._write = self._write or write
            if self._path is None or self._depth:
                yield self.state
                return
            self._depth += 1
            try:
                held = self._hold_file()
                try:
                    self._load()
                    try:
                        yield self.state
                    finally:
                        if self._write:
                            self._save()
                finally:
                    fcntl.flock(held.descriptor, fcntl.LOCK_UN)
            finally:
                self._depth -= 1
                self._write = False

    def _hold_file(self):
        """Lock the lock file, opened again if another is in its place."""
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
                # An unlinked file's lock keeps nobody out.
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
                    f'it is the state of host {value["host"]!r}, not of '
                    f'{self._host.name!r}; give another file')
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
        return exception.SimulationError(name=self._path, reason=reason)


def _close_others(store: Store) -> None:
    """Close the files of the stores that opened theirs longest ago.

    Those that are inside an operation keep theirs until its end. A store
    opens its files again when it needs them.
    """
    _OPEN.append(weakref.ref(store))
    while len(_OPEN) > _KEPT:
        other = _OPEN.popleft()()
        if other is not None and other is not store:
            other._held = other._loaded = None


class _KeptFile:
    """A file that stays open: the state read or written last, or the lock.

    Its inode can then not be given to a newer file, so that the inode alone
    tells whether another file is in its place.
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
        store._lock = _thread.RLock()
        store._depth = 0
        # What locks the parent's descriptor locks it for both.
        store._held = None
