# SPDX-License-Identifier: Apache-2.0

"""Base of the tests on the real services: a server as its user sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
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

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import explain
from cyborg_gpu_driver.osc import orphan
from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.unit.osc import running

IMAGE = 'minimal'
"""The public image that minicloud creates."""
DEADLINE = 900
"""Seconds after which a test no longer waits. Nothing takes nearly as long,
even on a busy machine: Nova itself waits for a bind for 300 s at most."""
HANDLES = 'handles in use'
_POLL, _GROWTH, _LONGEST = 0.2, 1.25, 2.0
"""Seconds from one look to the next: the first pause, the factor from pause
to pause, and the longest pause. Each look costs the services time, too."""
_OF_HOSTS = frozenset({'VCPU', 'MEMORY_MB', 'DISK_GB'})
"""Classes of the compute node's own provider."""

for _name in ('keystoneauth', 'urllib3'):
    # They log each request. The log of a test that waits would then exceed
    # what subunit can carry (4 MiB), and the run would fail.
    logging.getLogger(_name).setLevel(logging.INFO)


@dataclasses.dataclass(frozen=True, order=True)
class Accelerator:
    """The part of the hardware that serves an accelerator request.

    :ivar kind: ``whole``, ``slice N`` with NVML's profile id of the GPU
        instance, or ``vgpu N`` with the type's id.
    :ivar where: host, and address of the function that the guest gets.
    :ivar handle: UUID of the attach handle.
    """

    kind: str
    where: str
    handle: str


