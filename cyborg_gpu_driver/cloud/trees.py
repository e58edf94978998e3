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
"""Compute nodes with all below them, and candidates, as Placement has them.

The providers of every driver count here, and what a compute node has
itself; :mod:`.providers` reads this driver's alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import os_traits
from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import reasons
from cyborg_gpu_driver.cloud.explain import request

VERSION = '1.36'
"""The first with all that Nova puts into its question."""
_PARTS = ('inventories', 'allocations', 'traits', 'aggregates')
_BAD_REQUEST = 400


def read(cloud: connection.Cloud, host: str | None = None,
         more: Iterable[str] = (),
         progress: placement_api.Progress = lambda done, total: None
         ) -> tuple[facts.Tree, ...]:
    """The compute nodes that have accelerators, by name.

    One request for each of them, and four for each provider.

    :param host: this compute node alone, whatever it has.
    :param more: names of compute nodes that are to be there, too.
    :param progress: called with the providers done and their number.
    :raises CloudError: if Placement does not tell.
    :raises InvalidValue: if there is no such compute node.
    """
    with responses.understanding(cloud, 'Placement', 'a resource provider'):
        roots = _roots(cloud, host, more)
        listed = {root: _providers(cloud, in_tree=root) for root in roots}
        sharing = _providers(
            cloud, required=os_traits.MISC_SHARES_VIA_AGGREGATE)
        wanted = {item['uuid']: item for items in
                  (*listed.values(), sharing) for item in items}
        read = placement_api.read(cloud, wanted.values(), _PARTS, VERSION,
                                  progress)
        nodes = {item['uuid']: _node(item, told) for item, told in read}
    shared = [nodes[item['uuid']] for item in sharing
              if item['uuid'] in nodes]
    found = [_tree(root, [nodes[item['uuid']] for item in items
                          if item['uuid'] in nodes], shared)
             for root, items in listed.items() if root in nodes]
    return tuple(sorted(found, key=lambda tree: tree.name))


def answer(cloud: connection.Cloud, wanted: request.Request,
           root: str | None = None) -> facts.Answer | None:
    """What Placement says to Nova's question.

    :param root: UUID of the compute node that is to be taken.
    :returns: None if there is nothing to ask for.
    :raises CloudError: if Placement does not tell.
    """
    if not any(group.resources for group in wanted.groups):
        return None
    query = wanted.query(root)
    try:
        found = cloud.ask('placement', '/allocation_candidates', VERSION,
                          **query)
    except exception.CloudError as error:
        cause = error.__cause__
        if (isinstance(cause, exceptions.HttpException)
                and cause.status_code == _BAD_REQUEST):
            return facts.Answer(refusal=_refusal(cause))
        raise
    with responses.understanding(cloud, 'Placement', 'the candidates'):
        roots: dict[str, int] = {}
        for item in found['allocation_requests']:
            # One that takes of a sharing provider, too, has two roots.
            for root_uuid in {
                    found['provider_summaries'][uuid]['root_provider_uuid']
                    for uuid in item['allocations']}:
                roots[root_uuid] = roots.get(root_uuid, 0) + 1
        return facts.Answer(roots, partial=len(
            found['allocation_requests']) >= int(query['limit']))


def unknown_traits(cloud: connection.Cloud, wanted: request.Request
                   ) -> frozenset[str]:
    """The traits of a request that Placement never heard of.

    :raises CloudError: if Placement does not tell.
    """
    asked = frozenset().union(*(
        group.required | group.forbidden for group in wanted.groups))
    if not asked:
        return frozenset()
    found = cloud.ask('placement', '/traits', VERSION,
                      name='in:' + ','.join(sorted(asked)))
    with responses.understanding(cloud, 'Placement', 'the traits'):
        return asked - set(found['traits'])


def classes(cloud: connection.Cloud) -> frozenset[str]:
    """All resource classes that Placement knows.

    :raises CloudError: if Placement does not tell.
    """
    found = cloud.ask('placement', '/resource_classes', VERSION)
    with responses.understanding(cloud, 'Placement', 'the resource classes'):
        return frozenset(item['name'] for item in found['resource_classes'])


def _providers(cloud, **query):
    answered = cloud.ask('placement', '/resource_providers', VERSION, **query)
    return answered['resource_providers']


def _roots(cloud, host, more):
    cyborgs = {item['root_provider_uuid'] for item in _providers(
        cloud, required=os_traits.OWNER_CYBORG)}
    if host is None:
        by_name = {item['uuid'] for name in sorted(set(more))
                   for item in _providers(cloud, name=name)}
        return sorted(cyborgs | by_name)
    named = [item for item in _providers(cloud, name=host)
             if item['parent_provider_uuid'] is None]
    if not named:
        known = [item['name'] for root in sorted(cyborgs)
                 for item in _providers(cloud, uuid=root)]
        raise exception.InvalidValue(
            what='host', value=host,
            expected='expected the hypervisor_hostname of a compute node'
            + (reasons.similar(host, known)
               or f'; with accelerators: {", ".join(sorted(known)) or "none"}'
               ))
    return [named[0]['uuid']]


def _node(item, told):
    holders = {consumer: allocation['resources']
               for consumer, allocation in told['allocations'].items()}
    return facts.Node(
        item['uuid'], item['name'], {
            name: _inventory(inventory, sum(
                resources.get(name, 0) for resources in holders.values()))
            for name, inventory in told['inventories'].items()},
        frozenset(told['traits']), frozenset(told['aggregates']), holders)


def _inventory(inventory, used):
    return facts.Inventory(
        inventory['total'], inventory['reserved'], used,
        inventory['min_unit'], inventory['max_unit'],
        inventory['step_size'], inventory['allocation_ratio'])


def _tree(root, nodes, shared):
    aggregates = frozenset().union(*(node.aggregates for node in nodes))
    mine = {node.uuid for node in nodes}
    return facts.Tree(
        next(node for node in nodes if node.uuid == root),
        tuple(sorted((node for node in nodes if node.uuid != root),
                     key=lambda node: node.name)),
        tuple(node for node in shared
              if node.aggregates & aggregates and node.uuid not in mine))


def _refusal(error):
    """Placement's own words, without those that each refusal begins with."""
    try:
        told = error.response.json()['errors'][0]['detail']
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        told = str(error)
    return ' '.join(told.rpartition('\n\n')[2].split())
