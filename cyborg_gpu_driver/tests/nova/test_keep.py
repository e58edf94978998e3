# SPDX-License-Identifier: Apache-2.0


"""Servers keep their accelerators on paths where Nova does not request them.

Each path runs in Nova's own LibvirtDriver, both as released and patched.
"""

from __future__ import annotations

import os

import fixtures
import testscenarios
from nova import exception as nova_exception
from nova import objects
from nova.objects import image_meta

from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.nova import base

WHOLE = policy.Policy('whole', policy.Mode.PASSTHROUGH)
DESKTOPS = policy.Policy('desktops', policy.Mode.VGPU,
                         vgpu_types=('T4-2B',))
SLICES = policy.Policy('slices', policy.Mode.MIG)
LARGE = policy.Policy('large', policy.Mode.VGPU, vgpu_types=('L40S-12Q',))

_KINDS = [
    ('whole GPU', {'host': 't4x4', 'governing': WHOLE,
                   'type': 'pci', 'managed': 'yes', 'stock': False}),
    # Nova reads the domain's mdev from libvirt.
    ('mdev', {'host': 't4x4', 'governing': DESKTOPS,
              'type': 'mdev', 'managed': None, 'stock': True}),
    ('mdev of a slice', {
        'host': 'dgx-a100-40', 'governing': SLICES,
        'type': 'mdev', 'managed': None, 'stock': True}),
    ('virtual function', {
        'host': 'l40sx4', 'governing': LARGE,
        'type': 'pci', 'managed': 'no', 'stock': False}),
    ('virtual function of a slice', {
        'host': 'hgx-h200-vfio', 'governing': SLICES,
        'type': 'pci', 'managed': 'no', 'stock': False}),
]


class KeepCase(base.DriverCase):

    def setUp(self):
        super().setUp()
        for name in ('_create_configdrive', '_lvm_disks'):
            self.useFixture(fixtures.MockPatch(
                f'nova.virt.libvirt.driver.LibvirtDriver.{name}',
                return_value=[]))

    def make_host(self, host, governing):
        return self.useFixture(base.GpuHost(host, governing))

    def running(self, host, amount=2):
        """Start a server with the first handles of a host."""
        server = self.instance()
        for handle in host.handles()[:amount]:
            self.bound(host, handle, server)
        self.spawn(server, self.requests[server.uuid])
        return server

    def boot_host(self, *servers):
        """Boot the host: each domain is defined, and none runs."""
        for server in servers:
            self.driver.power_off(server)
        for server in servers:
            self.driver.resume_state_on_host_boot(
                self.context, server, [], objects.ShareMappingList())

    def rescue(self, server):
        place = os.path.join(self.flags_path(), server.uuid)
        os.makedirs(place, exist_ok=True)
        self.driver.rescue(
            self.context, server, [], image_meta.ImageMeta.from_dict({}),
            'secret', {}, objects.ShareMappingList())

    def flags_path(self):
        return base.libvirt_driver.CONF.instances_path


class KindCase(testscenarios.WithScenarios, KeepCase):
    """A server with two handles of a kind, before and after each path."""

    def setUp(self):
        super().setUp()
        self.gpus = self.make_host(self.host, self.governing)

    def extended(self):
        self.extend(self.gpus)
        server = self.running(self.gpus)
        had = self.hostdevs(server)
        self.assertEqual([(self.type, self.managed)] * 2,
                         [(found.type, found.managed) for found in had])
        return server, had


class EachKindTest(KindCase):

    scenarios = _KINDS

    def test_host_boot(self):
        server, had = self.extended()
        self.boot_host(server)
        self.assertEqual(had, self.hostdevs(server))
        self.assertEqual([], self.created)

    def test_host_boot_without_the_domain(self):
        server, had = self.extended()
        self.driver.power_off(server)
        self.connection.lookupByUUIDString(server.uuid).undefine()
        self.assertNotIn(server.uuid, self.domains())
        self.driver.resume_state_on_host_boot(
            self.context, server, [], objects.ShareMappingList())
        self.assertEqual(had, self.hostdevs(server))


