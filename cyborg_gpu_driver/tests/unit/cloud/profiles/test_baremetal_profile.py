# SPDX-License-Identifier: Apache-2.0

"""Device profiles as bare-metal profiles, and those that cannot be one."""

import json

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import baremetal
from cyborg_gpu_driver.cloud import definition

_FILE = 'gpus.yaml'
_HOPPER = 'CUSTOM_GPU_ARCH_HOPPER'
_UNHEALTHY = 'CUSTOM_GPU_UNHEALTHY_XID_79'


def parsed(*groups, name='slice-10gb', nodes=None, **more):
    """A definition with one profile for bare metal."""
    return definition.parse(json.dumps({
        'version': 'v1', 'profiles': [{
            'name': name, 'groups': list(groups),
            'nodes': {'resource_class': 'baremetal.gpu', **(nodes or {})}}],
        **more}), _FILE)


def node_profile(*groups, **kwargs):
    """The profile for bare metal."""
    (found,) = parsed(*groups, **kwargs).nodes
    return found


def items(found):
    """The items of a node profile as a layout file has them."""
    return [section.to_dict() for section in found.entry.sections]


class MakeTest(base.BaseTestCase):

    def test_every_gpu_is_cut_alike(self):
        found = node_profile({'gpu': '3g.40gb'},
                             {'gpu': '1g.10gb', 'count': 2},
                             {'gpu': '1g.10gb', 'count': 2,
                              'together': True})
        self.assertEqual([{
            'devices': 'all', 'mig-enabled': True,
            'mig-devices': {'3g.40gb': 1, '1g.10gb': 4}}], items(found))
        self.assertEqual((frozenset(), frozenset()),
                         (found.required, found.forbidden))

    def test_whole_gpus(self):
        whole = [{'devices': 'all', 'mig-enabled': False}]
        found = node_profile({'gpu': 'passthrough'})
        self.assertEqual(whole, items(found))
        self.assertEqual(frozenset(), found.required)
        found = node_profile({'gpu': 'passthrough', 'count': 8})
        self.assertEqual(whole, items(found))
        self.assertEqual({'CUSTOM_GPU_COUNT_8'}, found.required)
        found = node_profile({'gpu': 'passthrough', 'count': 2},
                             nodes={'devices': [1, 3]})
        self.assertEqual([{'devices': [1, 3], 'mig-enabled': False}],
                         items(found))
        self.assertEqual(frozenset(), found.required)

    def test_certain_gpus(self):
        cut = {'mig-enabled': True, 'mig-devices': {'1g.10gb': 1}}
        self.assertEqual(
            [{'devices': [0, 2], **cut}],
            items(node_profile({'gpu': '1g.10gb'},
                               nodes={'devices': [0, 2]})))
        self.assertEqual(
            [{'devices': 'all', 'device-filter': '0x233010DE', **cut}],
            items(node_profile({'gpu': '1g.10gb'}, nodes={
                'device-filter': '0x233010DE'})))
        found = node_profile({'gpu': '1g.10gb'},
                             {'gpu': 'passthrough', 'count': 2},
                             nodes={'devices': [0, 2]})
        self.assertEqual(
            [{'devices': [0, 2], **cut},
             {'devices': [1, 3], 'mig-enabled': False}], items(found))
        self.assertEqual(frozenset(), found.required)

    def test_what_cannot_be(self):
        for groups, text in (
                ([{'gpu': 'T4-2B'}],
                 'CUSTOM_NVIDIA_T4_2B is neither.*bare-metal servers'),
                ([{'gpu': 'A100-1-5C'}], 'neither a whole GPU'),
                ([{'resources': 'VGPU'}], 'VGPU is neither'),
                ([{'resources': 'CUSTOM_FPGA_1G_10GB'}], 'FPGA.*neither'),
                ([{'resources': 'CUSTOM_NVIDIA_1G_10GB_X'}], 'neither'),
                ([{'resources': 'CUSTOM_NVIDIA_7C_3G_40GB'}], 'neither'),
                ([{'gpu': 'passthrough'}, {'gpu': '1g.10gb'}],
                 'whole GPUs and slices; .*devices'),
                ([{'gpu': '1g.10gb', 'required': [_HOPPER]},
                  {'gpu': '1g.10gb', 'forbidden': [_HOPPER]}],
                 f'one group requires {_HOPPER}, but another forbids it'),
                ([{'gpu': '1g.10gb', 'forbidden': ['CUSTOM_GPU_HEALTHY']}],
                 'CUSTOM_GPU_HEALTHY is forbidden; .*remove it')):
            error = self.assertRaises(exception.DocumentError,
                                      node_profile, *groups)
            self.assertRegex(str(error), r'^gpus.yaml: profiles\[0\]: ')
            self.assertRegex(str(error), text)

    def test_too_few_devices(self):
        error = self.assertRaises(
            exception.DocumentError, node_profile,
            {'gpu': 'passthrough', 'count': 3},
            nodes={'devices': [0, 1]})
        self.assertIn('3 whole GPUs; on bare metal devices must name at '
                      'least as many; it names 2', str(error))


