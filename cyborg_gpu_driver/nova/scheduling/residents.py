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
"""The projects of the servers on the GPUs, read from Placement."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import published

VERSION = '1.12'
"""The first version in which an allocation has a project."""
_NOT_FOUND = 404
_KEEP = 30.0
"""Seconds for which the servers of a provider are assumed to be the same
while the number of units in use is the same."""
_RETRY = 10.0
"""Seconds for which Placement is not asked again after a failure."""


@dataclasses.dataclass(frozen=True)
class Resident:
    """A server on a GPU."""

    server: str
    """UUID: the consumer in Placement."""
    project: str
    amount: int
    """Units that it has of one provider."""


class Residents:
    """Reads what is not known yet, and keeps what cannot change.

    Reading takes one request for each provider whose number of units in use
    has changed, and one for each server that was not seen before.

    :param get: asks Placement: ``get(url, version=...)``.
    """

    def __init__(self, get: Callable[..., Any]):
        self._get = get
        self._known: dict[str, tuple[float, int, tuple[Resident, ...]]] = {}
        """By provider: when read, units in use, and who has them."""
        self._failure: tuple[float, Exception] | None = None
        """When Placement failed last, and how."""

    def of(self, gpu: Iterable[published.Offer]) -> tuple[Resident, ...]:
        """Return the servers on a GPU; a server once for each provider.

        :raises PlacementRefused: Placement refuses the request.
        :raises Exception: what ``get`` raises.
        """
        return tuple(resident for offer in gpu if offer.used
                     for resident in self._of(offer))

    def _of(self, offer):
        read, used, residents = self._known.get(
            offer.provider, (0.0, -1, ()))
        if used != offer.used or time.monotonic() - read >= _KEEP:
            residents = self._try(offer.provider, residents)
            used = sum(resident.amount for resident in residents)
            self._known[offer.provider] = (
                time.monotonic(), used, residents)
        return residents

    def _try(self, provider, before):
        """Read a provider, unless a read failed a moment ago.

        One request may concern hundreds of GPUs.
        """
        if self._failure is not None:
            failed, error = self._failure
            if time.monotonic() - failed < _RETRY:
                raise error
        try:
            residents = self._read(provider, before)
        except Exception as error:
            self._failure = time.monotonic(), error
            raise
        self._failure = None
        return residents

    def _read(self, provider, before):
        projects = {item.server: item.project for item in before}
        answer = self._ask(f'/resource_providers/{provider}/allocations')
        if answer is None:
            return ()
        return tuple(
            Resident(server, projects.get(server)
                     or self._project(server),
                     sum(allocation['resources'].values()))
            for server, allocation in answer['allocations'].items())

    def _project(self, server):
        """Return a server's project; empty if its allocation is deleted."""
        if not uuidutils.is_uuid_like(server):
            return ''
        return (self._ask(f'/allocations/{server}') or {}).get(
            'project_id', '')

    def _ask(self, url):
        """Return what Placement answers; None if it has no such provider."""
        response = self._get(url, version=VERSION)
        if response.status_code == _NOT_FOUND:
            return None
        if response.status_code != 200:
            raise exception.PlacementRefused(
                what=f'GET {url}', code=response.status_code,
                text=response.text)
        return response.json()
