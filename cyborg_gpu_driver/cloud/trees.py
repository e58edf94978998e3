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
"""Read the provider trees of compute nodes from Placement.

A tree has the compute node's own inventories and the providers of every
driver; :mod:`.providers` reads only those of this driver.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import os_traits

from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import request

_BOUND = 'Bound'


@dataclasses.dataclass(frozen=True)
class Records:
    """Records of Cyborg, which save requests to Placement.

    :ivar deployables: number of attach handles, by UUID of the provider. It
        is the total of the provider's inventory.
    :ivar arqs: accelerator requests. A bound one holds one unit.
    """

    deployables: Mapping[str, int] = dataclasses.field(default_factory=dict)
    arqs: tuple[facts.Arq, ...] = ()

    @functools.cached_property
    def bound(self) -> Mapping[str, list[str]]:
        """The servers of the bound requests, by UUID of the provider."""
        found: dict[str, list[str]] = {}
        for arq in self.arqs:
            if arq.state == _BOUND and arq.provider and arq.server:
                found.setdefault(arq.provider, []).append(arq.server)
        return found


def read(cloud: connection.Cloud, roots: Collection[str],
         wanted: request.Request, records: Records | None = None,
         progress: placement_api.Progress = lambda done, total: None
         ) -> tuple[facts.Tree, ...]:
    """Return the trees of compute nodes for a request, sorted by name.

    Each tree takes two requests to Placement. A provider takes more only if
    Cyborg does not know it and the request asks for its resource class, if
    the bound accelerator requests do not explain its usage, or if its compute
    node is full.

    :param roots: UUIDs of the compute nodes.
    :param wanted: inventories of other resource classes have only the
        capacity and the usage.
    :param records: the records of Cyborg, as far as they are known.
    :param progress: called with the number of finished compute nodes and of
        all.
    :raises CloudError: if a request to Placement fails.
    """
    reader = _Reader(cloud, wanted, records or Records())
    with responses.understanding(cloud, 'Placement', 'a resource provider'):
        sharing = [reader.exact(item) for item in placement_api.listed(
            cloud, required=os_traits.MISC_SHARES_VIA_AGGREGATE)]
        shared = [node for node in sharing if node is not None]
        found = placement_api.at_once(
            lambda root: reader.tree(
                root, placement_api.listed(cloud, in_tree=root), shared),
            roots, progress)
        return tuple(sorted((tree for tree in found if tree is not None),
                            key=lambda tree: tree.name))


def holders(cloud: connection.Cloud, arqs: tuple[facts.Arq, ...],
            progress: placement_api.Progress = lambda done, total: None
            ) -> tuple[facts.Tree, ...]:
    """Return all compute nodes that have accelerators, with the holders.

    This takes one request for each compute node, and two for the cloud. A
    provider takes one more if the bound accelerator requests do not explain
    its usage.

    :param arqs: the accelerator requests of the cloud. If the number of those
        that are bound to a provider equals its usage in Placement, their
        servers are its holders.
    :returns: trees without exact inventories and without shared providers.
    :raises CloudError: if a request to Placement fails.
    """
    reader = _Reader(cloud, request.Request(), Records({}, arqs))
    with responses.understanding(cloud, 'Placement', 'a resource provider'):
        below = of_cyborg(cloud)
        nodes = {item['uuid']: item for item in placement_api.listed(
            cloud, required=os_traits.COMPUTE_ACCELERATORS)}
        for root in below.keys() - nodes.keys():
            nodes.update((item['uuid'], item) for item
                         in placement_api.listed(cloud, uuid=root))
        found = placement_api.at_once(
            lambda root: reader.tree(root, [nodes[root], *below[root]]),
            [root for root in below if root in nodes], progress)
        return tuple(sorted((tree for tree in found if tree is not None),
                            key=lambda tree: tree.name))


def with_holders(cloud: connection.Cloud, found: Iterable[facts.Tree],
                 uuids: Collection[str]) -> tuple[facts.Tree, ...]:
    """Read the holders of some providers again and return the new trees.

    :param uuids: of the providers; one request for each.
    :raises CloudError: if a request to Placement fails.
    """
    with responses.understanding(cloud, 'Placement', 'an allocation'):
        return tuple(dataclasses.replace(tree, below=tuple(
            dataclasses.replace(node, holders=_allocations(cloud, node.uuid))
            if node.uuid in uuids else node for node in tree.below))
            for tree in found)


def of_cyborg(cloud: connection.Cloud) -> dict[str, list[dict[str, Any]]]:
    """Return the providers of Cyborg, by UUID of their compute node.

    :raises CloudError: if a request to Placement fails.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for item in placement_api.listed(cloud, required=os_traits.OWNER_CYBORG):
        found.setdefault(item['root_provider_uuid'], []).append(item)
    return found


