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

"""Read resource providers from Placement, with several requests at a time."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
from typing import Any
from typing import TypeVar

import os_resource_classes as orc

from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses

AT_ONCE = 8
"""Number of parallel requests; Placement answers each in about 10 ms."""

VERSION = '1.36'
"""The first microversion with every parameter of Nova's query for candidates.
Has ``reserved`` equal to ``total`` (1.26), all providers of a tree (1.29) and
the candidates of one tree (1.31)."""
_OF_A_HOST = (orc.MEMORY_MB, orc.VCPU, orc.DISK_GB)
"""Resource classes of a compute node; one of them nearly always has capacity.
"""

Progress = Callable[[int, int], None]
_Item = TypeVar('_Item')
_Found = TypeVar('_Found')


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
    """Return the resource providers that Placement lists.

    :param query: the parameters of ``GET /resource_providers``.
    :raises CloudError: if Placement does not answer.
    """
    answer = cloud.ask('placement', '/resource_providers', VERSION, **query)
    with responses.understanding(cloud, 'Placement', 'the list of providers'):
        found = list(answer['resource_providers'])
        if not all(isinstance(item[key], str) for item in found
                   for key in ('uuid', 'name', 'root_provider_uuid')):
            raise TypeError('a provider has no text for its name or a UUID')
        return found


def summaries(cloud: connection.Cloud, root: str
              ) -> Mapping[str, Mapping[str, Any]]:
    """Return the summaries of all providers of a compute node, by UUID.

    This takes one request. Placement has no request for the inventories of a
    tree. But its response to a request for memory of the compute node has the
    capacity, the usage and the traits of all providers of the tree, full ones
    included. If the node has no memory left, the request is repeated for a
    CPU, then for disk.

    :param root: UUID of the compute node's provider.
    :returns: an empty mapping if the compute node is completely full.
    :raises CloudError: if Placement does not answer.
    """
    for resource_class in _OF_A_HOST:
        answer = cloud.ask('placement', '/allocation_candidates', VERSION,
                           resources=f'{resource_class}:1', in_tree=root,
                           limit='1')
        with responses.understanding(cloud, 'Placement', 'the candidates'):
            found = {} if answer is None else dict(
                answer['provider_summaries'])
        if found:
            return found
    return {}


def one(cloud: connection.Cloud, item: Mapping[str, Any],
        parts: Collection[str]) -> dict[str, Any] | None:
    """Return some parts of one provider; None if it no longer exists.

    :param parts: such as ``inventories``; one request for each.
    :raises CloudError: if a request to Placement fails.
    """
    told = {}
    for part in parts:
        answer = cloud.ask('placement',
                           f'/resource_providers/{item["uuid"]}/{part}',
                           VERSION)
        if answer is None:
            return None
        with responses.understanding(cloud, 'Placement',
                                     f'provider {item["name"]}'):
            told[part] = answer[part]
    return told
