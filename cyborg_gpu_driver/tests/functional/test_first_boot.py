# SPDX-License-Identifier: Apache-2.0

"""A staged image boots, and its GPUs are as its layout says, each time."""

import json
import signal

import fixtures
import testscenarios
from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import booted_image

load_tests = testscenarios.load_tests_apply_scenarios

_LAYOUT = """
version: v1
mig-configs:
  mixed:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.40gb": 1, "1c.3g.40gb": 3}
"""
_MIXED = (True, [(9, 0, 1), (9, 4, 3)])
_REPORT = 'var/lib/cyborg/gpu/firstboot.json'


class ImageCase(base.BaseTestCase):

    machine = 'hgx-h100'

    def setUp(self):
        super().setUp()
        obstacle = booted_image.obstacle()
        if obstacle:
            self.skipTest(f'no image can be booted here: {obstacle}')
        self.image = booted_image.Image(
            self.useFixture(fixtures.TempDir()).path, self.machine)

    def start(self):
        """Start the only unit that is enabled."""
        (name, words), = self.image.units().items()
        self.assertEqual(cleaning.UNIT, name)
        process = self.image.start(*words)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def boot(self, code=0):
        """Run the unit to its end; return all of its output."""
        process = self.start()
        output, errors = process.communicate()
        self.assertEqual(code, process.returncode, output + errors)
        return output + errors

    def report(self):
        with open(self.image.path(_REPORT), encoding='utf-8') as stream:
            return json.load(stream)['content']

    def gpus(self):
        """Return MIG modes and instances (profile, start, compute count)."""
        hardware = self.image.hardware()
        with hardware.operation():
            return [(gpu.state.mig, sorted(
                (item.profile_id, item.start, len(item.compute))
                for item in gpu.state.instances.values()))
                for gpu in hardware.gpus]


class BootTest(ImageCase):

    scenarios = scope.first(
        ('Hopper, which loses its mode', {'machine': 'hgx-h100',
                                          'mode': False}),
        ('Ampere, which keeps it', {'machine': 'dgx-a100-80',
                                    'mode': True}))
    mode = None

    def setUp(self):
        super().setUp()
        # As delivered by the factory: Ampere then needs a reset.
        hardware = self.image.hardware()
        hardware.sriov_manage('ALL', False)
        with hardware.operation(write=True):
            for gpu in hardware.gpus:
                gpu.state.mig = gpu.state.pending = False

    def test_each_boot(self):
        self.image.stage(_LAYOUT)
        count = len(self.gpus())
        said = self.boot()
        self.assertIn('Layout mixed of /etc/cyborg-gpu/layout.yaml is in '
                      'effect.', said)
        self.assertEqual(count, said.count(': changed: 3g.40gb, '
                                           '3 x 1c.3g.40gb'))
        self.assertEqual([_MIXED] * count, self.gpus())
        first = self.report()
        self.image.hardware().reboot()
        self.assertEqual([(self.mode, [])] * count, self.gpus())
        self.assertEqual(count, self.boot().count(': changed: '))
        self.assertEqual([_MIXED] * count, self.gpus())
        second = self.report()
        self.assertNotEqual(first['boot_id'], second['boot_id'])
        self.assertEqual(('applied', 'applied'),
                         (first['result'], second['result']))
        # If the operator starts the unit again by hand, it does nothing.
        self.assertEqual(count, self.boot().count(': unchanged: '))


class WrongTest(ImageCase):

    def test_a_wrong_layout_leaves_the_node_usable(self):
        self.image.stage(_LAYOUT)
        self.boot()
        for layout, words in (
                (_LAYOUT.replace('40gb', '20gb'), '3g.20gb'),
                (_LAYOUT.replace('all', '[0, 11]'), 'there is no GPU 11')):
            self.image.stage(layout)
            said = self.boot(code=2)
            self.assertIn('Not a layout for this server: '
                          '/etc/cyborg-gpu/layout.yaml: entry mixed', said)
            self.assertIn(words, said)
            self.assertEqual('unusable', self.report()['result'])
            self.assertEqual([_MIXED] * 2, self.gpus())
        self.image.write(cleaning.LAYOUT_PATH, 'mig-configs: [')
        self.assertIn('not YAML', self.boot(code=2))
        self.assertEqual([_MIXED] * 2, self.gpus())
        self.image.stage(_LAYOUT)
        self.image.hardware().reboot()
        self.boot()
        self.assertEqual([_MIXED] * 2, self.gpus())


class DriverTest(ImageCase):

    def setUp(self):
        super().setUp()
        self.image.stage(_LAYOUT)
        self.hardware = self.image.hardware()
        self.before = self.gpus()
        self.hardware.unload_library()

    def waiting(self):
        """Start the unit; return it while it waits for the driver."""
        process = self.start()
        said = [next(process.stderr) for _ in range(2)]
        self.assertIn('Waiting for the NVIDIA driver, up to 300 seconds: '
                      'there is no NVML library', said[1])
        return process

    def test_no_driver(self):
        """systemd ends the unit when its time is up."""
        process = self.waiting()
        process.send_signal(signal.SIGTERM)
        process.communicate()
        self.assertEqual(-signal.SIGTERM, process.returncode)
        self.assertEqual(self.before, self.gpus())
        self.hardware.load_library()
        self.boot()
        self.assertEqual([_MIXED] * 2, self.gpus())
