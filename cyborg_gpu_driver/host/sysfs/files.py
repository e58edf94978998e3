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

"""Files of sysfs, read and written one system call at a time.

The only module that opens a file below ``/sys``. A simulated machine replaces
the kernel through ``root`` and ``os_module``: it passes an object with the few
functions of :mod:`os` that are used here.
"""

import errno as errno_codes
import functools
import os
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import apart

_ABSENT = frozenset({errno_codes.ENOENT, errno_codes.ENOTDIR,
                     errno_codes.ENODEV, errno_codes.ENXIO})
_READ_LIMIT = 1 << 20


class Sysfs:
    """sysfs below ``root``.

    Callers pass paths as components, and only this class joins them. It
    refuses a component that could leave the tree before it builds a path.

    :param root: where sysfs is mounted, ``/sys`` on a real machine.
    :param os_module: has the functions ``open``, ``read``, ``write``,
        ``close``, ``listdir``, ``readlink`` and ``stat``.
    """

    def __init__(self, root: str = '/sys', os_module: Any = os) -> None:
        self.root = root
        self._os = os_module

    def read(self, *parts: str) -> str:
        """Return the text of a file without surrounding white space.

        :raises SysfsError: with the kernel's errno.
        """
        return self.read_bytes(*parts).decode('utf-8', 'replace').strip()

    def read_bytes(self, *parts: str) -> bytes:
        """Return the content of a file.

        :raises SysfsError: with the kernel's errno.
        """
        path = self._path(parts)
        try:
            descriptor = self._os.open(path, os.O_RDONLY)
            try:
                return self._os.read(descriptor, _READ_LIMIT)
            finally:
                self._os.close(descriptor)
        except OSError as error:
            raise _sysfs_error('read', path, error) from error

    def read_optional(self, *parts: str) -> str | None:
        """Like :meth:`read`; None if there is no such file."""
        try:
            return self.read(*parts)
        except exception.SysfsError as error:
            if error.errno in _ABSENT:
                return None
            raise

    def write(self, value: str, *parts: str) -> None:
        """Write a control file with exactly one write.

        A buffered file object would repeat a refused write when it is
        closed, and a control file would act twice.

        :raises SysfsError: with the kernel's errno.
        """
        path = self._path(parts)
        try:
            descriptor = self._os.open(path, os.O_WRONLY)
            try:
                self._os.write(descriptor, value.encode('ascii'))
            finally:
                self._os.close(descriptor)
        except OSError as error:
            raise _sysfs_error('write', path, error) from error

    def apart(self, seconds: float, act: Callable[..., str | None],
              *arguments: str) -> str:
        """Call a method of this object that may never return.

        A call that hangs in the kernel cannot be interrupted, and keeps its
        process from ending. So a child process makes the call. A simulated
        kernel may be in this process's memory and is called in a thread.

        :param seconds: how long to wait for the call.
        :param act: such as :meth:`write` or :meth:`read_optional`.
        :returns: its answer; empty for None.
        :raises TimeoutError: if the call did not return; it may still do so.
        :raises SysfsError: with the kernel's errno.
        """
        call = apart.call if self._os is os else apart.call_in_thread
        return call(seconds, functools.partial(act, *arguments))

    def listdir(self, *parts: str) -> list[str]:
        """Return the sorted names in a directory; empty if it is missing.

        :raises SysfsError: if the directory exists and cannot be read.
        """
        path = self._path(parts)
        try:
            return sorted(self._os.listdir(path))
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise _sysfs_error('list', path, error) from error

    def link_name(self, *parts: str) -> str | None:
        """Last component of a symbolic link's target, None without one."""
        target = self.link_parts(*parts)
        return target[-1] if target else None

    def link_parts(self, *parts: str) -> tuple[str, ...]:
        """Components of a symbolic link's target, empty without one."""
        path = self._path(parts)
        try:
            return tuple(self._os.readlink(path).split('/'))
        except OSError as error:
            if error.errno in _ABSENT or error.errno == errno_codes.EINVAL:
                return ()
            raise _sysfs_error('follow', path, error) from error

    def exists(self, *parts: str) -> bool:
        """Whether there is such a file, directory or link target."""
        try:
            self._os.stat(self._path(parts))
        except OSError:
            return False
        return True

    def _path(self, parts: tuple[str, ...]) -> str:
        for part in parts:
            if (not part or part in ('.', '..') or '/' in part
                    or '\0' in part):
                raise exception.InvalidValue(
                    what='sysfs path component', value=part,
                    expected='expected a plain file name')
        return '/'.join((self.root, *parts))


def _sysfs_error(action: str, path: str, error: OSError
                 ) -> exception.SysfsError:
    return exception.SysfsError(action=action, path=path, errno=error.errno,
                                reason=os.strerror(error.errno or 0))
