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

"""The agent is killed at every step of a bind and of an unbind."""

import time
import uuid

import testscenarios

from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import kill_case

load_tests = testscenarios.load_tests_apply_scenarios


class BindTest(kill_case.KillCase):

    each = 10
    scenarios = scope.first(
        ('slices on mdev', {'options': {
            'mode': 'mig', 'profiles': ['2g.10gb']}}),
        ('time slices on mdev', {'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['A100X-10C']}}),
        ('mixed sizes on mdev', {'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['A100X-10C', 'A100X-20C'],
            'mixed_sizes': True}}),
        ('on the GPU itself', {'model': 't4', 'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['T4-4C']}}),
        ('slices without mdev', {'framework': 'vendor-vfio', 'options': {
            'mode': 'mig', 'profiles': ['2g.10gb']}}),
        ('several an instance', {
            'model': 'rtx-pro-6000', 'framework': 'vendor-vfio', 'options': {
                'mode': 'mig', 'vgpu_types': ['DC-1-8Q']}}))

    def setUp(self):
        super().setUp()
        self.name = str(uuid.uuid4())
        self.begun = time.time()

    def test_bind(self):
        def check():
            self._restart()

            def again(running):
                handle = self.handle(running, self.name)
                running.bind(*handle)

            self.process(again)
            self._one_is_bound()
            self._nothing_is_left_after_unbind()

        self.sweep(
            lambda: self.process(self.get_ready),
            lambda number: self.process(lambda running: running.bind(
                *self.handle(running, self.name)), number), check)
        self.say('bind')

    def test_unbind(self):
        def check():
            self._restart()
            self._nothing_is_left_after_unbind()

        def bind(running):
            self.get_ready(running)
            running.bind(*self.handle(running, self.name))

        self.sweep(
            lambda: self.process(bind),
            lambda number: self.process(lambda running: running.unbind(
                *self.handle(running, self.name)), number), check)
        self.say('unbind')

    def _restart(self):
        """Report, which finishes or undoes what was under way."""
        self.process(lambda running: running.report())
        phases = [entry['phase'] for entry in self.journal()]
        self.assertIn(phases, ([], ['bound']))
        self.assertEqual(len(phases), len(self.truth()[1]))

    def _one_is_bound(self):
        (entry,) = self.journal()
        self.assertEqual((self.name, 'bound'),
                         (entry['handle'], entry['phase']))
        instances, vgpus, _ = self.truth()
        self.assertEqual(1, len(vgpus))
        self.assertEqual(1 if self.mig else 0, len(instances))
        self.assertEqual(entry['function'] if entry['vfio'] else self.name,
                         vgpus[0])

    def _nothing_is_left_after_unbind(self):
        self.process(lambda running: (
            running.report(),
            running.unbind(*self.handle(running, self.name)),
            running.report()))
        self.assertEqual([], self.journal())
        self.assertEqual(([], []), self.truth()[:2])
        self._one_was_counted()

    def _one_was_counted(self):
        """Check that the handle's time was recorded despite the kills."""
        found = [record.ledger for record
                 in store.Store(self.state_path).records().values()]
        self.assertEqual([], [item for known in found
                              for item in known.running])
        times = [spent for known in found for projects
                 in known.ended.values() for spent in projects.values()]
        self.assertEqual(1, len(times))
        self.assertLessEqual(0, times[0])
        self.assertLessEqual(times[0], (time.time() - self.begun) * 1000)
