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

"""The agent is killed at every step of making a GPU ready."""

import uuid

import testscenarios

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import kill_case

load_tests = testscenarios.load_tests_apply_scenarios

_MIG = {'mode': 'mig', 'profiles': ['2g.10gb']}
_VGPU = {'mode': 'vgpu', 'vgpu_types': ['A100X-10C']}
_MIXED = {'mode': 'vgpu', 'vgpu_types': ['A100X-10C', 'A100X-20C'],
          'mixed_sizes': True, 'vgpu_scheduler': 'equal-share'}


class ReadyTest(kill_case.KillCase):
    """A policy wants modes and virtual functions that do not exist yet."""

    prepared = False
    scenarios = scope.first(
        ('mixed sizes', {'ends': (False, 16, True), 'options': _MIXED}),
        ('MIG on Ampere', {'ends': (True, 16, False), 'options': _MIG}),
        ('MIG on Hopper', {'model': 'h100-80', 'ends': (True, 20, False),
                           'options': {'mode': 'mig',
                                       'profiles': ['2g.20gb']}}))

    def test_getting_ready(self):
        def check():
            self.process(self.get_ready)
            self.assertEqual(([], [], self.ends), self.truth())

        self.sweep(lambda: None, lambda number: self.process(
            self.get_ready, number), check)
        self.say('getting ready', 3)


class ChangeTest(kill_case.KillCase):
    """The GPU was used under another policy before."""

    prepared = False
    each = 10
    scenarios = scope.first(
        ('time slices to slices', {
            'options': _VGPU, 'then': _MIG, 'ends': (True, 16, False)}),
        ('slices to time slices', {
            'options': _MIG, 'then': _VGPU, 'ends': (False, 16, False)}),
        ('mixed sizes to slices', {
            'options': _MIXED, 'then': _MIG, 'ends': (True, 16, False)}),
        ('slices to mixed sizes', {
            'options': _MIG, 'then': _MIXED, 'ends': (False, 16, True)}))

    def test_mode_change(self):
        self.use_placement()
        name = str(uuid.uuid4())

        def use(running):
            self.get_ready(running)
            running.bind(*self.handle(running, name))

        def prepare():
            """Delete the last server while the new policy waits for it."""
            self.process(use)
            self.write_config(self.then)
            self.process(lambda running: running.report())
            self.assertEqual(1, len(self.truth()[1]))
            self.process(lambda running: running.unbind(
                self.journal()[0]['function'],
                self.journal()[0]['mdev_type'], name))

        def check():
            self.process(self.get_ready)
            self.assertEqual(([], [], self.ends), self.truth())
            self.assertEqual([], self.journal())
            self.process(use)
            self.assertEqual(1, len(self.truth()[1]))

        self.sweep(prepare, lambda number: self.process(
            self.get_ready, number), check)
        self.say('mode change', 1)


class FixedTest(kill_case.KillCase):
    """A report makes fixed vGPUs, or removes them for another policy."""

    framework = 'vendor-vfio'
    each = 10
    scenarios = scope.first(
        ('slices', {'options': {'mode': 'mig', 'fixed_vgpus':
                                'A100X-2-10C:2'}}),
        ('time slices', {'mig': False, 'options': {
            'mode': 'vgpu', 'fixed_vgpus': 'A100X-10C:3'}}))

    def setUp(self):
        super().setUp()
        self.full = None

    def _report(self, number=None):
        return self.process(lambda running: running.report(), number)

    def test_made(self):
        def check():
            self._report()
            self.full = self.full or self.truth()
            self.assertEqual(self.full, self.truth())

        self.begin()
        check()
        self.assertGreater(len(self.full[1]), 1)
        self.sweep(lambda: None, self._report, check)
        self.say('fixed vGPUs made')

    def test_removed(self):
        def prepare():
            self._report()
            self.assertGreater(len(self.truth()[1]), 1)
            self.write_config({'mode': 'passthrough'})

        def check():
            self._report()
            self.assertEqual(([], []), self.truth()[:2])

        self.sweep(prepare, self._report, check)
        self.say('fixed vGPUs removed')
