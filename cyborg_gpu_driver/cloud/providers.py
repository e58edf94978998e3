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

import os_traits

from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.report.content import names

VERSION = '1.26'
"""As the driver's: the first that tells ``reserved`` equal to ``total``."""
_PARTS = ('inventories', 'usages', 'traits')


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

    @property
    def free(self) -> int:
        """How many a server can be given now."""
        return max(0, self.total - self.reserved - self.used)

    @property
    def sick(self) -> tuple[str, ...]:
        """What ails the GPU, as its traits have it: ``XID_79``."""
        return health.told(self.traits)

    def fact(self, kind: str) -> str | None:
        """What the traits say: ``MODEL``, ``KIND``, ``NUMA``, ``MEMORY``."""
        prefix = f'CUSTOM_GPU_{kind}_'
        return next((trait.removeprefix(prefix)
                     for trait in sorted(self.traits)
                     if trait.startswith(prefix)), None)

    @property
    def numa_node(self) -> int | None:
        """The GPU's NUMA node; None if no trait names one."""
        text = self.fact('NUMA') or ''
        return int(text) if text.isdecimal() else None


def read(cloud: connection.Cloud, host: str | None = None,
         progress: placement_api.Progress = lambda done, total: None
         ) -> tuple[Provider, ...]:
    """The providers of every GPU that this driver reports, by name.

    The list costs one request and each provider three, some at once.

    :param host: of this compute node alone.
    :param progress: called with the providers done and their number.
    :raises CloudError: if Placement does not tell.
    """
    ours = [item for item in listed(cloud, os_traits.OWNER_CYBORG)
            if _is_ours(item, host)]
    return tuple(sorted(
        (_provider(cloud, item, told) for item, told
         in placement_api.read(cloud, ours, _PARTS, VERSION, progress)),
        key=lambda one: one.name))


def one(cloud: connection.Cloud, uuid: str) -> Provider | None:
    """A provider of a GPU; None if there is none, or it is not the driver's.

    :raises CloudError: if Placement does not tell.
    """
    item = cloud.ask('placement', f'/resource_providers/{uuid}', VERSION)
    if item is None:
        return None
    with responses.understanding(cloud, 'Placement', f'provider {uuid}'):
        item = _item(item)
    told = _is_ours(item) and placement_api.one(cloud, item, _PARTS, VERSION)
    return _provider(cloud, item, told) if told else None


def listed(cloud: connection.Cloud, required: str) -> list[dict[str, str]]:
    """Uuid, name and root_provider_uuid of providers with certain traits.

    :param required: traits, separated by commas; ``!`` before one that they
        must not have.
    :raises CloudError: if Placement does not tell.
    """
    answer = cloud.ask('placement', '/resource_providers', VERSION,
                       required=required)
    with responses.understanding(cloud, 'Placement', 'the list of providers'):
        return [_item(item) for item in answer['resource_providers']]


def _is_ours(item, host=None):
    place = names.parse_provider_name(item['name'])
    return place is not None and host in (None, place.host)


def _item(item):
    return {key: codec.decode(str, item[key])
            for key in ('uuid', 'name', 'root_provider_uuid')}


def _provider(cloud, item, told):
    with responses.understanding(cloud, 'Placement',
                                 f'provider {item["name"]}'):
        return _from_parts(item, **told)


def _from_parts(item, inventories, usages, traits):
    place = names.parse_provider_name(item['name'])
    if place is None:
        raise ValueError(f"{item['name']!r} is not this driver's")
    # The driver gives each provider one resource class.
    resource_class = next(iter(sorted(inventories)), None)
    inventory = inventories.get(resource_class, {'total': 0, 'reserved': 0})
    return Provider(
        item['uuid'], item['name'], place.host, place.gpu, place.label,
        item['root_provider_uuid'], resource_class,
        codec.decode(int, inventory['total']),
        codec.decode(int, inventory['reserved']),
        codec.decode(int, usages.get(resource_class, 0)),
        codec.decode(frozenset[str], list(traits)))
