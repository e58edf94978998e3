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

"""Who is on the GPUs, read from Placement and from Nova's database."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.nova.weighing import published

# The projects of the servers on the GPUs, read from Placement.

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


LOG = logging.getLogger(__name__)

_SERVERS = 100_000
"""The maximum number of servers whose application is remembered."""


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """A server on a GPU."""

    server: str
    """UUID."""
    project: str
    amount: int
    """Units that it has of one provider."""
    application: str = ''
    """What it runs; empty if its flavor does not say, or was not read."""


Known = Mapping[str, tuple[Neighbour, ...]]
"""By provider, the servers on it. Providers that are not known are absent."""


class Neighbours:
    """Reads who is on GPUs.

    :param get: asks Placement: ``get(url, version=...)``.
    """

    def __init__(self, get: Callable[..., Any]):
        self._residents = Residents(get)
        self._said = log_once.LogOnce()
        self._applications: dict[str, str] = {}

    def read(self, host: Any, gpu: Iterable[published.Offer],
             with_applications: bool) -> dict[str, tuple[Neighbour, ...]]:
        """Return who is on a GPU; empty if that cannot be read now."""
        found = {}
        for offer in gpu:
            try:
                there = self._residents.of([offer])
            except Exception as error:
                # A weigher must not fail a request, whatever the error is.
                if self._said.is_new(str(error)):
                    LOG.warning('Placement does not return the projects '
                                'of servers with GPUs: %s', error)
                return {}
            self._said.over()
            found[offer.provider] = tuple(Neighbour(
                item.server, item.project, item.amount,
                self._application(host, item.server)
                if with_applications else '') for item in there)
        return found

    def _application(self, host, server):
        """Return what a server runs; empty if its flavor does not say."""
        if server not in self._applications and server in host.instances:
            try:
                specs = host.instances[server].flavor.extra_specs
            except Exception as error:
                # From the database of a cell, which may be down.
                LOG.warning('The flavor of server %s cannot be read: %s',
                            server, error)
                return ''
            if len(self._applications) >= _SERVERS:
                self._applications.clear()
            self._applications[server] = specs.get(
                placement.APPLICATION, '')
        return self._applications.get(server, '')


def there(gpus: Iterable[tuple[published.Offer, ...]], known: Known,
          promised: Mapping[str, tuple[promises.Promise, ...]], server: str
          ) -> list[Neighbour] | None:
    """Return the neighbours of a server on GPUs. Pure.

    :param promised: by provider, the promises for its GPU.
    :returns: None if the neighbours are not known.
    """
    found = []
    for gpu in gpus:
        on_providers = [known.get(offer.provider) for offer in gpu]
        if None in on_providers:
            return None
        shown = list(itertools.chain.from_iterable(filter(
            None, on_providers)))
        servers = {server, *(neighbour.server for neighbour in shown)}
        found += [neighbour for neighbour in shown
                  if neighbour.server != server]
        # Each provider of a GPU has all of its promises.
        found += [Neighbour(
            promise.server, promise.project, promise.amount,
            promise.application) for promise
            in promised.get(gpu[0].provider, ())
            if promise.server not in servers]
    return found
