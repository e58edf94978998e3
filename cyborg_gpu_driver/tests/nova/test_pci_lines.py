# SPDX-License-Identifier: Apache-2.0


"""The released Nova reads the nova.conf lines that this library writes."""

from __future__ import annotations

import contextlib
import io
import json

import fixtures
from nova import conf
from nova.compute import pci_placement_translator
from nova.compute import provider_tree
from nova.objects import pci_device
from nova.pci import request
from nova.pci import stats
from nova.pci import whitelist
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_utils.fixture import uuidsentinel

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.nova import base

POLICIES = '''
[gpu]
policies = first, second
[gpu_policy:first]
match_address = 0000:16:00.0
mode = vgpu
fixed_vgpus = L40S-12Q:3
[gpu_policy:second]
match_address = 0000:38:00.0
mode = vgpu
fixed_vgpus = L40S-24Q:2
'''
ONE_TYPE = POLICIES.replace('L40S-24Q:2', 'L40S-12Q:2')


class PciLinesCase(base.DriverCase):
    """A Nova that reads the lines for a simulated host."""

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.state = f'{self.directory}/machine'
        self.machine = simulator.Machine.load('l40sx4', self.state).install()
        self.addCleanup(self.machine.uninstall)
        # Nova reads sysfs to see whether an address is that of a GPU.
        gpus = {gpu.address for gpu in self.machine.gpus}
        self.useFixture(fixtures.MonkeyPatch(
            'nova.pci.utils.is_physical_function',
            lambda *parts: '{}:{}:{}.{}'.format(*parts) in gpus))

    def write(self, name, text):
        path = f'{self.directory}/{name}'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path

    def lines(self, *arguments, policies=POLICIES):
        """The lines that the command writes."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.assertEqual(0, main.main([
                '--config-file', self.write('cyborg.conf', policies),
                '--simulate', 'l40sx4', '--state', self.state,
                'nova', 'config', *arguments]))
        return output.getvalue()

    def read(self, text):
        """Let Nova read a nova.conf."""
        conf.CONF([], project='nova', default_config_files=[
            self.write('nova.conf', text)], default_config_dirs=[])

    def nova_conf(self, *arguments, more='', policies=POLICIES):
        """Let Nova read the lines that the command writes."""
        self.read(self.lines(*arguments, policies=policies) + more)

    def devices(self):
        """Every function of the host's GPUs as Nova gets it from libvirt."""
        info = fakelibvirt.HostPCIDevicesInfo(num_pfs=0, num_vfs=0)
        for gpu in self.machine.gpus:
            address = model.PciAddress.parse(gpu.address)
            info.add_device('PF', *self.place(address), vf_ratio=1,
                            **self.identity(gpu))
            for text in gpu.vf_addresses:
                info.add_device(
                    'VF', *self.place(model.PciAddress.parse(text)),
                    vf_ratio=1, parent=(address.bus, address.device,
                                        address.function),
                    **self.identity(gpu))
        self.connection.pci_info = info
        return json.loads(self.driver._get_pci_passthrough_devices())

    @staticmethod
    def place(address):
        return address.bus, address.device, address.function, 40, 0

    @staticmethod
    def identity(gpu):
        return {'vend_id': '10de',
                'prod_id': gpu.model.device,
                'driver_name': 'nvidia'}

    def pools(self):
        """The devices that Nova can assign by its ``[pci] device_spec``."""
        found = stats.PciDeviceStats(None)
        for device in self.devices():
            spec = found.dev_filter.device_assignable(device)
            if spec:
                found.add_device(pci_device.PciDevice.create(
                    self.context, {**device, 'compute_node_id': 1,
                                   **spec.get_tags()}))
        return found


class PciLinesTest(PciLinesCase):

    def matched(self):
        """The ``device_spec`` entries that Nova matches, by function."""
        found = whitelist.Whitelist(conf.CONF.pci.device_spec)
        matches = {device['address']: found.device_assignable(device)
                   for device in self.devices()}
        self.assertEqual(4 * 33, len(matches))
        return {address: spec for address, spec in matches.items() if spec}

    def wanted(self):
        """The functions that are to carry a vGPU, GPU by GPU."""
        first, second, *_ = self.machine.gpus
        return (*first.vf_addresses[:3], *second.vf_addresses[:2])

    def test_these_functions_and_no_other(self):
        for arguments, policies in (
                ((), POLICIES), (('--no-pci-in-placement',), ONE_TYPE)):
            self.nova_conf(*arguments, policies=policies)
            found = self.matched()
            self.assertEqual(set(self.wanted()), set(found))
            self.assertEqual(
                {'false'}, {spec.get_tags()['managed']
                            for spec in found.values()})

    def test_placement_takes_classes_and_traits(self):
        self.nova_conf()
        found = self.matched()
        for gpu, count in zip(self.machine.gpus, (3, 2)):
            provider = pci_placement_translator.PciResourceProvider('x')
            for address in gpu.vf_addresses:
                if address in found:
                    provider.add_child(pci_device.PciDevice(
                        address=address, vendor_id='10de',
                        product_id='26b9'), found[address].get_tags())
            self.assertEqual(count, provider.total)
            self.assertEqual(
                {3: 'CUSTOM_NVIDIA_L40S_12Q',
                 2: 'CUSTOM_NVIDIA_L40S_24Q'}[count],
                provider.resource_class)
            self.assertIn('CUSTOM_GPU_KIND_VGPU', provider.traits)
            self.assertNotIn('OWNER_CYBORG', provider.traits)
            # Nova does not undo what an operator reserves.
            inventory = provider._get_inventories()
            tree = provider_tree.ProviderTree()
            tree.new_root('gpu', uuidsentinel.gpu)
            tree.update_inventory('gpu', {
                provider.resource_class: {
                    **inventory[provider.resource_class], 'reserved': count}})
            self.assertFalse(tree.has_inventory_changed('gpu', inventory))

    def test_aliases_with_placement(self):
        self.nova_conf(
            more='[filter_scheduler]\npci_in_placement = true\n')
        found = request.get_alias_from_config()
        self.assertEqual({'L40S-12Q', 'L40S-24Q'}, set(found))
        (asked,) = request._translate_alias_to_requests('L40S-24Q:1')
        self.assertEqual('CUSTOM_NVIDIA_L40S_24Q',
                         asked.spec[0]['resource_class'])
        self.assertEqual('type-VF', asked.spec[0]['dev_type'])
