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

"""``cyborg-gpu doctor`` on simulated hosts, without a cloud."""

import json
import os

import fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cloud import keystone
from cyborg_gpu_driver.tests.unit.cmd import base


class DoctorTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        keystone.forget_clouds(self)
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.config = self.configure(
            '[gpu]\npolicies = p\n'
            '[gpu_policy:p]\nmode = mig\n', self.directory)

    def doctor(self, *arguments, code=0):
        """Rows and what is said to people."""
        output, said = self.run_program(
            '--config-file', self.config, '--simulate', 'dgx-a100-80',
            '--state', self.directory + '/state', *arguments, code=code)
        return output and json.loads(output), said

    def test_a_host_without_differences(self):
        rows, said = self.doctor('doctor', '-f', 'json')
        self.assertEqual([], rows)
        self.assertIn('No difference.', said)
        self.assertIn('Placement is left out', said)

    def test_what_cannot_be_read_is_not_compared(self):
        machine = simulator.Machine.load('dgx-a100-80',
                                         self.directory + '/state')
        machine.lose_gpu('0000:0f:00.0')
        rows, said = self.doctor('doctor', '-f', 'json', code=2)
        self.assertEqual([], rows)
        self.assertIn('GPU 1 (0000:0f:00.0) is not compared: lost', said)
        self.assertNotIn('No difference.', said)
        machine.unload_library()
        _, said = self.doctor('doctor', '-f', 'json', code=2)
        self.assertIn('no NVML library', said)
        self.assertIn('GPU 7', said)
        self.assertNotIn('No difference.', said)

    def test_a_difference_is_listed_with_its_remedy(self):
        self.run_program(
            '--config-file', self.config, '--simulate', 'dgx-a100-80',
            '--state', self.directory + '/state', 'instance', 'create',
            '0000:07:00.0', '1g.10gb')
        for arguments in ((), ('--repair',)):
            (row,), _ = self.doctor('doctor', '-f', 'json', *arguments,
                                    code=1)
            self.assertEqual(
                ('foreign-instance', '0000:07:00.0', '1g.10gb@6', False),
                tuple(row[key] for key in ('kind', 'gpu', 'subject',
                                           'safe')))
            self.assertIn('instance destroy', row['remedy'])

    def test_a_cloud_that_cannot_be_asked(self):
        _, said = self.doctor('doctor', '-f', 'json', '--os-cloud',
                              'nowhere', code=1)
        self.assertIn('nowhere', said)

    def test_a_journal_that_is_lost(self):
        records = store.Store(
            os.path.join(self.directory, 'state.records'))
        path = records.path(model.PciAddress.parse('0000:07:00.0'))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('{')
        rows, _ = self.doctor('doctor', '-f', 'json', code=1)
        self.assertEqual([('bad-record', '0000:07:00.0')],
                         [(row['kind'], row['gpu']) for row in rows])
        self.assertIn(path, rows[0]['what'])
        _, said = self.doctor('doctor', '-f', 'json', '--repair')
        self.assertIn('The journal was made again.', said)
        self.doctor('doctor', '-f', 'json')
