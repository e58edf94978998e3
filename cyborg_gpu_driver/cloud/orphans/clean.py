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
"""Find orphans of deleted servers, and remove those that are safe."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import computes
from cyborg_gpu_driver.cloud import records
from cyborg_gpu_driver.cloud import trees
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.orphans import orphans

_SERVICE = 'service'
"""The role that Cyborg requires for operations that are reserved to Nova."""


def read(cloud: connection.Cloud,
         progress: placement_api.Progress = lambda done, total: None
         ) -> orphans.Accounts:
    """Return the current records of all services.

    Allocations and accelerator requests are read before the servers, so that
    those of a server that is created meanwhile do not count as orphans.

    :raises CloudError: if a request to a service fails, or if Nova belongs to
        another region than the others. Orphans are unknown then.
    """
    arqs = records.arqs(cloud)
    hosts = trees.holders(cloud, arqs, progress)
    _check_same(cloud, hosts, arqs)
    servers = computes.known_servers(
        cloud, orphans.consumers(hosts) | {
            arq.server for arq in arqs if arq.server})
    hosts = trees.with_holders(
        cloud, hosts, orphans.doubtful(hosts, servers))
    consumers = orphans.consumers(hosts)
    servers.update(computes.known_servers(cloud, consumers - set(servers)))
    return orphans.Accounts(
        hosts, records.deployables(cloud), arqs, servers,
        computes.migrations(cloud, consumers - set(servers)))


def remove(cloud: connection.Cloud, orphan: orphans.Orphan) -> None:
    """Remove an orphan, unless it has changed.

    :raises OrphanKept: if the orphan has changed or is not safe to remove, or
        if the user may not remove it.
    :raises CloudError: if a request to a service fails.
    """
    if not orphan.safe:
        raise _kept(orphan, orphan.remedy)
    if orphan.kind is orphans.Kind.ALLOCATION_OF_GONE:
        _remove_allocation(cloud, orphan)
    else:
        _remove_request(cloud, orphan)


def _check_same(cloud, hosts, arqs):
    """Make sure that Nova belongs to the same region as the other services.

    Nova of another region would know none of the servers.
    """
    known = computes.services(cloud)
    if ((hosts or any(arq.server for arq in arqs))
            and not any(tree.root.uuid in known for tree in hosts)):
        raise cloud.error(
            'Nova has none of the compute nodes that have accelerators in '
            f'Placement ({", ".join(tree.name for tree in hosts) or "none"}); '
            'check that it is the Nova of this region')


def _remove_request(cloud, orphan):
    arq = next((item for item in records.arqs(cloud)
                if item.uuid == orphan.subject), None)
    if arq is None:
        return
    if arq.server != orphan.server:
        raise _kept(orphan, f'server {arq.server} uses it now')
    if arq.server is None:
        cloud.change('accelerator', 'DELETE',
                     f'/accelerator_requests?arqs={arq.uuid}')
        return
    _check_gone(cloud, orphan)
    if not cloud.has_role(_SERVICE):
        raise _kept(orphan, (
            'Cyborg lets only services delete requests of servers. This user '
            f'lacks the role {_SERVICE}; use one with the roles admin and '
            f'{_SERVICE}'))
    cloud.change('accelerator', 'DELETE',
                 f'/accelerator_requests?arqs={arq.uuid}', as_service=True)


def _remove_allocation(cloud, orphan):
    path = f'/allocations/{orphan.subject}'
    answer = cloud.ask('placement', path, placement_api.VERSION)
    with responses.understanding(cloud, 'Placement', 'an allocation'):
        if not answer['allocations']:
            return
        body = {'allocations': {}, **{key: answer[key] for key in (
            'consumer_generation', 'project_id', 'user_id')}}
    _check_gone(cloud, orphan)
    held = [arq.uuid for arq in records.arqs(cloud)
            if arq.server == orphan.subject]
    if held:
        # Otherwise Placement would allocate what Cyborg cannot bind.
        raise _kept(orphan, f'accelerator request {held[0]} must be deleted '
                    'first')
    # The generation makes this fail if the allocation has changed since.
    cloud.change('placement', 'PUT', path, body, placement_api.VERSION)


def _check_gone(cloud, orphan):
    named = {orphan.server}
    if (computes.known_servers(cloud, named)
            or computes.migrations(cloud, named)):
        raise _kept(orphan, f'{orphan.server} exists')


def _kept(orphan, reason):
    return exception.OrphanKept(
        kind=orphan.kind.value, subject=orphan.subject, reason=reason)
