# SPDX-License-Identifier: Apache-2.0

"""The lines of nova.conf: written from plain values, and read."""

from __future__ import annotations

import dataclasses

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.nova import pci_config


def assigned(function, type_name='L40S-12Q', gpu='0000:16:00.0'):
    """A function with its vGPU."""
    return pci_config.Assigned(
        model.PciAddress.parse(function), model.PciAddress.parse(gpu),
        '10de', '26b9', type_name,
        'CUSTOM_NVIDIA_' + type_name.replace('-', '_'),
        ('CUSTOM_GPU_KIND_VGPU', 'CUSTOM_NVIDIA_26B9'))


class BuildTest(base.BaseTestCase):

    def test_lines(self):
        items = [assigned('0000:38:00.4', 'L40S-24Q', '0000:38:00.0'),
                 assigned('0000:16:00.5'), assigned('0000:16:00.4')]
        found = pci_config.build(items)
        # A line for each function in order, and one alias for a type.
        self.assertEqual(
            [{'address': address, 'managed': 'no',
              'resource_class': f'CUSTOM_NVIDIA_L40S_{size}',
              'traits': 'CUSTOM_GPU_KIND_VGPU,CUSTOM_NVIDIA_26B9'}
             for address, size in (
                 ('0000:16:00.4', '12Q'), ('0000:16:00.5', '12Q'),
                 ('0000:38:00.4', '24Q'))], list(found.device_spec))
        self.assertEqual(
            [{'name': f'L40S-{size}', 'device_type': 'type-VF',
              'resource_class': f'CUSTOM_NVIDIA_L40S_{size}'}
             for size in ('12Q', '24Q')], list(found.alias))
        found = pci_config.build(items[2:], in_placement=False)
        self.assertEqual(({'address': '0000:16:00.4', 'managed': 'no'},),
                         found.device_spec)
        self.assertEqual(
            ({'name': 'L40S-12Q', 'device_type': 'type-VF',
              'vendor_id': '10de', 'product_id': '26b9'},), found.alias)
        found = pci_config.build([])
        self.assertEqual(((), ()), (found.device_spec, found.alias))

    def test_live_migratable_where_it_is_supported(self):
        items = [assigned('0000:16:00.4'), assigned('0000:16:00.5')]
        yes = [dataclasses.replace(item, live_migratable=True)
               for item in items]
        for given, specs, alias in (
                (items, [None, None], None), (yes, ['yes', 'yes'], 'yes'),
                ([items[0], yes[1]], [None, 'yes'], None)):
            for in_placement in (True, False):
                found = pci_config.build(given, in_placement)
                self.assertEqual(specs, [spec.get('live_migratable')
                                         for spec in found.device_spec])
                self.assertEqual(alias,
                                 found.alias[0].get('live_migratable'))

    def test_two_types_on_one_gpu_are_refused(self):
        error = self.assertRaises(
            exception.InvalidConfiguration, pci_config.build,
            [assigned('0000:16:00.4'),
             assigned('0000:16:00.5', 'L40S-24Q')])
        self.assertIn('GPU 0000:16:00.0', str(error))
        self.assertIn('L40S-12Q, L40S-24Q', str(error))

    def test_two_types_of_one_product_need_placement(self):
        items = [assigned('0000:16:00.4'),
                 assigned('0000:38:00.4', 'L40S-24Q', '0000:38:00.0')]
        error = self.assertRaises(
            exception.InvalidConfiguration, pci_config.build, items,
            in_placement=False)
        self.assertIn('10de:26b9', str(error))
        self.assertEqual('', pci_config.refusal(items, True))


class DeviceSpecTest(base.BaseTestCase):
    """tests/nova/test_device_spec.py compares the rest with Nova."""

    def test_a_line_may_hold_several(self):
        gpu = pci_config.Function(
            model.PciAddress.parse('0000:16:00.0'), '10de', '26b9')
        found = pci_config.parse_device_spec(
            ['[{"address": "0000:16:00.4"}, {}]'])
        self.assertEqual([False, True],
                         [entry.matches(gpu) for entry in found])
        self.assertTrue(found[0].managed)

    def test_what_nova_refuses_is_named(self):
        for text in ('3', '{"address": {"bus": "["}}'):
            error = self.assertRaises(exception.InvalidValue,
                                      pci_config.parse_device_spec, [text])
            self.assertIn(repr(text), str(error))


class OutputTest(base.BaseTestCase):

    def test_post_copy_is_off_where_servers_migrate(self):
        item = assigned('0000:16:00.4')
        option = 'live_migration_permit_post_copy'
        found = pci_config.build([item])
        self.assertNotIn(option, found.dump())
        self.assertNotIn('libvirt', found.to_dict())
        found = pci_config.build([dataclasses.replace(
            item, live_migratable=True)])
        self.assertEqual(['[libvirt]', f'{option} = False'],
                         found.dump().splitlines()[-2:])
        self.assertEqual({option: False}, found.to_dict()['libvirt'])


class ReadTest(base.BaseTestCase):

    def read(self, *texts):
        directory = self.useFixture(fixtures.TempDir()).path
        paths = []
        for number, text in enumerate(texts):
            paths.append(f'{directory}/{number}.conf')
            with open(paths[-1], 'w', encoding='utf-8') as stream:
                stream.write(text)
        return conf_file.read(paths)

    def test_options(self):
        found = self.read('[pci]\ndevice_spec = {"vendor_id": "10de"}\n'
                          'device_spec = {"vendor_id": "8086"}\n'
                          'report_in_placement = true\n'
                          '[devices]\nenabled_mdev_types = nvidia-1,x\n'
                          '[libvirt]\n'
                          'live_migration_permit_post_copy = true\n')
        self.assertEqual(['10de', '8086'],
                         [entry.vendor_id for entry in found.device_spec])
        self.assertTrue(found.report_in_placement)
        self.assertEqual(('nvidia-1', 'x'), found.enabled_mdev_types)
        self.assertTrue(found.post_copy)
        found = self.read('')
        self.assertEqual(((), False, (), False), (
            found.device_spec, found.report_in_placement,
            found.enabled_mdev_types, found.post_copy))

    def test_former_names(self):
        found = self.read('[DEFAULT]\npci_passthrough_whitelist = {}\n'
                          '[devices]\nenabled_vgpu_types = nvidia-1\n')
        self.assertEqual(1, len(found.device_spec))
        self.assertEqual(('nvidia-1',), found.enabled_mdev_types)
        self.assertEqual(1, len(self.read(
            '[pci]\npassthrough_whitelist = {}\n').device_spec))

    def test_what_cannot_be_read_is_named(self):
        for text, word in (('[pci\n', '0.conf'),
                           ('[pci]\nreport_in_placement = 5\n', '5'),
                           ('[pci]\ndevice_spec = {\n', 'device_spec')):
            error = self.assertRaises(exception.InvalidValue, self.read,
                                      text)
            self.assertIn(word, str(error))
        error = self.assertRaises(exception.InvalidValue, conf_file.read,
                                  ['/nowhere/nova.conf'])
        self.assertIn('/nowhere/nova.conf', str(error))
