# SPDX-License-Identifier: Apache-2.0

"""What the inspection hook does with the data that it receives."""

import copy
from unittest import mock

from ironic import objects
from ironic.common import exception
from ironic.conductor import task_manager
from ironic.drivers.modules import inspect_utils
from ironic.drivers.modules.inspector import agent

from cyborg_gpu_driver.tests.ironic import inspection_case

LAYOUT = 'CUSTOM_GPU_LAYOUT_'
HALVES = [{'devices': 'all', 'mig-enabled': True,
           'mig-devices': {'3g.40gb': 2}}]
FILE = """
version: v1
mig-configs:
  training:
  - {devices: all, mig-enabled: true, mig-devices: {7g.80gb: 1}}
  a100-40:
  - {devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}
"""
# What a node sends. Kept, because reading its many virtual functions is slow.
_SENT: dict = {}


class HookCase(inspection_case.InspectionCase):

    def setUp(self):
        super().setUp()
        if not _SENT:
            self.machine('hgx-h100')
            _SENT.update(self.sent())
        self.data = copy.deepcopy(_SENT)

    def option(self, **options):
        self.config(group='gpu_baremetal', **options)

    def refused(self, data, *words):
        """Check that an inspection fails and changes nothing."""
        before = (self.traits, self.node.properties,
                  self.node.resource_class)
        error = self.assertRaises(exception.HardwareInspectionFailure,
                                  self.process, data)
        for word in words:
            self.assertIn(word, str(error))
        # Ironic reports an "Unexpected" exception for a hook that crashes.
        self.assertNotIn('Unexpected', str(error))
        self.node.refresh()
        self.assertEqual(before, (
            self.traits, self.node.properties, self.node.resource_class))


class LayoutTraitsTest(HookCase):

    def test_operators_file(self):
        path = self.directory / 'layouts.yaml'
        path.write_text(FILE)
        self.option(layout_files=[str(path)])
        self.add_template(LAYOUT + 'T', 'training')
        self.add_template(LAYOUT + 'A100', 'a100-40')
        self.process(self.data)
        self.assertEqual({LAYOUT + 'T'}, self.layouts)
        # The other entries of a file in which one is malformed are used.
        path.write_text(FILE.replace('mig-enabled: true', 'mig-on: true', 1)
                        .replace('7g.40gb', '7g.80gb'))
        self.process(self.data)
        self.assertEqual({LAYOUT + 'A100'}, self.layouts)
        path.write_text('mig-configs: [')
        self.refused(self.data, str(path), 'not YAML')

    def test_file_that_is_missing(self):
        self.option(layout_files=[str(self.directory / 'none.yaml')])
        self.refused(self.data, '[gpu_baremetal] layout_files', 'none.yaml')

    def test_deploy_templates(self):
        self.add_template(LAYOUT + 'HALVES', {'halves': HALVES})
        self.add_template(LAYOUT + 'KNOWN', 'all-balanced')
        self.add_template(LAYOUT + 'A100', [
            {**HALVES[0], 'mig-devices': {'3g.20gb': 2}}])
        self.add_template('CUSTOM_MINE', HALVES)
        self.add_template(LAYOUT + 'BIOS', HALVES, 'apply_configuration')
        self.add_template(LAYOUT + 'ODD', {'a': HALVES, 'b': HALVES})
        self.process(self.data)
        self.assertEqual({LAYOUT + 'HALVES', LAYOUT + 'KNOWN'}, self.layouts)
        self.assertNotIn('CUSTOM_MINE', self.traits)
        self.assertIn(f'deploy template {LAYOUT}ODD cannot be used: layout: '
                      'top level: found keys a, b; expected', self.log.output)

    def test_template_that_is_gone(self):
        template = self.add_template(LAYOUT + 'GONE', HALVES)
        # As "openstack gpu profile sync" does.
        self.add_traits(LAYOUT + 'GONE')
        self.process(self.data)
        self.assertIn(LAYOUT + 'GONE', self.layouts)
        template.destroy()
        self.process(self.data)
        self.assertNotIn(LAYOUT + 'GONE', self.layouts)

    def test_no_room(self):
        mine = {f'CUSTOM_{number}' for number in range(44)}
        self.add_traits(*mine)
        self.add_template(LAYOUT + 'HALVES', HALVES)
        self.process(self.data)
        self.assertEqual(mine | inspection_case.H100, self.traits)
        self.assertIn(f'no room for the traits {LAYOUT}', self.log.output)


