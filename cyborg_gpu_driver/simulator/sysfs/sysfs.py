# SPDX-License-Identifier: Apache-2.0

"""An object that replaces :mod:`os` for paths below ``/sys`` or ``/proc``.

The object has the few functions that
:mod:`cyborg_gpu_driver.host.sysfs.pci` calls, and raises OSError as the
kernel does.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import NoReturn

# The files, directories and links of a simulated sysfs.

_MOST_LINKS = 16


class Node:
    """A node of the tree. ``present`` says whether the node exists now."""

    def __init__(self, present: Callable[[], bool] | None = None):
        self._present = present

    def there(self) -> bool:
        return self._present is None or self._present()


class File(Node):
    """A file.

    :param read: returns the text without the last newline, or all bytes;
        None for a file that can only be written. A string is constant.
    :param write: called with the written text; None for a file that can only
        be read.
    """

    def __init__(self,
                 read: Callable[[], str | bytes] | str | None = None,
                 write: Callable[[str], None] | None = None,
                 present: Callable[[], bool] | None = None):
        super().__init__(present)
        self.read = (lambda: read) if isinstance(read, str) else read
        self.write = write


class Link(Node):
    """A symbolic link to a path such as ``bus/pci/drivers/nvidia``."""

    def __init__(self, target: Callable[[], str] | str,
                 present: Callable[[], bool] | None = None):
        super().__init__(present)
        self.target = (lambda: target) if isinstance(target, str) else target


class Directory(Node):
    """A directory with these entries."""

    def __init__(self, entries: Mapping[str, Node],
                 present: Callable[[], bool] | None = None):
        super().__init__(present)
        self._entries = dict(entries)

    def names(self) -> Iterable[str]:
        return [name for name, node in self._entries.items()
                if node.there()]

    def child(self, name: str) -> Node | None:
        node = self._entries.get(name)
        return node if node is not None and node.there() else None


class Listing(Directory):
    """A directory whose entries change.

    :param entries: nodes that always exist.
    :param has: whether a name exists now, if there is a faster way than
        ``names``.
    """

    def __init__(self, names: Callable[[], Iterable[str]],
                 make: Callable[[str], Node],
                 entries: Mapping[str, Node] | None = None,
                 present: Callable[[], bool] | None = None,
                 has: Callable[[str], bool] | None = None):
        super().__init__(entries or {}, present)
        self._names = names
        self._make = make
        self._has = has or (lambda name: name in names())

    def names(self) -> Iterable[str]:
        return [*super().names(), *self._names()]

    def child(self, name: str) -> Node | None:
        node = super().child(name)
        if node is None and self._has(name):
            node = self._make(name)
        return node


@functools.lru_cache(maxsize=1 << 14)
def _reversed(path: str) -> tuple[str, ...]:
    """The parts of a path, the last part first."""
    return tuple(part for part in reversed(path.split('/'))
                 if part and part != '.')


def find(root: Directory, path: str, follow: bool = True
         ) -> tuple[list[str], Node]:
    """Walk a path; return its canonical parts and its node.

    :param follow: whether to follow a link at the end of the path.
    """
    links = 0
    todo = [*_reversed(path)]
    done: list[str] = []
    stack: list[Node] = [root]
    while todo:
        name = todo.pop()
        if name == '..':
            if done:
                done.pop()
                stack.pop()
            continue
        here = stack[-1]
        if not isinstance(here, Directory):
            raise NotADirectoryError(errno.ENOTDIR, 'Not a directory')
        node = here.child(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, 'No such file')
        if isinstance(node, Link) and (todo or follow):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, 'Too many links')
            todo.extend(_reversed(node.target()))
            done.clear()
            del stack[1:]
            continue
        done.append(name)
        stack.append(node)
    return done, stack[-1]


ROOT = '/sys'
_FIRST_DESCRIPTOR = 1 << 20
"""Far from real descriptors, so that they are never mixed up with ours."""
_LONGEST = 4096
"""A sysfs attribute is at most a page."""


class SimulatedOs:
    """The system calls on one tree of files of a machine.

    :param place: where the tree is mounted.
    """

    def __init__(self, machine, place: str, root: Directory):
        self._machine = machine
        self._place = place
        self._root = root
        self._open: dict[int, _OpenFile] = {}
        self._next = _FIRST_DESCRIPTOR

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file; return a descriptor that only this object knows."""
        with self._machine.operation():
            place, node = self._find(path)
            if isinstance(node, Directory):
                if _writes(flags):
                    _fail(errno.EISDIR, path)
            elif (_wants(flags, node)
                    or _writes(flags) and not self._machine.privileged):
                _fail(errno.EACCES, path)
            descriptor = self._next
            self._next += 1
            self._open[descriptor] = _OpenFile(path, place, node)
            return descriptor

    def read(self, descriptor: int, length: int) -> bytes:
        """Return the beginning of a file, which callers read once."""
        with self._machine.operation():
            file = self._file(descriptor)
            if isinstance(file.node, Directory):
                _fail(errno.EISDIR, file.path)
            if file.node.read is None:
                _fail(errno.EBADF, file.path)
            fault = self._machine.faults.read(file.path, file.place)
            if fault:
                _fail(fault.code, file.path)
            data = self._act(file, file.node.read)
            return (data if isinstance(data, bytes)
                    else data.encode() + b'\n')[:length]

    def write(self, descriptor: int, data: bytes) -> int:
        """Write to a control file and do what the write requests."""
        with self._machine.operation(write=True):
            file = self._file(descriptor)
            if getattr(file.node, 'write', None) is None:
                _fail(errno.EBADF, file.path)
            if len(data) > _LONGEST:
                _fail(errno.EINVAL, file.path)
            fault = self._machine.faults.write(file.path, file.place)
            if fault and not fault.after:
                _fail(fault.code, file.path)
        text = bytes(data).decode('utf-8', 'replace')
        self._machine.system_call(
            lambda: self._act(file, lambda: file.node.write(text)))
        if fault:
            _fail(fault.code, file.path)
        return len(data)

    def close(self, descriptor: int) -> None:
        self._file(descriptor)
        del self._open[descriptor]

    def listdir(self, path: str = ROOT) -> list[str]:
        with self._machine.operation():
            node = self._find(path)[1]
            if not isinstance(node, Directory):
                _fail(errno.ENOTDIR, path)
            return list(node.names())

    def readlink(self, path: str) -> str:
        with self._machine.operation():
            place, node = self._find(path, follow=False)
            if not isinstance(node, Link):
                _fail(errno.EINVAL, path)
            fault = self._machine.faults.read(path, place)
            if fault:
                _fail(fault.code, path)
            depth = place.count('/') - self._place.count('/') - 1
            return '../' * depth + node.target()

    def stat(self, path: str) -> None:
        """Raise OSError unless the path exists."""
        with self._machine.operation():
            self._find(path)

    def group_of(self, address: str) -> list[str]:
        """The functions of a function's IOMMU group, within an operation."""
        return list(self._find(
            f'{ROOT}/bus/pci/devices/{address}/iommu_group/devices'
        )[1].names())

    def _find(self, path, follow=True):
        path = os.fspath(path)
        place = self._place
        if path != place and not path.startswith(place + '/'):
            _fail(errno.ENOENT, path)
        try:
            parts, node = find(
                self._root, path[len(place):], follow)
        except OSError as error:
            _fail(error.errno or errno.EIO, path)
        return '/'.join((place, *parts)), node

    def _file(self, descriptor):
        try:
            return self._open[descriptor]
        except KeyError:
            _fail(errno.EBADF, str(descriptor))

    def _act(self, file, action):
        # If a device was removed while one of its files was open, the file
        # stays open and reports that the device is gone. A link in the path
        # of the file may lead elsewhere by now.
        try:
            self._find(file.place)
        except FileNotFoundError:
            _fail(errno.ENODEV, file.path)
        try:
            return action()
        except OSError as error:
            _fail(error.errno or errno.EIO, file.path)


class _OpenFile(NamedTuple):
    path: str
    place: str
    node: Any


def _writes(flags):
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


def _wants(flags, file):
    """Whether the flags request more than the file's permissions allow.

    Root may open any file, but in sysfs the kernel also refuses root an
    access for which the attribute has no function.
    """
    access = flags & os.O_ACCMODE
    return (access in (os.O_RDONLY, os.O_RDWR) and file.read is None
            or access in (os.O_WRONLY, os.O_RDWR) and file.write is None)


def _fail(code: int, path: str) -> NoReturn:
    raise OSError(code, os.strerror(code), path)