class TemplateTest(base.BaseTestCase):

    def test_it_is_named_as_the_trait(self):
        for name, trait in (('slice-10gb', 'CUSTOM_GPU_LAYOUT_SLICE_10GB'),
                            ('a_b', 'CUSTOM_GPU_LAYOUT_A_B')):
            found = node_profile({'gpu': '1g.10gb'}, name=name)
            self.assertEqual((trait, trait),
                             (found.trait, found.template.name))
        # Ironic accepts names of at most 255 of these characters.
        self.assertRegex(
            node_profile({'gpu': '1g.10gb'}, name='x' * 255).template.name,
            r'^CUSTOM_[A-Z0-9_]{1,248}\Z')

class FlavorTest(base.BaseTestCase):

    def test_it_asks_for_a_node(self):
        _, found = parsed(
            {'gpu': '1g.10gb', 'required': [_HOPPER],
             'forbidden': [_UNHEALTHY]}, flavors=[{
                 'name': 'gpu.metal', 'profile': 'slice-10gb', 'vcpus': 96,
                 'ram': 1 << 20, 'disk': 1000, 'projects': ['research'],
                 'extra_specs': {'capabilities:boot_mode': 'uefi'}}]).items
        self.assertEqual({
            'resources:CUSTOM_BAREMETAL_GPU': '1', 'resources:VCPU': '0',
            'resources:MEMORY_MB': '0', 'resources:DISK_GB': '0',
            'trait:CUSTOM_GPU_LAYOUT_SLICE_10GB': 'required',
            'trait:CUSTOM_GPU_HEALTHY': 'required',
            'capabilities:boot_mode': 'uefi',
            f'trait:{_HOPPER}': 'required',
            f'trait:{_UNHEALTHY}': 'forbidden'},
            dict(found.extra_specs))
        self.assertEqual(sorted(found.extra_specs), list(found.extra_specs))
        self.assertEqual(('gpu.metal', 96, {'research'}, ()), (
            found.name, found.vcpus, found.projects, found.needs))


class ArgumentsTest(base.BaseTestCase):

    def test_resource_classes(self):
        for text, expected in (
                ('baremetal.gpu', 'CUSTOM_BAREMETAL_GPU'),
                ('CUSTOM_BAREMETAL_GPU', 'CUSTOM_BAREMETAL_GPU'),
                ('baremetal-gpu-h100-x8', 'CUSTOM_BAREMETAL_GPU_H100_X8')):
            self.assertEqual(expected,
                             baremetal.class_in_placement(text))
        for text in ('', '-', 'CUSTOM_', 'x' * 256):
            error = self.assertRaises(
                exception.InvalidValue,
                baremetal.class_in_placement, text)
            self.assertIn('such as baremetal.gpu', str(error))
