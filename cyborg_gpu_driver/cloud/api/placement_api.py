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

"""What Placement tells of providers, part by part and some at once."""

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
"""Requests under way: Placement answers each in some 10 ms."""

SUMMARIES = '1.36'
"""With the candidates of one tree (1.31) and all of its providers (1.29)."""
_OF_A_HOST = (orc.MEMORY_MB, orc.VCPU, orc.DISK_GB)
"""What a compute node has, of which some is nearly always left."""

Progress = Callable[[int, int], None]
_Item = TypeVar('_Item')
_Found = TypeVar('_Found')


def at_once(function: Callable[[_Item], _Found], items: Collection[_Item],
            progress: Progress = lambda done, total: None
            ) -> Iterator[_Found]:
    """What a function returns for each item, in their order.

    Some calls run at a time.

    :param progress: called with the items done and their number.
    """
    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done, found in enumerate(pool.map(function, items), 1):
            progress(done, len(items))
            yield found


def summaries(cloud: connection.Cloud, root: str
              ) -> Mapping[str, Mapping[str, Any]]:
    """What Placement says of all providers of a compute node, by UUID.

    One request. Placement has none for the inventories of a tree, but its
    answer to a request for memory of the compute node has the capacity, the
    usage and the traits of all providers there, full ones included. A node
    that has no memory left is asked for a CPU, then for disk.

    :param root: UUID of the compute node's provider.
    :returns: nothing if the compute node is completely full.
    :raises CloudError: if Placement does not answer.
    """
    for resource_class in _OF_A_HOST:
        answer = cloud.ask('placement', '/allocation_candidates', SUMMARIES,
                           resources=f'{resource_class}:1', in_tree=root,
                           limit='1')
        with responses.understanding(cloud, 'Placement', 'the candidates'):
            found = {} if answer is None else dict(
                answer['provider_summaries'])
        if found:
            return found
    return {}


def one(cloud: connection.Cloud, item: Mapping[str, Any],
        parts: Collection[str], version: str) -> dict[str, Any] | None:
    """What is told of one provider; None if there is none any more.

    :raises CloudError: if Placement does not tell.
    """
    told = {}
    for part in parts:
        answer = cloud.ask('placement',
                           f'/resource_providers/{item["uuid"]}/{part}',
                           version)
        if answer is None:
            return None
        with responses.understanding(cloud, 'Placement',
                                     f'provider {item["name"]}'):
            told[part] = answer[part]
    return told
