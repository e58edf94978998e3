# SPDX-License-Identifier: Apache-2.0

"""Servers that Nova starts when their host boots have their accelerators."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import fixtures
from lxml import etree
from oslo_utils import timeutils

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base

_PROGRAM = 'cyborg_gpu_driver.tests.nova.libvirt_compute'
_WHOLE, _VGPU = 'PGPU', 'CUSTOM_NVIDIA_A100_8C'
_SMALL, _LARGE = 'CUSTOM_NVIDIA_1G_10GB', 'CUSTOM_NVIDIA_3G_40GB'
_SERVERS = ((_WHOLE,), (_VGPU,), (_VGPU,), (_SMALL,), (_LARGE,),
            (_SMALL, _VGPU))
"""The resource classes of each server. A slice is a MIG-backed vGPU."""
_CONFIG = """
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
resume_guests_state_on_host_boot = true
instances_path = {instances}
[libvirt]
virt_type = qemu
cpu_mode = none
"""


@scope.only_in_all
class HostBootTest(base.TestCase):
    """Our nova-compute runs Nova's libvirt driver on a fake libvirt."""

    def setUp(self):
        super().setUp()
        self.host = self.cloud.hosts[0]
        self.compute = f'nova-compute-{self.host}'
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.process = None
        self.addCleanup(self.cloud.command, 'start')
        self.addCleanup(self.end_compute)
        self.cloud.kill(self.compute)
        self.start_compute()

    def test_six_servers_of_all_kinds(self):
        servers = [self.boot(self.flavor(self.device_profile(*(
            {f'resources:{name}': '1'} for name in wanted)),
            group_policy='none'), self.admin, host=self.host)
            for wanted in _SERVERS]
        had = {server.id: self.accelerators(server) for server in servers}
        self.assertEqual([1, 1, 1, 1, 1, 2],
                         [len(had[server.id]) for server in servers])
        self.assert_attached(had)

        self.end_compute()
        agent = f'cyborg-agent-{self.host}'
        self.cloud.kill(agent)
        self.cloud.machine(self.host).reboot()
        self.assertEqual({}, self.slices(self.host))
        for guest in (self.directory / 'running').iterdir():
            guest.unlink()
        self.cloud.cyborg_gpu(self.host, 'layout', 'restore')
        self.cloud.restart(agent)

        # Nova would delete a server of a host that is down in the database
        # alone.
        self.start_compute()
        self.until(lambda: self.running() == had.keys(),
                   'all servers run')
        self.assert_attached(had)
        for server in servers:
            self.assertEqual('ACTIVE', self.wait(server).status)
        self.assertEqual(had, {server.id: self.accelerators(server)
                               for server in servers})
        self.delete(*servers)
        self.assertEqual(set(), self.running())
        self.assert_nothing_left()

    def assert_attached(self, had):
        """Assert that each running guest has exactly its accelerators."""
        self.assertEqual(
            {server: sorted(one.where.partition(' ')[2] if one.kind == 'whole'
                            else one.handle for one in accelerators)
             for server, accelerators in had.items()},
            {server: self.devices(server) for server in self.running()})

    def running(self):
        """The UUIDs of the servers whose guests run."""
        return {guest.name for guest
                in (self.directory / 'running').iterdir()}

    def devices(self, server):
        """The mdevs and PCI addresses in the XML of a running domain."""
        found = []
        domain = etree.fromstring(
            (self.directory / 'running' / server).read_bytes())
        for device in domain.iterfind('devices/hostdev'):
            address = device.find('source/address')
            found.append(address.get('uuid') if device.get('type') == 'mdev'
                         else '{}:{}:{}.{}'.format(*(
                             address.get(name).removeprefix('0x') for name in
                             ('domain', 'bus', 'slot', 'function'))))
        return sorted(found)

    def start_compute(self):
        self.started = timeutils.utcnow()
        config = self.directory / 'libvirt.conf'
        config.write_text(_CONFIG.format(instances=self.directory))
        data = self.cloud.directory / 'data' / self.host
        with (self.cloud.directory / 'log' / f'{self.compute}.log').open(
                'ab') as log:
            self.process = subprocess.Popen(
                [sys.executable, '-W', 'ignore', '-m', _PROGRAM,
                 str(self.directory), str(data / 'machine.json'), self.host,
                 '--config-file', str(self.cloud.directory / 'etc' / 'nova'
                                      / f'{self.compute}.conf'),
                 '--config-file', str(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        self.until(lambda: self.reports(self.started),
                   'nova-compute is up')

    def end_compute(self):
        """Kill nova-compute, as if the host lost its power."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def reports(self, since):
        """Whether nova-compute has reported to Nova since that time."""
        self.assertIsNone(self.process.poll(), 'nova-compute has ended')
        (service,) = self.admin.compute.services(
            binary='nova-compute', host=self.host)
        return service.state == 'up' and timeutils.normalize_time(
            timeutils.parse_isotime(f'{service.updated_at}Z')) > since
