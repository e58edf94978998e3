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


NONE, SINGLE, MIXED = plugin.Strategy
SLICED, MPS = plugin.Method

T4 = nodes.of(nodes.cut(nodes.T4))
TWO_NODE_KINDS = nodes.of(TWO_KINDS, nodes.cut(nodes.A100))


def offered(node, asked_strategy, *arguments, **options):
    shared = plugin.shared(*arguments, node, asked_strategy, **options)
    return plugin.allocatable(
        plugin.resources(node, asked_strategy), shared)


class AllocatableTest(base.BaseTestCase):

    def test_what_pods_can_ask_for(self):
        sevens = nodes.of(nodes.cut(nodes.A100, {'1g.5gb': 7}))
        for node, strategy, method, replicas, asked, options, expected in (
                (T4, NONE, SLICED, 4, (), {}, {'nvidia.com/gpu': 4}),
                (T4, NONE, MPS, 4, (), {}, {'nvidia.com/gpu': 4}),
                (T4, NONE, SLICED, 10, ('gpu', 'nvidia.com/gpu'),
                 {'rename': True}, {'nvidia.com/gpu.shared': 10}),
                (sevens, SINGLE, SLICED, 2, (), {}, {'nvidia.com/gpu': 14}),
                (TWO_NODE_KINDS, MIXED, SLICED, 3, (), {},
                 {'nvidia.com/gpu': 3, 'nvidia.com/mig-3g.20gb': 3,
                  'nvidia.com/mig-1g.5gb': 12}),
                (TWO_NODE_KINDS, MIXED, SLICED, 3, ('mig-1g.5gb',),
                 {'rename': True},
                 {'nvidia.com/gpu': 1, 'nvidia.com/mig-3g.20gb': 1,
                  'nvidia.com/mig-1g.5gb.shared': 12})):
            self.assertEqual(expected, offered(
                node, strategy, method, replicas, asked, **options))
        self.assertEqual({'nvidia.com/gpu': 8}, plugin.allocatable(
            {'nvidia.com/gpu': 8}, None))


class RefusalTest(base.BaseTestCase):

    def refused(self, word, node, asked_strategy, *arguments):
        error = self.assertRaises(
            exception.InvalidValue, plugin.shared, *arguments, node,
            asked_strategy)
        self.assertIn(word, str(error))

    def test_too_few_replicas(self):
        for replicas in (1, 0, -4):
            self.refused('2 or more', T4, NONE, SLICED, replicas, ())

    def test_resources_that_the_layout_has_not(self):
        self.refused('nvidia.com/gpu, nvidia.com/mig-3g.20gb, '
                     'nvidia.com/mig-1g.5gb', TWO_NODE_KINDS, MIXED, SLICED, 2,
                     ('mig-2g.10gb',))
        self.refused('offers nvidia.com/gpu', TWO_NODE_KINDS, NONE, SLICED, 2,
                     ('mig-1g.5gb',))

    def test_names_that_are_none(self):
        for name in ('', 'amd.com/gpu', 'GPU', 'mig-1g.5gb+me', 'a' * 53,
                     'a..b', '-a'):
            self.refused('expected nvidia.com/NAME', T4, NONE, SLICED, 2,
                         (name,))

    def test_mps_with_mig(self):
        seven = nodes.of(nodes.cut(nodes.A100, {'1g.5gb': 7}))
        self.refused('MIG mode', seven, SINGLE, MPS, 2, ())
        self.refused('MIG mode', seven, NONE, MPS, 2, ())
        self.refused('mixed', seven, MIXED, MPS, 2, ())
        self.refused('mixed', T4, MIXED, MPS, 2, ())

    def test_more_clients_than_mps_serves(self):
        plugin.shared(MPS, 48, (), T4, NONE)
        self.refused('at most 48 clients on GPU 0', T4, NONE, MPS, 49, ())
        both = nodes.of(nodes.cut(nodes.T4), nodes.cut(nodes.V100))
        plugin.shared(MPS, 16, (), both, NONE)
        self.refused('at most 16 clients on GPU 1', both, NONE, MPS, 17, ())
        plugin.shared(SLICED, 49, (), both, NONE)
