# SPDX-License-Identifier: Apache-2.0

"""Files in the tree of a system that is not running, and not trusted.

The tree is a tenant's. Its symbolic links are followed as the booted system
would follow them, with the tree as root. So no link leads out of the tree, to
the files of the system that has it mounted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg_gpu_driver import exception

_LINKS_MAX = 40
"""The kernel's limit (MAXSYMLINKS)."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_LABEL = 'security.selinux'


class Tree:
    """The tree below a directory. Paths are relative to that directory.

    :param root: the directory; what is above it is trusted.
    """

    def __init__(self, root: str):
        self._root = root

    def find_program(self, places: Iterable[str]) -> str | None:
        """Return the first of these paths that is an executable program.

        :raises ChangeRefused: if the tree cannot be read.
        """
        return next(filter(self._is_program, places), None)

    def write(self, path: str, text: str, mode: int) -> None:
        """Write a file of root's durably, and replace any existing one.

        Missing directories are created.

        :raises ChangeRefused: if it cannot be written.
        """
        def make(name: str, directory: int) -> None:
            with open(os.open(name, _FILE, 0o600, dir_fd=directory), 'w',
                      encoding='utf-8') as stream:
                stream.write(text)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())

        self._put(path, make)

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link, as :meth:`write` does a file.

        :raises ChangeRefused: if it cannot be created.
        """
        self._put(path, lambda name, directory: os.symlink(
            target, name, dir_fd=directory))

    def _put(self, path: str, make: Callable[[str, int], None]) -> None:
        above, name = os.path.split(path)
        new = f'.{name}.new'
        try:
            with self._directory(above) as directory:
                # Left by a run that did not finish.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=directory)
                try:
                    make(new, directory)
                    _label(new, directory)
                    os.rename(new, name, src_dir_fd=directory,
                              dst_dir_fd=directory)
                except OSError:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(new, dir_fd=directory)
                    raise
                os.fsync(directory)
        except OSError as error:
            raise exception.ChangeRefused(
                f'the deployed image: /{path} cannot be written: '
                f'{error.strerror}') from error

    def _is_program(self, path: str) -> bool:
        try:
            parts = self._resolve(path)
            mode = 0 if parts is None else os.lstat(
                self._path(parts)).st_mode
        except OSError as error:
            raise exception.ChangeRefused(
                f'the deployed image: /{path} cannot be read: '
                f'{error.strerror}') from error
        return stat.S_ISREG(mode) and bool(mode & 0o111)

    @contextlib.contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        """Yield a directory's descriptor; create the directory if missing.

        :raises OSError: if something else exists at the path.
        """
        parts = self._resolve(path)
        if parts is None:
            above, name = os.path.split(path)
            with self._directory(above) as directory:
                os.mkdir(name, 0o755, dir_fd=directory)
                _label(name, directory)
                os.fsync(directory)
            parts = self._resolve(path) or path.split('/')
        descriptor = os.open(self._path(parts), _DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _resolve(self, path: str) -> list[str] | None:
        """Return the names of the link-free path; None if nothing exists
        there.
        """
        left, links = path.split('/')[::-1], 0
        found: list[str] = []
        while left:
            name = left.pop()
            if name == '..':
                del found[-1:]
            if name in ('', '.', '..'):
                continue
            try:
                here = self._path([*found, name])
                if not stat.S_ISLNK(os.lstat(here).st_mode):
                    found.append(name)
                    continue
                target = os.readlink(here)
            except (FileNotFoundError, NotADirectoryError):
                return None
            links += 1
            if links > _LINKS_MAX:
                return None
            if target.startswith('/'):
                found = []
            left.extend(target.split('/')[::-1])
        return found

    def _path(self, parts: Iterable[str]) -> str:
        """Return a path without a link below the root. Nothing in the tree
        changes meanwhile, because no program of the tree runs.
        """
        return os.path.join(self._root, *parts)


def _label(name: str, directory: int) -> None:
    """Give a new file SELinux's label of its directory.

    The kernel does so if a policy is loaded. In a ramdisk there is none, and
    a system with a policy does not start units without a label.
    """
    with contextlib.suppress(OSError):
        os.setxattr(f'/proc/self/fd/{directory}/{name}', _LABEL,
                    os.getxattr(directory, _LABEL), follow_symlinks=False)
