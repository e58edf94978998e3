# SPDX-License-Identifier: Apache-2.0

"""Access to NVML: shared by our processes, or exclusive to one of them.

NVML opens the device nodes of all GPUs in nvmlInit, opens that of a GPU again
for a handle, and closes all with the last nvmlShutdown of the process: seen on
an H100 and an H200, driver 580.159.04. Only NVML_INIT_FLAG_NO_ATTACH opens
none, and then there is no handle. NVIDIA's kernel driver neither unbinds nor
resets a GPU that any process has open (nv_pci_remove_helper in
kernel-open/nvidia/nv-pci.c). So a process that wants to unbind or reset a GPU
asks all processes of this library on the machine to close NVML: cyborg-agent
with its event watcher, the daemon of oslo.privsep, and commands that run
beside them.

Two files are locked (flock), so that a dead process requests and holds
nothing:

* ``nvml``: shared by the processes that have NVML open; exclusive for the
  process that has NVML to itself;
* ``nvml-wanted``: exclusive for the process that wants NVML closed.

Others do not see a lock of a file that was removed or replaced. So a process
compares the files that it keeps open with those at their paths.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

import pynvml

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import open_files

TIMEOUT = 60.0
POLL = 0.1
"""Seconds between two checks of a lock."""
_NAMES = ('nvml', 'nvml-wanted')


class Access:
    """The access to NVML that the sessions of one process share.

    :param state_path: directory that has the lock files below ``locks``. If
        it is None or missing, or this user may not use it, the locks are in
        memory, for this process alone.
    :param timeout: seconds to wait until NVML is free, and until others have
        closed it.
    """

    def __init__(self, state_path: str | None = None,
                 timeout: float = TIMEOUT):
        self.timeout = timeout
        self._state_path = state_path
        self._mutex = threading.Lock()
        self._alone = threading.RLock()
        self._memory: _Memory | None = None
        self._last: list[str] = []
        """The paths of the two files when they were last used."""
        self._descriptor: int | None = None
        """Descriptor of ``nvml-wanted``, to check whether it is locked."""
        self._close: Callable[[], object] = lambda: None
        """Closes that descriptor, at the latest when this object is gone."""
        self.owner: int | None = None
        """The thread of this process that has NVML to itself."""

    def is_shared(self) -> bool:
        """Whether other processes can ask this one to close NVML.

        False where the lock files are missing or this user may not use them.
        """
        with self._mutex:
            if self._memory is not None:
                return False
            try:
                self._files()
            except OSError:
                return False
            return True

    def is_owner(self) -> bool:
        """Whether this thread has NVML to itself."""
        return self.owner == threading.get_ident()

    def wanted(self) -> bool:
        """Whether another process or thread wants NVML closed."""
        with self._mutex:
            if (self._descriptor is None
                    or not _is_at(self._descriptor, self._last[1])):
                self._close()
                self._descriptor = os.open(self._paths()[1],
                                           os.O_RDONLY | os.O_CLOEXEC)
                self._close = weakref.finalize(self, os.close,
                                               self._descriptor)
            if not _lock(self._descriptor, fcntl.LOCK_SH):
                return True
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            return False

    def is_current(self, descriptor: int) -> bool:
        """Whether others still see a lock that :meth:`share` has taken.

        They do not once the files were replaced.
        """
        return _is_at(descriptor, self._last[0])

    def share(self) -> int | None:
        """Take a shared lock, so that this process may open NVML.

        :returns: the descriptor for :func:`release`; None if this thread has
            NVML to itself.
        :raises NvmlClosed: if another process or thread has NVML to itself
            for longer than the timeout.
        """
        if self.is_owner():
            return None
        deadline = time.monotonic() + self.timeout
        while True:
            wanted = self._take(1, fcntl.LOCK_SH)
            if wanted is not None:
                try:
                    descriptor = self._take(0, fcntl.LOCK_SH)
                finally:
                    release(wanted)
                if descriptor is not None:
                    return descriptor
            if time.monotonic() >= deadline:
                raise self.closed()
            time.sleep(POLL)

    @contextlib.contextmanager
    def alone(self, close: Callable[[], object]) -> Iterator[None]:
        """Give this thread exclusive access to NVML within the block.

        :param close: closes the session of the caller, if it is idle.
        :raises StepFailed: if others have not closed NVML in time. They may
            open it again then.
        """
        if self.is_owner():
            yield
            return
        with contextlib.ExitStack() as held:
            deadline = time.monotonic() + self.timeout
            for index in (1, 0):
                held.callback(release, self._wait(
                    index, deadline, close))
            self.owner = threading.get_ident()
            held.callback(setattr, self, 'owner', None)
            yield

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Use NVML on behalf of a process that has it to itself."""
        if self.is_owner():
            yield
            return
        with self._alone:
            self.owner = threading.get_ident()
            try:
                yield
            finally:
                self.owner = None

    def closed(self) -> exception.NvmlClosed:
        """Return the exception for a caller that cannot open NVML."""
        return exception.NvmlClosed(
            call='nvmlInit', code=pynvml.NVML_ERROR_IN_USE, symbol='IN_USE',
            who=self._who(1))

    def forget(self) -> None:
        """After a fork: forget the locks that the parent process holds."""
        self._mutex = threading.Lock()
        self._alone = threading.RLock()
        self._close()
        self.owner = self._descriptor = None
        self._memory = None

    def _wait(self, index: int, deadline: float, close: Callable[[], object]
              ) -> int:
        while True:
            close()
            descriptor = self._take(index, fcntl.LOCK_EX)
            if descriptor is not None:
                return descriptor
            if time.monotonic() >= deadline:
                raise exception.StepFailed(
                    f'{self._who(index)} did not close NVML within '
                    f'{self.timeout} seconds; nothing was changed')
            time.sleep(POLL)

    def _take(self, index: int, kind: int) -> int | None:
        """Lock a file; return its descriptor, or None if it is not free."""
        with self._mutex:
            path = self._paths()[index]
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if _lock(descriptor, kind):
            return descriptor
        os.close(descriptor)
        return None

    def _paths(self) -> list[str]:
        """Return the paths of the two files, and create missing ones."""
        if self._memory is None:
            with contextlib.suppress(OSError):
                self._last = self._files()
                return self._last
            self._memory = _Memory()
        self._last = self._memory.paths
        return self._last

    def _files(self) -> list[str]:
        if self._state_path is None or not os.path.isdir(self._state_path):
            raise FileNotFoundError(self._state_path)
        directory = os.path.join(self._state_path, 'locks')
        durable.make_directory(directory)
        paths = [os.path.join(directory, name) for name in _NAMES]
        for path in paths:
            durable.make_file(path)
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return paths

    def _who(self, index: int) -> str:
        """Return a text with the processes that have a file locked."""
        with self._mutex:
            inode = os.stat(self._paths()[index]).st_ino
        return ', '.join(
            f'process {pid} ({open_files.process_name(pid)})'
            for pid in open_files.lock_holders(
                'FLOCK', lambda file: file.endswith(f':{inode}'))
        ) or 'a process that is not visible here'


class _Memory:
    """Lock files in memory, which have a name only in this process."""

    def __init__(self) -> None:
        descriptors = [os.memfd_create(name) for name in _NAMES]
        self.paths = [f'/proc/self/fd/{number}' for number in descriptors]
        weakref.finalize(self, _close, descriptors)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def release(descriptor: int | None) -> None:
    """Release what :meth:`Access.share` returned."""
    if descriptor is not None:
        # A forked child may have the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    """Whether a file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
