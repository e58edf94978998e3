# SPDX-License-Identifier: Apache-2.0

"""Whether simulated machines can serve a profile as bare-metal nodes."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.cloud import baremetal
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.unit.baremetal import inspected
from cyborg_gpu_driver.tests.unit.cloud.profiles import test_baremetal_profile

_TRAIT = 'CUSTOM_GPU_LAYOUT_SLICE_10GB'
_HOPPER = 'CUSTOM_GPU_ARCH_HOPPER'
_HEALTHY = 'CUSTOM_GPU_HEALTHY'
_CLASS = 'CUSTOM_BAREMETAL_GPU'
_UNSEEN = model.Gpu(model.PciAddress(0, 0x1b, 0, 0), '10de', '2330', '0302')
"""An H100 without NVIDIA's driver."""


class JudgeTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.slices = test_baremetal_profile.node_profile(
            {'gpu': '1g.10gb', 'count': 7})
        self.whole = test_baremetal_profile.node_profile(
            {'gpu': 'passthrough'})

    def node(self, machine='hgx-h100', traits=(_TRAIT,), unhealthy=None,
             **kwargs):
        return baremetal.Node(
            'uuid', 'node', _CLASS, frozenset({*traits, _HEALTHY}),
            found=machine and inspected.found(machine, unhealthy), **kwargs)

    def verdict(self, node, profile=None):
        return str(baremetal.judge(node, profile or self.slices))

    def test_it_can(self):
        for machine in ('hgx-h100', 'dgx-a100-80'):
            self.assertEqual('can take it', self.verdict(self.node(machine)))
        for machine in ('t4x4', 'mixed', 'hgx-h100'):
            self.assertEqual('can take it', self.verdict(
                self.node(machine), self.whole))

    def test_the_board_has_no_such_profile(self):
        for machine, text in (
                ('hgx-h200', "'1g.10gb'.*H200.* has 1g.18gb"),
                ('t4x4', 'none of the GPUs .* supports MIG: Tesla T4'),
                ('mixed', 'the MIG profiles of its GPUs are not known')):
            self.assertRegex(self.verdict(self.node(machine)),
                             f'^cannot take it: .*{text}.*; it has the '
                             f'trait {_TRAIT} nevertheless')

    def test_they_do_not_fit(self):
        profile = test_baremetal_profile.node_profile(
            {'gpu': '1g.10gb', 'count': 9})
        self.assertRegex(self.verdict(self.node(traits=()), profile),
                         '^cannot take it: 9 x 1g.10gb do not fit on one '
                         'NVIDIA H100.*: at most .* fit$')

    def test_gpus_that_are_not_there(self):
        profile = test_baremetal_profile.node_profile(
            {'gpu': '1g.10gb'}, nodes={'devices': [0, 8]})
        self.assertEqual(
            'cannot take it: it has no GPU 8, only 0 to 7',
            self.verdict(self.node(traits=()), profile))
        profile = test_baremetal_profile.node_profile(
            {'gpu': '1g.10gb'}, nodes={'device-filter': '0x20B010DE'})
        self.assertEqual(
            'cannot take it: it has no GPU of that board',
            self.verdict(self.node(traits=()), profile))
        for profile in (self.slices, self.whole):
            node = dataclasses.replace(self.node(traits=()),
                                       found=inventory.Inventory())
            self.assertEqual('cannot take it: it has no GPU',
                             self.verdict(node, profile))

    def test_an_unhealthy_gpu(self):
        node = self.node(traits=(), unhealthy={3: ['XID_79']})
        self.assertRegex(self.verdict(node),
                         '^cannot take it: GPU 0000:.* is unhealthy: .*79')

    def test_the_class_and_the_traits(self):
        profile = test_baremetal_profile.node_profile(
            {'gpu': 'passthrough', 'count': 8, 'required': [_HOPPER],
             'forbidden': ['CUSTOM_OLD']})
        for traits, text in (
                ([_HOPPER], 'it lacks the trait CUSTOM_GPU_COUNT_8'),
                (['CUSTOM_GPU_COUNT_8'], f'it lacks the trait {_HOPPER}'),
                ([_HOPPER, 'CUSTOM_GPU_COUNT_8', 'CUSTOM_OLD'],
                 'it has the trait CUSTOM_OLD')):
            self.assertEqual(f'cannot take it: {text}', self.verdict(
                self.node(traits=traits), profile))
        for resource_class, text in (('CUSTOM_OTHER', 'CUSTOM_OTHER'),
                                     (None, 'not set')):
            node = dataclasses.replace(self.node(traits=()),
                                       resource_class=resource_class)
            self.assertEqual(
                f'cannot take it: its resource class is {text}, not '
                f'{_CLASS}', self.verdict(node))

    def test_a_ramdisk_without_driver(self):
        node = dataclasses.replace(
            self.node(traits=()), found=inventory.Inventory((_UNSEEN,)))
        self.assertRegex(self.verdict(node), '^cannot take it: the MIG '
                         'profiles of its GPUs are not known .*device-filter')
        named = test_baremetal_profile.node_profile(
            {'gpu': '1g.10gb'}, nodes={'device-filter': '0x233010DE'})
        for profile in (self.whole, named):
            self.assertIn('can take it;', self.verdict(node, profile))
