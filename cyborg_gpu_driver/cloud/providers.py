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

"""Read the resource providers of a cloud's GPUs from Placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Mapping
from typing import Any

import os_traits

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import records
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.report.content import names

_PARTS = ('inventories', 'usages', 'traits')


@dataclasses.dataclass(frozen=True)
class Profile:
    """A profile on one GPU: a resource provider of this driver.

    :ivar host: the compute node as in the provider's name.
    :ivar gpu: PCI address.
    :ivar label: of the profile, such as ``passthrough``, ``1g.10gb``,
        ``T4-2B``.
    :ivar root: UUID of the compute node's provider.
    """

    uuid: str
    name: str
    host: str
    gpu: str
    label: str
    root: str
    traits: frozenset[str]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Health conditions of the GPU from its traits, such as ``XID_79``."""
        return health.told(self.traits)

    def fact(self, kind: str) -> str | None:
        """Return the value of a kind of trait; None if there is no such trait.

        :param kind: such as ``MODEL``, ``KIND``, ``NUMA``, ``MEMORY``.
        """
        prefix = f'CUSTOM_GPU_{kind}_'
        return next((trait.removeprefix(prefix)
                     for trait in sorted(self.traits)
                     if trait.startswith(prefix)), None)

    @property
    def numa_node(self) -> int | None:
        """The GPU's NUMA node; None if no trait names one."""
        text = self.fact('NUMA') or ''
        return int(text) if text.isdecimal() else None


@dataclasses.dataclass(frozen=True)
class Provider(Profile):
    """A profile on one GPU, with its inventory.

    :ivar resource_class: None if there is no inventory at all.
    :ivar reserved: the amount that the driver withholds from servers now.
    :ivar used: the amount that servers use.
    """

    resource_class: str | None
    total: int
    reserved: int
    used: int

    @property
    def free(self) -> int:
        """The amount that can be allocated now."""
        return max(0, self.total - self.reserved - self.used)


def read(cloud: connection.Cloud, host: str | None = None,
         progress: placement_api.Progress = lambda done, total: None,
         gpus: Container[str] | None = None) -> tuple[Provider, ...]:
    """Return the providers of every GPU that this driver reports, by name.

    This takes one request for each compute node, several at a time, and two
    for the cloud: Placement summarizes the providers of a compute node, and
    Cyborg has the totals. A provider without a total takes one request more,
    one without a summary three. For one compute node, Cyborg is not asked: its
    only list has the totals of the whole cloud.

    :param host: only this compute node.
    :param progress: called with the number of finished hosts and of all hosts.
    :param gpus: PCI addresses of the GPUs to read; None for all.
    :raises CloudError: if Placement does not answer.
    """
    trees: dict[str, list[dict[str, Any]]] = {}
    for item, place in ours(cloud, host):
        if gpus is None or place.gpu in gpus:
            trees.setdefault(item['root_provider_uuid'], []).append(item)
    totals = _totals(cloud) if trees and host is None else {}
    found = placement_api.at_once(
        lambda root: _of_tree(cloud, root, trees[root], totals), trees,
        progress)
    return tuple(sorted((one for of_host in found for one in of_host),
                        key=lambda one: one.name))


def profiles(cloud: connection.Cloud, wanted: Collection[str]
             ) -> dict[str, Profile]:
    """Return the providers that are of GPUs of this driver, by UUID.

    This takes two requests for each compute node of the providers, however
    many providers it has.

    :param wanted: UUIDs of providers.
    :raises CloudError: if a request to Placement fails.
    """
    found: dict[str, Profile] = {}
    left = set(wanted)
    while left:
        uuid = min(left)
        left.remove(uuid)
        tree = placement_api.listed(cloud, in_tree=uuid)
        if not tree:
            continue
        summaries = placement_api.summaries(
            cloud, tree[0]['root_provider_uuid'])
        for item in tree:
            if item['uuid'] not in wanted:
                continue
            left.discard(item['uuid'])
            place = names.parse_provider_name(item['name'])
            traits = _traits(cloud, item, summaries)
            if place is not None and traits is not None:
                found[item['uuid']] = Profile(*_where(item, place), traits)
    return found


def ours(cloud: connection.Cloud, host: str | None = None
         ) -> list[tuple[dict[str, Any], names.ProviderName]]:
    """Return this driver's providers, with the parts of their names.

    :param host: only this compute node.
    :raises CloudError: if a request to Placement fails.
    """
    query = {}
    if host is not None:
        # None has the name if the providers' names have only a similar text.
        for root in placement_api.listed(cloud, name=host):
            query['in_tree'] = root['uuid']
    found = placement_api.listed(
        cloud, required=os_traits.OWNER_CYBORG, **query)
    return [(item, place) for item in found
            for place in [names.parse_provider_name(item['name'])]
            if place is not None and host in (None, place.host)]


def _totals(cloud):
    """Return the total of each provider's inventory from Cyborg, by UUID.

    Empty if Cyborg does not answer, because Placement has the totals, too.
    """
    try:
        return records.deployables(cloud)
    except exception.CloudError:
        return {}


def _of_tree(cloud, root, items, totals):
    """Return the providers of one compute node that still exist."""
    summaries = placement_api.summaries(cloud, root)
    found = (_from_summary(cloud, item, summaries.get(item['uuid']),
                           totals.get(item['uuid']))
             or _provider(cloud, item) for item in items)
    return [one for one in found if one is not None]


def _traits(cloud, item, summaries):
    """Return the traits of a provider; None if it no longer exists."""
    summary = summaries.get(item['uuid']) or placement_api.one(
        cloud, item, ('traits',))
    with responses.understanding(cloud, 'Placement',
                                 f'provider {item["name"]}'):
        return summary and codec.decode(frozenset[str], summary['traits'])


def _from_summary(cloud, item, summary, total):
    """Return a provider; None if the summary does not suffice.

    :param total: of its inventory; None if it is unknown.
    """
    if summary is None:
        return None
    with responses.understanding(cloud, 'Placement',
                                 f'provider {item["name"]}'):
        resources = summary['resources']
        if len(resources) != 1:
            return None
        ((name, amounts),) = resources.items()
        reserved = (total or 0) - codec.decode(int, amounts['capacity'])
        told = ({'inventories': {name: {'total': total, 'reserved': reserved}}}
                if total is not None and reserved >= 0
                else placement_api.one(cloud, item, ('inventories',)))
        return told and _from_parts(item, told['inventories'], {
            name: amounts['used']}, summary['traits'])


def _provider(cloud, item):
    """Read a provider part by part; None if it no longer exists."""
    told = placement_api.one(cloud, item, _PARTS)
    if told is None:
        return None
    with responses.understanding(cloud, 'Placement',
                                 f'provider {item["name"]}'):
        return _from_parts(item, **told)


def _from_parts(item, inventories, usages, traits):
    place = names.parse_provider_name(item['name'])
    if place is None:
        raise ValueError(f"{item['name']!r} does not belong to this driver")
    # The driver gives each provider one resource class.
    resource_class = next(iter(sorted(inventories)), None)
    inventory = inventories.get(resource_class, {'total': 0, 'reserved': 0})
    return Provider(
        *_where(item, place), codec.decode(frozenset[str], list(traits)),
        resource_class, codec.decode(int, inventory['total']),
        codec.decode(int, inventory['reserved']),
        codec.decode(int, usages.get(resource_class, 0)))


def _where(item: Mapping[str, str], place: names.ProviderName
           ) -> tuple[str, str, str, str, str, str]:
    return (item['uuid'], item['name'], place.host, place.gpu, place.label,
            item['root_provider_uuid'])
