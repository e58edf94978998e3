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
"""What this scheduler has just chosen, and Placement may not show yet. Pure.

Requests that come at the same time see the same state. By that alone all of
them choose the GPU that is best, also for its last slice, and GPUs that must
not be shared look empty to two projects.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable
from collections.abc import Iterable
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
    attempt: weakref.ref[Any] | None = None
    """Nova keeps it until the request has ended. None: nobody tells."""
    is_claimed: bool = False
    """Whether Nova has said so."""
    made: float = 0.0
    shown: int | None = None
    """Number of the first fleet that has it."""

    @property
    def has_failed(self) -> bool:
        """Whether the request has ended without this claim."""
        return (not self.is_claimed and self.attempt is not None
                and self.attempt() is None)


class Promises:
    """Counts what was chosen until what was read has it.

    That is so when the provider has as many more units in use. It does not
    matter whose they are: those of others leave no less for the next one.
    Not for threads without a lock.

    :param keep: seconds after which a promise ends in any case.
    """

    def __init__(self, keep: float,
                 clock: Callable[[], float] = time.monotonic):
        self._keep = keep
        self._clock = clock
        self._made: dict[str, list[Promise]] = {}
        """By provider, the oldest first."""
        self._used: dict[str, int] = {}
        """Units of these providers in use, as read last."""
        self._number = 0
        """Of the fleet that was read last."""

    def replace(self, server: str, promises: Iterable[Promise],
                fleet: weigher_cost.Fleet) -> None:
        """Somebody is about to claim this, and nothing else.

        :param server: whose earlier promises end.
        :param fleet: what was read last.
        """
        self._keep_only(lambda promise: promise.server != server)
        for promise in promises:
            offer = fleet.offer(promise.provider)
            if offer is not None:
                promise.made = self._clock()
                self._used.setdefault(promise.provider, offer.used)
                self._made.setdefault(promise.provider, []).append(promise)

    def of(self, server: str) -> list[Promise]:
        """What a server was promised."""
        return [promise for promise in self._all()
                if promise.server == server]

    @property
    def hosts(self) -> frozenset[str]:
        """Compute nodes that are about to change."""
        return frozenset(promise.host for promise in self._all()
                         if promise.shown is None)

    def settle(self, fleet: weigher_cost.Fleet) -> None:
        """Take note of what was read last, and forget what has ended."""
        if fleet.number > self._number:
            self._number = fleet.number
            for provider, made in self._made.items():
                offer = fleet.offer(provider)
                if offer is not None:
                    self._show(made, offer.used - self._used[provider])
                    self._used[provider] = offer.used
        late = self._clock() - self._keep
        self._keep_only(lambda promise: promise.made > late
                        and not promise.has_failed)

    def missing(self, fleet: weigher_cost.Fleet) -> list[Promise]:
        """What a fleet, perhaps an earlier one, does not have yet."""
        return [promise for promise in self._all()
                if promise.shown is None or promise.shown > fleet.number]

    def _show(self, made, units):
        for promise in made:
            if promise.shown is None:
                units -= promise.amount
                if units < 0:
                    break
                promise.shown = self._number

    def _keep_only(self, is_kept):
        for provider, made in list(self._made.items()):
            made[:] = filter(is_kept, made)
            if not made:
                del self._made[provider], self._used[provider]

    def _all(self):
        return [promise for made in self._made.values() for promise in made]
