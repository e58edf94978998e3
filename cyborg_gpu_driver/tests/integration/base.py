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

"""Tests on the real services, with a server's life as its user sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
import uuid
from collections.abc import Callable
from collections.abc import Mapping

import fixtures
from openstack import exceptions
from openstack.compute.v2 import flavor as flavor_module
from openstack.compute.v2 import server as server_module
from openstack.connection import Connection
from oslotest import base

from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.osc import orphan
from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.unit.osc import running

IMAGE = 'minimal'
"""What minicloud has made for everybody."""
# Nova waits that long for a bind; on a busy machine all takes its time.
_SERVER_DEADLINE = 300
SETTLE = 90
"""Seconds after which nothing may be left: one report and then some."""
HANDLES = 'handles in use'
_POLL = 0.2
_OF_HOSTS = frozenset({'VCPU', 'MEMORY_MB', 'DISK_GB'})
"""Classes of the compute node's own provider."""

for _name in ('keystoneauth', 'urllib3'):
    # What they say of each request makes the record of a test that waits
    # longer than subunit can carry (4 MiB), and the run fails.
    logging.getLogger(_name).setLevel(logging.INFO)


@dataclasses.dataclass(frozen=True, order=True)
class Accelerator:
    """What the hardware has for an accelerator request.

    :ivar kind: ``whole``, ``slice N`` with NVML's profile id of the GPU
        instance, or ``vgpu N`` with the type's id.
    :ivar where: host, and address of the function that the guest is given.
    :ivar handle: UUID of the attach handle.
    """

    kind: str
    where: str
    handle: str


