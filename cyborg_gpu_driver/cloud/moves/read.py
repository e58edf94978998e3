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

"""Read the state of a cloud for the planner of moves.

The requests to Placement and Cyborg are those for the list of hosts, and one
more to Cyborg for all accelerator requests. Nova returns a thousand servers
for each request.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import hosts as cloud_hosts
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.moves import fleet
from cyborg_gpu_driver.cloud.profiles import resources

Groups = dict[str, tuple[resources.Group, ...]]


class Snapshot:
    """The state of a cloud at one time.

    :ivar hosts: the hosts that take part.
    :ivar fleet: their GPUs.
    :ivar servers: by UUID.
    :ivar profiles: the groups of each device profile, by name.
    """

    def __init__(self, cloud: connection.Cloud,
                 names: Collection[str] = (), anyone: bool = False,
                 complain: Callable[[str], None] = lambda text: None,
                 progress: Callable[[int, int], None]
                 = lambda done, total: None):
        """Read the cloud.

        :param names: of the hosts that take part; all if it is empty.
        :param anyone: as in :class:`.fleet.Fleet`.
        :param complain: as in :func:`cyborg_gpu_driver.cloud.hosts.read`.
        :raises CloudError: if a request to a service fails.
        :raises InvalidValue: if there is no such host.
        """
        self.hosts = _hosts(cloud, names, complain, progress)
        self.profiles: Groups = {
            existing.item.name: existing.item.groups
            for existing in state.profiles(cloud)
            if isinstance(existing.item, resources.DeviceProfile)}
        requests = cloud.get('/accelerator_requests', 'arqs')
        listed = responses.pages(cloud, '/servers/detail', 'servers',
                                 all_tenants='true')
        with responses.understanding(cloud, 'Nova', 'a server'):
            self.servers = {item['id']: fleet.server(item)
                            for item in listed}
        with responses.understanding(cloud, 'Cyborg',
                                     'an accelerator request'):
            self.fleet = fleet.Fleet(self.hosts, requests, self.servers,
                                     self.profiles, anyone)

    def asked(self, profile: str | None = None
              ) -> dict[str, resources.Group]:
        """Return the resource groups for which to plan, by profile name.

        :param profile: the name of a device profile or of a GPU profile;
            None for all GPU profiles.
        :raises InvalidValue: if there is no such profile, or it asks for
            several accelerators.
        """
        labels = {
            offer.label: resources.group(offer.resource_class)
            for host in self.hosts for offer in host.providers
            if offer.resource_class is not None}
        if profile is None:
            return {label: labels[label] for label in sorted(labels)}
        if profile in self.profiles:
            return {profile: fleet.group(self.profiles[profile], profile)}
        if profile in labels:
            return {profile: labels[profile]}
        raise exception.InvalidValue(
            what='profile', value=profile,
            expected='expected the name of a device profile or of a GPU '
            f'profile ({", ".join(sorted(labels)) or "none"})')


def server(cloud: connection.Cloud, uuid: str) -> fleet.Server | None:
    """Return the current state of a server; None if it no longer exists.

    :raises CloudError: if a request to Nova fails.
    """
    answer = cloud.ask('compute', f'/servers/{uuid}', responses.NOVA)
    with responses.understanding(cloud, 'Nova', f'server {uuid}'):
        return None if answer is None else fleet.server(answer['server'])


def _hosts(cloud, names, complain, progress):
    only = next(iter(names)) if len(set(names)) == 1 else None
    found = cloud_hosts.read(cloud, only, complain, progress)
    there = {host.name for host in found}
    for name in names:
        if name not in there:
            raise exception.InvalidValue(
                what='host', value=name,
                expected='expected a compute node with GPUs that the driver '
                'reports; see "openstack gpu host list"')
    return tuple(host for host in found if not names or host.name in names)
