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
"""Find what is left of servers that are gone, and remove what is safe."""

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
"""The role of whom Cyborg takes what only Nova may ask of it."""


def read(cloud: connection.Cloud,
         progress: placement_api.Progress = lambda done, total: None
         ) -> orphans.Accounts:
    """What all services have on record now.

    What holds something is read before who there is, so that what a server
    has which comes meanwhile is not taken for left.

    :raises CloudError: if one of them does not tell, or Nova is not that of
        the others: then nothing is known to be left.
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
    """Remove one, if it is still what it was.

    :raises OrphanKept: if it is not, or not safe, or this user may not.
    :raises CloudError: if a service does not do it.
    """
    if not orphan.safe:
        raise _kept(orphan, orphan.remedy)
    if orphan.kind is orphans.Kind.ALLOCATION_OF_GONE:
        _remove_allocation(cloud, orphan)
    else:
        _remove_request(cloud, orphan)


def _check_same(cloud, hosts, arqs):
    """Nova of another region knows none of the servers either."""
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
    answer = cloud.ask('placement', path, trees.VERSION)
    with responses.understanding(cloud, 'Placement', 'an allocation'):
        if not answer['allocations']:
            return
        body = {'allocations': {}, **{key: answer[key] for key in (
            'consumer_generation', 'project_id', 'user_id')}}
    _check_gone(cloud, orphan)
    held = [arq.uuid for arq in records.arqs(cloud)
            if arq.server == orphan.subject]
    if held:
        # Or Placement gives away what Cyborg cannot bind.
        raise _kept(orphan, f'accelerator request {held[0]} must be deleted '
                    'first')
    # The generation says that nobody has changed it since.
    cloud.change('placement', 'PUT', path, body, trees.VERSION)


def _check_gone(cloud, orphan):
    named = {orphan.server}
    if (computes.known_servers(cloud, named)
            or computes.migrations(cloud, named)):
        raise _kept(orphan, f'{orphan.server} exists')


def _kept(orphan, reason):
    return exception.OrphanKept(
        kind=orphan.kind.value, subject=orphan.subject, reason=reason)
