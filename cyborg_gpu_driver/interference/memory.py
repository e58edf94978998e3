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

"""How much memory the processes of a command use."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable
from collections.abc import Collection

_FIRST_INTERVAL, _INTERVAL = 0.01, 0.2
"""Seconds between two samples, at first and later. Shorter intervals would
disturb the measurement."""
_KIB, _MIB = 1 << 10, 1 << 20
_JOIN = 60.0
"""Seconds to wait for the last sample: NVML calls have their own deadline."""

GpuMemory = Callable[[Collection[int]], 'int | None']
"""Returns the bytes of GPU memory that processes have, by their IDs; None if
unknown."""


def tree(pid: int, proc: str = '/proc') -> set[int]:
    """Return a process and all its descendants that are still visible.

    Without CONFIG_PROC_CHILDREN in the kernel the result is only the process
    itself (proc(5), ``/proc/PID/task/TID/children``).
    """
    found: set[int] = set()
    left = [pid]
    while left:
        parent = left.pop()
        if parent in found:
            continue
        found.add(parent)
        with contextlib.suppress(OSError):
            for thread in os.listdir(f'{proc}/{parent}/task'):
                left += map(int, _words(
                    f'{proc}/{parent}/task/{thread}/children'))
    return found


def resident(pids: Collection[int], proc: str = '/proc') -> int:
    """Return the resident bytes of processes; shared pages count for each.

    It is the second number of ``/proc/PID/statm``, in pages (proc(5)).
    """
    pages = [words[1] for pid in pids
             if len(words := _words(f'{proc}/{pid}/statm')) > 1]
    return sum(map(int, pages)) * os.sysconf('SC_PAGE_SIZE')


def oom_kills(proc: str = '/proc', cgroups: str = '/sys/fs/cgroup'
              ) -> tuple[int, ...]:
    """Return counts of kills for lack of memory; a kill changes one of them.

    ``oom_kill`` in ``/proc/vmstat`` counts all kills of the machine, also
    those of cgroups (__oom_kill_process in mm/oom_kill.c of Linux). It may be
    missing in a container; then ``memory.events`` of the process's own cgroup
    exists (Documentation/admin-guide/cgroup-v2.rst).
    """
    own = next((line[3:].strip('/') for line in _lines(f'{proc}/self/cgroup')
                if line.startswith('0::')), '')
    return tuple(
        int(words[1])
        for path in (f'{proc}/vmstat', f'{cgroups}/{own}/memory.events')
        for line in _lines(path)
        if (words := line.split())[:1] == ['oom_kill'])


class Peak:
    """Watches the memory of a command's processes, in a thread.

    :param pid: ID of the first process.
    :param gpu_memory: asks NVML for the GPU memory of processes.
    """

    def __init__(self, pid: int, gpu_memory: GpuMemory):
        self._pid = pid
        self._gpu_memory = gpu_memory
        self._resident = 0
        self._gpu: int | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._thread.join(_JOIN)

    @property
    def memory_mib(self) -> int:
        """The peak of the resident memory."""
        return -(-self._resident // _MIB)

    @property
    def gpu_memory_mib(self) -> int | None:
        """The peak of the GPU memory; None if NVML does not know it."""
        return None if self._gpu is None else -(-self._gpu // _MIB)

    def add(self, largest: int) -> None:
        """Add the largest resident size of one process, in bytes.

        The kernel knows this size even for a process that was too short for a
        sample. A program inherits the number from the process that started
        it, which is this one (exec_mmap in fs/exec.c of Linux). So the number
        only counts if it is larger than that of this process.
        """
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
        if largest > own:
            self._resident = max(self._resident, largest)

    def _watch(self):
        interval = _FIRST_INTERVAL
        while True:
            pids = tree(self._pid)
            self._resident = max(self._resident, resident(pids))
            used = self._gpu_memory(pids)
            if used is not None:
                self._gpu = max(self._gpu or 0, used)
            if self._end.wait(interval):
                return
            interval = min(2 * interval, _INTERVAL)


def _words(path):
    return ' '.join(_lines(path)).split()


def _lines(path):
    try:
        with open(path, encoding='utf-8') as stream:
            return stream.read().splitlines()
    except OSError:
        return []
