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

"""Find the servers and other consumers that still hold a part of a GPU."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection

from cyborg_gpu_driver.cloud import providers
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.moves import fleet

_UNBOUND = 'Initial'


@dataclasses.dataclass(frozen=True)
class Holder:
    """A consumer that holds a part of one or several GPUs.

    :ivar consumer: UUID of a server, or of another owner of an allocation or
        an accelerator request.
    :ivar project: None if Nova has no such server.
    :ivar gpus: PCI addresses.
    :ivar handles: Cyborg's attach handles.
    :ivar consents: whether its owner lets operators move it.
    """

    consumer: str
    name: str | None
    project: str | None
    status: str | None
    gpus: tuple[str, ...]
    handles: tuple[str, ...] = ()
    consents: bool = False


def read(cloud: connection.Cloud, host: str, addresses: Collection[str]
         ) -> tuple[Holder, ...]:
    """Return the consumers that hold a part of some GPUs of a host.

    :param host: as ``openstack gpu host list`` shows it.
    :raises CloudError: if a request to a service fails.
    """
    offers = {offer.uuid: offer for offer in providers.read(
        cloud, host, gpus=addresses)}
    gpus: dict[str, set[str]] = collections.defaultdict(set)
    handles: dict[str, list[str]] = collections.defaultdict(list)
    requests = cloud.get('/accelerator_requests', 'arqs')
    with responses.understanding(cloud, 'Cyborg', 'an accelerator request'):
        for request in requests:
            offer = offers.get(request['device_rp_uuid'])
            if offer is None or request['state'] == _UNBOUND:
                continue
            holder = request['instance_uuid'] or request['uuid']
            gpus[holder].add(offer.gpu)
            if request['attach_handle_uuid']:
                handles[holder].append(request['attach_handle_uuid'])
    for offer in offers.values():
        if offer.used:
            for consumer in _consumers(cloud, offer.uuid):
                gpus[consumer].add(offer.gpu)
    return tuple(_holder(cloud, consumer, gpus[consumer], handles[consumer])
                 for consumer in sorted(gpus))


def _consumers(cloud, provider):
    answer = cloud.ask('placement',
                       f'/resource_providers/{provider}/allocations',
                       placement_api.VERSION)
    with responses.understanding(cloud, 'Placement', 'allocations'):
        return () if answer is None else tuple(answer['allocations'])


def _holder(cloud, consumer, gpus, handles):
    """Return a holder, with its server's data from Nova if it is a server."""
    where = tuple(sorted(gpus)), tuple(sorted(handles))
    answer = cloud.ask('compute', f'/servers/{consumer}', responses.NOVA)
    if answer is None:
        return Holder(consumer, None, None, None, *where)
    with responses.understanding(cloud, 'Nova', f'server {consumer}'):
        server = fleet.server(answer['server'])
        return Holder(consumer, server.name, answer['server']['tenant_id'],
                      server.status, *where, consents=server.consents)
