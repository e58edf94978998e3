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


"""Reads the free capacity of GPUs from Placement, host by host, and caches
it."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import published

LOG = logging.getLogger(__name__)

VERSION = '1.36'
"""The version that Nova uses for allocation candidates; 1.31 added
``in_tree``, and 1.29 the whole trees."""
AT_ONCE = 32
"""The maximum number of hosts that are read for one scheduling request."""
_READING_LIMIT = 1.0
"""Seconds after which no further host is read for the same request."""
_FIRST = 5.0
"""Seconds for which a request waits while another one reads, if nothing is
known yet about any of its hosts."""
_RETRY = 10.0
"""Seconds for which Placement is not asked again after a failure."""
_RARELY = 60
"""A host that does not change is read again after at most so many times the
time for which an answer is valid."""
_FORGOTTEN = 600.0
"""Seconds after which a host that no request has named is forgotten."""


@dataclasses.dataclass(slots=True)
class _Host:
    """What is known about a host.

    :ivar mark: what Nova knew about the host when it was read.
    :ivar due: when to read the host again, by the clock.
    :ivar pause: seconds from the last read until ``due``.
    :ivar began: when the last read began, by the clock.
    :ivar seen: when a request named the host last.
    :ivar names: names of its providers by UUID.
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


class Reader:
    """Reads only the hosts of a request that may have changed.

    Reading a host takes one HTTP request. The names, which tell the GPU of a
    provider, take a second one if a provider is not known yet. A host is read
    again when Nova knows that it has changed, and otherwise after a pause,
    which doubles as long as the host stays the same. For one scheduling
    request at most :data:`AT_ONCE` hosts are read: first those that have
    changed, then in turns the host that is due the longest and a new one.
    The other hosts are as they were read before.

    Thread-safe. While one thread reads, the others use what was read before.
    Only if nothing was read before, they wait for a while.

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
        self._reading = threading.Lock()
        self._hosts: collections.OrderedDict[str, _Host] = (
            collections.OrderedDict())
        self._fleet = weigher_cost.Fleet(())
        self._known: frozenset[str] = frozenset()
        """The hosts in the fleet."""
        self._failed = False
        self._retry = 0.0

    @property
    def hosts(self) -> int:
        """The number of hosts that are kept."""
        return len(self._hosts)

    @property
    def latest(self) -> weigher_cost.Fleet:
        """The fleet that was read last, for any request."""
        return self._fleet

    def fleet(self, resource_classes: Sequence[str],
              hosts: Mapping[str, Hashable],
              changing: Container[str] = ()) -> weigher_cost.Fleet | None:
        """Return the free capacity of the GPUs of these and other hosts.

        :param resource_classes: what the request asks for.
        :param hosts: by the UUID of each compute node that can take the
            server, a value that differs when the host has changed.
        :param changing: compute nodes that were just chosen for a server.
            They are read again as soon as their answer is no longer valid.
        :returns: None if Placement cannot be read; that is logged once.
        """
        waits = hosts and self._known.isdisjoint(hosts)
        if self._reading.acquire(blocking=False) or (
                waits and self._reading.acquire(timeout=_FIRST)):
            try:
                if self._clock() >= self._retry:
                    self._read(resource_classes[0], hosts, changing)
            finally:
                self._reading.release()
        return None if self._failed else self._fleet

    def _read(self, resource_class, hosts, changing):
        now = self._clock()
        changed = False
        try:
            for uuid in self._due(hosts, now, changing):
                self._read_host(uuid, hosts[uuid], resource_class)
                changed = True
                if self._clock() - now >= _READING_LIMIT:
                    break
            self._forget(now, max(self._most, len(hosts)))
        except Exception as error:
            # A weigher must not fail a request, whatever the error is.
            if not self._failed:
                LOG.warning('Hosts are not weighed by the free capacity of '
                            'their GPUs: %s', error)
            self._failed = True
            self._retry = self._clock() + max(self._keep, _RETRY)
        else:
            if self._failed:
                LOG.info('Hosts are weighed by the free capacity of their '
                         'GPUs again')
            self._failed = False
        if changed:
            self._fleet = weigher_cost.Fleet.of(
                (host.part for host in self._hosts.values()),
                self._fleet.number + 1,
                {uuid: host.began for uuid, host in self._hosts.items()})
            self._known = frozenset(self._hosts)

    def _due(self, hosts, now, changing):
        """Return the hosts to read now, the most urgent first."""
        changed, due, new = [], [], []
        for uuid, mark in hosts.items():
            host = self._hosts.get(uuid)
            if host is None:
                new.append(uuid)
                continue
            host.seen = now
            self._hosts.move_to_end(uuid)
            if host.mark != mark:
                changed.append(uuid)
                continue
            when = host.due
            if uuid in changing:
                when += self._keep - host.pause
            if now >= when:
                due.append((when, uuid))
        old = [uuid for _due, uuid in heapq.nsmallest(AT_ONCE, due)]
        # Neither group may keep the other waiting forever.
        mixed = itertools.chain.from_iterable(
            itertools.zip_longest(old, new[:AT_ONCE]))
        return [*changed, *filter(None, mixed)][:AT_ONCE]

    def _read_host(self, uuid, mark, resource_class):
        host = self._hosts.get(uuid) or _Host(self._clock())
        began = self._clock()
        gpus = self._gpus(uuid, host, resource_class)
        host.began = began
        if host.mark != mark or gpus != host.gpus:
            host.pause = self._keep
        else:
            host.pause = min(max(self._keep, 2 * host.pause),
                             _RARELY * self._keep)
        if gpus != host.gpus:
            host.gpus, host.part = gpus, weigher_cost.Fleet(gpus)
        host.mark, host.due = mark, self._clock() + host.pause
        self._hosts[uuid] = host

    def _forget(self, now, most):
        while self._hosts:
            host = next(iter(self._hosts.values()))
            if (len(self._hosts) <= most
                    and now - host.seen < _FORGOTTEN):
                break
            self._hosts.popitem(last=False)

    def _gpus(self, uuid, host, resource_class):
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

    def _ask(self, url):
        response = self._get(url, version=VERSION)
        if response.status_code != 200:
            raise exception.PlacementRefused(
                what=f'GET {url}', code=response.status_code,
                text=response.text)
        return response.json()
