# SPDX-License-Identifier: Apache-2.0

"""Read the resource providers of hosts and GPUs from Placement.

A tree has the compute node's own inventories and the providers of every
driver; :func:`read_providers` reads only those of this driver.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
from typing import Any
from typing import TypeVar

import os_resource_classes as orc
import os_traits

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.report.content import names

AT_ONCE = 8
"""Number of parallel requests; Placement answers each in about 10 ms."""

_OF_A_HOST = (orc.MEMORY_MB, orc.VCPU, orc.DISK_GB)
"""Resource classes of a compute node; one of them nearly always has capacity.
"""

Progress = Callable[[int, int], None]
_Item = TypeVar('_Item')
_Found = TypeVar('_Found')
_BOUND = 'Bound'


@functools.lru_cache(1 << 16)
def _shared(value: Any) -> Any:
    """Return the first of equal values: most providers of a cloud have the
    traits and amounts of others.
    """
    return value


def at_once(function: Callable[[_Item], _Found], items: Collection[_Item],
            progress: Progress = lambda done, total: None
            ) -> Iterator[_Found]:
    """Call a function for each item and yield the results in order.

    Up to :data:`AT_ONCE` calls run in parallel.

    :param progress: called with the number of finished items and of all items.
    """
    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done, found in enumerate(pool.map(function, items), 1):
            progress(done, len(items))
            yield found


def listed(cloud: connection.Cloud, **query: str) -> list[dict[str, Any]]:
    """Return the resource providers that Placement lists."""
    answer = cloud.ask('placement', '/resource_providers', **query)
    found = list(answer['resource_providers'])
    if not all(isinstance(item[key], str) for item in found
               for key in ('uuid', 'name', 'root_provider_uuid')):
        raise TypeError('a provider has no text for its name or a UUID')
    return found


def tree_summaries(cloud: connection.Cloud, root: str
              ) -> Mapping[str, Mapping[str, Any]]:
    """Return the summaries of all providers of a compute node, by UUID.

    This takes one request. Placement has no request for the inventories of a
    tree. But its response to a request for memory of the compute node has the
    capacity, the usage and the traits of all providers of the tree, full ones
    included. If the node has no memory left, the request is repeated for a
    CPU, then for disk.

    :returns: an empty mapping if the compute node is completely full.
    """
    for resource_class in _OF_A_HOST:
        answer = cloud.ask('placement', '/allocation_candidates',
                           resources=f'{resource_class}:1', in_tree=root,
                           limit='1')
        found = {} if answer is None else dict(
            answer['provider_summaries'])
        if found:
            return found
    return {}


def provider_parts(cloud: connection.Cloud, item: Mapping[str, Any],
                   parts: Collection[str]) -> dict[str, Any] | None:
    """Return some parts of one provider, with one request for each.

    :returns: None if the provider no longer exists.
    """
    told = {}
    for part in parts:
        answer = cloud.ask('placement',
                           f'/resource_providers/{item["uuid"]}/{part}')
        if answer is None:
            return None
        told[part] = answer[part]
    return told


def read_providers(cloud: connection.Cloud, host: str | None = None,
                   progress: Progress = lambda done, total: None,
                   gpus: Container[str] | None = None
                   ) -> tuple[facts.Node, ...]:
    """Return the providers of every GPU that this driver reports, by name.

    A provider of what a GPU does not offer any more is left out if it is not
    in use.

    This takes one request for each compute node, several at a time, and two
    for the cloud: Placement summarizes the providers of a compute node, and
    Cyborg has the totals. A provider without a total takes one request more,
    one without a summary four. For one compute node, Cyborg is not asked: its
    only list has the totals of the whole cloud.

    :param gpus: PCI addresses of the GPUs to read; None for all.
    """
    trees: dict[str, list[dict[str, Any]]] = {}
    for item, place in gpu_providers(cloud, host):
        if gpus is None or place.gpu in gpus:
            trees.setdefault(item['root_provider_uuid'], []).append(item)
    reader = _Reader(cloud, None, Records(
        _totals(cloud) if trees and host is None else {}), holders=False)
    found = at_once(
        lambda root: reader.nodes(root, trees[root]), trees, progress)
    return tuple(sorted(
        (one for of_host in found for one in of_host
         if one.used or names.WITHDRAWN not in one.traits),
        key=lambda one: one.name))


def gpu_profiles(cloud: connection.Cloud, wanted: Collection[str]
             ) -> dict[str, facts.Node]:
    """Return the providers that are of GPUs of this driver, by UUID.

    This takes two requests for each compute node of the providers, however
    many providers it has.
    """
    reader = _Reader(cloud, request.Request(), Records(), holders=False)
    found: dict[str, facts.Node] = {}
    left = set(wanted)
    while left:
        uuid = min(left)
        left.remove(uuid)
        tree = listed(cloud, in_tree=uuid)
        if not tree:
            continue
        mine = [item for item in tree if item['uuid'] in wanted]
        left.difference_update(item['uuid'] for item in mine)
        found.update((node.uuid, node) for node in reader.nodes(
            tree[0]['root_provider_uuid'], [
                item for item in mine
                if names.parse_provider_name(item['name'])]))
    return found


def gpu_providers(cloud: connection.Cloud, host: str | None = None
         ) -> list[tuple[dict[str, Any], names.ProviderName]]:
    """Return this driver's providers, with the parts of their names."""
    query = {}
    if host is not None:
        # None has the name if the providers' names have only a similar text.
        for root in listed(cloud, name=host):
            query['in_tree'] = root['uuid']
    found = listed(
        cloud, required=os_traits.OWNER_CYBORG, **query)
    return [(item, place) for item in found
            for place in [names.parse_provider_name(item['name'])]
            if place is not None and host in (None, place.host)]


