# SPDX-License-Identifier: Apache-2.0

"""The layouts that a node can have, and the meaning of a step's argument."""

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.tests.unit.baremetal import inspected

FILE = """
version: v1
mig-configs:
  training:
  - {devices: all, mig-enabled: true, mig-devices: {7g.80gb: 1}}
  all-1g.10gb:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 3}}
  a100:
  - {devices: all, device-filter: "0x20B210DE", mig-enabled: true,
     mig-devices: {3g.40gb: 2}}
  too-much:
  - {devices: all, mig-enabled: true, mig-devices: {4g.40gb: 2}}
  elsewhere:
  - {devices: all, device-filter: "0x123410DE", mig-enabled: false}
  ninth:
  - {devices: [0, 8], mig-enabled: false}
  first:
  - {devices: [0], mig-enabled: true, mig-devices: {}}
"""
ITEMS = [{'devices': 'all', 'mig-enabled': True,
          'mig-devices': {'2g.20gb': 3}}]


def file(text=FILE, name='mine.yaml'):
    return layout_file.LayoutFile.parse(text, name)


class LayoutsTest(base.BaseTestCase):

    def gpus(self, name):
        return inspected.found(name).gpus

    def operators(self, gpus):
        """The names of the layouts of the file that apply to the GPUs."""
        return {name for name in file().names
                if node.suits(gpus, node.known(gpus, [file()])[name])}

    def test_an_entry_that_cannot_be_read_hides_a_generated_one(self):
        bad = file('version: v1\nmig-configs: {all-disabled: [], '
                   'good: [{devices: all, mig-enabled: false}]}')
        self.assertEqual('good', node.entry_of('good', (), [bad]).name)
        error = self.assertRaises(exception.DocumentError, node.entry_of,
                                  'all-disabled', (), [bad])
        self.assertIn('mine.yaml', str(error))

    def test_all_generated_suit(self):
        for name, count in (('hgx-h100', 10), ('dgx-a100-40', 10),
                            ('a30x4', 8), ('rtxpro6000x8', 14),
                            ('t4x4', 1), ('mixed', 10)):
            gpus = self.gpus(name)
            found = node.known(gpus)
            self.assertEqual(count, len(found), name)
            for entry in found.values():
                self.assertTrue(node.suits(gpus, entry), entry.name)

    def test_of_the_operator(self):
        slices = {'training', 'all-1g.10gb', 'first'}
        for name, expected in (
                ('hgx-h100', slices), ('dgx-a100-80', {*slices, 'a100'}),
                ('a30x4', {'first'}), ('t4x4', set()),
                # A T4, an A100, an H100 and an A40 that NVML does not see.
                ('mixed', {'a100'})):
            self.assertEqual(expected, self.operators(self.gpus(name)), name)

    def test_unseen_and_spoken_of_twice(self):
        # With only what sysfs reports about them.
        gpus = tuple(
            model.Gpu(gpu.address, gpu.vendor_id, gpu.device_id,
                      gpu.class_code) for gpu in self.gpus('dgx-a100-80'))
        entry = layout_file.Entry('mine.yaml', 'twice', tuple(
            file().entry('a100').sections * 2))
        self.assertFalse(node.suits(gpus, entry))


class EntryOfTest(base.BaseTestCase):

    def test_malformed(self):
        for value, *words in (
                (None, 'top level: found nothing; expected the name of a '
                       'layout, a list of items'),
                (7, 'found 7; expected the name of a layout'),
                ({}, 'found an empty mapping; expected the name of a layout'),
                ({'a': ITEMS, 'b': ITEMS}, 'found keys a, b; expected'),
                ({'a': []}, 'a: found an empty list; expected a list of at '
                            'least one item'),
                ({'': ITEMS}, "found key ''; expected text of at least one")):
            error = self.assertRaises(exception.DocumentError,
                                      node.entry_of, value)
            for word in ('layout:', *words):
                self.assertIn(word, str(error))
