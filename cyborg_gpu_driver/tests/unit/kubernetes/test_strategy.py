# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

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


class StrategyCase(base.BaseTestCase):

    def refused(self, node, asked, *words):
        """Check that a strategy is refused, and why."""
        error = self.assertRaises(exception.InvalidValue,
                                  plugin.resources, node, asked)
        for word in (asked.value, *words):
            self.assertIn(word, str(error))


class ResourcesTest(StrategyCase):

    def test_none_offers_whole_gpus_whatever_they_are(self):
        node = nodes.of(WHOLE, SEVENS, EMPTY)
        self.assertEqual({'nvidia.com/gpu': 3},
                         plugin.resources(node, NONE))
        notes = plugin.notes(node, NONE)
        self.assertEqual(2, len(notes))
        self.assertIn('GPU 1 (0000:08:00.0) is in MIG mode (7 x 1g.5gb)',
                      notes[0])

    def test_single_offers_mig_devices_as_gpus(self):
        self.assertEqual(
            {'nvidia.com/gpu': 14},
            plugin.resources(nodes.of(SEVENS, SEVENS), SINGLE))

    def test_single_without_mig_mode_offers_whole_gpus(self):
        self.assertEqual(
            {'nvidia.com/gpu': 2},
            plugin.resources(nodes.of(WHOLE, WHOLE), SINGLE))

    def test_mixed_offers_each_kind(self):
        node = nodes.of(WHOLE, TWO_KINDS, SEVENS)
        self.assertEqual(
            {'nvidia.com/gpu': 1, 'nvidia.com/mig-1g.5gb': 11,
             'nvidia.com/mig-3g.20gb': 1}, plugin.resources(node, MIXED))
        self.assertEqual((), plugin.notes(node, MIXED))

    def test_names_of_attributes(self):
        self.assertEqual(
            {'nvidia.com/mig-1g.24gb.me.all': 1,
             'nvidia.com/mig-1g.24gb-me': 3},
            plugin.resources(nodes.of(MEDIA), MIXED))

    def test_mixed_passes_over_an_empty_gpu_and_says_so(self):
        node = nodes.of(EMPTY, SEVENS)
        self.assertEqual({'nvidia.com/mig-1g.5gb': 7},
                         plugin.resources(node, MIXED))
        note, = plugin.notes(node, MIXED)
        self.assertIn('GPU 0', note)


class RefusalTest(StrategyCase):

    def test_single_with_two_kinds(self):
        self.refused(nodes.of(TWO_KINDS), SINGLE, '1g.5gb, 3g.20gb',
                     'mixed')
        self.refused(nodes.of(SEVENS, nodes.cut(nodes.A100, {'3g.20gb': 2})),
                     SINGLE, '3g.20gb')

    def test_single_with_one_name_for_two_kinds(self):
        # A quarter of one board and an eighth of the other.
        self.refused(
            nodes.of(nodes.cut(nodes.A100, {'1g.10gb': 4}),
                     nodes.cut(nodes.A100_80, {'1g.10gb': 7})),
            SINGLE, '2 x 1g.10gb')

    def test_single_with_a_whole_gpu(self):
        self.refused(nodes.of(SEVENS, WHOLE), SINGLE,
                     'GPU 1 (0000:08:00.0) is not in MIG mode', 'mixed')
        self.refused(nodes.of(nodes.cut(nodes.T4), SEVENS), SINGLE,
                     'GPU 0 (0000:07:00.0) is not in MIG mode')

    def test_single_with_an_empty_gpu(self):
        self.refused(nodes.of(SEVENS, EMPTY), SINGLE, 'GPU 1', 'without MIG')

    def test_mixed_with_parts_of_gpu_instances(self):
        self.refused(nodes.of(PARTS), MIXED, '1c.3g.20gb', 'single')
        self.assertEqual({'nvidia.com/gpu': 3},
                         plugin.resources(nodes.of(PARTS), SINGLE))

    def test_nothing_to_offer(self):
        self.refused(nodes.of(EMPTY, EMPTY), MIXED, 'nothing to offer')
        for asked in plugin.Strategy:
            self.refused(nodes.of(), asked)


class SuitedTest(base.BaseTestCase):

    def test_the_plainest_that_offers_all(self):
        for gpus, expected in (
                ((WHOLE, WHOLE), NONE), ((SEVENS, SEVENS), SINGLE),
                ((PARTS,), SINGLE), ((SEVENS, WHOLE), MIXED),
                ((SEVENS, EMPTY), MIXED), ((TWO_KINDS,), MIXED)):
            self.assertIs(expected, plugin.suited(nodes.of(*gpus)))
