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

"""Read the accelerators of a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_utils import uuidutils

from cyborg_gpu_driver.cloud import providers
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.host.snapshot import model

_MDEV = 'MDEV'


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """An accelerator request of a server, and its location.

    Unknown values are None, for example if the request is not bound.

    :ivar state: in Cyborg: ``Bound``, ``BindFailed``...
    :ivar device_profile: for which the request was created.
    :ivar provider: of the GPU's profile.
    :ivar handle: what the server gets: an mdev's UUID, or the address of a
        PCI function.
    :ivar function: PCI address of the function that carries the handle: the
        GPU or a virtual function of it.
    """

    arq: str
    state: str
    device_profile: str
    host: str | None
    provider: providers.Profile | None
    handle_type: str | None
    handle: str | None
    function: str | None


def find(cloud: connection.Cloud, server: str) -> str:
    """Return a server's UUID.

    :param server: UUID or name.
    :raises CloudError: if there is no such server, or several.
    """
    if uuidutils.is_uuid_like(server):
        return server
    # Nova interprets the name as a regular expression.
    listed = responses.pages(cloud, '/servers', 'servers',
                             all_tenants='true', name=server)
    with responses.understanding(cloud, 'Nova', 'a server'):
        found = [item['id'] for item in listed if item['name'] == server]
    if len(found) == 1:
        return found[0]
    raise cloud.error(
        f'{len(found)} servers are named {server}; give the UUID of one'
        if found else f'there is no server named {server}')


def read(cloud: connection.Cloud, server: str) -> tuple[Accelerator, ...]:
    """Return the accelerators of a server.

    :param server: its UUID.
    :raises CloudError: if it has none, or a request to a service fails.
    """
    requests = cloud.get('/accelerator_requests', 'arqs', instance=server)
    if not requests:
        raise cloud.error('Cyborg has no accelerator request for server '
                          + server)
    with responses.understanding(cloud, 'Cyborg', 'an accelerator request'):
        known = providers.profiles(cloud, {
            request['device_rp_uuid'] for request in requests} - {None, ''})
        return build(requests, known)


def build(requests: Iterable[Mapping[str, Any]],
          known: Mapping[str, providers.Profile]
          ) -> tuple[Accelerator, ...]:
    """Return accelerators from requests as Cyborg's API shows them.

    :param known: providers by UUID.
    :raises KeyError, TypeError, AttributeError, InvalidValue: if a request is
        malformed.
    """
    return tuple(_accelerator(request, known.get(request['device_rp_uuid']))
                 for request in sorted(requests, key=lambda one: one['uuid']))


def _accelerator(request, provider):
    info = request['attach_handle_info']
    function = None if not info else str(model.PciAddress.parse(
        '{domain}:{bus}:{device}.{function}'.format(**info)))
    kind = request['attach_handle_type'] or None
    return Accelerator(
        request['uuid'], request['state'], request['device_profile_name'],
        request['hostname'], provider, kind,
        request['attach_handle_uuid'] if kind == _MDEV else function,
        function)