class TestCase(base.BaseTestCase):
    """A test on the cloud.

    ``admin``, ``user1`` and ``user2`` are connections of these users.
    """

    def setUp(self):
        # The cloud may have to be started here. Environment variables and
        # timeouts of other tests must not affect it.
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
        """Create a device profile, which is deleted after the test.

        :param groups: such as ``{'resources:PGPU': '1'}``.
        :returns: the name of the device profile.
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
        """Create a flavor with a device profile, until the test ends."""
        compute = self.admin.compute
        flavor = compute.create_flavor(
            name=f'flavor-{device_profile}', vcpus=1, ram=64, disk=1)
        self.addCleanup(compute.delete_flavor, flavor)
        compute.create_flavor_extra_specs(
            flavor, {'accel:device_profile': device_profile, **extra_specs})
        return flavor

    def flavor_of(self, resource_class: str, amount: int = 1
                  ) -> flavor_module.Flavor:
        """Create a flavor with ``amount`` accelerators of one class."""
        return self.flavor(self.device_profile(
            {f'resources:{resource_class}': str(amount)}))

    def create(self, flavor: flavor_module.Flavor,
               cloud: Connection | None = None, **more: str
               ) -> server_module.Server:
        """Request a server, which is deleted after the test at the latest.

        :param cloud: the user's connection; ``user1``'s by default.
        :param more: fields of the request, such as the server's ``host``.
        """
        cloud = cloud or self.user1
        # Nova 34 refuses a server with an accelerator if the request does
        # not say anything about networks.
        server = cloud.compute.create_server(
            name=self.id().rpartition('.')[2], flavor_id=flavor.id,
            image_id=cloud.image.find_image(IMAGE).id, networks='none',
            **more)
        self.addCleanup(self._remove, server)
        return server

    def boot(self, flavor: flavor_module.Flavor,
             cloud: Connection | None = None, **more: str
             ) -> server_module.Server:
        """Create a server and wait until it is ACTIVE.

        :param cloud: the user's connection; ``user1``'s by default.
        :param more: see :meth:`create`.
        """
        return self.wait_for(self.create(flavor, cloud, **more), 'ACTIVE')

    def wait(self, server: server_module.Server) -> server_module.Server:
        """Wait until Nova has finished its tasks; return the server."""
        def settled():
            now = self.admin.compute.get_server(server.id)
            busy = now.task_state is not None or now.status == 'BUILD'
            return None if busy and now.status != 'ERROR' else now

        return self.until(settled, f'server {server.id} is settled')

    def wait_for(self, server: server_module.Server, status: str
                 ) -> server_module.Server:
        """Wait for Nova's tasks, check the status, return the server."""
        server = self.wait(server)
        if server.status != status:
            self.fail(f'{server.status}: {server.fault}\n'
                      f'inventories: {self.cloud.inventories()}\n'
                      f'allocations: {self.cloud.allocations()}')
        return server

    def reboot(self, server: server_module.Server) -> server_module.Server:
        """Hard reboot a server and wait until the reboot ends."""
        self.admin.compute.reboot_server(server, 'HARD')
        return self.wait(server)

    def delete(self, *servers: server_module.Server) -> None:
        """Delete servers and wait until Nova has deleted all of them."""
        for server in servers:
            self.admin.compute.delete_server(server)
        for server in servers:
            self.until(lambda server=server: not self._exists(server),
                       f'server {server.id} is gone')

    def arqs(self, server: server_module.Server | None = None
             ) -> list[dict]:
        """Return the accelerator requests of one server, or of all."""
        answer = self.admin.accelerator.get(
            '/accelerator_requests',
            params={'instance': server.id} if server else {})
        exceptions.raise_from_response(answer)
        return answer.json()['arqs']

    def accelerators(self, server: server_module.Server
                     ) -> list[Accelerator]:
        """Return the accelerators of a server, sorted.

        Also checks that all requests of the server are bound on its host,
        to exactly the providers that Placement has allocated to the server.
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

    def slices(self, host: str) -> dict[str, tuple[int, int]]:
        """Count GPU instances and vGPUs on each GPU of a host with any."""
        counts = {address: (len(gpu.instances), len(gpu.vgpus))
                  for address, gpu in self.cloud.hardware(host).items()}
        return {address: count for address, count in counts.items()
                if any(count)}

    def left(self) -> dict[str, object]:
        """What servers have left behind, by kind; empty if nothing is left.
        """
        kinds = {'servers': [server.id for server in
                             self.admin.compute.servers(all_projects=True)],
                 'accelerator requests': self.arqs(),
                 HANDLES: self.cloud.handles_in_use(),
                 'allocations': self.cloud.allocations(),
                 **{f'claims of {host}': self.cloud.claims(host)
                    for host in self.cloud.hosts},
                 **{f'on the GPUs of {host}': self.slices(host)
                    for host in self.cloud.hosts}}
        return {kind: found for kind, found in kinds.items() if found}

    def assert_nothing_left(self) -> None:
        """Assert that no trace of any server remains.

        Some traces disappear a moment after Nova has deleted the server.
        """
        with contextlib.suppress(Late):
            self.until(lambda: not self.left(), 'nothing is left')
        self.assertEqual({}, self.left())
        self.assert_nothing_withheld()

    def assert_nothing_withheld(self) -> None:
        """Assert that all inventories are available again.

        A whole GPU must be cleaned first, which the agent's next report
        does.
        """
        self.until(lambda: not self.withheld(), 'nothing is withheld')

    def withheld(self) -> dict[str, dict[str, int]]:
        """Return the reserved amounts, by provider name and by class."""
        found = {}
        for provider, inventories in self.cloud.inventories().items():
            reserved = {name: reserved for name, (_, reserved)
                        in inventories.items()
                        if reserved and name not in _OF_HOSTS}
            if reserved:
                found[provider] = reserved
        return found

    def until(self, condition: Callable[[], object], what: str,
              seconds: float = DEADLINE, poll: float = _POLL):
        """Call a condition until its result is true, and return the result.

        :param poll: seconds from the first call to the second. The pauses
            grow, because each call costs the services time.
        :raises Late: if no result is true in time.
        """
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            if time.monotonic() > deadline:
                raise Late(f'not within {seconds} s: {what}')
            time.sleep(poll)
            poll = min(poll * _GROWTH, _LONGEST)
        return answer

    def explained(self, *arguments: str) -> set[tuple[str, str]]:
        """Run ``openstack gpu explain`` for a request that no host takes.

        :returns: profile and reason of each obstacle, on any host.
        """
        answer = json.loads(running.Openstack(connection.Cloud(
            self.admin, 'admin')).run(
                explain.ExplainRequest, *arguments, '-f', 'json', code=1)[0])
        self.assertFalse(answer['schedulable'])
        self.assertEqual(set(self.cloud.hosts),
                         {host['host'] for host in answer['hosts']})
        return {(candidate['profile'], missing['code'])
                for host in answer['hosts']
                for candidate in host['candidates']
                for missing in candidate['missing'] if missing['blocks']}

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
        """Clean up after a failure, so that no other test fails for it."""
        if not self._has_failed:
            return
        with contextlib.suppress(AssertionError, exceptions.SDKException):
            for server in self.admin.compute.servers(all_projects=True):
                self._remove(server)
            self.clean_requests()
            self.until(lambda: set(self.left()) <= {HANDLES},
                       'at most handles are left')
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
