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

"""What the GPUs have left, read from Placement and kept for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import published

LOG = logging.getLogger(__name__)

VERSION = '1.36'
"""Nova's own for allocation candidates; 1.29 brought the whole trees."""
_RETRY = 10.0
"""Seconds for which Placement is left alone after it has failed."""


class Reader:
    """Reads at most once in a while, whoever asks.

    One answer about a resource class has the trees of all hosts that have
    some of it left, with everything else that is on their GPUs. Only the
    names, by which providers belong to a GPU, take a request of their own,
    when there is one that is not known yet.

    Threads may share one. While one of them reads, the others go by what
    was read before.

    :param get: asks Placement: ``get(url, version=...)``.
    :param keep: seconds for which an answer holds.
    :param limit: how many candidates to ask for.
    """

    def __init__(self, get: Callable[..., Any], keep: float, limit: int):
        self._get = get
        self._keep = keep
        self._limit = limit
        self._reading = threading.Lock()
        self._next: dict[str, float] = {}
        """When to read about a resource class again, by the clock."""
        self._names: dict[str, str] = {}
        self._hosts: dict[str, tuple[published.Gpu, ...]] = {}
        self._fleet: weigher_cost.Fleet | None = None
        self._failed = False

    def fleet(self, resource_classes: Iterable[str], anew: bool = False
              ) -> weigher_cost.Fleet | None:
        """The GPUs of which some of these classes are to be had.

        :param anew: read even if an answer still holds.
        :returns: None if that cannot be told now; it has been logged, once.
        """
        for resource_class in resource_classes:
            if (self._is_due(resource_class, anew)
                    and self._reading.acquire(blocking=False)):
                try:
                    self._read(resource_class)
                finally:
                    self._reading.release()
        return None if self._failed else self._fleet

    def _is_due(self, resource_class, anew):
        return (anew and not self._failed
                or time.monotonic() >= self._next.get(resource_class, 0.0))

    def _read(self, resource_class):
        try:
            answer = self._ask(
                f'/allocation_candidates?limit={self._limit}'
                f'&resources_GPU={resource_class}:1'
                f'&required_GPU={published.TRAIT}')
            self._learn(resource_class, answer['provider_summaries'],
                        len(answer['allocation_requests']) < self._limit)
        except Exception as error:
            # Whatever it is: a weigher must not fail a request.
            if not self._failed:
                LOG.warning('Hosts are not weighed by the free capacity of '
                            'their GPUs: %s', error)
            self._failed = True
            pause = max(self._keep, _RETRY)
        else:
            if self._failed:
                LOG.info('Hosts are weighed by the free capacity of their '
                         'GPUs again')
            self._failed = False
            pause = self._keep
        self._next[resource_class] = time.monotonic() + pause

    def _learn(self, resource_class, summaries, is_whole):
        if published.nameless(summaries, self._names):
            answer = self._ask(
                f'/resource_providers?required={published.TRAIT}')
            self._names = {item['uuid']: item['name']
                           for item in answer['resource_providers']}
            there = {item['root_provider_uuid']
                     for item in answer['resource_providers']}
            self._hosts = {host: gpus for host, gpus in self._hosts.items()
                           if host in there}
        if is_whole:
            # Of hosts that are not in the answer only this is new.
            self._hosts = {
                host: published.sold_out(gpus, resource_class)
                for host, gpus in self._hosts.items()}
        self._hosts.update(published.by_host(
            published.gpus(summaries, self._names)))
        self._fleet = weigher_cost.Fleet(
            gpu for gpus in self._hosts.values() for gpu in gpus)

    def _ask(self, url):
        response = self._get(url, version=VERSION)
        if response.status_code != 200:
            raise exception.PlacementRefused(
                what=f'GET {url}', code=response.status_code,
                text=response.text)
        return response.json()
