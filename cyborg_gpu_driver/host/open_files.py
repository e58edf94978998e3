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

"""Which processes have a file open or locked, from proc."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from collections.abc import Iterator

_WHOLE_MACHINE = 'pid:[4026531836]'
"""The first PID namespace (PROC_PID_INIT_INO in linux/proc_ns.h)."""
_LOOKS = 3
"""How often the list of locks is read. The kernel gives it in parts, so a
line can be missed when other locks go away at the same time."""


def openers(proc: str, nodes: tuple[str, ...]) -> tuple[int, ...]:
    """Ids of the processes with an open file whose path ends in a node's.

    What comes before that depends on the mounts of the process.

    :param proc: where proc is mounted.
    :param nodes: such as ``/nvidia0``.
    :raises OSError: if a process cannot be looked into, or processes of
        other PID namespaces are out of sight.
    """
    try:
        namespace = os.readlink(f'{proc}/self/ns/pid')
    except FileNotFoundError:
        # A kernel without namespaces shows all that there is.
        namespace = _WHOLE_MACHINE
    if namespace != _WHOLE_MACHINE:
        raise OSError(errno.EXDEV, 'only the processes of one PID namespace '
                      "are in sight; run this in the host's", proc)
    return tuple(sorted(
        int(pid) for pid in os.listdir(proc)
        if pid.isdigit() and any(
            link.removesuffix(' (deleted)').endswith(nodes)
            for link in _open_files(f'{proc}/{pid}/fd'))))


def lock_holders(kind: str, is_file: Callable[[str], bool],
                 proc: str = '/proc') -> tuple[int, ...]:
    """Ids of the processes that have a file locked; empty if not known.

    A line of proc_locks(5): number, kind, ADVISORY, WRITE, process id,
    major:minor:inode (hexadecimal, hexadecimal, decimal), start and end. A
    line of who waits has an arrow in the second place.

    :param kind: ``POSIX`` or ``FLOCK``.
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
    """What the kernel calls a process; ``?`` if it is gone."""
    try:
        with open(f'{proc}/{int(pid)}/comm', encoding='utf-8',
                  errors='replace') as stream:
            return stream.read().strip() or '?'
    except OSError:
        return '?'


def _open_files(place: str) -> Iterator[str]:
    """Paths of a process's open files; none of one that is gone."""
    try:
        descriptors = os.listdir(place)
    except (FileNotFoundError, ProcessLookupError):
        return
    for descriptor in descriptors:
        try:
            yield os.readlink(f'{place}/{descriptor}')
        except (FileNotFoundError, ProcessLookupError):
            continue