def _totals(cloud):
    """Return the total of each provider's inventory from Cyborg, by UUID.

    Empty if Cyborg does not answer, because Placement has the totals, too.
    """
    try:
        with cloud.errors():
            return cyborg.deployables(cloud)
    except exception.CloudError:
        return {}


@dataclasses.dataclass(frozen=True)
class Records:
    """Records of Cyborg, which save requests to Placement.

    :ivar deployables: number of attach handles, by UUID of the provider. It
        is the total of the provider's inventory.
    :ivar arqs: accelerator requests. A bound one holds one unit.
    """

    deployables: Mapping[str, int] = dataclasses.field(default_factory=dict)
    arqs: tuple[cyborg.AcceleratorRequest, ...] = ()

    @functools.cached_property
    def bound(self) -> Mapping[str, list[str]]:
        """The servers of the bound requests, by UUID of the provider."""
        found: dict[str, list[str]] = {}
        for arq in self.arqs:
            if (arq.state == _BOUND and arq.device_rp_uuid
                    and arq.instance_uuid):
                found.setdefault(arq.device_rp_uuid, []).append(
                    arq.instance_uuid)
        return found


def read_trees(cloud: connection.Cloud, roots: Collection[str],
               wanted: request.Request, records: Records | None = None,
               progress: Progress = lambda done, total: None
         ) -> tuple[facts.Tree, ...]:
    """Return the trees of compute nodes for a request, sorted by name.

    Each tree takes two requests to Placement. A provider takes more only if
    Cyborg does not know it and the request asks for its resource class, if
    the bound accelerator requests do not explain its usage, or if its compute
    node is full.

    :param wanted: inventories of other resource classes have only the
        capacity and the usage.
    :param records: the records of Cyborg, as far as they are known.
    """
    reader = _Reader(cloud, wanted, records or Records())
    return reader.trees(roots, lambda root: listed(cloud, in_tree=root),
                        progress)


def accelerator_trees(cloud: connection.Cloud,
                      arqs: tuple[cyborg.AcceleratorRequest, ...],
                      progress: Progress = lambda done, total: None
            ) -> tuple[facts.Tree, ...]:
    """Return all compute nodes that have accelerators, with the holders.

    This takes one request for each compute node, and two for the cloud. A
    provider takes one more if the bound accelerator requests do not explain
    its usage.

    :param arqs: the accelerator requests of the cloud. If the number of those
        that are bound to a provider equals its usage in Placement, their
        servers are its holders.
    :returns: trees without exact inventories.
    """
    reader = _Reader(cloud, request.Request(), Records({}, arqs))
    below = of_cyborg(cloud)
    nodes = {item['uuid']: item for item in listed(
        cloud, required=os_traits.COMPUTE_ACCELERATORS)}
    for root in below.keys() - nodes.keys():
        nodes.update((item['uuid'], item) for item
                     in listed(cloud, uuid=root))
    return reader.trees([root for root in below if root in nodes],
                        lambda root: [nodes[root], *below[root]], progress)


