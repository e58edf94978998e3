# SPDX-License-Identifier: Apache-2.0


"""The behavior of the released Nova on which this library relies.

Each test checks one assumption. The docstring of its class names the module
that depends on it.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import uuid

import fixtures
from nova import conf
from nova import context
from nova import exception as nova_exception
from nova import test
from nova.accelerator import cyborg
from nova.compute import manager
from nova.compute import pci_placement_translator
from nova.objects import pci_device
from nova.virt import driver
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver as libvirt_driver

from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.nova import base

DRIVER = libvirt_driver.LibvirtDriver
_START = '''
import atexit
import sys
from cyborg_gpu_driver.nova import compute
atexit.register(lambda: print(
    'comm', open('/proc/self/comm').read(), file=sys.stderr))
sys.exit(compute.main())
'''
INFO = {'domain': '0000', 'bus': '16', 'device': '00', 'function': '4'}


def request(attach_type, **more):
    """A bound accelerator request with only what Nova needs."""
    return {'uuid': str(uuid.uuid4()), 'attach_handle_type': attach_type,
            'attach_handle_uuid': str(uuid.uuid4()),
            'attach_handle_info': {**INFO, **more}}


class ExtendedMethodsTest(base.DriverCase):
    """Assumptions of nova/patches.py."""

    def test_this_nova_can_be_extended(self):
        self.assertEqual('', capability.mismatch(
            DRIVER, capability.nova_version()))

    def test_pci_handles_are_managed_whatever_they_say(self):
        for more in ({}, {'managed': 'no'}, {'managed': 'false'}):
            guest = vconfig.LibvirtConfigGuest()
            self.driver._guest_add_accel_pci_devices(
                guest, [request('PCI', **more)])
            (device,) = guest.devices
            self.assertEqual('yes', device.managed)
            self.assertEqual(
                ('0000', '16', '00', '4'),
                (device.domain, device.bus, device.slot, device.function))

    def test_this_nova_attaches_mdev_handles(self):
        self.assertEqual('', capability.mdev_problem())


class HostBootTest(test.NoDBTestCase):
    """Assumptions behind the credentials of nova/compute.py."""

    def test_nova_has_no_token_when_it_starts(self):
        own = context.get_admin_context()
        self.assertIsNone(own.auth_token)
        self.assertIsNone(own.user_auth_plugin)
        error = self.assertRaises(
            nova_exception.AcceleratorRequestOpFailed,
            cyborg.get_client(own).get_arqs_for_instance, 'server')
        self.assertIn('Could not communicate with Cyborg', str(error))

    def test_nova_can_be_its_own_user(self):
        self.assertTrue(callable(context.get_nova_service_user_context))
        # Nova looks get_client up at each call, so a replacement takes effect.
        self.assertIn('cyborg.get_client(', inspect.getsource(
            manager.ComputeManager._get_accel_info))

    def test_resume_names_no_accelerators(self):
        """Once Nova passes accelerators, remove the patch for this method."""
        resume = driver.ComputeDriver.resume_state_on_host_boot
        self.assertNotIn('accel_info', inspect.signature(resume).parameters)


class PciInPlacementTest(test.NoDBTestCase):
    """Assumptions behind the refusals of nova/pci_config.py."""

    def add(self, *tags):
        provider = pci_placement_translator.PciResourceProvider('gpu')
        for number, entry in enumerate(tags):
            provider.add_child(pci_device.PciDevice(
                address=f'0000:16:00.{number + 4}', vendor_id='10de',
                product_id='26b9'), entry)
        return provider

    def test_one_resource_class_a_gpu(self):
        self.assertRaises(
            nova_exception.PlacementPciMixedResourceClassException,
            self.add, {'resource_class': 'A'}, {'resource_class': 'B'})

    def test_one_set_of_traits_a_gpu(self):
        self.assertRaises(
            nova_exception.PlacementPciMixedTraitsException, self.add,
            {'resource_class': 'A', 'traits': 'CUSTOM_X'},
            {'resource_class': 'A', 'traits': 'CUSTOM_Y'})


class OptionsTest(test.NoDBTestCase):
    """Assumptions of nova/conf_file.py."""

    def test_names(self):
        self.assertEqual([], conf.CONF.pci.device_spec)
        self.assertIs(False, conf.CONF.pci.report_in_placement)
        self.assertIs(False, conf.CONF.filter_scheduler.pci_in_placement)
        self.assertEqual([], conf.CONF.devices.enabled_mdev_types)


class StartCommandTest(test.NoDBTestCase):
    """Assumptions of nova/compute.py, in a process of its own."""

    def start(self, *arguments, **more):
        environment = {**{
            name: value for name, value in os.environ.items()
            if not name.startswith('OS_')}, **more}
        return subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', _START, *arguments],
            capture_output=True, text=True, timeout=scope.HANG,
            env=environment, check=False)

    def test_nova_gets_the_command_line_and_keeps_its_own_name(self):
        found = self.start('--help')
        self.assertEqual(0, found.returncode, found.stderr)
        self.assertIn('attaches vGPUs on virtual functions', found.stderr)
        self.assertIn('usage: nova-compute', found.stdout)
        self.assertIn(f'comm {services.PATCHED}', found.stderr)

    def test_unknown_nova_is_not_started(self):
        directory = self.useFixture(fixtures.TempDir()).path
        metadata = os.path.join(directory, 'nova-99.dist-info', 'METADATA')
        os.mkdir(os.path.dirname(metadata))
        with open(metadata, 'w', encoding='utf-8') as stream:
            stream.write('Name: nova\nVersion: 99.0.0\n')
        found = self.start('--help', PYTHONPATH=os.pathsep.join(
            (directory, *filter(None, [os.environ.get('PYTHONPATH')]))))
        self.assertEqual(1, found.returncode, found.stderr)
        self.assertIn('Nova 99.0.0 was not tested, only 34; nova-compute was '
                      'not started', found.stderr)
        self.assertEqual('', found.stdout)
