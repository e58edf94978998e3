# SPDX-License-Identifier: Apache-2.0

"""The step that gives a deployed system its GPU layout."""

import os
import pathlib

import yaml
from ironic_python_agent import errors

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.tests.ironic import agent_case

_STEP = 'apply_gpu_layout'
_PROGRAM = 'usr/local/bin/cyborg-gpu'
_HALVES = {'halves': [{'devices': 'all', 'mig-enabled': True,
                       'mig-devices': {'2g.12gb': 2}}]}


class LayoutCase(agent_case.AgentCase):

    def deploy(self, layout, **others):
        return self.execute('deploy', _STEP, layout=layout, **others)

    def fails(self, layout, *words):
        """Check that the step fails and changes nothing."""
        before = self.modes(), sorted(self.image.rglob('*'))
        text = self.refused('deploy', _STEP, errors.DeploymentError, *words,
                            layout=layout)
        self.assertEqual(before, (self.modes(),
                                  sorted(self.image.rglob('*'))))
        return text

    def modes(self):
        """MIG modes, current and pending, of all GPUs."""
        with self.machine.operation():
            return [(gpu.state.mig, gpu.state.pending)
                    for gpu in self.machine.gpus]

    def layout(self):
        """The layout that the image's own program reads."""
        return yaml.safe_load(agent_case.read(
            self.image / cleaning.LAYOUT_PATH))['mig-configs']


class StageTest(LayoutCase):

    def setUp(self):
        super().setUp()
        self.make_image(_PROGRAM)

    def test_ampere(self):
        self.clear()
        done = self.deploy(_HALVES)
        self.assertEqual([(True, True)] * 4, self.modes())
        self.assertEqual(_HALVES, self.layout())
        self.assertEqual(agent_case.read(
            pathlib.Path(cleaning.__file__).with_name(cleaning.UNIT)),
            agent_case.read(self.image / cleaning.UNIT_PATH))
        self.assertEqual(f'/{cleaning.UNIT_PATH}',
                         os.readlink(self.image / cleaning.WANTS_PATH))
        self.assertEqual('halves', done['layout'])
        self.assertEqual([f'/{cleaning.LAYOUT_PATH}', f'/{cleaning.UNIT_PATH}',
                          f'/{cleaning.WANTS_PATH}'], done['staged'])
        self.assertEqual(
            {'gpu': self.machine.gpus[0].address, 'wanted': '2 x 2g.12gb',
             'mig_mode': 'set now'}, done['gpus'][0])
        self.reboot()
        self.assertEqual([(True, True)] * 4, self.modes())
        self.assertEqual('already set',
                         self.deploy(_HALVES)['gpus'][0]['mig_mode'])

    def test_hopper(self):
        self.use('hgx-h100')
        before = self.modes()
        done = self.deploy('all-3g.40gb')
        self.assertEqual(before, self.modes())
        self.assertEqual({'all-3g.40gb': [{
            'devices': 'all', 'mig-enabled': True,
            'mig-devices': {'3g.40gb': 2}}]}, self.layout())
        self.assertEqual(['set at each boot'] * 4,
                         [item['mig_mode'] for item in done['gpus']])

    def test_another_layout_takes_its_place(self):
        self.deploy(_HALVES)
        self.deploy('all-disabled')
        self.assertEqual(['all-disabled'], list(self.layout()))
        self.assertEqual({False}, {pending for _, pending in self.modes()})

    def test_a_gpu_that_it_does_not_speak_of(self):
        self.clear()
        done = self.deploy([{**_HALVES['halves'][0], 'devices': [2]}])
        self.assertEqual([self.machine.gpus[2].address],
                         [item['gpu'] for item in done['gpus']])
        self.assertEqual([(False, False), (True, True)],
                         self.modes()[1:3])

    def test_the_operator_s_files(self):
        path = self.directory / 'layouts.yaml'
        path.write_text(yaml.safe_dump({'version': 'v1',
                                        'mig-configs': _HALVES}),
                        encoding='ascii')
        self.conf.config(group='gpu_baremetal', layout_files=[str(path)])
        self.deploy('halves')
        self.assertEqual(_HALVES, self.layout())
        path.unlink()
        self.fails('halves', 'layout_files', str(path))

    def test_wrong_layouts(self):
        item = _HALVES['halves'][0]
        self.fails('half', "no layout 'half'", 'all-2g.12gb')
        self.fails([{**item, 'mig-devices': {'2g.12gb': 3}}],
                   'do not fit on one', 'at most 2 x 2g.12gb')
        self.fails([{**item, 'device-filter': '0x233010DE'}],
                   'matches no GPU of this node, which has 0x20B710DE')
        self.fails(17, 'expected the name of a layout')

    def test_a_mode_that_cannot_be_set(self):
        self.clear()
        gpu = self.machine.gpus[1].address
        self.machine.add_process(gpu, 4711)
        self.refused('deploy', _STEP, errors.DeploymentError,
                     f'GPU {gpu}: MIG mode cannot be turned on', '4711',
                     layout=_HALVES)
        self.assertEqual((False, False), self.modes()[1])

    def test_an_image_that_cannot_take_it(self):
        self.clear()
        (self.image / 'etc/cyborg-gpu').touch()
        self.fails(_HALVES, '/etc/cyborg-gpu/layout.yaml cannot be written')
        self.assertEqual([(False, False)] * 4, self.modes())

    def test_gpus_left_alone(self):
        self.clear()
        self.conf.config(group='gpu', ignored_devices=[
            self.machine.gpus[0].address])
        self.restart()
        self.deploy(_HALVES)
        self.assertEqual([(False, False), (True, True)], self.modes()[:2])


