# SPDX-License-Identifier: Apache-2.0

"""The binds that have arrived and not ended.

Cyborg waits ``[DEFAULT] rpc_response_timeout`` for a bind. Then it fails the
request, deletes it and may give the handle to another server. It does not
tell the agent. So a bind ends by itself before that, and an unbind ends the
binds of its handle that arrived before it.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.planning import plan


class Turn:
    """One bind.

    :param seconds: how long the bind may take from now on.
    """

    def __init__(self, asked: plan.Request, seconds: float,
                 clock: Callable[[], float]):
        self.asked = asked
        self.cancelled = False
        """Whether Cyborg has given the handle back since."""
        self._seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds until the bind has to be done."""
        return max(0.0, self._end - self._clock())

    def check(self) -> None:
        """Check that Cyborg still waits for the bind.

        :raises BindAbandoned: if the handle was given back, or the time is
            over.
        """
        if self.cancelled:
            raise self._abandoned('Cyborg released the handle while the '
                                  'bind waited')
        if not self.left:
            raise self._abandoned(
                f'it is not finished after {self._seconds:g} s ([gpu] '
                'bind_timeout), and Cyborg may no longer wait for it')

    def _abandoned(self, reason: str) -> exception.BindAbandoned:
        return exception.BindAbandoned(
            handle=self.asked.handle, asked_type=self.asked.mdev_type,
            address=self.asked.function, reason=reason)


class Turns:
    """The binds of this process that have not ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._mutex = threading.Lock()
        self._turns: set[Turn] = set()
        self._partitioning: collections.Counter[model.PciAddress] = (
            collections.Counter())

    @contextlib.contextmanager
    def partitioning(self, address: model.PciAddress) -> Iterator[None]:
        """Mark a GPU as one that may get another role in this context."""
        with self._mutex:
            self._partitioning[address] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._partitioning[address] -= 1

    def is_partitioning(self, address: model.PciAddress) -> bool:
        """Whether a GPU may be getting another role now."""
        with self._mutex:
            return self._partitioning[address] > 0

    @property
    def handles(self) -> frozenset[str]:
        """The handles of the binds that have arrived and not ended."""
        with self._mutex:
            return frozenset(turn.asked.handle for turn in self._turns)

    @contextlib.contextmanager
    def turn(self, asked: plan.Request, seconds: float
             ) -> Iterator[Turn]:
        """Create the turn of a bind that has just arrived."""
        turn = Turn(asked, seconds, self._clock)
        with self._mutex:
            self._turns.add(turn)
        try:
            yield turn
        finally:
            with self._mutex:
                self._turns.discard(turn)

    def cancel(self, handle: str) -> None:
        """Cancel all binds of a handle that have arrived so far."""
        with self._mutex:
            for turn in self._turns:
                if turn.asked.handle == handle:
                    turn.cancelled = True
