# SPDX-License-Identifier: Apache-2.0


"""Accelerators in the domains that Nova's own LibvirtDriver creates.

This library's agent reports the handles and binds them.
"""

from __future__ import annotations

import json

import fixtures
from lxml import etree
from nova import exception as nova_exception
from nova.tests.fixtures import libvirt as fakelibvirt

from cyborg_gpu_driver.cloud import guest
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.nova import base

WHOLE = policy.Policy('whole', policy.Mode.PASSTHROUGH)
SLICES = policy.Policy('slices', policy.Mode.MIG)
DESKTOPS = policy.Policy('desktops', policy.Mode.VGPU,
                         vgpu_types=('T4-2B',))
PAIR = policy.Policy('pair', policy.Mode.VGPU,
                     vgpu_types=('A40-2Q', 'A40-2B'))
LINKED = policy.Policy('linked', policy.Mode.NVLINK)
LARGE = policy.Policy('large', policy.Mode.VGPU, vgpu_types=('L40S-12Q',))


class StockTest(base.DriverCase):
    """Handles that a stock nova-compute accepts."""

    def test_whole_gpus(self):
        host = self.useFixture(base.GpuHost('t4x4', WHOLE))
        server, handles = self.instance(), host.handles()
        self.spawn(server, [self.bound(host, handle, server)
                            for handle in handles])
        self.assertEqual(
            [('pci', 'yes', str(handle.address)) for handle in handles],
            self.hostdevs(server))
        self.assertEqual([], self.created)

    def test_mdev_on_the_gpu(self):
        host = self.useFixture(base.GpuHost('t4x4', DESKTOPS))
        self.check_mdev(host, host.handles()[0])

    def test_mdev_on_a_virtual_function(self):
        host = self.useFixture(base.GpuHost('dgx-a100-40', SLICES))
        self.check_mdev(host, host.handles('1g.5gb')[0])

    def check_mdev(self, host, handle):
        """Check that Nova attaches the agent's mdev and creates none."""
        server = self.instance()
        request = self.bound(host, handle, server)
        self.spawn(server, [request])
        wanted = [('mdev', None, request['attach_handle_uuid'])]
        self.assertEqual(wanted, self.hostdevs(server))
        self.hard_reboot(server, [request])
        self.assertEqual(wanted, self.hostdevs(server))
        self.assertEqual([], self.created)

    def test_mdevs_of_two_types_of_one_size(self):
        """Each type fits more vGPUs than half of the 32 functions can carry.
        """
        host = self.useFixture(base.GpuHost(host_files.write_host(
            self.useFixture(fixtures.TempDir()).path,
            [{'model': 'a40', 'address': '0000:41:00.0', 'numa_node': 0,
              'framework': 'mdev', 'vfs': 'all'}]), PAIR))
        of_q, of_b = host.handles('A40-2Q'), host.handles('A40-2B')
        self.assertEqual(32, len({
            handle.address for handle in of_q + of_b}))
        for number in scope.some(range(4)):
            for handle in (of_q[number], of_b[number]):
                self.check_mdev(host, handle)

    def test_nova_makes_an_mdev_that_is_gone(self):
        """Nova takes the parent and the type from the agent's handle."""
        host = self.useFixture(base.GpuHost('t4x4', DESKTOPS))
        server, handle = self.instance(), host.handles()[0]
        request = base.arq(handle, server.uuid)
        self.spawn(server, [request])
        place = str(handle.address).translate(str.maketrans(':.', '__'))
        self.assertEqual(
            [(f'pci_{place}', handle.asked_type,
              request['attach_handle_uuid'])], self.created)


class WithoutMdevTest(base.DriverCase):
    """Virtual functions of vendor VFIO, on a kernel without mdev."""

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(base.GpuHost('l40sx4', LARGE))

    def test_virtual_functions(self):
        self.extend(self.host)
        server, handles = self.instance(), self.host.handles()[:2]
        requests = [self.bound(self.host, handle, server)
                    for handle in handles]
        self.spawn(server, requests)
        wanted = [('pci', 'no', str(handle.address)) for handle in handles]
        self.assertEqual(wanted, self.hostdevs(server))
        self.driver.init_host(base.HOST)
        self.assertEqual(
            {}, self.driver._get_all_assigned_mediated_devices(server))
        self.hard_reboot(server, requests)
        self.assertEqual(wanted, self.hostdevs(server))
        self.assertEqual([], self.created)
        # A function that has lost its vGPU is not attached again.
        self.host.unbind(requests[0])
        self.assertRaises(nova_exception.AcceleratorRequestOpFailed,
                          self.hard_reboot, server, requests)
        self.assertNotIn(server.uuid, self.domains())

    def test_function_without_its_vgpu_is_refused(self):
        self.extend(self.host)
        server, handle = self.instance(), self.host.handles()[0]
        error = self.assertRaises(
            nova_exception.AcceleratorRequestOpFailed, self.spawn, server,
            [base.arq(handle, server.uuid)])
        self.assertIn(f'{handle.address}: it has vGPU type 0',
                      str(error))
        self.assertNotIn(server.uuid, self.domains())

    def test_stock_nova_cannot_take_it(self):
        server, handle = self.instance(), self.host.handles()[0]
        request = self.bound(self.host, handle, server)
        self.spawn(server, [request])
        self.assertEqual('mdev', self.hostdevs(server)[0].type)


