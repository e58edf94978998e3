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

"""SIGKILL at every step of commands that run only now and then."""

import json
import os
import uuid

from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.functional import kill_case

_LAYOUT = {'version': 'v1', 'mig-configs': {'mixed': [{
    'devices': 'all', 'mig-enabled': True,
    'mig-devices': {'3g.20gb': 1, '1g.5gb': 2}}]}}
_LARGE, _SMALL = 9, 19
"""Profile ids of 3g.20gb and 1g.5gb."""
_TYPE = 'nvidia-232'
"""A vGPU type of a T4 that fits on it several times."""


class FirstBootTest(kill_case.KillCase):
    """A bare-metal server that goes down during its first boot."""

    prepared = False
    # Odd, so that the host reboots after every other kill.
    each = 9
    options = {'mode': 'mig'}

    def test_first_boot(self):
        def boot(number=None):
            path = os.path.join(os.path.dirname(self.directory),
                                'layout.yaml')
            with open(path, 'w', encoding='utf-8') as stream:
                # JSON is YAML.
                json.dump(_LAYOUT, stream)
            return self.command('firstboot', '--layout-file', path,
                                number=number)

        def check():
            if self.number % 2:
                self.world().reboot()
            self.assertTrue(boot())
            instances, _, (mig, *_) = self.truth()
            self.assertTrue(mig)
            self.assertEqual([_LARGE, _SMALL, _SMALL],
                             [profile for profile, _ in instances])
            (record,) = store.Store(self.state_path).records().values()
            self.assertIsNone(record.change)

        self.sweep(lambda: None, boot, check)
        self.say('firstboot', 8)


class CleanTest(kill_case.KillCase):
    """An operator removes the vGPUs that have no owner."""

    model = 't4'
    mig = False
    options = {'mode': 'vgpu', 'vgpu_types': ['T4-4Q']}

    def test_vgpu_clean(self):
        def prepare():
            self.name = str(uuid.uuid4())
            self.process(self._bind)

        def clean(number=None):
            return self.command('vgpu', 'clean', '--orphans', '--yes',
                                '--without-cloud', number=number)

        def check():
            self.assertTrue(clean())
            self.assertEqual([self.name], self.truth()[1])
            (entry,) = self.journal()
            self.assertEqual((self.name, 'bound'),
                             (entry['handle'], entry['phase']))

        self.sweep(prepare, clean, check)
        self.say('vgpu clean', 1)

    def _bind(self, running):
        """Make one vGPU for a handle and two that have no owner."""
        self.get_ready(running)
        running.bind(*self.handle(running, self.name))
        for _ in range(2):
            privileged_vgpu.create_mdev(kill_case.GPU, _TYPE,
                                        str(uuid.uuid4()))