class NoNvmlTest(LayoutCase):

    def setUp(self):
        super().setUp()
        self.make_image(_PROGRAM)
        self.machine.unload_library()

    def test_boards_are_named(self):
        item = {**_HALVES['halves'][0], 'device-filter': '0x20B710DE'}
        before = self.modes()
        done = self.deploy([item])
        self.assertEqual({'inline': [item]}, self.layout())
        self.assertEqual(before, self.modes())
        self.assertEqual([None] * 4, [gpu['wanted']
                                      for gpu in done['gpus']])

    def test_boards_are_not_named(self):
        self.fails(_HALVES, 'cannot be checked without NVML', 'device-filter',
                   'this node has 0x20B710DE')


class ImageTest(LayoutCase):

    def test_no_program(self):
        self.make_image()
        self.fails(_HALVES, 'the deployed image: there is no cyborg-gpu',
                   '/usr/local/bin/cyborg-gpu', 'build an image that contains')

    def test_not_needed(self):
        self.make_image()
        self.clear()
        self.assertEqual([], self.deploy('all-enabled')['staged'])
        self.assertEqual([(True, True)] * 4, self.modes())
        self.deploy('all-disabled')
        self.assertEqual([(False, False)] * 4, self.modes())
        self.use('hgx-h100')
        self.assertEqual('off after a reboot', self.deploy(
            'all-disabled')['gpus'][0]['mig_mode'])
        self.fails('all-enabled', 'there is no cyborg-gpu')


class ServiceTest(LayoutCase):

    def test_another_layout(self):
        self.make_image(_PROGRAM)
        self.deploy('all-disabled')
        self.reboot()
        self.execute('service', _STEP, layout=_HALVES)
        self.assertEqual(_HALVES, self.layout())
        self.reboot()
        self.execute('service', 'verify_gpus')
        self.refused('clean', 'verify_gpus', errors.CleaningError,
                     'its MIG mode is on')
        self.execute('service', 'clear_gpu_partitions')
        self.assertEqual([(False, False)] * 4, self.modes())

    def test_it_fails(self):
        self.refused('service', _STEP, errors.ServicingError,
                     'no partition has', layout=_HALVES)
        self.refused('service', _STEP, errors.ServicingError,
                     "no layout 'half'", layout='half')
