# SPDX-License-Identifier: Apache-2.0


"""The functions that a ``[pci] device_spec`` matches."""

from __future__ import annotations

import json

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import pci_config

GPU = pci_config.Function(
    model.PciAddress.parse('0000:16:00.0'), '10de', '26b9')
VF = pci_config.Function(
    model.PciAddress.parse('0000:16:00.4'), '10de', '26b9', GPU.address)


def spec(**entry):
    """The parsed entry of an option that has one entry."""
    (found,) = pci_config.parse_device_spec([json.dumps(entry)])
    return found


class ParseTest(base.BaseTestCase):

    def test_a_line_may_hold_several(self):
        found = pci_config.parse_device_spec(
            ['[{"address": "0000:16:00.4"}, {}]'])
        self.assertEqual([False, True],
                         [entry.matches(GPU) for entry in found])

    def test_tags_are_kept(self):
        found = spec(address='0000:16:00.4', managed='no',
                     traits='A, B', resource_class='x')
        self.assertEqual((False, {'A', 'B'}, 'x'),
                         (found.managed, set(found.traits),
                          found.tags['resource_class']))
        self.assertTrue(spec().managed)

    def test_what_nova_refuses_is_named(self):
        for text in ('{', '3', '["a"]', '{"address": "1:2:3:4.5"}',
                     '{"address": "0000:zz:00.0"}',
                     '{"address": "0000:16:20.0"}',
                     '{"address": {"bus": "["}}', '{"address": 5}'):
            error = self.assertRaises(exception.InvalidValue,
                                      pci_config.parse_device_spec, [text])
            self.assertIn(repr(text), str(error))
