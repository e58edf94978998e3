# SPDX-License-Identifier: Apache-2.0
"""What this scheduler has just chosen, and Placement may not show yet. Pure.

Requests that arrive at the same time see the same state. Without promises,
all of them would choose the best GPU, even for its last slice, and a GPU that
must not be shared would look empty to two projects.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.nova.weighing import cost as weigher_cost


@dataclasses.dataclass(eq=False)
class Promise:
    """Units of one provider for one server."""

    server: str
    """UUID."""
    project: str
    application: str
    """What the server runs; empty if its flavor does not say."""
    host: str
    """UUID of the compute node."""
    provider: str
    amount: int
    state: weakref.ref[Any] | None = None
    """Nova's state of the host, which each request has for itself."""
    instances: int = 0
    """The number of servers in that state when the promise was made."""
    ended: float | None = None
    """When the request ended, by the clock: Nova has claimed the units, or
    others, or none."""
    made: float = 0.0
    shown: int | None = None
    """Number of the first fleet that includes the promised units, if Nova has
    claimed them."""

    @property
    def is_claimed(self) -> bool:
        """Whether Nova has claimed the host, and the request goes on.

        Nova then counts the server in its state of the host
        (_consume_selected_host in nova/scheduler/manager.py).
        """
        state = None if self.state is None else self.state()
        return state is not None and state.num_instances > self.instances


class Promises:
    """Counts what was chosen until the fleet that was read includes it.

    The fleet includes a promise if the host was read after the end of the
    request. Before that, the fleet also counts as including it if the provider
    has as many more units in use. The owner of these units does not matter:
    units of others leave no less for the next request. Not thread-safe without
    a lock.

    :param keep: seconds after which a promise ends in any case.
    :param clock: the clock that times the reading of hosts.
    """

    def __init__(self, keep: float,
                 clock: Callable[[], float] = time.monotonic):
        self._keep = keep
        self._clock = clock
        self._made: dict[str, list[Promise]] = {}
        """By provider, the oldest first."""
        self._used: dict[str, int] = {}
        """By provider, the units in use, as read last."""
        self._number = 0
        """Number of the fleet that was read last."""

    def replace(self, server: str, state: Any, promises: Iterable[Promise],
                fleet: weigher_cost.Fleet) -> None:
        """Replace all promises of a server: Nova is about to claim these."""
        self._keep_only(lambda promise: promise.server != server)
        for promise in promises:
            offer = fleet.offer(promise.provider)
            if offer is not None:
                promise.made = self._clock()
                promise.state = weakref.ref(
                    state, functools.partial(self._end, promise))
                promise.instances = state.num_instances
                self._used.setdefault(promise.provider, offer.used)
                self._made.setdefault(promise.provider, []).append(promise)

    def _end(self, promise: Promise, _reference: object) -> None:
        promise.ended = self._clock()

    def of(self, server: str) -> list[Promise]:
        """Return the promises of a server."""
        return [promise for promise in self._all()
                if promise.server == server]

    @property
    def hosts(self) -> frozenset[str]:
        """Compute nodes that are about to change."""
        return frozenset(promise.host for promise in self._all()
                         if promise.shown is None)

    def settle(self, fleet: weigher_cost.Fleet) -> None:
        """Compare with the fleet read last, and drop ended promises."""
        if fleet.number > self._number:
            self._number = fleet.number
            for provider, made in self._made.items():
                offer = fleet.offer(provider)
                if offer is not None:
                    self._show(made, offer.used - self._used[provider],
                               fleet.began)
                    self._used[provider] = offer.used
        late = self._clock() - self._keep
        self._keep_only(lambda promise: promise.made > late)

    def missing(self, fleet: weigher_cost.Fleet) -> list[Promise]:
        """Return the promises that a fleet does not include yet.

        The fleet may be an earlier one.
        """
        return [promise for promise in self._all()
                if promise.shown is None or promise.shown > fleet.number]

    def _show(self, made: list[Promise], units: int,
              began: Mapping[str, float]) -> None:
        waiting = [promise for promise in made if promise.shown is None]
        # Ended requests come first: their units are not those of others.
        for promise in sorted(waiting, key=lambda item: not _has(item, began)):
            units -= promise.amount
            if units < 0 and not _has(promise, began):
                break
            promise.shown = self._number

    def _keep_only(self, is_kept: Callable[[Promise], bool]) -> None:
        for provider, made in list(self._made.items()):
            made[:] = filter(is_kept, made)
            if not made:
                del self._made[provider], self._used[provider]

    def _all(self) -> list[Promise]:
        return [promise for made in self._made.values() for promise in made]


def _has(promise: Promise, began: Mapping[str, float]) -> bool:
    """Whether the host of a promise was read after the request's end."""
    return (promise.ended is not None
            and began.get(promise.host, -math.inf) > promise.ended)
