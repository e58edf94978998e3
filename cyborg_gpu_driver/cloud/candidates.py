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
"""Placement's candidates for a request, and the compute nodes to read."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Sequence

import os_resource_classes as orc
from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import trees
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import reasons
from cyborg_gpu_driver.cloud.explain import request
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.report.content import names

_BAD_REQUEST = 400


def answer(cloud: connection.Cloud, wanted: request.Request,
           root: str | None = None) -> facts.Answer | None:
    """Ask Placement for candidates, as the Nova scheduler does.

    :param root: UUID of the compute node to which the query is restricted.
    :returns: None if the request asks for no resources.
    :raises CloudError: if a request to Placement fails.
    """
    if not any(group.resources for group in wanted.groups):
        return None
    query = wanted.query(root)
    try:
        found = cloud.ask('placement', '/allocation_candidates',
                          placement_api.VERSION, **query)
    except exception.CloudError as error:
        cause = error.__cause__
        if (isinstance(cause, exceptions.HttpException)
                and cause.status_code == _BAD_REQUEST):
            return facts.Answer(refusal=_refusal(cause))
        raise
    with responses.understanding(cloud, 'Placement', 'the candidates'):
        roots: dict[str, int] = {}
        for item in found['allocation_requests']:
            # A candidate that also uses a sharing provider has two roots.
            for root_uuid in {
                    found['provider_summaries'][uuid]['root_provider_uuid']
                    for uuid in item['allocations']}:
                roots[root_uuid] = roots.get(root_uuid, 0) + 1
        return facts.Answer(roots, partial=len(
            found['allocation_requests']) >= int(query['limit']))


def unknown_traits(cloud: connection.Cloud, wanted: request.Request
                   ) -> frozenset[str]:
    """Return the traits of a request that Placement does not know.

    :raises CloudError: if a request to Placement fails.
    """
    asked = frozenset().union(*(
        group.required | group.forbidden for group in wanted.groups))
    if not asked:
        return frozenset()
    found = cloud.ask('placement', '/traits', placement_api.VERSION,
                      name='in:' + ','.join(sorted(asked)))
    with responses.understanding(cloud, 'Placement', 'the traits'):
        return asked - set(found['traits'])


def classes(cloud: connection.Cloud) -> frozenset[str]:
    """Return all resource classes that Placement knows.

    :raises CloudError: if a request to Placement fails.
    """
    found = cloud.ask('placement', '/resource_classes', placement_api.VERSION)
    with responses.understanding(cloud, 'Placement', 'the resource classes'):
        return frozenset(item['name'] for item in found['resource_classes'])


def root(cloud: connection.Cloud, host: str) -> str:
    """Return the UUID of a compute node's provider.

    :param host: hypervisor_hostname.
    :raises CloudError: if a request to Placement fails.
    :raises InvalidValue: if there is no such compute node.
    """
    with responses.understanding(cloud, 'Placement', 'a resource provider'):
        for item in placement_api.listed(cloud, name=host):
            if item['parent_provider_uuid'] is None:
                return item['uuid']
        known = {place.host for items in trees.of_cyborg(cloud).values()
                 for place in map(_place, items) if place}
    raise exception.InvalidValue(
        what='host', value=host,
        expected='expected the hypervisor_hostname of a compute node'
        + (reasons.similar(host, known)
           or f'; with GPUs: {", ".join(sorted(known)) or "none"}'))


def concerned(cloud: connection.Cloud, wanted: request.Request,
              more: Iterable[str], found: facts.Answer | None,
              most: int | None) -> tuple[Sequence[str], int]:
    """Choose the compute nodes to read, and count those that are left out.

    Compute nodes with candidates in Placement come first, then those with
    room for most of the groups, then those with most of the resource classes.

    :param more: names of further compute nodes, which count even if Placement
        has no accelerators on them.
    :param found: Placement's answer to the request.
    :param most: how many compute nodes may be read; None for all.
    :returns: the UUIDs of the compute nodes, and the number left out.
    :raises CloudError: if a request to Placement fails.
    """
    with responses.understanding(cloud, 'Placement', 'a resource provider'):
        below = trees.of_cyborg(cloud)
        named = {place.host for items in below.values()
                 for place in map(_place, items) if place}
        bare = sorted(set(more) - named)
        roots = {*below, *(item['uuid'] for name in bare[:most]
                           for item in placement_api.listed(cloud, name=name))}
        left = max(0, len(bare) - most) if most is not None else 0
        if most is None or len(roots) <= most:
            return sorted(roots), left
        taking = found.roots if found else {}
        if any(uuid in taking for uuid in roots):
            room: collections.Counter[str] = collections.Counter()
        else:
            room = _room(cloud, wanted)
    classes = {name for group in wanted.granular for name in group.resources}
    ranked = sorted(roots, key=lambda uuid: (
        uuid not in taking, -room[uuid],
        -len(classes & {_class(item) for item in below.get(uuid, ())}),
        uuid))
    return ranked[:most], left + len(ranked) - most


def _place(item):
    return names.parse_provider_name(item['name'])


def _class(item):
    """Derive the resource class of a provider from its name, if known."""
    place = _place(item)
    if place is None:
        return None
    return (orc.PGPU if place.label == policy.Mode.PASSTHROUGH.value
            else names.custom(names.VENDOR, place.label))


def _room(cloud, wanted):
    """For how many of the groups each compute node has room, by UUID."""
    found: collections.Counter[str] = collections.Counter()
    for group in wanted.groups:
        query = {'resources': ','.join(
            f'{name}:{amount}' for name, amount
            in sorted(group.resources.items()))}
        if group.required:
            query['required'] = ','.join(sorted(group.required))
        try:
            items = (placement_api.listed(cloud, **query)
                     if group.resources else ())
        except exception.CloudError:
            # Placement does not know the resource class or a trait.
            continue
        found.update({item['root_provider_uuid'] for item in items})
    return found


def _refusal(error):
    """Placement's message, without the preamble of every error message."""
    try:
        told = error.response.json()['errors'][0]['detail']
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        told = str(error)
    return ' '.join(told.rpartition('\n\n')[2].split())