class _Reader:
    """Creates nodes from Placement's summaries of a tree.

    :param wanted: inventories of its resource classes are exact.
    """

    def __init__(self, cloud, wanted, records):
        self._cloud = cloud
        self._asked = wanted.totals.keys()
        self._granular = {name for group in wanted.granular
                          for name in group.resources}
        self._records = records

    def tree(self, root, items, shared=()):
        """Return the tree of a compute node; None if it no longer exists.

        :param items: the providers of the tree as Placement lists them.
        :param shared: all sharing providers.
        """
        summaries = placement_api.summaries(self._cloud, root)
        nodes = [node for item in items for node in [
            self._node(item, summaries[item['uuid']])
            if item['uuid'] in summaries else self.exact(item)]
            if node is not None]
        mine = {node.uuid for node in nodes}
        if root not in mine:
            return None
        aggregates = self._aggregates(root, shared)
        return facts.Tree(
            next(node for node in nodes if node.uuid == root),
            tuple(sorted((node for node in nodes if node.uuid != root),
                         key=lambda node: node.name)),
            tuple(node for node in shared if node.aggregates & aggregates
                  and node.uuid not in mine))

    def exact(self, item):
        """Read a provider part by part; None if it no longer exists."""
        told = placement_api.one(
            self._cloud, item,
            ('inventories', 'allocations', 'traits', 'aggregates'))
        if told is None:
            return None
        held = {consumer: allocation['resources'] for consumer, allocation
                in told['allocations'].items()}
        return facts.Node(
            item['uuid'], item['name'], {
                name: _inventory(inventory, sum(
                    resources.get(name, 0) for resources in held.values()))
                for name, inventory in told['inventories'].items()},
            frozenset(told['traits']), frozenset(told['aggregates']), held)

    def _node(self, item, summary):
        traits = frozenset(summary['traits'])
        amounts = summary['resources']
        of_cyborg = os_traits.OWNER_CYBORG in traits
        inventories = self._inventories(item, amounts, of_cyborg)
        return None if inventories is None else facts.Node(
            item['uuid'], item['name'], inventories, traits,
            holders=self._holders(item, amounts)
            if of_cyborg or self._granular & amounts.keys() else {})

    def _inventories(self, item, amounts, of_cyborg):
        total = self._records.deployables.get(item['uuid'])
        if of_cyborg and total is not None:
            # Cyborg's conductor creates each inventory with these values.
            return {name: facts.Inventory(
                total, total - amount['capacity'], amount['used'],
                max_unit=total) for name, amount in amounts.items()}
        if self._asked & amounts.keys():
            told = placement_api.one(self._cloud, item, ('inventories',))
            return None if told is None else {
                name: _inventory(inventory, amounts[name]['used'])
                for name, inventory in told['inventories'].items()
                if name in amounts}
        return {name: facts.Inventory(amount['capacity'], 0, amount['used'])
                for name, amount in amounts.items()}

    def _holders(self, item, amounts):
        used = sum(amount['used'] for amount in amounts.values())
        bound = self._records.bound.get(item['uuid'], ())
        if used == len(bound) and len(amounts) == 1:
            (name,) = amounts
            return {server: {name: number} for server, number
                    in collections.Counter(bound).items()}
        return _allocations(self._cloud, item['uuid']) if used else {}

    def _aggregates(self, root, shared):
        """The aggregates of a tree that contain sharing providers."""
        every = frozenset().union(*(node.aggregates for node in shared))
        if not every:
            return every
        return frozenset().union(*(
            told['aggregates'] for told in (
                placement_api.one(self._cloud, item, ('aggregates',))
                for item in placement_api.listed(
                    self._cloud, in_tree=root,
                    member_of='in:' + ','.join(sorted(every))))
            if told is not None))


def _allocations(cloud, uuid):
    """The resources that each consumer has of a provider."""
    answered = cloud.ask(
        'placement', f'/resource_providers/{uuid}/allocations',
        placement_api.VERSION)
    return {} if answered is None else {
        consumer: allocation['resources'] for consumer, allocation
        in answered['allocations'].items()}


def _inventory(inventory, used):
    return facts.Inventory(
        inventory['total'], inventory['reserved'], used,
        inventory['min_unit'], inventory['max_unit'],
        inventory['step_size'], inventory['allocation_ratio'])
