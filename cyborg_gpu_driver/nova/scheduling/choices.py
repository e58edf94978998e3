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
"""Serialized choices: each one takes the previous ones into account."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost

_CLAIM = 15.0
"""Seconds after which a claim has succeeded or failed: Nova tries a claim
four times, and sleeps for up to twelve seconds in between (``retries`` in
nova/scheduler/client/report.py)."""
_WAIT = 5.0
"""Seconds for which a request waits for the choices of other requests. A
choice takes a tenth of a second of CPU time with 1,000 hosts, and calls no
service."""


class Choices:
    """Remembers each choice until Placement shows it.

    Thread-safe. No service is called while the lock is held.

    :param latest: returns the fleet that was read last from Placement.
    :param keep: seconds for which an answer of Placement is valid.
    """

    def __init__(self, latest: Callable[[], weigher_cost.Fleet],
                 keep: float):
        self._latest = latest
        self._lock = threading.Lock()
        self._promises = promises.Promises(_CLAIM + keep)

    @property
    def hosts(self) -> frozenset[str]:
        """Compute nodes that were just chosen for a server."""
        with self._locked() as is_locked:
            return self._promises.hosts if is_locked else frozenset()

    @contextlib.contextmanager
    def alone(self, request: Any) -> Iterator[Any]:
        """Open a context in which no other request chooses.

        It yields the request with what others have chosen. If the lock cannot
        be had in time, it yields the unchanged request.
        """
        with self._locked() as is_locked:
            yield self._after_others(request) if is_locked else request

    def add(self, request: Any, host: Any) -> None:
        """Record that Nova is about to claim the first candidate of a host.

        :param request: from :meth:`alone`, whose context is still open.
        """
        if request.promised is None or not host.allocation_candidates:
            return
        if any(promise.is_claimed
               for promise in self._promises.of(request.server)):
            # Nova looks for alternates.
            return
        self._promises.replace(request.server, host, [
            promises.Promise(
                request.server, request.project, request.wish.application,
                host.uuid, offer.provider, amount)
            for offer, amount in request.fleet.taken(
                host.allocation_candidates[0]['allocations'])],
            self._latest())

    @contextlib.contextmanager
    def _locked(self):
        is_locked = self._lock.acquire(timeout=_WAIT)
        try:
            yield is_locked
        finally:
            if is_locked:
                self._lock.release()

    def _after_others(self, request):
        self._promises.settle(self._latest())
        amounts: collections.Counter[str] = collections.Counter()
        promised: dict[str, tuple[promises.Promise, ...]] = {}
        for promise in self._promises.missing(request.fleet):
            if promise.server == request.server:
                continue
            amounts[promise.provider] += promise.amount
            for gpu in request.fleet.gpus([promise.provider]):
                for offer in gpu:
                    promised[offer.provider] = (
                        *promised.get(offer.provider, ()), promise)
        return dataclasses.replace(
            request, promised=promised,
            fleet=request.fleet.after(amounts) if amounts
            else request.fleet)
