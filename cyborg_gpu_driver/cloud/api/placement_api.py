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

from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses

AT_ONCE = 8
"""Requests under way: Placement answers each in some 10 ms."""

Progress = Callable[[int, int], None]


def read(cloud: connection.Cloud, items: Collection[Mapping[str, Any]],
         parts: Collection[str], version: str, progress: Progress
         ) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Each provider with what is told of it, in their order.

    One that went away meanwhile is left out.

    :param items: of Placement's list of providers.
    :param parts: such as ``inventories``; one request each.
    :param progress: called with the providers done and their number.
    :raises CloudError: if Placement does not tell.
    """
    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda item: one(cloud, item, parts, version), items)
        for done, (item, told) in enumerate(zip(items, found, strict=True),
                                            1):
            progress(done, len(items))
            if told is not None:
                yield item, told


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
