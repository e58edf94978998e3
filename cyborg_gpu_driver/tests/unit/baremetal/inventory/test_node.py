# SPDX-License-Identifier: Apache-2.0

"""Traits, properties and resource class of a node."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import yaml
from cyborg_gpu_driver.tests.unit.baremetal import inspected

LAYOUT = 'CUSTOM_GPU_LAYOUT_'
H100 = {'CUSTOM_NVIDIA_2330', 'CUSTOM_GPU_MODEL_H100_80GB_HBM3',
        'CUSTOM_GPU_ARCH_HOPPER', 'CUSTOM_GPU_MEMORY_80GB',
        'CUSTOM_GPU_COUNT_8', 'CUSTOM_GPU_HEALTHY'}
HALVES = [{'devices': 'all', 'mig-enabled': True,
           'mig-devices': {'3g.40gb': 2}}]
A100_HALVES = [{'devices': 'all', 'mig-enabled': True,
                'mig-devices': {'3g.20gb': 2}}]


def file(*entries, name='mine.yaml'):
    return layout_file.LayoutFile(tuple(
        layout_file.Entry.parse(entry, items, yaml.place_in(name))
        for entry, items in entries), name)


def without_nvml(found):
    """The same inventory with only what sysfs reports."""
    return inventory.Inventory(tuple(
        model.Gpu(gpu.address, gpu.vendor_id, gpu.device_id, gpu.class_code)
        for gpu in found.gpus), None, 'no library')


class NodeCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.h100 = inspected.found('hgx-h100')

    def traits(self, found, current=(), **options):
        """The layout traits and the other traits of a node.

        :param current: traits that the last inspection wrote.
        """
        options = {'written': current, **options}
        traits = node.traits(current, found, **options).traits
        layouts = {trait for trait in traits
                   if inventory.is_layout_trait(trait)}
        return layouts, set(traits) - layouts


class TraitsTest(NodeCase):

    def test_a_clique_that_all_gpus_are_in(self):
        clique = '51d4ba7b-6d2a-4b39-9e4b-1c4a4bd0f1a2.3'
        trait = 'CUSTOM_NVLINK_CLIQUE_51D4BA7B_6D2A_4B39_9E4B_1C4A4BD0F1A2_3'
        addresses = [gpu.address for gpu in self.h100.gpus]
        found = dataclasses.replace(self.h100, cliques=dict.fromkeys(
            addresses, clique))
        self.assertEqual(H100 | {trait}, self.traits(found)[1])
        self.assertEqual(clique, node.summary(found)['nvlink_clique'])
        others = {**found.cliques, addresses[3]: clique.replace('.3', '.4')}
        fewer = dict.fromkeys(addresses[1:], clique)
        for cliques in (others, fewer, {}):
            found = dataclasses.replace(self.h100, cliques=cliques)
            # The trait of an earlier inspection is removed.
            self.assertEqual(H100, self.traits(found, {trait})[1])
            self.assertIsNone(node.summary(found)['nvlink_clique'])

    def test_mixed(self):
        _layouts, others = self.traits(inspected.found('mixed'))
        self.assertEqual({
            'CUSTOM_GPU_COUNT_4', 'CUSTOM_GPU_ARCH_TURING',
            'CUSTOM_GPU_ARCH_HOPPER', 'CUSTOM_GPU_ARCH_AMPERE',
            'CUSTOM_NVIDIA_1EB8', 'CUSTOM_NVIDIA_20B2',
            'CUSTOM_NVIDIA_2235', 'CUSTOM_NVIDIA_2330',
            'CUSTOM_GPU_MEMORY_16GB', 'CUSTOM_GPU_MEMORY_48GB',
            'CUSTOM_GPU_MEMORY_80GB', 'CUSTOM_GPU_MODEL_A40',
            'CUSTOM_GPU_MODEL_A100_SXM4_80GB', 'CUSTOM_GPU_MODEL_TESLA_T4',
            'CUSTOM_GPU_MODEL_H100_80GB_HBM3'}, others)

    def test_a_trait_that_the_operator_set_before(self):
        mine = 'CUSTOM_GPU_ARCH_HOPPER'
        found = node.traits([mine], self.h100)
        self.assertEqual(H100, set(found.traits))
        self.assertEqual(H100 - {mine}, set(found.written))


class WrittenTest(NodeCase):
    """The traits that the property of a node lists as written by the hook."""

    def test_written(self):
        current = ('CUSTOM_GPU_COUNT_8', 'CUSTOM_NVIDIA_A100')
        self.assertEqual(frozenset(), node.written({}, current))
        for summary, expected in (
                ({node.TRAITS: ['CUSTOM_GPU_COUNT_8', 'X']},
                 {'CUSTOM_GPU_COUNT_8'}),
                *((broken, set()) for broken in (
                    None, 7, [], {}, {node.TRAITS: 'X'},
                    node.summary(self.h100)))):
            self.assertEqual(expected, node.written(
                {node.PROPERTY: summary}, current))


class HealthyTest(NodeCase):

    def healthy(self, found, *current, written=()):
        return inventory.HEALTHY in node.traits(current, found, written).traits

    def test_only_where_all_are(self):
        self.assertTrue(self.healthy(self.h100))
        self.assertFalse(self.healthy(
            inspected.found('hgx-h100', {7: ['ECC']})))
        self.assertFalse(self.healthy(without_nvml(self.h100)))
        self.assertFalse(self.healthy(inspected.found('mixed')))
        self.assertFalse(self.healthy(inventory.Inventory()))

    def test_the_operator_vouches_for_what_cannot_be_asked(self):
        trait = inventory.HEALTHY
        silent = without_nvml(self.h100)
        self.assertTrue(self.healthy(silent, trait))
        self.assertFalse(self.healthy(silent, trait, written=[trait]))
        self.assertFalse(self.healthy(
            inspected.found('hgx-h100', {7: ['ECC']}), trait))


class LayoutTraitsTest(NodeCase):

    def test_template_decides_on_a_trait_that_was_set_by_hand(self):
        trait = LAYOUT + 'HALVES'
        for items, expected in ((HALVES, True), (A100_HALVES, False)):
            found = node.traits([trait], self.h100,
                                templates={trait: items})
            self.assertEqual(expected, trait in found.traits)

    def test_which_layout_a_template_means(self):
        fits, other = file(('all-1g.10gb', HALVES)), file(
            ('all-1g.10gb', A100_HALVES))
        for files, layout, expected in (
                ((), HALVES, True), ((), {'h': HALVES}, True),
                ((), A100_HALVES, False), ((), 'all-1g.10gb', True),
                ((fits,), 'all-1g.10gb', True),
                ((other,), 'all-1g.10gb', False),
                ((fits, other), 'all-1g.10gb', False),
                ((other, fits), 'all-1g.10gb', True)):
            layouts, _others = self.traits(self.h100, files=files, templates={
                LAYOUT + 'X': layout})
            self.assertEqual({LAYOUT + 'X'} if expected else set(), layouts)


class PropertiesTest(NodeCase):

    def test_summary(self):
        self.assertEqual({
            'count': 4, 'driver_version': '550.144.02',
            'nvml_problem': None, 'problems': [],
            'modes': {'confidential_computing': None, 'gpus': {
                '0000:41:00.0': {'ecc': None, 'mig': True},
                '0000:81:00.0': {'ecc': None, 'mig': False}}},
            'nvlink_clique': None,
            'unhealthy': {'0000:41:00.0': ['XID 79 (fell off the bus)']},
            'boards': [
                {'model': 'Tesla T4', 'architecture': 'turing', 'count': 1,
                 'device_id': '1eb8', 'memory_mib': 15360, 'mig': False},
                {'model': 'NVIDIA A100-SXM4-80GB', 'device_id': '20b2',
                 'architecture': 'ampere', 'memory_mib': 81920, 'count': 1,
                 'mig': True},
                {'model': 'NVIDIA H100 80GB HBM3', 'device_id': '2330',
                 'architecture': 'hopper', 'memory_mib': 81559, 'count': 1,
                 'mig': True},
                {'model': 'NVIDIA A40', 'architecture': 'ampere',
                 'device_id': '2235', 'memory_mib': 46068, 'mig': None,
                 'count': 1}]},
            node.summary(inspected.found('mixed', {1: ['XID_79']})))

    def test_resource_class(self):
        for name, expected in (
                ('hgx-h100', 'baremetal-gpu-h100-80gb-hbm3-x8'),
                ('dgx-a100-40', 'baremetal-gpu-a100-sxm4-40gb-x8'),
                ('t4x4', 'baremetal-gpu-tesla-t4-x4'),
                ('mixed', 'baremetal-gpu-a100-sxm4-80gb-x1-a40-x1-'
                          'h100-80gb-hbm3-x1-tesla-t4-x1')):
            self.assertEqual(expected, node.resource_class(
                inspected.found(name)))
        self.assertEqual('baremetal-gpu-10de-2330-x8',
                         node.resource_class(without_nvml(self.h100)))
        self.assertIsNone(node.resource_class(inventory.Inventory()))

    def test_resource_class_that_would_be_too_long(self):
        def named(name):
            return inventory.Inventory((dataclasses.replace(
                self.h100.gpus[0], model=name),))

        first = node.resource_class(named('a' * 52 + '-' * 9 + 'b' * 30))
        other = node.resource_class(named('a' * 52 + '-' * 9 + 'c' * 30))
        for name in (first, other):
            self.assertLessEqual(len(name), 80)
            self.assertRegex(name, r'\Abaremetal-gpu-a{52}-[0-9a-f-]+\Z')
        self.assertNotEqual(first, other)


_GPU = model.Gpu(model.PciAddress(0, 8, 0, 0), '10de', '1eb8', '0302')


class StepsTest(base.BaseTestCase):

    def test_drivers(self):
        for driver, fit in ((None, True), ('vfio-pci', True),
                            ('nvgrace_gpu_vfio_pci', True),
                            ('nouveau', False), ('nvidia', False)):
            gpu = dataclasses.replace(_GPU, driver=driver)
            self.assertEqual(fit, not cleaning.obstacle(
                cleaning.RESET, model.Host((gpu,)), {gpu.address}), driver)


    def test_what_no_inspection_has_written(self):
        for value in (8, 'eight', [], {}, {'boards': None}, {'boards': [1]},
                      {'boards': [{'device_id': '20b7'}]},
                      {'boards': [{'device_id': '20b7', 'count': 'x'}]}):
            self.assertIn('inspect the node again', cleaning.boards(
                (_GPU,), {'nvidia_gpus': value}))
