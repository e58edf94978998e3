# SPDX-License-Identifier: Apache-2.0

"""Clocks around other software."""

from __future__ import annotations

import threading
import time

_WAITING = 'nvmlEventSetWait'
SYSTEM_CALLS = ('open', 'read', 'write', 'close', 'listdir', 'readlink',
                 'stat')


class Stopwatch:
    """The total time in some functions. A nested call counts once.

    Waits for events do not count, because one thread always waits for them.
    """

    def __init__(self):
        self.seconds = 0.0
        self._thread = threading.local()
        self._wrapped = []

    @property
    def cpu(self):
        """Seconds of CPU time that the functions took in this thread."""
        return getattr(self._thread, 'cpu', 0.0)

    def reset(self):
        """Reset the time of all threads and the CPU time of this thread."""
        self.seconds = self._thread.cpu = 0.0

    def wrap(self, owner, *names):
        """Replace functions of an object with timed ones."""
        for name in names:
            function = getattr(owner, name)
            self._wrapped.append((owner, name, function))
            setattr(owner, name, self._timed(function))

    def unwrap(self):
        """Restore the functions."""
        while self._wrapped:
            setattr(*self._wrapped.pop())

    def _timed(self, function):
        def timed(*arguments, **keywords):
            start, cpu = time.perf_counter(), time.thread_time()
            outermost = not getattr(self._thread, 'inside', False)
            self._thread.inside = True
            try:
                return function(*arguments, **keywords)
            finally:
                if outermost:
                    self._thread.inside = False
                    if not (arguments and str(arguments[0]).startswith(
                            _WAITING)):
                        self.seconds += time.perf_counter() - start
                        self._thread.cpu = (self.cpu + time.thread_time()
                                            - cpu)
        return timed
