# SPDX-License-Identifier: Apache-2.0

"""Which processes have a file open or locked, from proc."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from collections.abc import Iterator

_WHOLE_MACHINE = 'pid:[4026531836]'
"""The first PID namespace (PROC_PID_INIT_INO in linux/proc_ns.h)."""
OTHERS_HIDDEN = ('only the processes of one PID namespace are visible; run '
                 "this in the host's PID namespace")
_LOOKS = 3
"""How many times the list of locks is read. The kernel returns it in parts, so
a line can be missed when other locks are released at the same time."""


def openers(proc: str, nodes: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of processes with an open file of one of the nodes.

    A file matches by the end of its path, because the beginning depends on
    the mounts of the process.

    :param nodes: ends of paths, such as ``/vfio/41``.
    :raises OSError: if a process cannot be inspected, or processes of other
        PID namespaces are not visible.
    """
    return _openers(proc, lambda place, path: path.endswith(nodes))


def device_openers(proc: str, prefix: str, number: int) -> tuple[int, ...]:
    """Return the ids of processes with an open device node of a number.

    A container may have the node under the name of another node of its kind
    (``--device /dev/nvidia3:/dev/nvidia0``), so the name does not say which
    device it is. Files of other names are left alone: stat of a file on a
    network file system may never return.

    :param number: as in ``st_rdev``.
    """
    def is_node(place: str, path: str) -> bool:
        if not path.rpartition('/')[2].startswith(prefix):
            return False
        try:
            found = os.stat(place)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.S_ISCHR(found.st_mode) and found.st_rdev == number
    return _openers(proc, is_node)


def _openers(proc: str, is_node: Callable[[str, str], bool]
             ) -> tuple[int, ...]:
    if not shows_all(proc):
        raise OSError(errno.EXDEV, OTHERS_HIDDEN, proc)
    return tuple(sorted(
        int(pid) for pid in os.listdir(proc)
        if pid.isdigit() and any(
            is_node(place, path.removesuffix(' (deleted)'))
            for place, path in _open_files(f'{proc}/{pid}/fd'))))


def shows_all(proc: str) -> bool:
    """Whether the processes of all PID namespaces are visible."""
    try:
        return os.readlink(f'{proc}/self/ns/pid') == _WHOLE_MACHINE
    except FileNotFoundError:
        # A kernel without namespaces shows all processes.
        return True


def lock_holders(kind: str, is_file: Callable[[str], bool],
                 proc: str = '/proc') -> tuple[int, ...]:
    """Return the ids of processes that have a file locked, as far as known.

    A line of proc_locks(5): number, kind, ADVISORY, WRITE, process id,
    major:minor:inode (hexadecimal, hexadecimal, decimal), start and end. The
    line of a waiting process has an arrow in the second place.

    :param is_file: whether major, minor and inode are those of the file.
    """
    found: set[int] = set()
    for _ in range(_LOOKS):
        try:
            with open(f'{proc}/locks', encoding='ascii') as stream:
                lines = [line.split() for line in stream]
            found = {int(words[4]) for words in lines
                     if words[1:2] == [kind] and is_file(words[5])}
        except (OSError, ValueError, IndexError):
            return ()
        if found:
            break
    # A process in another PID namespace has a number below 1.
    return tuple(sorted(pid for pid in found if pid > 0))


def process_name(pid: int, proc: str = '/proc') -> str:
    """Return the kernel's name of a process; ``?`` if it has ended."""
    try:
        with open(f'{proc}/{int(pid)}/comm', encoding='utf-8',
                  errors='replace') as stream:
            return stream.read().strip() or '?'
    except OSError:
        return '?'


def _open_files(place: str) -> Iterator[tuple[str, str]]:
    """Yield a process's open files; none if it has ended."""
    try:
        descriptors = os.listdir(place)
    except (FileNotFoundError, ProcessLookupError):
        return
    for descriptor in descriptors:
        link = f'{place}/{descriptor}'
        try:
            yield link, os.readlink(link)
        except (FileNotFoundError, ProcessLookupError):
            continue