class EachPathTest(KindCase):

    scenarios = scope.some(_KINDS)

    def test_rescue_and_unrescue(self):
        server, had = self.extended()
        self.rescue(server)
        self.assertEqual(had, self.hostdevs(server))
        self.driver.unrescue(self.context, server)
        self.assertEqual(had, self.hostdevs(server))
        self.assertEqual([], self.created)

    def test_rescue_and_unrescue_without_the_domain(self):
        server, had = self.extended()
        self.driver.power_off(server)
        self.connection.lookupByUUIDString(server.uuid).undefine()
        self.rescue(server)
        self.assertEqual(had, self.hostdevs(server))
        self.driver.unrescue(self.context, server)
        self.assertEqual(had, self.hostdevs(server))

    def test_host_boot_of_a_rescued_server(self):
        server, had = self.extended()
        self.rescue(server)
        self.boot_host(server)
        self.assertEqual(had, self.hostdevs(server))
        self.driver.unrescue(self.context, server)
        self.assertEqual(had, self.hostdevs(server))

    def test_stop_and_start(self):
        server, had = self.extended()
        self.driver.power_off(server)
        self.assertEqual(had, self.hostdevs(server))
        self.driver.power_on(self.context, server, [],
                             accel_info=self.requests[server.uuid])
        self.assertEqual(had, self.hostdevs(server))

    def test_evacuate_or_unshelve(self):
        """The server gets other handles and keeps them after a host boot."""
        server, _ = self.extended()
        self.driver.destroy(self.context, server, [])
        for request in self.requests.pop(server.uuid):
            self.gpus.unbind(request)
        for handle in self.gpus.handles()[:2]:
            self.bound(self.gpus, handle, server)
        self.spawn(server, self.requests[server.uuid])
        again = self.hostdevs(server)
        self.assertEqual(2, len(again))
        self.boot_host(server)
        self.assertEqual(again, self.hostdevs(server))


class ReleasedNovaTest(testscenarios.WithScenarios, KeepCase):
    """The behavior of the released Nova that nova/patches.py corrects.

    If one of these tests fails, Nova requests the accelerators itself.
    Then remove the patch for that path.
    """

    scenarios = scope.some(
        kind for kind in _KINDS if kind[1]['managed'] != 'no')

    def setUp(self):
        super().setUp()
        self.gpus = self.make_host(self.host, self.governing)
        self.server = self.running(self.gpus)
        self.had = self.hostdevs(self.server)

    def test_host_boot(self):
        self.boot_host(self.server)
        self.assertEqual(self.had if self.stock else [],
                         self.hostdevs(self.server))

    def test_rescue(self):
        self.rescue(self.server)
        self.assertEqual(self.had if self.stock else [],
                         self.hostdevs(self.server))
        self.driver.unrescue(self.context, self.server)
        self.assertEqual(self.had, self.hostdevs(self.server))

    def test_domain_that_is_lost(self):
        self.driver.power_off(self.server)
        self.connection.lookupByUUIDString(self.server.uuid).undefine()
        self.rescue(self.server)
        self.driver.unrescue(self.context, self.server)
        self.assertEqual([], self.hostdevs(self.server))


class RefusalTest(KeepCase):

    def setUp(self):
        super().setUp()
        self.gpus = self.make_host('t4x4', WHOLE)
        self.extend(self.gpus)
        self.server = self.running(self.gpus, 1)

    def test_handle_of_another_host(self):
        """On this host, its address may belong to another server's GPU."""
        (request,) = self.requests[self.server.uuid]
        request['hostname'] = 'compute2'
        self.driver.power_off(self.server)
        error = self.assertRaises(
            nova_exception.AcceleratorRequestOpFailed,
            self.driver.resume_state_on_host_boot, self.context, self.server,
            [], objects.ShareMappingList())
        self.assertIn('is Bound on compute2, not Bound on compute1',
                      str(error))
        # Nova destroys the domain only once it knows the handles.
        self.assertIn(self.server.uuid, self.domains())

    def test_server_without_a_profile_asks_for_nothing(self):
        server = self.instance()
        server.flavor.extra_specs = {}
        self.spawn(server, None)
        self.boot_host(server)
        self.assertNotIn(server.uuid, self.requests)
        self.assertEqual([], self.hostdevs(server))

    def test_server_that_runs_is_left_alone(self):
        had = self.hostdevs(self.server)
        del self.requests[self.server.uuid]
        self.driver.resume_state_on_host_boot(
            self.context, self.server, [], objects.ShareMappingList())
        self.assertEqual(had, self.hostdevs(self.server))
