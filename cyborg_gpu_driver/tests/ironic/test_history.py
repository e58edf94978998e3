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

"""What Ironic's history of a node says about the ramdisk's steps."""

import types
from unittest import mock

from ironic import objects
from ironic.drivers.modules import agent_base
from ironic.tests.unit.db import base
from ironic.tests.unit.objects import utils as obj_utils

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import hook as baremetal_hook

_GPU = '0000:31:00.0'


class EventTest(base.DbTestCase):

    def setUp(self):
        with mock.patch('logging.config.fileConfig', autospec=True):
            super().setUp()
        baremetal_hook.register()

    def events(self, kind, step, result):
        """The history of a node after a step with this result."""
        node = obj_utils.create_test_node(self.context, **{
            f'{kind}_step': {'interface': 'deploy', 'step': step}})
        hook = agent_base._get_post_step_hook(node, kind)
        hook(types.SimpleNamespace(node=node), {'command_result': result})
        found = objects.NodeHistory.list_by_node_id(self.context, node.id)
        return [(item.event_type, item.severity, item.event)
                for item in found]

    def test_a_layout(self):
        self.assertEqual(
            [('nvidia_gpus', 'INFO',
              'apply_gpu_layout: layout halves; wrote /a, /b; '
              f'GPU {_GPU}: wanted 2 x 2g.12gb, mig_mode set now')],
            self.events('deploy', 'apply_gpu_layout', {'deploy_result': {
                'layout': 'halves', 'staged': ['/a', '/b'], 'gpus': [
                    {'gpu': _GPU, 'wanted': '2 x 2g.12gb',
                     'mig_mode': 'set now'}]}}))

    def test_every_step_of_a_cleaning(self):
        self.assertEqual(
            [('nvidia_gpus', 'INFO',
              f'verify_gpus: GPU {_GPU}: model NVIDIA A30, mig_mode False')],
            self.events('clean', 'verify_gpus', {'clean_result': {'gpus': [
                {'gpu': _GPU, 'model': 'NVIDIA A30', 'mig_mode': False,
                 'ecc_mode': None, 'health': {'a': 1}}]}}))
        self.assertEqual(set(cleaning.CLEAN_PRIORITIES), set(
            agent_base._POST_STEP_HOOKS['clean']['deploy']))

    def test_what_is_malformed_fails_no_step(self):
        for number, result in enumerate((
                None, [], {'deploy_result': 7},
                {'deploy_result': {'layout': ['\n'], 'staged': 3,
                                   'gpus': [3, {'a\nb': '\x1b' * 9999}]}})):
            text = baremetal_hook.event('apply_gpu_layout', (
                result or {}) and result['deploy_result'])
            self.assertTrue(text.isprintable(), number)
            self.assertLess(len(text), 2000)