class GroupTest(base.DriverCase):
    """Groups of whole GPUs that NVLink connects."""

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(base.GpuHost(
            host_files.write_unprepared(
                self.useFixture(fixtures.TempDir()).path, 'hgx-h100'),
            LINKED))

    def group(self, size):
        """A handle, and the addresses of its GPUs."""
        handle, *_ = self.host.handles(f'nvlink-{size}')
        return handle, tuple(map(str, nvlink.from_text(
            json.loads(handle.attach_info)['addresses'])))

    def test_each_size(self):
        self.extend(self.host)
        for size in scope.some((1, 2, 4, 8)):
            server, (handle, members) = self.instance(), self.group(size)
            self.assertEqual(size, len(members))
            request = self.bound(self.host, handle, server)
            self.spawn(server, [request])
            wanted = [('pci', 'yes', address) for address in members]
            self.assertEqual(wanted, self.hostdevs(server))
            self.hard_reboot(server, [request])
            self.assertEqual(wanted, self.hostdevs(server))
            self.assertEqual('MDEV', request['attach_handle_type'])
            self.driver.power_off(server)
            self.host.unbind(request)
        self.assertEqual([], self.created)

    def test_a_handle_with_other_gpus_is_refused(self):
        self.extend(self.host)
        server, (handle, members) = self.instance(), self.group(2)
        request = base.arq(handle, server.uuid)
        request['attach_handle_info']['addresses'] = (
            f'{members[0]} 0000:77:00.0')
        self.assertRaises(nova_exception.AcceleratorRequestOpFailed,
                          self.spawn, server, [request])
        self.assertNotIn(server.uuid, self.domains())

    def test_stock_nova_attaches_none_of_its_gpus(self):
        """Stock Nova requests an mdev of a type that no kernel has."""
        server, (handle, members) = self.instance(), self.group(2)
        request = self.bound(self.host, handle, server)
        self.spawn(server, [request])
        parent = 'pci_' + members[0].translate(str.maketrans(':.', '__'))
        self.assertEqual(
            [(parent, 'nvlink-2', request['attach_handle_uuid'])],
            self.created)
        self.assertEqual(['mdev'], [
            device.type for device in self.hostdevs(server)])


class DefinedTest(base.DriverCase):
    """The XML that Nova passes to libvirt."""

    def setUp(self):
        super().setUp()
        self.defined = []
        define = fakelibvirt.Connection.defineXML

        def record(connection, xml):
            # The fake libvirt does not keep the metadata.
            self.defined.append(xml)
            return define(connection, xml)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Connection.defineXML', record))

    def test_address_space_of_four_large_gpus(self):
        server = self.instance()
        server.flavor.extra_specs |= guest.flavor_specs(4, 128 << 30, 0)
        self.flags(cpu_mode='host-passthrough', group='libvirt')
        self.spawn(server, [])
        space = etree.fromstring(self.defined[0]).find('cpu/maxphysaddr')
        self.assertEqual({'mode': 'emulate', 'bits': '43'}, dict(space.attrib))

    def test_what_the_exporter_reads(self):
        """A server, its project and its devices."""
        host = self.useFixture(base.GpuHost(
            't4x4', policy.Policy(
                'one', policy.Mode.VGPU, vgpu_types=('T4-2B',),
                match_numa_node=(0,)), WHOLE, gpus=4))
        server = self.instance()
        server.project_id = 'b9a2c1f04d6e4f5f8a7c6b5d4e3f2a10'
        (vgpu, *_), (whole, *_) = host.handles('T4-2B'), host.handles(
            'passthrough')
        requests = [self.bound(host, handle, server)
                    for handle in (vgpu, whole)]
        self.context.project_id = server.project_id
        self.spawn(server, requests)
        self.assertEqual(
            {domains.Domain(server.uuid, server.project_id, 'gpu', frozenset({
                requests[0]['attach_handle_uuid'], str(whole.address)}))},
            set(map(domains.parse, self.defined)))
        # The reader finds the same through libvirt's Python calls. The fake
        # has all of them except close().
        self.connection.close = lambda: 0
        (found,) = domains.DomainReader(lambda: self.connection).read()
        self.assertEqual((server.uuid, 2), (found.uuid, len(found.devices)))
