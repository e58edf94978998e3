# SPDX-License-Identifier: Apache-2.0

"""Keep ``reserved`` in Placement equal to what cannot be created now.

The profiles of one GPU exclude each other, and Placement cannot know that.
So a unit of another profile that does not fit beside what is bound is
reserved, so that the scheduler does not promise it.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_concurrency import lockutils
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.report import publishing

LOG = logging.getLogger(__name__)

_WRITES = 8
"""Attempts at one write. An attempt fails only if another write succeeds."""
_FAILING_SECONDS = 5.0
"""Once one provider of a GPU has failed, no more are tried after this."""


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The inventory that one provider should have."""

    provider: str
    """UUID."""
    resource_class: str
    total: int
    reserved: int

    @property
    def offered(self) -> int:
        """The units that are not reserved."""
        return self.total - self.reserved


class ReservedWriter:
    """Writes ``reserved``, with as few requests as possible.

    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, tree: publishing.ProviderTree,
                 clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._tree = tree
        self._written: dict[str, Mapping[str, Any]] = {}
        """The inventory of each provider, as last seen."""
        self._closed: set[str] = set()
        """Providers that another client may have closed. The next report
        opens them, unless it finds that they have to be closed."""
        self._own: collections.Counter[str] = collections.Counter()
        """How often this object has written each provider."""
        self._turns = lockutils.Semaphores()
        """One for each provider, so that no read counts half a write."""

    def write(self, wanted: Iterable[Inventory]) -> None:
        """Write what differs from what was last seen; for a bind.

        A provider that another client has closed remains closed: only a
        report knows whether an operator has disabled the device. If one
        provider cannot be written, the others are still written.

        :raises PlacementRefused: if Placement refused a write.
        """
        self._each((item for item in wanted
                    if self._seen(item.provider)[0]
                    != item.offered),
                   lambda item: self._put(item, False))

    def enforce(self, wanted: Iterable[Inventory],
                generations: Mapping[str, int]) -> None:
        """Write what differs from what Placement has; for each report.

        Only providers that have changed since they were last seen are
        read. A write of another client to ``reserved`` is corrected. If it
        closed the provider, only the second report that finds it opens the
        provider: Cyborg closes it when an operator disables the device, and
        the first report may have asked Cyborg just before. If one provider
        cannot be written, the others are still written.

        :param generations: what the tree's ``generations`` returned just now.
        :raises PlacementRefused: if Placement refused a write.
        """
        def put(inventory: Inventory) -> None:
            generation = generations.get(inventory.provider)
            if generation is None:
                # Cyborg creates the provider after its first report.
                self._written.pop(inventory.provider, None)
            elif self._seen(inventory.provider) != (
                    inventory.offered, generation):
                self._put(inventory, True)

        self._each(wanted, put)

    def generations(self, providers: Sequence[str]) -> dict[str, int]:
        """Generation of each provider of the host, in one request."""
        return self._tree.generations(providers)

    def seen(self, provider: str) -> cleaning.Seen | None:
        """The consumers of a provider; None if the provider is missing.

        :raises Exception: what the client raises.
        """
        with self._turns.get(provider):
            ours = self._own[provider]
            found = self._tree.get(
                f'/resource_providers/{provider}/allocations')
        return None if found is None else cleaning.Seen(
            tuple(sorted(found['allocations'])),
            found['resource_provider_generation'], ours)

    def close(self, provider: str, resource_class: str,
              seen: cleaning.Seen) -> cleaning.Seen | None:
        """Reserve all of an inventory that has not changed since a look.

        From then on the provider gets no new allocations.

        :param seen: what :meth:`seen` returned; without tenants.
        :returns: ``seen`` with the new generation; None if another client
            has or may have changed the provider.
        """
        url = f'/resource_providers/{provider}/inventories/{resource_class}'
        body = self._tree.get(url)
        if (body is None or body['resource_provider_generation']
                != seen.generation):
            return None
        if body['reserved'] == body['total']:
            return seen
        response = self._store(provider, url, body, body['total'])
        if response.status_code != 200:
            return None
        return cleaning.Seen(
            seen.tenants,
            self._written[provider]['resource_provider_generation'],
            seen.ours + 1)

    def _each(self, inventories: Iterable[Inventory],
              put: Callable[[Inventory], object]) -> None:
        """Write all inventories, then raise the first error.

        If Placement does not answer, each write costs its timeout. So the
        loop ends early after a failure.
        """
        end = self._clock() + _FAILING_SECONDS
        failure = None
        for inventory in inventories:
            try:
                put(inventory)
            except Exception as error:
                failure = failure or error
                if self._clock() >= end:
                    break
        if failure is not None:
            raise failure

    def _put(self, inventory: Inventory, reporting: bool) -> None:
        """Read one inventory, and write it if it differs.

        A missing provider or inventory is not created.

        :param reporting: False for a bind.
        :raises PlacementRefused: if the inventory cannot be written.
        """
        url = (f'/resource_providers/{inventory.provider}/inventories/'
               f'{inventory.resource_class}')
        # Placement refuses a write if the provider has changed since then.
        known = None if reporting else self._written.get(inventory.provider)
        for _ in range(_WRITES):
            body, known = known or self._tree.get(url), None
            if body is None:
                self._written.pop(inventory.provider, None)
                return
            # Until Cyborg has processed a report with another total,
            # Placement has the former one.
            reserved = max(0, body['total'] - inventory.offered)
            if body['reserved'] == reserved:
                self._written[inventory.provider] = body
                self._closed.discard(inventory.provider)
                return
            if self._leaves_closed(inventory, body, reporting):
                return
            response = self._store(inventory.provider, url, body, reserved)
            if response.status_code == 200:
                LOG.debug('Provider %(provider)s: %(reserved)d of '
                          '%(total)d %(class)s reserved',
                          {'provider': inventory.provider,
                           'reserved': reserved, 'total': body['total'],
                           'class': inventory.resource_class})
                return
            if response.status_code not in (404, 409):
                break
        # Placement refused it, or another client was faster each time.
        self._written.pop(inventory.provider, None)
        raise exception.PlacementRefused(
            what=f'a write of reserved {reserved} of {body["total"]} '
            f'{inventory.resource_class} on provider '
            f'{inventory.provider}',
            code=response.status_code, text=response.text)

    def _seen(self, provider: str) -> tuple[int | None, int | None]:
        """What a provider offers and its generation, as last seen."""
        body = self._written.get(provider)
        return (None, None) if body is None else (
            body['total'] - body['reserved'],
            body['resource_provider_generation'])

    def _leaves_closed(self, inventory: Inventory, body: Mapping[str, Any],
                       reporting: bool) -> bool:
        """Whether to keep a provider closed that another client has closed.

        If the writer had closed it too, only its generation tells that.
        """
        provider = inventory.provider
        if body['reserved'] != body['total']:
            self._closed.discard(provider)
            return False
        if provider in self._closed:
            if reporting:
                self._closed.discard(provider)
            return not reporting
        seen = self._seen(provider)
        if (seen == (0, body['resource_provider_generation'])
                or provider not in self._written and reporting):
            # The writer closed it itself, or it was closed before the agent
            # first asked Cyborg.
            return False
        self._closed.add(provider)
        self._written.pop(provider, None)
        return True

    def _store(self, provider: str, url: str, body: Mapping[str, Any],
               reserved: int) -> Any:
        """Write an inventory that was just read; return the response."""
        with self._turns.get(provider):
            response = self._tree.client.put(
                url, dict(body, reserved=reserved),
                version=publishing.VERSION)
            self._own[provider] += response.status_code == 200
        if response.status_code == 200:
            self._written[provider] = publishing.content(
                response, f'PUT {url}')
        return response
