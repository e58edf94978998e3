# SPDX-License-Identifier: Apache-2.0

"""What the device plugin offers for a layout, and on which it fails."""

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import plugin
from cyborg_gpu_driver.tests.unit.kubernetes import nodes

NONE, SINGLE, MIXED = plugin.Strategy

WHOLE = nodes.cut(nodes.A100)
EMPTY = nodes.cut(nodes.A100, {})
SEVENS = nodes.cut(nodes.A100, {'1g.5gb': 7})
TWO_KINDS = nodes.cut(nodes.A100, {'1g.5gb': 4, '3g.20gb': 1})
PARTS = nodes.cut(nodes.A100, {'1c.3g.20gb': 3})
MEDIA = nodes.cut(nodes.RTX, {'1g.24gb+me.all': 1, '1g.24gb-me': 3})


class ResourcesTest(base.BaseTestCase):

    def test_what_the_plugin_offers(self):
        for gpus, strategy, expected, notes in (
                ((WHOLE, SEVENS, EMPTY), NONE, {'gpu': 3},
                 ('GPU 1 (0000:08:00.0) is in MIG mode (7 x 1g.5gb)',
                  'GPU 2')),
                ((SEVENS, SEVENS), SINGLE, {'gpu': 14}, ()),
                ((WHOLE, WHOLE), SINGLE, {'gpu': 2}, ()),
                ((PARTS,), SINGLE, {'gpu': 3}, ()),
                ((WHOLE, TWO_KINDS, SEVENS), MIXED,
                 {'gpu': 1, 'mig-1g.5gb': 11, 'mig-3g.20gb': 1}, ()),
                ((MEDIA,), MIXED,
                 {'mig-1g.24gb.me.all': 1, 'mig-1g.24gb-me': 3}, ()),
                ((EMPTY, SEVENS), MIXED, {'mig-1g.5gb': 7}, ('GPU 0',))):
            node = nodes.of(*gpus)
            self.assertEqual(
                {f'nvidia.com/{name}': count
                 for name, count in expected.items()},
                plugin.resources(node, strategy))
            found = plugin.notes(node, strategy)
            for words, note in zip(notes, found, strict=True):
                self.assertIn(words, note)

    def test_what_the_plugin_refuses(self):
        for gpus, strategy, words in (
                ((TWO_KINDS,), SINGLE, '1g.5gb, 3g.20gb; use mixed'),
                ((SEVENS, nodes.cut(nodes.A100, {'3g.20gb': 2})), SINGLE,
                 '3g.20gb'),
                # A quarter of one board and an eighth of the other.
                ((nodes.cut(nodes.A100, {'1g.10gb': 4}),
                  nodes.cut(nodes.A100_80, {'1g.10gb': 7})), SINGLE,
                 '2 x 1g.10gb'),
                ((SEVENS, WHOLE), SINGLE,
                 'GPU 1 (0000:08:00.0) is not in MIG mode'),
                ((nodes.cut(nodes.T4), SEVENS), SINGLE,
                 'GPU 0 (0000:07:00.0) is not in MIG mode'),
                ((SEVENS, EMPTY), SINGLE, 'without MIG'),
                ((PARTS,), MIXED, '1c.3g.20gb'),
                ((EMPTY, EMPTY), MIXED, 'nothing to offer'),
                ((), NONE, 'no GPU'), ((), SINGLE, 'no GPU'),
                ((), MIXED, 'nothing to offer')):
            error = self.assertRaises(
                exception.InvalidValue, plugin.resources, nodes.of(*gpus),
                strategy)
            self.assertIn(f"the layout with strategy '{strategy.value}'",
                          str(error))
            self.assertIn(words, str(error))


class SuitedTest(base.BaseTestCase):

    def test_the_plainest_that_offers_all(self):
        for gpus, expected in (
                ((WHOLE, WHOLE), NONE), ((SEVENS, SEVENS), SINGLE),
                ((PARTS,), SINGLE), ((SEVENS, WHOLE), MIXED),
                ((SEVENS, EMPTY), MIXED), ((TWO_KINDS,), MIXED)):
            self.assertIs(expected, plugin.suited(nodes.of(*gpus)))
