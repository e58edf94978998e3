# SPDX-License-Identifier: Apache-2.0

"""Device nodes that processes have open: ``/dev/nvidia0`` and so on.

NVML opens the nodes of all GPUs when the first session of a process starts,
that of a GPU again when a caller requests a handle of the GPU, and closes
all when the last session ends: seen on an H100 and an H200, driver
580.159.04. The kernel counts these opens.

A machine with a state file has a real file for each node, and a process that
opens the node opens that file. So the real kernel counts the opens: a
process that dies has nothing open, a forked child has open what its parent
had, and an executed program does not (NVML sets O_CLOEXEC).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu

_EVERYBODY = 0o1777
_UNSEEN = state_module.Holder(-1, 'a process of another user')


class Opens:
    """The nodes that NVML in this process has open, and all holders.

    Use it only within an operation on the machine.
    """

    def __init__(self, state: str | None):
        self._directory = f'{os.path.realpath(state)}.dev' if state else ''
        self._process = os.getpid()
        self._open: dict[str, tuple[int, int | None]] = {}
        """Number of each open node, and descriptor of its file."""
        self._inherited: dict[str, int] = {}
        if self._directory:
            # Root comes first and creates the directory. Any user may then
            # open a GPU, because the mode of /dev/nvidia0 is 0666.
            with contextlib.suppress(OSError):
                os.mkdir(self._directory)
                os.chmod(self._directory, _EVERYBODY)
        weakref.finalize(self, _close, self._process, self._open)

    def open(self, gpu: driver_gpu.Gpu) -> None:
        """Open the node of a GPU, unless this process has it open."""
        self._notice_fork()
        found = self._open.get(gpu.address)
        if found is not None and found[0] == gpu.state.node:
            return
        if found is not None:
            _close_file(found[1])
        self._open[gpu.address] = (gpu.state.node, self._open_file(gpu))

    def close(self) -> None:
        """Close all nodes that this process has opened.

        Nodes that a forked child has inherited stay open until the child
        ends.
        """
        self._notice_fork()
        _close(self._process, self._open)

    def held(self, gpu: driver_gpu.Gpu) -> bool:
        """Whether any process has the node of a GPU open."""
        if not self._directory:
            return self._holds(gpu)
        try:
            descriptor = os.open(self._path(gpu), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def holders(self, gpu: driver_gpu.Gpu) -> list[state_module.Holder]:
        """Return the processes that have the node of a GPU open."""
        if not self.held(gpu):
            return []
        if not self._directory:
            return [_holder(os.getpid())]
        path = self._path(gpu)
        return [_holder(pid) for pid in _processes()
                if path in _files(pid)] or [_UNSEEN]

    def _holds(self, gpu):
        self._notice_fork()
        found = self._open.get(gpu.address)
        return gpu.state.node in (found and found[0],
                                  self._inherited.get(gpu.address))

    def _notice_fork(self):
        if self._process == os.getpid():
            return
        self._inherited.update((address, node) for address, (node, _)
                               in self._open.items())
        self._process = os.getpid()
        self._open.clear()

    def _path(self, gpu):
        return os.path.join(
            self._directory, f'nvidia{gpu.spec.minor}.{gpu.state.node}')

    def _open_file(self, gpu):
        if not self._directory:
            return None
        try:
            descriptor = _open_or_make(self._path(gpu))
        except OSError as error:
            raise exception.HostUnusable(
                f'simulated machine {error.filename!r}: '
                f'{error.strerror}') from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def remove(self, gpu: driver_gpu.Gpu) -> None:
        """Remove the node of a GPU, as the driver does when it is unbound."""
        if self._directory:
            # The file does not exist if no process has opened the node.
            with contextlib.suppress(OSError):
                os.unlink(self._path(gpu))
        gpu.state.node += 1


def _open_or_make(path):
    # With O_CREAT, Linux does not open another user's file in a directory
    # with the sticky bit, not even for root (fs.protected_regular).
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)


def _close(process, opened):
    """Close the nodes that a process has opened, if this is the process."""
    if process == os.getpid():
        for _, descriptor in opened.values():
            _close_file(descriptor)
        opened.clear()


def _close_file(descriptor):
    if descriptor is not None:
        os.close(descriptor)


def _processes():
    return [int(name) for name in os.listdir('/proc') if name.isdigit()]


def _files(pid):
    """The files that a process has open; none if they cannot be seen."""
    place = f'/proc/{pid}/fd'
    found = set()
    # The process may end or close a file meanwhile, or be another user's.
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f'{place}/{name}'))
    return found


def _holder(pid):
    try:
        with open(f'/proc/{pid}/comm', encoding='utf-8') as file:
            name = file.read().strip()
    except OSError:
        name = 'unknown'
    return state_module.Holder(pid, name)
