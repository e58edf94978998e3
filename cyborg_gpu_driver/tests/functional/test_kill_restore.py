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

"""SIGKILL at every step of commands that an operator or a boot runs."""

import json
import os
import shutil
import uuid

import fixtures

from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.functional import kill_case

_BOUND = 14
"""Profile id of 2g.10gb."""
_SMALL = 19
"""Profile id of 1g.5gb."""


class CommandCase(kill_case.KillCase):
    """One handle is bound, beside an instance that a layout has made."""

    options = {'mode': 'mig', 'profiles': ['2g.10gb']}
    kept = None

    def prepare(self):
        """Bind, and lay the GPU out; later calls copy the first result."""
        if self.kept is None:
            self.name = str(uuid.uuid4())
            self.process(self._bind)
            self.assertTrue(self.command('layout', 'apply', *self._layout()))
            self.full = self.truth()
            self.assertEqual(2, len(self.full[0]))
            self.kept = os.path.join(
                self.useFixture(fixtures.TempDir()).path, 'kept')
            shutil.copytree(self.directory, self.kept)
        else:
            shutil.copytree(self.kept, self.directory, dirs_exist_ok=True)
            self.config_path = self.write_config(self.options)

    def _bind(self, running):
        self.get_ready(running)
        running.bind(*self.handle(running, self.name))

    def _layout(self):
        path = os.path.join(self.directory, 'layouts.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            # JSON is YAML.
            json.dump({'version': 'v1', 'mig-configs': {'one': [{
                'devices': 'all', 'mig-enabled': True,
                'mig-devices': {'2g.10gb': 1, '1g.5gb': 1}}]}}, stream)
        return '-f', path, '-c', 'one'

    def small(self):
        """Return where the instances of the small profile begin."""
        return [start for profile, start in self.truth()[0]
                if profile == _SMALL]

    def is_explained(self):
        """Check that the record has each instance, and each vGPU an owner."""
        (record,) = store.Store(self.state_path).records().values()
        self.assertIsNone(record.change)
        known = {(item.profile_id, item.placement.start)
                 for item in record.owned_instances}
        instances, vgpus, _ = self.truth()
        self.assertLessEqual(set(instances), known)
        self.assertEqual(len(instances), len(set(instances)))
        self.assertEqual([self.name], vgpus)
        (entry,) = self.journal()
        self.assertEqual('bound', entry['phase'])
        self.assertIn((_BOUND, entry['placement']['start']), instances)

    def is_returned(self):
        """Check that the handle can be unbound and nothing of it is left."""
        (entry,) = self.journal()
        self.process(lambda running: (
            running.report(), running.unbind(
                entry['function'], entry['mdev_type'], self.name)))
        instances, vgpus, _ = self.truth()
        self.assertEqual([], [profile for profile, _ in instances
                              if profile == _BOUND])
        self.assertEqual(([], []), (vgpus, self.journal()))


class RestoreTest(CommandCase):
    """What a boot runs before nova-compute starts."""

    def test_restore(self):
        def prepare():
            self.prepare()
            self.world().reboot()
            self.assertEqual(([], []), self.truth()[:2])

        def restore(number=None):
            return self.command('layout', 'restore', number=number)

        def check():
            self.assertTrue(restore())
            self.assertEqual(self.full, self.truth())
            self.is_explained()
            self.is_returned()

        self.sweep(prepare, restore, check)
        self.say('layout restore', 8)


class InstanceTest(CommandCase):
    """Instances that an operator creates and destroys one by one."""

    def test_create(self):
        def create(number=None):
            return self.command('instance', 'create', kill_case.GPU,
                                '1g.5gb', number=number)

        def check():
            self.assertTrue(self.command('layout', 'restore'))
            self.is_explained()
            self.assertIn(len(self.small()), (1, 2))

        self.sweep(self.prepare, create, check)
        self.say('instance create', 2)


del CommandCase

