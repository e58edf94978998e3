# SPDX-License-Identifier: Apache-2.0

"""Many servers at the same time."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Callable
from collections.abc import Iterable
from concurrent import futures

from openstack import exceptions
from openstack.compute.v2 import flavor as flavor_module
from openstack.compute.v2 import server as server_module
from openstack.connection import Connection

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import cordons
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running

AT_ONCE = 20
_POLL = 1.0
_SCHEDULER = """
[filter_scheduler]
weight_classes = nova.scheduler.weights.all_weighers,\
cyborg_gpu_driver.nova.weigher.GpuWeigher
available_filters = nova.scheduler.filters.all_filters
available_filters = cyborg_gpu_driver.nova.filter.GpuFilter
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,\
ImagePropertiesFilter,ServerGroupAntiAffinityFilter,\
ServerGroupAffinityFilter,GpuFilter
[gpu_weigher]
gpu_weight_multiplier = 10.0
"""
"""The settings that doc/source/admin/scheduling.rst recommends."""
PLACEMENT = {'OpenStack-API-Version': 'placement 1.36'}


class StormCase(base.TestCase):
    """A test that creates and deletes servers in storms."""

    def setUp(self):
        super().setUp()
        self.image = self.user1.image.find_image(base.IMAGE).id
        self.openstack = running.Openstack(
            connection.Cloud(self.admin, 'admin'))
        self.addCleanup(self.end)

    def storm(self, requests: Iterable[tuple[flavor_module.Flavor,
                                             Connection]],
              look: Callable[[], None] = lambda: None,
              restarted: Iterable[str] = ()
              ) -> tuple[list[server_module.Server],
                         list[server_module.Server]]:
        """Request servers at the same time, and wait until Nova is done.

        :param requests: the flavor of each server, and the user's connection.
        :param look: called repeatedly, and once after the last server.
        :param restarted: services that are restarted meanwhile.
        :returns: the servers that are ACTIVE, and the others.
        """
        with futures.ThreadPoolExecutor(AT_ONCE) as pool:
            asking = [pool.submit(self.ask, *request) for request in requests]
            for service in restarted:
                self.cloud.restart(service)
            asked = {done.result().id for done in asking}

        def ended():
            found = [server for server in self.servers()
                     if server.id in asked]
            look()
            return None if any(server.status == 'BUILD'
                               for server in found) else found

        found = self.until(ended, 'the storm is over', poll=_POLL)
        self.assertEqual(asked, {server.id for server in found})
        return ([server for server in found if server.status == 'ACTIVE'],
                [server for server in found if server.status != 'ACTIVE'])

    def assert_no_host(self, servers: Iterable[server_module.Server]) -> None:
        """Assert that the scheduler has refused all of these servers."""
        self.assertEqual([], [
            server.fault['message'] for server in servers
            if 'No valid host was found' not in server.fault['message']])

    def ask(self, flavor: flavor_module.Flavor, cloud: Connection
            ) -> server_module.Server:
        """Request a server, and do not wait for it."""
        return cloud.compute.create_server(
            name='storm', flavor_id=flavor.id, image_id=self.image,
            networks='none')

    def servers(self) -> list[server_module.Server]:
        """All servers of the cloud."""
        return list(self.admin.compute.servers(all_projects=True))

    def end(self) -> None:
        """Delete all servers."""
        self.delete_all(self.servers())

    def delete_all(self, servers: Iterable[server_module.Server]) -> None:
        """Delete servers at the same time, and wait until they are gone."""
        ids = {server.id for server in servers}
        with futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.admin.compute.delete_server, ids))
        self.until(lambda: not ids & {server.id for server
                                      in self.servers()},
                   'all are gone', poll=_POLL)

    def assert_only_handles_left(self) -> None:
        """Assert that servers left at most attach handles in use.

        A bind that a restart interrupted may leave its handle in use. Cyborg
        then has no request for the handle, and no API to release it
        (RestartCase.assert_only_handles_left in test_restarts).
        """
        with contextlib.suppress(base.Late):
            self.until(lambda: set(self.left()) <= {base.HANDLES},
                       'at most handles are left')
        self.cloud.release_handles()
        self.assert_nothing_left()

    def are_reserved(self, providers: Iterable[str]) -> bool:
        """Whether these providers offer nothing to a new server."""
        inventories = self.cloud.inventories()
        return all(total == reserved for name in providers
                   for total, reserved in inventories.get(name, {}).values())

    def use_gpu_scheduler(self) -> None:
        """Enable our weigher and filter in nova-scheduler for this test."""
        path = self.cloud.directory / 'etc' / 'nova' / 'nova.conf'
        before = path.read_text()
        self.addCleanup(self.cloud.restart, 'nova-scheduler')
        self.addCleanup(path.write_text, before)
        # The same section may occur several times in the file.
        path.write_text(before + _SCHEDULER)
        self.cloud.restart('nova-scheduler')


class GpuCase(StormCase):
    """A test about the two GPUs of a host that have slices.

    :ivar gpus: the PCI addresses of these GPUs.
    """

    def setUp(self):
        super().setUp()
        # What the test before left is removed a moment after its end.
        self.assert_nothing_left()
        self.host = self.cloud.hosts[0]
        self.agent = f'cyborg-agent-{self.host}'
        self.providers = collections.defaultdict(list)
        for provider in self.admin.placement.resource_providers():
            host, _, name = provider.name.partition('_gpu_')
            if host == self.host:
                self.providers[name.partition('_')[0]].append(provider.name)
        self.gpus = sorted(
            gpu for gpu, names in self.providers.items()
            if any(name.endswith('_7g.80gb') for name in names))
        self.assertEqual(2, len(self.gpus))

    def cordon(self, gpu: str, reason: str) -> None:
        """Run ``openstack gpu cordon``.

        The agent is restarted, so that it reports at once instead of within
        a minute.
        """
        self.addCleanup(self.rows, cordons.UncordonGpu, gpu)
        self.rows(cordons.CordonGpu, gpu, '--reason', reason, '--wait', '0',
                  code=1)
        self.assertFalse(self.is_closed(gpu))
        self.cloud.restart(self.agent)
        self.wait_closed(gpu)

    def restart(self, *gpus: str) -> None:
        """Restart the services that might forget that GPUs are cordoned.

        Meanwhile the test opens the GPUs in Placement. The first report of
        the agent must close them again.
        """
        self.cloud.kill(self.agent)
        self.cloud.restart('cyborg-conductor', 'placement')
        for gpu in gpus:
            for name in self.providers[gpu]:
                self.reserve_nothing(name)
            self.assertFalse(self.is_closed(gpu))
        self.cloud.restart(self.agent)
        for gpu in gpus:
            self.wait_closed(gpu)

    def wait_closed(self, gpu: str) -> None:
        self.until(lambda: self.is_closed(gpu), f'GPU {gpu} is closed')

    def wait_open(self, gpu: str) -> None:
        """Wait until all inventories of an unused GPU are available.

        If others have changed a provider too, the agent writes it only in
        its second report, or in its first report after a start.
        """
        self.cloud.restart(self.agent)
        self.until(lambda: not set(self.providers[gpu]) & self.withheld()
                   .keys(), f'GPU {gpu} is open')

    def is_closed(self, gpu: str) -> bool:
        """Whether all inventories of a GPU are fully reserved."""
        return self.are_reserved(self.providers[gpu])

    def reserve_nothing(self, name: str) -> None:
        """Set all reserved amounts of a provider to 0 in Placement."""
        placement = self.admin.placement
        provider = placement.find_resource_provider(name)
        url = f'/resource_providers/{provider.id}/inventories'
        answer = placement.get(url, headers=PLACEMENT)
        exceptions.raise_from_response(answer)
        wanted = answer.json()
        for inventory in wanted['inventories'].values():
            inventory['reserved'] = 0
        exceptions.raise_from_response(placement.put(
            url, json=wanted, headers=PLACEMENT))

    def rows(self, command, gpu: str, *arguments: str, code: int = 0
             ) -> list[dict]:
        """Run an ``openstack gpu`` command about a GPU; return its rows."""
        return self.openstack.rows(command, self.host, gpu, *arguments,
                                   code=code)

    def on_host(self, *arguments: str) -> list[dict]:
        """Run a ``cyborg-gpu`` command on the GPU's host; return its rows."""
        return json.loads(self.cloud.cyborg_gpu(
            self.host, *arguments, '-f', 'json'))

    def assert_unused(self, *gpus: str) -> None:
        """Assert that no server has a part of the GPUs."""
        allocated = self.cloud.allocations().keys()
        hardware = self.cloud.hardware(self.host)
        for gpu in gpus:
            self.assertEqual(set(), set(self.providers[gpu]) & allocated)
            self.assertEqual(({}, []), (dict(hardware[gpu].instances),
                                        list(hardware[gpu].vgpus)))
