# SPDX-License-Identifier: Apache-2.0

"""Prometheus series name the server and project of each slice."""

from __future__ import annotations

import os

import fixtures
from nova.virt.libvirt import config as libvirt_config
from prometheus_client import parser

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'
_MOST = 28
"""The number of slices of this size in the cloud."""
_WHOSE = ('server', 'project', 'flavor')


@scope.only_in_all
class WhoseTest(base.TestCase):
    """Two projects on one A100.

    Nova's fake virt driver creates no domains. So the test starts a guest on
    each mdev and defines its domain in libvirt. Nova's own classes write the
    domain's XML.
    """

    def test_each_series_names_its_own_server_and_project(self):
        first = self.start(self.boot(self.flavor_of(_SLICE), self.user1))
        flavor = self.flavor_of(_SLICE)
        for _ in range(_MOST):
            second = self.start(self.boot(flavor, self.user2))
            if second['gpu'] == first['gpu']:
                break
        self.assertEqual(first['gpu'], second['gpu'])
        self.assertNotEqual(first['project'], second['project'])

        host, address = first['gpu']
        found = self.scrape(host)
        mine = [labels for labels in found['cyborg_gpu_assignment_info']
                if labels['address'] == address]
        self.assertEqual(
            {item['handle']: tuple(item[name] for name in _WHOSE)
             for item in (first, second)},
            {labels['handle']: tuple(labels[name] for name in _WHOSE)
             for labels in mine})
        (uuid,) = {labels['UUID'] for labels in mine}
        self.assertTrue(uuid.startswith('GPU-'), uuid)
        for name in ('vgpu_framebuffer_used_bytes', 'vgpu_utilization_ratio'):
            self.assertEqual(
                {(item['handle'], item['server'])
                 for item in (first, second)},
                {(labels['mdev'], labels['server'])
                 for labels in found[f'cyborg_gpu_{name}']
                 if labels['address'] == address})

    def start(self, server):
        """Start a guest for a server, as Nova's libvirt driver does.

        :returns: the server, its project and flavor, its handle, and its GPU.
        """
        (accelerator,) = self.accelerators(server)
        host, _, _ = accelerator.where.partition(' ')
        machine = self.cloud.machine(host)
        machine.start_guest(accelerator.handle, server.id)
        self.addCleanup(machine.stop_guest, accelerator.handle)
        machine.define_domain(server.id, _xml(server, accelerator.handle))
        self.addCleanup(machine.undefine_domain, server.id)
        (address,) = [
            address for address, gpu in self.cloud.hardware(host).items()
            if any(vgpu.uuid == accelerator.handle for vgpu in gpu.vgpus)]
        return {'server': server.id, 'project': server.project_id,
                'flavor': server.flavor.original_name,
                'handle': accelerator.handle, 'gpu': (host, address)}

    def scrape(self, host):
        """The labels of all series of a host's exporter, by series name."""
        path = os.path.join(self.useFixture(fixtures.TempDir()).path,
                            'gpus.prom')
        self.cloud.cyborg_gpu(host, 'exporter', '--nvml', '--libvirt',
                              '--textfile', path)
        found = {}
        with open(path, encoding='utf-8') as stream:
            for family in parser.text_fd_to_metric_families(stream):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append(sample.labels)
        return found


def _xml(server, mdev):
    """The XML of a server's domain with an mdev, as Nova writes it."""
    owner = libvirt_config.LibvirtConfigGuestMetaNovaOwner()
    owner.userid = owner.username = server.user_id
    owner.projectid = owner.projectname = server.project_id
    flavor = libvirt_config.LibvirtConfigGuestMetaNovaFlavor()
    flavor.name = flavor.id = server.flavor.original_name
    instance = libvirt_config.LibvirtConfigGuestMetaNovaInstance()
    instance.name, instance.package = server.name, '34.0.0'
    instance.flavor, instance.owner = flavor, owner
    device = libvirt_config.LibvirtConfigGuestHostdevMDEV()
    device.uuid = mdev
    guest = libvirt_config.LibvirtConfigGuest()
    guest.virt_type, guest.os_type = 'kvm', 'hvm'
    guest.name, guest.uuid = 'instance-00000001', server.id
    guest.memory, guest.vcpus = 65536, 1
    guest.metadata = [instance]
    guest.add_device(device)
    return guest.to_xml()
