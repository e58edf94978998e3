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

"""``cyborg-gpu layout apply`` is killed at every step, and then restored."""

import os
import shutil

import fixtures
import testscenarios

from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import kill_case

load_tests = testscenarios.load_tests_apply_scenarios

_LAYOUTS = """
version: v1
mig-configs:
  old:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 1, "2g.10gb": 1}
  new:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 1, "1c.2g.10gb": 2, "1g.5gb": 1}
  'off':
    - devices: all
      mig-enabled: false
"""
_THREE = 9
"""Profile id of 3g.20gb."""
_AGENT = 65534
_PROCESS = 4711


class ApplyTest(kill_case.KillCase):
    """The GPU has the layout before or after; running programs continue."""

    prepared = False
    options = {'mode': 'off'}
    owner = _AGENT if os.geteuid() == 0 else None
    scenarios = scope.first(
        ('instances', {'before': 'old', 'after': 'new', 'in_use': True}),
        ('mode on', {'before': 'off', 'after': 'new'}),
        ('mode off', {'before': 'old', 'after': 'off'}),
        ('mode on after a reboot', {
            'before': 'off', 'after': 'new', 'rebooted': True}),
        ('instances after a reboot', {
            'before': 'old', 'after': 'new', 'rebooted': True}))
    # The creation of each lock file is a step, too.
    each = 10
    in_use = False
    kept = None
    rebooted = False

    def begin(self):
        super().begin()
        self.layouts = os.path.join(self.directory, 'layouts.yaml')
        with open(self.layouts, 'w', encoding='utf-8') as stream:
            stream.write(_LAYOUTS)

    def test_apply(self):
        self.begin()
        self.command('layout', 'restore')
        self.goals = [self._apply_and_look(name)
                      for name in (self.before, self.after)]
        self.assertNotEqual(*self.goals)
        self.sweep(self._prepare, lambda number: self._apply(
            self.after, number), self._check)
        self.say('layout apply', 8)

    def _apply(self, name, number=None):
        return self.command('layout', 'apply', '-f', self.layouts, '-c',
                            name, number=number)

    def _apply_and_look(self, name):
        self._apply(name)
        return self._laid_out()

    def _prepare(self):
        """Apply the layout before; later calls copy the first result."""
        if self.kept is not None:
            shutil.copytree(self.kept, self.directory, dirs_exist_ok=True)
            self.config_path = self.write_config(self.options)
            for path in self.not_the_owners():
                os.chown(path, self.owner, self.owner)
            return
        self._apply(self.before)
        self.assertEqual(self.goals[0], self._laid_out())
        if self.in_use:
            ((number, self.serial),) = self._threes()
            self.world().add_process(kill_case.GPU, _PROCESS, number, 0)
        self.kept = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'kept')
        shutil.copytree(self.directory, self.kept)

    def _check(self):
        self._nothing_in_use_is_gone()
        self.assertEqual([], self.not_the_owners())
        if self.rebooted:
            self.world().reboot()
        else:
            self.process(lambda running: running.report())
            self._nothing_in_use_is_gone()
        self.command('layout', 'restore')
        self.assertIn(self._laid_out(), self.goals)
        self._nothing_in_use_is_gone()
        self.assertEqual([], [
            record.change for record
            in store.Store(self.state_path).records().values()
            if record.change is not None])
        self._apply(self.after)
        self.assertEqual(self.goals[1], self._laid_out())
        self._nothing_in_use_is_gone()
        self.assertEqual([], self.not_the_owners())

    def _laid_out(self):
        """Return everything about the GPU that a layout defines."""
        gpu = self.gpu()
        return gpu.mig, gpu.pending, sorted(
            (item.profile_id, item.start, sorted(
                (part.start, part.size) for part in item.compute.values()))
            for item in gpu.instances.values())

    def _threes(self):
        return [(number, item.serial) for number, item
                in self.gpu().instances.items() if item.profile_id == _THREE]

    def _nothing_in_use_is_gone(self):
        if self.in_use:
            self.assertIn(self.serial, [serial for _, serial
                                        in self._threes()])


class OwnerTest(kill_case.KillCase):
    """Files that root creates first are the agent's, despite any kill."""

    owner = _AGENT
    options = {'mode': 'off'}

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest('only root can give files away')

    def test_first_files(self):
        address = model.PciAddress.parse(kill_case.GPU)

        def make(_running):
            with locks.gpu(self.state_path, address):
                store.of(self.state_path).put(
                    address, change=gpu_record.Change(
                        address, spec.MigLayout(False, False)))
            audit.Audit(self.state_path).record(address, 'made', '', {})

        def check():
            self.assertEqual([], self.not_the_owners())

        self.sweep(lambda: None, lambda number: self.process(make, number),
                   check)
        self.say('first files', 20)
