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

"""What the GPUs of a cloud have in Placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import os_traits

from cyborg_gpu_driver import fields
from cyborg_gpu_driver.cloud import answers
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.report import names

VERSION = '1.26'
"""As the driver's: the first that tells ``reserved`` equal to ``total``."""
_AT_ONCE = 8
"""Requests under way: Placement answers each in some 10 ms."""
_SICK = 'CUSTOM_GPU_SICK_'


@dataclasses.dataclass(frozen=True)
class Provider:
    """A profile on one GPU: a resource provider of this driver's.

    :ivar host: the compute node as the provider's name gives it.
    :ivar gpu: PCI address.
    :ivar label: of the profile: ``passthrough``, ``1g.10gb``, ``T4-2B``.
    :ivar root: UUID of the compute node's provider.
    :ivar resource_class: None if there is no inventory at all.
    :ivar reserved: what the driver lets nobody have now.
    :ivar used: what servers have.
    :ivar aggregates: UUIDs, of this provider alone.
    """

    uuid: str
    name: str
    host: str
    gpu: str
    label: str
    root: str
    resource_class: str | None
    total: int
    reserved: int
    used: int
    traits: frozenset[str]
    aggregates: frozenset[str] = frozenset()

    @property
    def free(self) -> int:
        """How many a server can be given now."""
        return max(0, self.total - self.reserved - self.used)

    @property
    def sick(self) -> tuple[str, ...]:
        """What ails the GPU, as its traits have it: ``XID_79``."""
        return tuple(sorted(trait.removeprefix(_SICK)
                            for trait in self.traits
                            if trait.startswith(_SICK)))

    def fact(self, kind: str) -> str | None:
        """What the traits say: ``MODEL``, ``KIND``, ``NUMA``, ``MEMORY``."""
        prefix = f'CUSTOM_GPU_{kind}_'
        return next((trait.removeprefix(prefix)
                     for trait in sorted(self.traits)
                     if trait.startswith(prefix)), None)


def read(cloud: connection.Cloud, host: str | None = None,
         progress: Callable[[int, int], None] = lambda done, total: None
         ) -> tuple[Provider, ...]:
    """The providers of every GPU that this driver reports, by name.

    The list costs one request and each provider four, some at once.

    :param host: of this compute node alone.
    :param progress: called with the providers done and their number.
    :raises CloudError: if Placement does not tell.
    """
    found = [
        (known, item) for known, item in _ours(cloud)
        if host is None or known.host == host]
    done = []
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        for provider in pool.map(
                lambda pair: _provider(cloud, *pair), found):
            done.append(provider)
            progress(len(done), len(found))
    # One that went away meanwhile has nothing.
    return tuple(sorted((one for one in done if one is not None),
                        key=lambda one: one.name))


def one(cloud: connection.Cloud, uuid: str) -> Provider | None:
    """A provider of a GPU; None if there is none, or it is not the driver's.

    :raises CloudError: if Placement does not tell.
    """
    item = cloud.ask('placement', f'/resource_providers/{uuid}', VERSION)
    if item is None:
        return None
    with answers.understanding(cloud, 'Placement', f'provider {uuid}'):
        item = _item(item)
    known = names.parse_provider_name(item['name'])
    return known and _provider(cloud, known, item)


def holders(cloud: connection.Cloud, provider: str
            ) -> Mapping[str, Mapping[str, int]]:
    """What each consumer (a server's UUID) has of a provider.

    :param provider: UUID.
    :raises CloudError: if Placement does not tell.
    """
    answer = cloud.ask('placement',
                       f'/resource_providers/{provider}/allocations', VERSION)
    with answers.understanding(cloud, 'Placement',
                               f'who has what of {provider}'):
        return {consumer: allocation['resources'] for consumer, allocation
                in (answer or {'allocations': {}})['allocations'].items()}


def listed(cloud: connection.Cloud, required: str) -> list[dict[str, str]]:
    """Uuid, name and root_provider_uuid of providers with certain traits.

    :param required: traits, separated by commas; ``!`` before one that they
        must not have.
    :raises CloudError: if Placement does not tell.
    """
    answer = cloud.ask('placement', '/resource_providers', VERSION,
                       required=required)
    with answers.understanding(cloud, 'Placement', 'the list of providers'):
        return [_item(item) for item in answer['resource_providers']]


def _ours(cloud) -> Iterator[tuple[names.ProviderName, Mapping[str, Any]]]:
    for item in listed(cloud, os_traits.OWNER_CYBORG):
        known = names.parse_provider_name(item['name'])
        if known is not None:
            yield known, item


def _item(item):
    return {key: fields.text(item[key])
            for key in ('uuid', 'name', 'root_provider_uuid')}


def _provider(cloud, known, item):
    told = {}
    for part in ('inventories', 'usages', 'traits', 'aggregates'):
        answer = cloud.ask('placement',
                           f'/resource_providers/{item["uuid"]}/{part}',
                           VERSION)
        if answer is None:
            return None
        told[part] = answer
    with answers.understanding(cloud, 'Placement',
                               f'provider {item["name"]}'):
        return _from_answers(known, item, **{
            part: answer[part] for part, answer in told.items()})


def _from_answers(known, item, inventories, usages, traits, aggregates):
    # The driver gives each provider one resource class.
    resource_class = next(iter(sorted(inventories)), None)
    inventory = inventories.get(resource_class, {'total': 0, 'reserved': 0})
    return Provider(
        item['uuid'], item['name'], known.host, known.gpu, known.label,
        item['root_provider_uuid'], resource_class,
        fields.number(inventory['total']),
        fields.number(inventory['reserved']),
        fields.number(usages.get(resource_class, 0)),
        frozenset(map(fields.text, traits)),
        frozenset(map(fields.text, aggregates)))