class TestCase(base.BaseTestCase):
    """A test on the cloud; ``admin``, ``user1`` and ``user2`` are ways in.
    """

    def setUp(self):
        # Environment variables and timeouts of other tests are no business
        # of the cloud's, which may have to be started here.
        self.useFixture(fixtures.EnvironmentVariable('OS_CLOUD'))
        super().setUp()
        self.cloud = minicloud.shared.get()
        self.admin = self.cloud.connect('admin')
        self.user1 = self.cloud.connect('user1')
        self.user2 = self.cloud.connect('user2')
        self._has_failed = False
        self.addOnException(self._fail)
        self.addCleanup(self._clear)

    def _fail(self, _):
        self._has_failed = True

    def device_profile(self, *groups: Mapping[str, str]) -> str:
        """Make a device profile that goes with the test.

        :param groups: such as ``{'resources:PGPU': '1'}``.
        :returns: its name.
        """
        name = f'test-{uuid.uuid4().hex[:12]}'
        answer = self.admin.accelerator.post(
            '/device_profiles',
            json=[{'name': name, 'groups': [dict(group)
                                            for group in groups]}])
        exceptions.raise_from_response(answer)
        self.addCleanup(self._remove_profile, answer.json()['uuid'])
        return name

    def flavor(self, device_profile: str, **extra_specs: str
               ) -> flavor_module.Flavor:
        """Make a flavor with a device profile that goes with the test."""
        compute = self.admin.compute
        flavor = compute.create_flavor(
            name=f'flavor-{device_profile}', vcpus=1, ram=64, disk=1)
        self.addCleanup(compute.delete_flavor, flavor)
        compute.create_flavor_extra_specs(
            flavor, {'accel:device_profile': device_profile, **extra_specs})
        return flavor

    def flavor_of(self, resource_class: str, amount: int = 1
                  ) -> flavor_module.Flavor:
        """Make a flavor with so many accelerators of one class."""
        return self.flavor(self.device_profile(
            {f'resources:{resource_class}': str(amount)}))

    def create(self, flavor: flavor_module.Flavor,
               cloud: Connection | None = None, **more: str
               ) -> server_module.Server:
        """Ask for a server, which goes with the test at the latest.

        :param cloud: whose it is; ``user1``'s unless given.
        :param more: of the request, such as the ``host`` that is to have it.
        """
        cloud = cloud or self.user1
        # Nova 34 refuses an accelerator to a server whose request does not
        # say anything about networks.
        server = cloud.compute.create_server(
            name=self.id().rpartition('.')[2], flavor_id=flavor.id,
            image_id=cloud.image.find_image(IMAGE).id, networks='none',
            **more)
        self.addCleanup(self._remove, server)
        return server

    def boot(self, flavor: flavor_module.Flavor,
             cloud: Connection | None = None, **more: str
             ) -> server_module.Server:
        """Make a server and wait until it is ACTIVE.

        :param cloud: whose it is; ``user1``'s unless given.
        :param more: see :meth:`create`.
        """
        return self.wait_for(self.create(flavor, cloud, **more), 'ACTIVE')

    def wait(self, server: server_module.Server) -> server_module.Server:
        """The server once nothing is under way with it."""
        def settled():
            now = self.admin.compute.get_server(server.id)
            busy = now.task_state is not None or now.status == 'BUILD'
            return None if busy and now.status != 'ERROR' else now

        return self.until(settled, f'server {server.id} is settled',
                          _SERVER_DEADLINE)

    def wait_for(self, server: server_module.Server, status: str
                 ) -> server_module.Server:
        """The server once nothing is under way and it has that status."""
        server = self.wait(server)
        self.assertEqual(status, server.status, server.fault)
        return server

    def reboot(self, server: server_module.Server) -> server_module.Server:
        """Reboot a server the hard way and wait for it."""
        self.admin.compute.reboot_server(server, 'HARD')
        return self.wait(server)

    def delete(self, server: server_module.Server) -> None:
        """Delete a server and wait until Nova knows it no more."""
        self.admin.compute.delete_server(server)
        self.until(lambda: not self._exists(server),
                   f'server {server.id} is gone', _SERVER_DEADLINE)

    def arqs(self, server: server_module.Server | None = None
             ) -> list[dict]:
        """The accelerator requests of one server, or all there are."""
        answer = self.admin.accelerator.get(
            '/accelerator_requests',
            params={'instance': server.id} if server else {})
        exceptions.raise_from_response(answer)
        return answer.json()['arqs']

    def accelerators(self, server: server_module.Server
                     ) -> list[Accelerator]:
        """What the hardware has for a server, sorted.

        All of its requests are bound on its host, to providers that
        Placement has allocated to it, and to nothing else of that host.
        """
        requests = self.arqs(server)
        host = server.compute_host
        self.assertEqual([('Bound', host)] * len(requests), [
            (request['state'], request['hostname']) for request in requests])
        answer = self.admin.placement.get(f'/allocations/{server.id}')
        exceptions.raise_from_response(answer)
        self.assertEqual(
            sorted(request['device_rp_uuid'] for request in requests),
            sorted(provider for provider, allocation
                   in answer.json()['allocations'].items()
                   for name, amount in allocation['resources'].items()
                   if name not in _OF_HOSTS for _ in range(amount)))
        made = self.cloud.vgpus(host)
        return sorted(self._accelerator(host, request, made)
                      for request in requests)

    def allocations(self) -> dict[str, dict]:
        """What Placement has given out: provider name to consumers."""
        placement = self.admin.placement
        found = {}
        for provider in placement.resource_providers():
            answer = placement.get(
                f'/resource_providers/{provider.id}/allocations')
            exceptions.raise_from_response(answer)
            if answer.json()['allocations']:
                found[provider.name] = answer.json()['allocations']
        return found

    def slices(self, host: str) -> dict[str, tuple[int, int]]:
        """GPU instances and vGPUs on each GPU of a host that has any."""
        counts = {address: (len(gpu.instances), len(gpu.vgpus))
                  for address, gpu in self.cloud.hardware(host).items()}
        return {address: count for address, count in counts.items()
                if any(count)}

    def left(self) -> dict[str, object]:
        """What servers have left behind, by kind; empty for nothing."""
        kinds = {'servers': [server.id for server in
                             self.admin.compute.servers(all_projects=True)],
                 'accelerator requests': self.arqs(),
                 HANDLES: self.cloud.handles_in_use(),
                 'allocations': self.allocations(),
                 **{f'claims of {host}': self.cloud.claims(host)
                    for host in self.cloud.hosts},
                 **{f'on the GPUs of {host}': self.slices(host)
                    for host in self.cloud.hosts}}
        return {kind: found for kind, found in kinds.items() if found}

    def assert_nothing_left(self) -> None:
        """No trace of any server, soon: some goes a moment after Nova has
        said that the server is gone.
        """
        with contextlib.suppress(Late):
            self.until(lambda: not self.left(), 'nothing is left', SETTLE)
        self.assertEqual({}, self.left())
        self.assert_nothing_withheld()

    def assert_nothing_withheld(self) -> None:
        """All may be had again, once whole GPUs are cleaned.

        A report does that, and agents that start report at once. One that
        starts cleans again what was cleaned just before; so its own word is
        waited for.
        """
        dirty = [name.partition('_gpu_') for name, reserved
                 in self.withheld().items() if 'PGPU' in reserved]
        for host in {host for host, _, _ in dirty}:
            agent = f'cyborg-agent-{host}'
            before = len(self.cloud.log(agent))
            self.cloud.restart(agent)
            for address in [rest.partition('_')[0] for name, _, rest in dirty
                            if name == host]:
                self.until(
                    functools.partial(self._is_cleaned, agent, before,
                                      address),
                    f'GPU {address} of {host} is cleaned', SETTLE)
        self.until(lambda: not self.withheld(), 'nothing is withheld',
                   SETTLE)

    def _is_cleaned(self, agent, before, address):
        return (f'GPU {address} was reset and is offered again'
                in self.cloud.log(agent)[before:])

    def withheld(self) -> dict[str, dict[str, int]]:
        """What is reserved: provider name to amounts by class."""
        placement = self.admin.placement
        found = {}
        for provider in placement.resource_providers():
            answer = placement.get(
                f'/resource_providers/{provider.id}/inventories',
                headers={'OpenStack-API-Version': 'placement 1.26'})
            exceptions.raise_from_response(answer)
            reserved = {
                name: inventory['reserved'] for name, inventory
                in answer.json()['inventories'].items()
                if inventory['reserved'] and name not in _OF_HOSTS}
            if reserved:
                found[provider.name] = reserved
        return found

    def until(self, condition: Callable[[], object], what: str,
              seconds: float, poll: float = _POLL):
        """Wait for a true answer and return it.

        :param poll: seconds between two questions.
        :raises Late: if there is none in time.
        """
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            if time.monotonic() > deadline:
                raise Late(f'not within {seconds} s: {what}')
            time.sleep(poll)
        return answer

    def _accelerator(self, host, request, made):
        handle = request['attach_handle_uuid']
        if request['attach_handle_type'] == 'PCI':
            where = '{domain}:{bus}:{device}.{function}'.format(
                **request['attach_handle_info'])
            return Accelerator('whole', f'{host} {where}', handle)
        gpu, vgpu = made[handle]
        kind = (f'vgpu {vgpu.type_id}' if vgpu.instance is None else
                f'slice {gpu.instances[vgpu.instance].profile_id}')
        return Accelerator(kind, f'{host} {vgpu.function}', handle)

    def _clear(self):
        """Let no other test fail because this one did."""
        if not self._has_failed:
            return
        with contextlib.suppress(AssertionError, exceptions.SDKException):
            for server in self.admin.compute.servers(all_projects=True):
                self._remove(server)
            self.clean_requests()
            self.until(lambda: set(self.left()) <= {HANDLES},
                       'at most handles are left', SETTLE)
        self.cloud.release_handles()

    def clean_requests(self) -> None:
        """Delete accelerator requests that no server has.

        Cyborg lets only services delete a request that is bound.
        """
        if self.arqs():
            nova = self.cloud.connect('nova')
            running.Openstack(connection.Cloud(nova, 'nova')).run(
                orphan.CleanOrphan, '--yes', '--older-than', '0')

    def _exists(self, server):
        try:
            self.admin.compute.get_server(server.id)
        except exceptions.NotFoundException:
            return False
        return True

    def _remove_profile(self, profile):
        exceptions.raise_from_response(self.admin.accelerator.delete(
            f'/device_profiles/{profile}'))

    def _remove(self, server):
        if self._exists(server):
            self.delete(server)


class Late(AssertionError):
    """Something did not happen in time."""
