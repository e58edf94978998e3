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

"""Look up the projects of servers, including deleted ones."""

from __future__ import annotations

from collections.abc import Collection

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cloud import computes
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses

_MARGIN = 3600.0
"""Seconds by which the clocks of Nova and a host may differ."""


def of_servers(cloud: connection.Cloud, servers: Collection[str],
               start: float) -> dict[str, str]:
    """Return the projects of servers, as far as Nova knows them.

    Nova knows a deleted server until its database is archived or purged.

    :param servers: UUIDs of servers that used a GPU after ``start``.
    :param start: in seconds since the epoch.
    :raises CloudError: if a request to Nova fails.
    """
    if not servers:
        return {}
    # A server that used a GPU after the start was not deleted before it.
    since = {} if start <= _MARGIN else {
        'changes-since': moments.of(start - _MARGIN).strftime(
            '%Y-%m-%dT%H:%M:%SZ')}
    deleted = responses.pages(
        cloud, '/servers/detail', 'servers', all_tenants='true',
        deleted='true', **since)
    with responses.understanding(cloud, 'Nova', 'a deleted server'):
        found = {item['id']: str(item['tenant_id']) for item in deleted
                 if item['id'] in servers}
    alive = computes.known_servers(cloud, set(servers) - found.keys())
    return {**found, **{uuid: item.project for uuid, item in alive.items()}}
