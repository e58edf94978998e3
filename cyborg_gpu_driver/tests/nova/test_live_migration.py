# SPDX-License-Identifier: Apache-2.0


"""The released Nova plans live migrations with this library's lines."""

from __future__ import annotations

from nova import conf
from nova import exception
from nova import objects
from nova.compute import api
from nova.compute import pci_placement_translator
from nova.conductor.tasks import live_migrate
from nova.network import model as network_model
from nova.objects import pci_device
from nova.pci import request
from nova.pci import whitelist
from nova.tests import fixtures as nova_fixtures

from cyborg_gpu_driver.tests.nova import test_pci_lines

IN_PLACEMENT = '[filter_scheduler]\npci_in_placement = true\n'


def asked(count=1):
    """The PCI requests of a flavor that asks for ``count`` of the alias."""
    return request._translate_alias_to_requests(f'L40S-12Q:{count}')


def lines(text, option):
    return ''.join(line for line in text.splitlines(keepends=True)
                   if line.startswith(f'{option} = '))


class LiveMigrationTest(test_pci_lines.PciLinesCase):
    """Five fixed vGPUs of one type: three on one GPU, two on the next."""

    def setUp(self):
        super().setUp()
        self.first, self.second, *_ = self.machine.gpus
        # Nova asks Neutron and reads the service version of both
        # nova-computes, even if no request comes from a port.
        self.useFixture(nova_fixtures.NeutronFixture(self))
        for host in ('source', 'destination'):
            objects.Service(self.context, host=host, binary='nova-compute',
                            topic='compute').create()

    def write_lines(self, *arguments):
        """The lines that the command writes for the machine's current state.
        """
        return self.lines(*arguments, policies=test_pci_lines.ONE_TYPE)

    def check_request(self):
        """Run nova-conductor's check before it looks for a destination."""
        server = objects.Instance(
            self.context, uuid=self.context.request_id[4:],
            host='source', pci_requests=objects.InstancePCIRequests(
                requests=asked()))
        live_migrate.LiveMigrationTask(
            self.context, server, 'destination', False, False, None, None,
            None, None, None)._check_can_migrate_pci('source', 'destination')

    def test_conductor_takes_the_request(self):
        for arguments, more in (((), IN_PLACEMENT),
                                (('--no-pci-in-placement',), '')):
            self.read(self.write_lines(*arguments) + more)
            (found,) = asked()
            self.assertTrue(found.is_live_migratable())
            self.check_request()

    def test_conductor_refuses_where_nvml_reports_no_support(self):
        for gpu in self.machine.gpus:
            self.machine.change_gpu(gpu.address, migration=False)
        text = self.write_lines()
        self.assertNotIn('live_migratable', text)
        self.read(text + IN_PLACEMENT)
        self.assertRaises(exception.MigrationPreCheckError,
                          self.check_request)

    def test_a_function_without_it_is_not_chosen(self):
        source = self.write_lines('--no-pci-in-placement')
        self.read(source)
        self.assertTrue(self.pools().support_requests(asked(5), {}))
        self.machine.change_gpu(self.second.address, migration=False)
        destination = self.write_lines('--no-pci-in-placement')
        self.read('[pci]\n' + lines(destination, 'device_spec')
                  + lines(source, 'alias'))
        pools = self.pools()
        self.assertFalse(pools.support_requests(asked(4), {}))
        chosen = pools.consume_requests(asked(3))
        self.assertEqual(set(self.first.vf_addresses[:3]),
                         {device.address for device in chosen})

    def test_the_api_refuses_accelerators_of_cyborg(self):
        flavor = objects.Flavor(self.context, extra_specs={
            'accel:device_profile': 'gpu'})
        server = objects.Instance(
            self.context, uuid=self.context.request_id[4:], flavor=flavor,
            info_cache=objects.InstanceInfoCache(
                network_info=network_model.NetworkInfo()))
        objects.InstanceMapping(
            self.context, instance_uuid=server.uuid, project_id='p',
            cell_mapping=self.cell_mappings['cell1']).create()
        self.assertRaises(
            exception.ForbiddenWithAccelerators, api.API().live_migrate,
            self.context, server, False, False, 'destination')

    def test_placement_gets_novas_trait(self):
        self.machine.change_gpu(self.second.address, migration=False)
        self.read(self.write_lines())
        specs = whitelist.Whitelist(conf.CONF.pci.device_spec)
        for gpu, expected in ((self.first, True), (self.second, False)):
            address = gpu.vf_addresses[0]
            (spec,) = (specs.device_assignable(device)
                       for device in self.devices()
                       if device['address'] == address)
            provider = pci_placement_translator.PciResourceProvider('x')
            provider.add_child(pci_device.PciDevice(
                address=address, vendor_id='10de', product_id='26b9'),
                spec.get_tags())
            self.assertEqual(expected, 'HW_PCI_LIVE_MIGRATABLE'
                             in provider.traits)
