# SPDX-License-Identifier: Apache-2.0

"""A cordoned GPU gets no server, and a drained one has none."""

from __future__ import annotations

from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.osc import cordons
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import storm_case

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'
_HALF, _ALL = 'CUSTOM_NVIDIA_3G_40GB', 'CUSTOM_NVIDIA_7G_80GB'
_WHY = 'a fan is broken'


@scope.only_in_all
class CordonTest(storm_case.GpuCase):
    """A storm of servers after a restart of the services.

    No server gets a part of the two GPUs. One is cordoned through the cloud,
    the other one on its host.
    """

    def test_no_server_in_a_storm(self):
        in_cloud, on_host = self.gpus
        (row,) = self.on_host('gpu', 'cordon', on_host, '--reason', _WHY)
        self.addCleanup(self.on_host, 'gpu', 'uncordon', on_host)
        self.assertIn(_WHY, str(row['cordons']))
        self.assertTrue(self.is_closed(on_host))
        self.cordon(in_cloud, _WHY)
        # The cordon keeps its first reason.
        (row,) = self.rows(cordons.CordonGpu, in_cloud, '--reason', 'another')
        self.assertIn(_WHY, str(row['Cordons']))

        flavor = self.flavor_of(_SLICE)
        self.restart(*self.gpus)
        active, refused = self.storm(
            [(flavor, (self.user1, self.user2)[turn % 2])
             for turn in range(storm_case.AT_ONCE)],
            lambda: self.assert_unused(*self.gpus))
        self.assertLess(0, len(active))
        self.assert_no_host(refused)
        self.assert_unused(*self.gpus)
        self.end()

        flavor = self.flavor_of(_ALL)
        (row,) = self.rows(cordons.UncordonGpu, in_cloud)
        self.assertEqual([], row['Cordons'])
        self.assert_has_next(in_cloud, flavor)
        (row,) = self.on_host('gpu', 'uncordon', on_host)
        self.assertEqual([], row['cordons'])
        self.assert_has_next(on_host, flavor)
        self.end()
        self.assert_only_handles_left()

    def assert_has_next(self, gpu, flavor):
        """Assert that the only open GPU of the host gets the next server."""
        self.wait_open(gpu)
        self.boot(flavor, self.admin, host=self.host)
        self.assertEqual(1, len(self.cloud.hardware(
            self.host)[gpu].instances))


@scope.only_in_all
class DrainTest(storm_case.GpuCase):
    """Drain a GPU with two servers: one owner consents later than the other.
    """

    def setUp(self):
        super().setUp()
        self.gpu, _ = self.gpus
        flavor = self.flavor_of(_HALF)
        # Each of the host's two GPUs has room for two of these servers.
        servers = [self.boot(flavor, self.admin, host=self.host)
                   for _ in range(4)]
        self.movable, self.firm = [
            server for server in servers if self.gpu in self.gpus_of(server)]

    def gpus_of(self, server):
        """The addresses of the GPUs of which a server has a part."""
        handles = {one.handle for one in self.accelerators(server)}
        return {address for host in self.cloud.hosts for address, gpu
                in self.cloud.hardware(host).items()
                if any(vgpu.uuid in handles for vgpu in gpu.vgpus)}

    def test_drain(self):
        self.consent(self.movable)
        had = self.accelerators(self.firm)
        self.cordon(self.gpu, _WHY)
        (row,) = self.drain('--shelve', code=1)
        self.assertEqual(
            (self.firm.id, 'ACTIVE', False, f'no {fleet.CONSENT}=true'),
            tuple(row[name] for name in ('Server', 'Status', 'Consents',
                                         'Result')))
        self.assert_away(self.movable)

        self.restart(self.gpu)
        self.assertEqual(had, self.accelerators(self.firm))
        (row,) = self.drain('--shelve', code=1)
        self.assertEqual(self.firm.id, row['Server'])
        # A server that is unshelved does not get the free slot on the
        # cordoned GPU either.
        self.admin.compute.unshelve_server(self.movable)
        self.wait_for(self.movable, 'ACTIVE')
        self.assertNotIn(self.gpu, self.gpus_of(self.now(self.movable)))

        self.consent(self.firm)
        self.assertEqual([], self.drain('--migrate'))
        firm = self.now(self.firm)
        self.assertEqual(('ACTIVE', 1, False), (
            firm.status, len(self.accelerators(firm)),
            self.gpu in self.gpus_of(firm)))
        self.assert_unused(self.gpu)
        self.assertTrue(self.is_closed(self.gpu))
        self.assertEqual([], self.drain())

        self.rows(cordons.UncordonGpu, self.gpu)
        self.end()
        self.wait_open(self.gpu)
        self.assert_only_handles_left()

    def consent(self, server):
        self.admin.compute.set_server_metadata(
            server, **{fleet.CONSENT: 'true'})

    def drain(self, *arguments, code=0):
        return self.rows(cordons.DrainGpu, self.gpu, '--reason', _WHY,
                         '--yes', *arguments, code=code)

    def now(self, server):
        return self.admin.compute.get_server(server.id)

    def assert_away(self, server):
        """Assert that a server is shelved and has no part of any GPU."""
        self.assertEqual('SHELVED_OFFLOADED', self.now(server).status)
        self.assertEqual([], self.arqs(server))
        self.assertNotIn(server.id, {
            consumer for consumers in self.cloud.allocations().values()
            for consumer in consumers})
