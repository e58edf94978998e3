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


"""What the GPUs have left, read from Placement host by host and kept."""

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
"""Nova's own for allocation candidates; 1.31 brought ``in_tree``, and 1.29
the whole trees."""
AT_ONCE = 32
"""Hosts that are read for one scheduling request, at most."""
_READING_LIMIT = 1.0
"""Seconds after which no further host is read for the same request."""
_FIRST = 5.0
"""Seconds for which a request waits while another one reads, if nothing is
known yet of any host on which it may go."""
_RETRY = 10.0
"""Seconds for which Placement is left alone after it has failed."""
_RARELY = 60
"""A host that does not change is read again after at most so many times the
time for which an answer holds."""
_FORGOTTEN = 600.0
"""Seconds after which a host is forgotten that no request has named."""


@dataclasses.dataclass(slots=True)
class _Host:
    """What is known of a host.

    :ivar mark: what Nova knew of it when it was read.
    :ivar due: when to read it again, by the clock.
    :ivar pause: seconds from the last read until then.
    :ivar seen: when a request named it last.
    :ivar names: of its providers by UUID.
    """

    seen: float
    mark: Hashable = None
    due: float = 0.0
    pause: float = 0.0
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: tuple[published.Gpu, ...] = ()
    part: weigher_cost.Fleet = dataclasses.field(
        default_factory=lambda: weigher_cost.Fleet(()))


class Reader:
    """Reads the hosts of a request that may have changed, and no others.

    A host is read with one request; the names, by which providers belong to
    a GPU, take a second one when there is a provider that is not known yet.
    A host is read again when Nova knows it to have changed, and otherwise
    after a while, which doubles as long as it stays the same. For one
    scheduling request at most :data:`AT_ONCE` hosts are read: first those
    that have changed, then by turns one that is due the longest and a new
    one. The others are as they were read before.

    Threads may share one. While one of them reads, the others go by what
    was read before. Only if that is nothing they wait, for a while.

    :param get: asks Placement: ``get(url, version=...)``.
    :param keep: seconds for which an answer holds.
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
        """The hosts in it."""
        self._failed = False
        self._retry = 0.0

    @property
    def hosts(self) -> int:
        """How many hosts are kept."""
        return len(self._hosts)

    @property
    def latest(self) -> weigher_cost.Fleet:
        """What was read last, by whatever request."""
        return self._fleet

    def fleet(self, resource_classes: Sequence[str],
              hosts: Mapping[str, Hashable],
              changing: Container[str] = ()) -> weigher_cost.Fleet | None:
        """What the GPUs of these and other hosts have left.

        :param resource_classes: what the request asks for.
        :param hosts: for the UUID of each compute node on which it may go,
            a value that differs when the host has changed.
        :param changing: compute nodes on which a server was just put. They
            are read as soon as an answer holds no more.
        :returns: None if that cannot be told now; it has been logged, once.
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
            # Whatever it is: a weigher must not fail a request.
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
                self._fleet.number + 1)
            self._known = frozenset(self._hosts)

    def _due(self, hosts, now, changing):
        """The hosts to read now, the most urgent first."""
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
        # Neither may keep the other waiting for good.
        mixed = itertools.chain.from_iterable(
            itertools.zip_longest(old, new[:AT_ONCE]))
        return [*changed, *filter(None, mixed)][:AT_ONCE]

    def _read_host(self, uuid, mark, resource_class):
        host = self._hosts.get(uuid) or _Host(self._clock())
        gpus = self._gpus(uuid, host, resource_class)
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
            # That no more is to be had of the class is all there is to know.
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