def with_holders(cloud: connection.Cloud, found: Iterable[facts.Tree],
                 uuids: Collection[str]) -> tuple[facts.Tree, ...]:
    """Read the holders of some providers again, with a request for each."""
    return tuple(dataclasses.replace(tree, below=tuple(
        dataclasses.replace(node, holders=allocations(cloud, node.uuid))
        if node.uuid in uuids else node for node in tree.below))
        for tree in found)


def of_cyborg(cloud: connection.Cloud) -> dict[str, list[dict[str, Any]]]:
    """Return the providers of Cyborg, by UUID of their compute node."""
    found: dict[str, list[dict[str, Any]]] = {}
    for item in listed(cloud, required=os_traits.OWNER_CYBORG):
        found.setdefault(item['root_provider_uuid'], []).append(item)
    return found


class _Reader:
    """Creates nodes from Placement's summaries of a tree.

    :param wanted: inventories of its resource classes are exact; None for
        all.
    :param holders: whether to read who holds the resources.
    """

    def __init__(self, cloud, wanted, records, holders=True):
        self._cloud = cloud
        self._asked = None if wanted is None else wanted.totals.keys()
        self._granular = {name for group in wanted.granular
                          for name in group.resources} if wanted else set()
        self._records = records
        self._with_holders = holders

    def trees(self, roots, items, progress):
        """Return the trees of compute nodes that still exist, by name.

        :param items: returns the providers of a tree as Placement lists them.
        """
        found = at_once(lambda root: self._tree(self.nodes(root, items(root))),
                        roots, progress)
        return tuple(sorted((tree for tree in found if tree is not None),
                            key=lambda tree: tree.name))

    @staticmethod
    def _tree(nodes):
        root = next((node for node in nodes if node.uuid == node.root), None)
        return root and facts.Tree(root, tuple(sorted(
            (node for node in nodes if node is not root),
            key=lambda node: node.name)))

    def nodes(self, root, items):
        """Return some providers of a compute node that still exist."""
        summaries = tree_summaries(self._cloud, root)
        return [node for item in items for node in [
            self._node(item, summaries[item['uuid']])
            if item['uuid'] in summaries else self.exact(item)]
            if node is not None]

    def exact(self, item):
        """Read a provider part by part; None if it no longer exists."""
        told = provider_parts(
            self._cloud, item,
            ('inventories', 'allocations', 'traits'))
        if told is None:
            return None
        held = {consumer: allocation['resources'] for consumer, allocation
                in told['allocations'].items()}
        return facts.Node(
            item['uuid'], item['name'], {
                name: _inventory(inventory, sum(
                    resources.get(name, 0) for resources in held.values()))
                for name, inventory in told['inventories'].items()},
            frozenset(told['traits']),
            held if self._with_holders else {}, item['root_provider_uuid'])

    def _node(self, item, summary):
        traits = _shared(frozenset(summary['traits']))
        amounts = summary['resources']
        of_cyborg = os_traits.OWNER_CYBORG in traits
        inventories = self._inventories(item, amounts, of_cyborg)
        return None if inventories is None else facts.Node(
            item['uuid'], item['name'], inventories, traits,
            holders=self._holders(item, amounts) if self._with_holders and (
                of_cyborg or self._granular & amounts.keys()) else {},
            root=item['root_provider_uuid'])

    def _inventories(self, item, amounts, of_cyborg):
        total = self._records.deployables.get(item['uuid'])
        if of_cyborg and total is not None and all(
                amount['capacity'] <= total for amount in amounts.values()):
            # Cyborg's conductor creates each inventory with these values.
            return {name: _shared(facts.Inventory(
                total, total - amount['capacity'], amount['used'],
                max_unit=total)) for name, amount in amounts.items()}
        if self._asked is None or self._asked & amounts.keys():
            told = provider_parts(self._cloud, item, ('inventories',))
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
        return allocations(self._cloud, item['uuid']) if used else {}


def allocations(cloud, uuid):
    """Return the resources that each consumer has of a provider."""
    answered = cloud.ask(
        'placement', f'/resource_providers/{uuid}/allocations')
    return {} if answered is None else {
        consumer: allocation['resources'] for consumer, allocation
        in answered['allocations'].items()}


def _inventory(inventory, used):
    return facts.Inventory(
        inventory['total'], inventory['reserved'], used,
        inventory['min_unit'], inventory['max_unit'],
        inventory['step_size'], inventory['allocation_ratio'])
