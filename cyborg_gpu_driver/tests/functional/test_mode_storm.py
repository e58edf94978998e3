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

"""MIG modes switched by agent, watcher and commands at the same time."""

import os
import random
import subprocess
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import mode_storm

_ROUNDS = 12
_MACHINE = '''driver_version: '550.144.02'
gpus:
  - {model: a30, address: '0000:31:00.0'}
  - {model: a100-40, address: '0000:4b:00.0'}
'''
"""Two boards of Ampere without virtual functions."""


@scope.only_in_all
class ModeStormTest(base.BaseTestCase):
    """No GPU is unbound or reset while the library has it open."""

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        os.chmod(self.directory, 0o755)
        os.mkdir(os.path.join(self.directory, 'user'))
        self.machine = os.path.join(self.directory, 'host.yaml')
        with open(self.machine, 'w', encoding='utf-8') as stream:
            stream.write(_MACHINE)
        self.world = simulator.Machine.load(
            self.machine, os.path.join(self.directory, 'hardware.json'))

    def storm(self, *user):
        seed = random.randrange(1 << 32)
        done = subprocess.run(
            [sys.executable, '-m', mode_storm.__name__, self.directory,
             self.machine, str(_ROUNDS), str(seed), *user],
            env={**os.environ,
                 'TMPDIR': os.path.join(self.directory, 'user')},
            capture_output=True, text=True, check=False,
            timeout=120 + 10 * _ROUNDS)
        self.assertEqual(
            0, done.returncode,
            f'seed {seed}: {done.stdout[-500:]}{done.stderr[-4000:]}')
        self.assertIn('no trouble', done.stdout)
        self.assertEqual('', mode_storm.truth(self.world))

    def test_as_root(self):
        self.storm()

    def test_without_privileges(self):
        if os.geteuid() != 0:
            self.skipTest('only root can fork off a privileged daemon')
        self.storm('nobody')