class AgainTest(HookCase):

    def test_only_what_the_hook_wrote_changes(self):
        mine = {'CUSTOM_RACK_7', 'HW_CPU_X86_AVX', 'CUSTOM_NVIDIA_A100',
                'CUSTOM_GPU_COUNT_4', LAYOUT + 'MINE'}
        self.add_traits(*mine)
        self.node.set_property('local_gb', 100)
        self.node.resource_class = 'mine'
        self.node.save()
        self.process(self.data)
        self.assertLessEqual(mine | inspection_case.H100, self.traits)
        self.assertEqual(100, self.node.properties['local_gb'])
        self.assertEqual('mine', self.node.resource_class)
        self.data['nvidia_gpus']['gpus'] = []
        self.process(self.data)
        self.assertEqual(mine, self.traits)
        self.assertEqual({'cpu_arch', 'local_gb'}, set(self.node.properties))

    def test_interrupted(self):
        """The traits to remove are still recorded as those of the hook."""
        self.process(self.data)
        self.data['nvidia_gpus']['gpus'] = []
        with mock.patch.object(objects.TraitList, 'create', autospec=True,
                               side_effect=RuntimeError):
            self.assertRaises(exception.HardwareInspectionFailure,
                              self.process, self.data)
        self.process(self.data)
        self.assertEqual(set(), self.traits)

    def test_same_again(self):
        self.process(self.data)
        before = (self.traits, self.node.properties)
        self.process(self.data)
        self.assertEqual(before, (self.traits, self.node.properties))
        self.assertEqual(1, self.log.output.count(
            'traits of its GPUs are now'))


class ResourceClassTest(HookCase):

    NAME = 'baremetal-gpu-h100-80gb-hbm3-x8'

    def test_set(self):
        self.option(resource_class='set')
        for before, expected in ((None, self.NAME), ('mine', 'mine')):
            self.node.resource_class = before
            self.node.save()
            self.process(self.data)
            self.assertEqual(
                (expected, self.NAME),
                (self.node.resource_class, self.node.properties[
                    'nvidia_gpus']['resource_class']))


class MalformedTest(HookCase):

    def test_malformed(self):
        self.process(self.data)
        for value in (None, [], {'version': 2}, {'version': 1}):
            self.refused({'nvidia_gpus': value},
                         f'NVIDIA GPUs of node {self.node.uuid}',
                         'inventory')
        odd = copy.deepcopy(self.data)
        odd['nvidia_gpus']['gpus'][3]['memory_mib'] = 'much'
        self.refused(odd, 'ramdisk: inventory.gpus[3].memory_mib: found '
                     "'much'; expected a whole number")

    def test_other_hooks_change_nothing_either(self):
        self.config(hooks='memory,nvidia-gpus', group='inspector')
        inspect_utils._HOOKS_MGR.clear()
        self.hooks = agent.AgentInspect().hooks
        memory = {'memory': {'physical_mb': 1024}}
        self.assertRaises(
            exception.HardwareInspectionFailure, self.process,
            {'nvidia_gpus': None}, memory)
        self.option(layout_files=[str(self.directory / 'none.yaml')])
        self.assertRaises(exception.HardwareInspectionFailure,
                          self.process, self.data, memory)
        self.node.refresh()
        self.assertNotIn('memory_mb', self.node.properties)

    def test_the_operator_sees_it(self):
        with task_manager.acquire(self.context, self.node.id) as task:
            self.assertRaises(
                exception.HardwareInspectionFailure,
                agent.AgentInspect().continue_inspection, task, {},
                {'nvidia_gpus': {'version': 7}})
        self.node.refresh()
        self.assertIn('ramdisk: inventory.version: found 7; expected 1: the ',
                      self.node.last_error)


class NoCollectorTest(HookCase):

    def test_the_node_stays(self):
        self.process(self.data)
        before = (self.traits, self.node.properties)
        self.process({})
        self.assertEqual(before, (self.traits, self.node.properties))
        self.assertIn('its GPUs are unknown', self.log.output)
