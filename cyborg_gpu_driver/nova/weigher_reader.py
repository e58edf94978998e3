# SPDX-License-Identifier: Apache-2.0

"""Reads the GPUs of hosts from Placement in a thread, and caches them."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import names

LOG = logging.getLogger(__name__)

VERSION = '1.36'
"""The version that Nova uses for allocation candidates; 1.31 added
``in_tree``, 1.29 the whole trees, and 1.12 the project of an allocation."""
SHARE = 25
"""How many requests to Placement the filter, and then the weigher, may cause
for one server."""
LIMIT = 1.0
"""Seconds for which a server waits for what is read for it, in all."""
_SERVERS = 100_000
"""The maximum number of servers whose project is remembered."""
_NOT_FOUND = 404
_RETRY = 10.0
"""Seconds for which Placement is not asked again after a failure."""
_RARELY = 60
"""A host that does not change is read again after at most so many times the
time for which an answer is valid."""
_FORGOTTEN = 600.0
"""Seconds after which a host that no request has named is forgotten."""


@dataclasses.dataclass(frozen=True)
class Server:
    """A server on a GPU."""

    server: str
    """UUID: the consumer in Placement."""
    project: str
    """Empty if its allocation was deleted meanwhile."""
    amount: int
    """Units that it has of one provider."""
    application: str = ''
    """What it runs; empty if that is not known."""


@dataclasses.dataclass(slots=True)
class _Host:
    """What is known about a host.

    :ivar mark: what Nova knew about the host when it was read.
    :ivar due: when to read the host again, by the clock.
    :ivar pause: seconds from the last read until ``due``.
    :ivar began: when the last read began, by the clock.
    :ivar seen: when a request named the host last.
    :ivar names: names of its providers by UUID.
    :ivar servers: who is on its GPUs, by provider.
    :ivar is_watched: whether the servers of all its GPUs are read.
    """

    seen: float
    mark: Hashable = None
    due: float = 0.0
    pause: float = 0.0
    began: float = 0.0
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: tuple[published.Gpu, ...] = ()
    part: weigher_cost.Fleet = dataclasses.field(
        default_factory=lambda: weigher_cost.Fleet(()))
    servers: dict[str, tuple[Server, ...]] = dataclasses.field(
        default_factory=dict)
    is_watched: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class _Wish:
    """A host to read.

    :ivar end: how long requests wait for it, by the clock.
    :ivar servers: what was read before :data:`SHARE` was used up.
    """

    mark: Hashable
    resource_class: str
    is_watched: bool
    end: float
    servers: dict[str, tuple[Server, ...]] = dataclasses.field(
        default_factory=dict)


class _Spent(Exception):
    """The requests to Placement that a server may cause are made."""


class Reader:
    """Reads only the hosts of a request that may have changed.

    Reading a host takes one HTTP request. The names, which tell the GPU of a
    provider, take a second one if a provider is not known yet. If a GPU must
    not be shared with other projects, or if the request concerns who is on
    it, each of its providers in use takes one more, and each new server
    another one.

    A host is read again when Nova knows that it has changed, and otherwise
    after a pause, which doubles as long as the host stays the same. A thread
    reads, and a request waits for the new and the changed hosts only. What is
    not read after :data:`LIMIT` seconds or :data:`SHARE` requests is as it
    was read before, or unknown, and is read for a later request.

    Thread-safe.

    :param get: asks Placement: ``get(url, version=...)``.
    :param keep: seconds for which an answer is valid.
    :param most: how many hosts to keep; a request may name more. Those that
        no request has named for the longest time are forgotten.
    """

    def __init__(self, get: Callable[..., Any], keep: float, most: int,
                 clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._get = get
        self._keep = keep
        self._most = most
        self._changed = threading.Condition()
        self._hosts: collections.OrderedDict[str, _Host] = (
            collections.OrderedDict())
        self._wishes: dict[str, _Wish] = {}
        self._projects: dict[str, str] = {}
        """By server."""
        self._left = 0
        """Requests that the thread may still make."""
        self._is_reading = False
        self._fleet = weigher_cost.Fleet(())
        self._is_old = False
        """Whether something was read since the fleet was made."""
        self._failed = False
        self._retry = 0.0

    @property
    def hosts(self) -> int:
        """The number of hosts that are kept."""
        return len(self._hosts)

    @property
    def is_reading(self) -> bool:
        """Whether the thread reads now."""
        return self._is_reading

    @property
    def latest(self) -> weigher_cost.Fleet:
        """The fleet that a request got last."""
        return self._fleet

    def servers(self, host: str, offer: published.Offer
                ) -> tuple[Server, ...] | None:
        """Return who has the units of an offer that are in use.

        :returns: None if that is not known.
        """
        known = self._hosts.get(host)
        found = known.servers.get(offer.provider, ()) if known else ()
        return found if offer.used == sum(
            item.amount for item in found) else None

    def fleet(self, resource_class: str, hosts: Mapping[str, Hashable],
              changing: Collection[str] = (), watched: Collection[str] = ()
              ) -> weigher_cost.Fleet | None:
        """Return the free capacity of the GPUs of these and other hosts.

        :param resource_class: one that the request asks for.
        :param hosts: by the UUID of each compute node that can take the
            server, a value that differs when the host has changed.
        :param changing: compute nodes that were just chosen for a server.
            They are read again as soon as their answer is no longer valid.
        :param watched: compute nodes of which the request concerns who is on
            the GPUs.
        :returns: None if Placement cannot be read; that is logged once.
        """
        with self._changed:
            now = self._clock()
            if now >= self._retry:
                urgent = self._add(resource_class, hosts, changing, watched,
                                   now)
                self._begin()
                self._changed.wait_for(
                    lambda: not self._is_reading
                    or urgent.isdisjoint(self._wishes),
                    max((self._wishes[uuid].end - now for uuid in urgent),
                        default=0.0))
            self._forget(now, max(self._most, len(hosts)))
            if self._is_old:
                self._fleet = weigher_cost.Fleet.of(
                    (host.part for host in self._hosts.values()),
                    self._fleet.number + 1,
                    {uuid: host.began
                     for uuid, host in self._hosts.items()})
                self._is_old = False
            return None if self._failed else self._fleet

    def _add(self, resource_class: str, hosts: Mapping[str, Hashable],
             changing: Collection[str], watched: Collection[str], now: float
             ) -> set[str]:
        """Note what to read; return the hosts that the request waits for."""
        changed: dict[str, _Wish] = {}
        others: dict[str, _Wish] = {}
        urgent: set[str] = set()
        for uuid, mark in hosts.items():
            host = self._hosts.get(uuid)
            wish = self._wishes.get(uuid)
            is_watched = uuid in watched or (
                host is not None and host.is_watched)
            when = -1.0
            if host is not None:
                host.seen = now
                self._hosts.move_to_end(uuid)
                if host.mark == mark and host.is_watched == is_watched:
                    when = host.due + (self._keep - host.pause
                                       if uuid in changing else 0.0)
            if now < when:
                continue
            if when < 0 or not self._keep:
                urgent.add(uuid)
            if (wish is None or wish.mark != mark
                    or wish.is_watched < is_watched):
                wish = _Wish(mark, resource_class, is_watched, now + LIMIT)
            has_changed = (when < 0 and host is not None
                           and host.mark is not None)
            (changed if has_changed else others)[uuid] = wish
        rest = {uuid: wish for uuid, wish in self._wishes.items()
                if uuid not in changed}
        self._wishes = {**changed, **rest, **others}
        return urgent

    def _begin(self) -> None:
        """Let the thread read."""
        self._left = SHARE
        if self._wishes and not self._is_reading:
            self._is_reading = True
            deadline.begin_thread(self._read, name='gpu-hosts')

    def _read(self) -> None:
        try:
            while self._read_next():
                pass
        except _Spent:
            self._end()
        except Exception as error:
            # A weigher must not fail a request, whatever the error is.
            if not self._failed:
                LOG.warning('Hosts are not weighed by the free capacity of '
                            'their GPUs: %s', error)
            with self._changed:
                self._failed = True
                self._retry = self._clock() + max(self._keep, _RETRY)
                self._wishes = {}
                self._end()

    def _end(self) -> None:
        with self._changed:
            self._is_reading = False
            self._changed.notify_all()

    def _read_next(self) -> bool:
        """Read the most urgent host; return whether there was one."""
        with self._changed:
            uuid = next(iter(self._wishes), None)
            if uuid is None:
                self._is_reading = False
                self._changed.notify_all()
                return False
            wish = self._wishes[uuid]
            host = self._hosts.setdefault(uuid, _Host(self._clock()))
        began = self._clock()
        gpus = self._gpus(uuid, host, wish.resource_class)
        part = host.part if gpus == host.gpus else weigher_cost.Fleet(gpus)
        is_changed = host.mark != wish.mark or part is not host.part
        for gpu in gpus:
            for offer in gpu.offers:
                if offer.used and offer.provider not in wish.servers and (
                        wish.is_watched or names.ISOLATED in offer.traits):
                    wish.servers[offer.provider] = self._servers(
                        offer, host.servers.get(offer.provider, ()),
                        is_changed)
        with self._changed:
            host.began = began
            host.pause = self._keep if is_changed else min(
                max(self._keep, 2 * host.pause), _RARELY * self._keep)
            host.gpus, host.part = gpus, part
            host.servers, host.is_watched = wish.servers, wish.is_watched
            host.mark, host.due = wish.mark, self._clock() + host.pause
            if self._failed:
                LOG.info('Hosts are weighed by the free capacity of their '
                         'GPUs again')
            self._failed = False
            self._is_old = True
            if self._wishes.get(uuid) is wish:
                del self._wishes[uuid]
            self._changed.notify_all()
        return True

    def _servers(self, offer: published.Offer, before: tuple[Server, ...],
                 is_changed: bool) -> tuple[Server, ...]:
        if not is_changed and offer.used == sum(
                item.amount for item in before):
            return before
        answer = self._ask(
            f'/resource_providers/{offer.provider}/allocations')
        return tuple(
            Server(server, self._project(server),
                   sum(allocation['resources'].values()))
            for server, allocation
            in (answer or {'allocations': {}})['allocations'].items())

    def _project(self, server: str) -> str:
        if server not in self._projects:
            if len(self._projects) >= _SERVERS:
                self._projects.clear()
            self._projects[server] = (
                self._ask(f'/allocations/{server}') or {}).get(
                    'project_id', '') if uuidutils.is_uuid_like(
                        server) else ''
        return self._projects[server]

    def _forget(self, now: float, most: int) -> None:
        while self._hosts:
            host = next(iter(self._hosts.values()))
            if (len(self._hosts) <= most
                    and now - host.seen < _FORGOTTEN):
                break
            self._hosts.popitem(last=False)
            self._is_old = True

    def _gpus(self, uuid: str, host: _Host, resource_class: str
              ) -> tuple[published.Gpu, ...]:
        summaries = self._ask(
            f'/allocation_candidates?limit=1&resources={resource_class}:1'
            f'&in_tree={uuid}')['provider_summaries']
        if not summaries:
            # The only information is that nothing of the class is left.
            return published.sold_out(host.gpus, resource_class)
        if published.nameless(summaries, host.names):
            host.names = {
                item['uuid']: item['name'] for item in self._ask(
                    f'/resource_providers?in_tree={uuid}'
                    f'&required={published.TRAIT}')['resource_providers']}
        return published.gpus(summaries, host.names)

    def _ask(self, url: str) -> Any:
        """Return what Placement answers; None if there is no such object."""
        if self._left <= 0:
            raise _Spent
        self._left -= 1
        response = self._get(url, version=VERSION)
        if response.status_code == _NOT_FOUND:
            return None
        if response.status_code != 200:
            raise exception.PlacementRefused(
                what=f'GET {url}', code=response.status_code,
                text=response.text)
        return response.json()
