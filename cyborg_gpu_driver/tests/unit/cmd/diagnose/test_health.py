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


"""``cyborg-gpu health`` on simulated hosts."""

import json
import os

import fixtures

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base

_GPU = '0000:07:00.0'


class TestHealth(base.CommandCase):

    def setUp(self):
        super().setUp()
        directory = self.useFixture(fixtures.TempDir()).path
        self.state = os.path.join(directory, 'machine')
        self.state_path = f'{self.state}.records'
        self.configuration = self.configure('', directory)
        host = self.part('dgx-a100-80')
        self.machine = simulator.Machine.load(host, self.state)
        self.arguments = ('--config-file', self.configuration, '--simulate',
                          host, '--state', self.state, 'health')

    def show(self, code):
        found = self.run_program(*self.arguments, 'show', '-f', 'json',
                                 code=code)[0]
        return json.loads(found)

    def test_healthy(self):
        rows = self.show(0)
        self.assertEqual(2, len(rows))
        self.assertEqual(
            {'address': _GPU, 'part': None, 'state': 'ok', 'reasons': [],
             'since': None, 'temperature': 31, 'ecc_uncorrected': 0,
             'remapped_rows': 0, 'xids': {}}, rows[0])
        self.assertFalse(os.path.exists(self.state_path))

    def test_unhealthy_by_what_it_says(self):
        self.machine.set_health(_GPU, uncorrected=2)
        rows = self.show(1)
        self.assertEqual(['transient', 'ok'],
                         [row['state'] for row in rows])
        self.assertEqual(2, rows[0]['ecc_uncorrected'])

    def test_unhealthy_by_what_the_agent_knows_until_it_is_cleared(self):
        agent = health.HealthKeeper(
            platform.open_platform(self.machine), self.state_path,
            services.Services(), clock=lambda: 86400.0)
        self.addCleanup(self.machine.uninstall)
        agent.event(condition.Event(model.PciAddress.parse(_GPU), 119))
        row = self.show(1)[0]
        self.assertEqual(
            ('transient', {'119': 1}, '1970-01-02T00:00:00+00:00'),
            (row['state'], row['xids'], row['since']))
        self.assertIn(
            'XID 119 (the GPU system processor does not answer)',
            self.run_program(*self.arguments, 'show', '--long', code=1)[0])
        for line in self.run_program(*self.arguments, 'show',
                                     code=1)[0].splitlines():
            self.assertLessEqual(len(line), 80)
        self.run_program(*self.arguments, 'clear', _GPU)
        self.show(0)

    def test_an_instance_has_a_row_of_its_own(self):
        machine = platform.open_platform(self.machine)
        self.addCleanup(self.machine.uninstall)
        address = model.PciAddress.parse(_GPU)
        instance = machine.nvml.create_gpu_instance(
            machine.nvml.device(address), 14, model.Placement(2, 2))
        health.HealthKeeper(
            machine, self.state_path, services.Services()).event(
            condition.Event(address, 94, instance.instance_id))
        rows = self.show(1)
        self.assertEqual([(None, 'ok', {}), ('2:2', 'transient', {'94': 1})],
                         [(row['part'], row['state'], row['xids'])
                          for row in rows[:2]])

    def test_a_virtual_function_has_a_row_of_its_own(self):
        machine = platform.open_platform(self.machine)
        self.addCleanup(self.machine.uninstall)
        function = '0000:07:01.2'
        health.HealthKeeper(
            machine, self.state_path, services.Services()).function_died(
            *map(model.PciAddress.parse, (_GPU, function)))
        rows = self.show(1)
        self.assertEqual([(None, 'ok'), (function, 'transient')],
                         [(row['part'], row['state']) for row in rows[:2]])
        found = self.run_program(*self.arguments[:-1], 'doctor', '-f', 'json',
                                 '--only', 'health', code=1)[0]
        self.assertEqual(
            [('dead-function', function)],
            [(item['code'], item['subject']) for item in json.loads(found)])

    def test_without_nvml_nothing_is_known(self):
        self.machine.unload_library()
        output, errors = self.run_program(*self.arguments, 'show', code=2)
        self.assertIn('unknown', output)
        self.assertIn('NVML: ', errors)

    def test_a_gpu_that_another_driver_has_is_not_missed(self):
        with self.machine.operation(write=True):
            for gpu in self.machine.gpus:
                gpu.state.vfs = 0
        for gpu in self.machine.gpus:
            self.machine.bind_driver(gpu.address, 'vfio-pci')
        self.machine.unload_library()
        self.run_program(*self.arguments, 'show')

    def test_no_such_address(self):
        self.run_program(*self.arguments, 'clear', 'x', code=1)
