# SPDX-License-Identifier: Apache-2.0

"""Which binds go on: those with an allocation, for which Cyborg still waits.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import cordons as gpu_cordons
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.planning import plan

LOG = logging.getLogger(__name__)

_SECONDS = 5.0
"""How long a bind waits for Placement's answer."""


class Turn:
    """One bind."""

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
        """Check that Cyborg still waits for the bind."""
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


class Admission:
    """Refuses the binds of servers that must not be on a GPU.

    Cyborg does not tell the driver which server a handle is for. So each
    bound handle counts for one unit that a server has in Placement. A bind
    is refused if no unit is left: it has no allocation. Handles that were
    bound before this process started, or whose servers are gone, count for
    none.
    """

    def __init__(self, host: live.LiveHost, cloud: services.Services,
                 cordons: gpu_cordons.GpuCordons,
                 gpu_health: health.GpuHealth):
        self._host = host
        self._cloud = cloud
        self._cordons = cordons
        self._health = gpu_health
        self._mutex = threading.Lock()
        self._units: dict[str, str] = {}
        """By handle: the server and provider that its bind counts for."""
        self._stuck: futures.Future | None = None
        """A request that Placement has not answered in time."""
        self._said = log_once.LogOnce()

    def check_servers(self, address: model.PciAddress, asked: plan.Request
                      ) -> None:
        """Refuse the bind of a server that must not have its handle.

        The server needs an allocation, and no other project may have a part
        of a GPU that forbids it. This needs no lock, because allocations
        precede binds.
        """
        reason = self._cloud.mixed(address, asked.handle)
        if reason:
            raise plan.refusal(
                asked, f'GPU {address} has isolation = project, and {reason}')
        self._check_allocation(address, asked)

    def check_closed(self, address: model.PciAddress, asked: plan.Request
                     ) -> None:
        """Refuse a bind that Placement promised before its place was closed.
        """
        cordons = self._cordons.of(address)
        if cordons:
            raise plan.refusal(asked, f'GPU {address} is cordoned: '
                               + cordon.text(cordons))
        if asked.function in self._health.dead_functions(address):
            raise plan.refusal(
                asked, 'two servers in a row did not come up on its virtual '
                'function, which gets no new server until the functions of '
                f'GPU {address} were disabled and enabled')

    def over(self, handle: str) -> None:
        """Forget a handle that is not bound any more."""
        with self._mutex:
            self._units.pop(handle, None)

    def _check_allocation(self, address: model.PciAddress,
                          asked: plan.Request) -> None:
        """Refuse a bind without an allocation; if unknown, let it go on.

        Nova and Cyborg bind only what a server has claimed.
        """
        allocated = self._allocated(address, asked)
        if allocated is None:
            return
        with self._mutex:
            counted = collections.Counter(
                unit for handle, unit in self._units.items()
                if handle != asked.handle)
            free = [unit for unit, number in sorted(allocated.items())
                    if number > counted[unit]]
            if free:
                self._units[asked.handle] = free[0]
                return
        raise plan.refusal(
            asked, f'Placement has no allocation for it on GPU {address}')

    def _allocated(self, address: model.PciAddress, asked: plan.Request
                   ) -> Mapping[str, int] | None:
        """What servers have of the offer of a bind; None if unknown."""
        gpu = self._host.gpu(address)
        try:
            item = plan.find_offer(gpu, self._host.offers(gpu), asked)
        except exception.BindRefused:
            # The bind will be refused for this.
            return None
        problem: Exception = TimeoutError(
            f'it has not answered within {_SECONDS:g} s')
        if self._stuck is None or self._stuck.done():
            answer = begin(f'the allocation of handle {asked.handle}',
                           self._cloud.allocated, item)
            try:
                found = answer.result(_SECONDS)
                self._said.over()
                return found
            except futures.TimeoutError:
                self._stuck = answer
            except Exception as error:
                problem = error
        if self._said.is_new(type(problem).__name__):
            LOG.warning('Binds go on although it is not known whether their '
                        'servers have allocations, because of Placement: %s',
                        exception.steady(problem))
        return None


def begin(name: str, function: Callable[..., Any], *arguments: Any
          ) -> futures.Future:
    """Call a function in a thread of its own; its future is returned."""
    future: futures.Future = futures.Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    deadline.begin_thread(run, name=name)
    return future
