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

"""Labels as GPU feature discovery sets them.

The figures of boards are those of ``nvidia-smi mig -lgip``. The tables in the
documentation of GPU feature discovery name the labels and say when they
change.
"""

from oslotest import base

from cyborg_gpu_driver.kubernetes import labels
from cyborg_gpu_driver.kubernetes import plugin
from cyborg_gpu_driver.tests.unit.kubernetes import nodes

NONE, SINGLE, MIXED = plugin.Strategy
SLICED, MPS = plugin.Method
SEVENS = nodes.cut(nodes.A100, {'1g.5gb': 7})


def of(asked, *gpus, shared=None, **options):
    """Return labels without the common prefix."""
    node = nodes.of(*gpus, **options)
    if shared is not None:
        shared = plugin.shared(*shared, (), node, asked)
    return {key.removeprefix('nvidia.com/'): value for key, value
            in labels.labels(node, asked, shared).items()}


class WholeTest(base.BaseTestCase):

    def test_gpus_without_mig(self):
        self.assertEqual({
            'cuda.driver-version.full': '550.107.02',
            'cuda.driver-version.major': '550',
            'cuda.driver-version.minor': '107',
            'cuda.driver-version.revision': '02',
            'device-plugin.config': 'halves',
            'gpu.count': '2', 'gpu.family': 'turing',
            'gpu.memory': '15360', 'gpu.mode': 'compute',
            'gpu.product': 'Tesla-T4', 'gpu.replicas': '1',
            'gpu.sharing-strategy': 'none', 'mig.capable': 'false',
            'mps.capable': 'false',
        }, of(NONE, *[nodes.cut(nodes.T4)] * 2,
              driver_version='550.107.02'))

    def test_shared(self):
        found = of(NONE, nodes.cut(nodes.L40S), shared=(SLICED, 4))
        self.assertEqual(
            ('1', '4', 'time-slicing', 'NVIDIA-L40S-SHARED', 'false',
             'ada-lovelace'),
            tuple(found[key] for key in (
                'gpu.count', 'gpu.replicas', 'gpu.sharing-strategy',
                'gpu.product', 'mps.capable', 'gpu.family')))
        found = of(NONE, nodes.cut(nodes.L40S), shared=(MPS, 2))
        self.assertEqual(('mps', 'true'), (
            found['gpu.sharing-strategy'], found['mps.capable']))

    def test_renamed_product_is_not_called_shared(self):
        node = nodes.of(nodes.cut(nodes.T4))
        found = labels.labels(node, NONE, plugin.shared(
            SLICED, 4, (), node, NONE, rename=True))
        self.assertEqual('Tesla-T4', found['nvidia.com/gpu.product'])
        self.assertEqual('4', found['nvidia.com/gpu.replicas'])

    def test_of_several_models_what_differs_is_left_to_chance(self):
        found = of(NONE, nodes.cut(nodes.T4), nodes.cut(nodes.L40S))
        for key in ('product', 'memory', 'family'):
            self.assertNotIn(f'gpu.{key}', found)
        self.assertEqual('1', found['gpu.replicas'])
        # A GPU without MIG mode overrides those that have it.
        found = of(MIXED, SEVENS, nodes.cut(nodes.L40S))
        self.assertEqual('NVIDIA-L40S', found['gpu.product'])
        found = of(MIXED, SEVENS, nodes.cut(nodes.L40S), nodes.cut(nodes.T4))
        self.assertNotIn('gpu.product', found)

    def test_mig_mode_under_strategy_none(self):
        found = of(NONE, SEVENS)
        self.assertEqual(('1', '0', 'NVIDIA-A100-SXM4-40GB', 'true'), tuple(
            found[key] for key in ('gpu.count', 'gpu.replicas',
                                   'gpu.product', 'mig.capable')))
        self.assertNotIn('mig.strategy', found)

    def test_what_is_not_known_is_left_out(self):
        bare = nodes.boards.gpu((), mig=None, class_code='0380')
        self.assertEqual(
            {'device-plugin.config', 'gpu.mode', 'mig.capable',
             'mps.capable'}, set(of(NONE, nodes.cut(bare))))


class MigTest(base.BaseTestCase):

    def test_single(self):
        found = of(SINGLE, *[SEVENS] * 8)
        expected = {
            'gpu.count': '56', 'gpu.memory': '4864',
            'gpu.product': 'NVIDIA-A100-SXM4-40GB-MIG-1g.5gb',
            'gpu.multiprocessors': '14', 'gpu.slices.gi': '1',
            'gpu.slices.ci': '1', 'gpu.engines.decoder': '0',
            'gpu.engines.encoder': '0', 'gpu.engines.jpeg': '0',
            'gpu.engines.ofa': '0', 'gpu.family': 'ampere',
            'gpu.replicas': '1', 'gpu.sharing-strategy': 'none',
            'mig.strategy': 'single', 'mig.capable': 'true',
            'mig.config': 'halves',
        }
        self.assertEqual(expected, {key: found[key] for key in expected})

    def test_mixed(self):
        found = of(MIXED, nodes.cut(nodes.A100, {'3g.20gb': 2}), SEVENS,
                   shared=(SLICED, 2))
        expected = {
            'gpu.count': '2', 'gpu.replicas': '0',
            'gpu.product': 'NVIDIA-A100-SXM4-40GB',
            'mig-3g.20gb.count': '2', 'mig-3g.20gb.memory': '19968',
            'mig-3g.20gb.multiprocessors': '42',
            'mig-3g.20gb.slices.gi': '3', 'mig-3g.20gb.slices.ci': '3',
            'mig-3g.20gb.replicas': '2',
            'mig-3g.20gb.product':
                'NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED',
            'mig-1g.5gb.count': '7', 'mig.strategy': 'mixed',
        }
        self.assertEqual(expected, {key: found[key] for key in expected})

    def test_one_name_on_two_boards_is_labelled_as_on_the_first(self):
        found = of(MIXED, nodes.cut(nodes.A100, {'1g.10gb': 4}),
                   nodes.cut(nodes.A100_80, {'1g.10gb': 7}))
        self.assertEqual(('11', 'NVIDIA-A100-SXM4-40GB-MIG-1g.10gb'), (
            found['mig-1g.10gb.count'], found['mig-1g.10gb.product']))

    def test_part_of_a_gpu_instance(self):
        found = of(SINGLE, nodes.cut(nodes.A100, {'1c.3g.20gb': 3}))
        self.assertEqual(('3', '1', '19968'), (
            found['gpu.slices.gi'], found['gpu.slices.ci'],
            found['gpu.memory']))
        self.assertNotIn('gpu.multiprocessors', found)

    def test_media_engines_by_the_labels_names(self):
        found = of(MIXED, nodes.cut(nodes.RTX, {'1g.24gb+me.all': 1}))
        self.assertEqual(['4', '4', '4', '1'], [
            found[f'mig-1g.24gb.me.all.engines.{key}']
            for key in ('decoder', 'encoder', 'jpeg', 'ofa')])

    def test_a_value_too_long_for_a_label_is_left_out(self):
        gpu = nodes.cut(nodes.RTX, {'1g.24gb+me.all': 1})
        product = 'mig-1g.24gb.me.all.product'
        self.assertEqual(63, len(of(MIXED, gpu)[product]))
        self.assertNotIn(product, of(MIXED, gpu, shared=(SLICED, 2)))
