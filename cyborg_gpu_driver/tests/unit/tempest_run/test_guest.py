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

"""The stand-in for a guest shows only what the hardware has."""

import json
import pathlib

import fixtures

from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import guest
from cyborg_gpu_driver.tests.unit.simulator import base

HOST = 'gpu1'
T4 = '0000:3b:00.0'
T4_1Q = 230
LSPCI = 'if true; then lspci -n; fi'
HOSTS = pathlib.Path(__file__).parents[4] / 'tools' / 'minicloud' / 'hosts'


class TestStandIn(base.MachineTestCase):

    def use(self, machine):
        """Use a host of a minicloud instead; its services need not run."""
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        state = directory / 'machine.json'
        self.write(directory / 'minicloud.json', json.dumps(
            {'hosts': {HOST: str(HOSTS / 'gpu1.yaml')}}))
        etc = directory / 'etc' / 'cyborg'
        self.write(etc / 'cyborg.conf',
                   '[database]\nconnection = sqlite://\n')
        self.write(etc / f'cyborg-agent-{HOST}.conf',
                   f'[gpu]\nsimulate = {HOSTS / "gpu1.yaml"}\n'
                   f'simulate_state = {state}\n')
        self.cloud = minicloud.Minicloud(directory)
        super().use(machine_module.Machine.load(
            str(HOSTS / 'gpu1.yaml'), str(state)))

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')

    def shown(self, *requests):
        return guest.StandIn(self.cloud, lambda: list(requests)
                             ).exec_command(LSPCI)

    def request(self, kind, address=T4):
        domain, bus, rest = address.split(':')
        device, function = rest.split('.')
        return {'hostname': HOST, 'attach_handle_type': kind,
                'attach_handle_uuid': base.UUID,
                'attach_handle_info': {
                    'domain': domain, 'bus': bus, 'device': device,
                    'function': function}}

    def test_whole_gpu(self):
        self.assertEqual(f'{T4} 0302: 10de:1eb8',
                         self.shown(self.request('PCI')))

    def test_no_gpu_there(self):
        self.assertEqual('', self.shown(self.request('PCI', '0000:17:00.0')))

    def test_vgpu(self):
        self.create_mdev(T4, T4_1Q)
        self.assertEqual(f'{T4} 0302: 10de:1eb8',
                         self.shown(self.request('MDEV')))

    def test_vgpu_of_another_handle(self):
        self.create_mdev(T4, T4_1Q, base.OTHER_UUID)
        self.assertEqual('', self.shown(self.request('MDEV')))

    def test_nothing_bound(self):
        self.assertEqual('', self.shown())

    def test_other_commands(self):
        self.assertRaises(guest.NoGuest, guest.StandIn(
            self.cloud, list).exec_command, 'sudo reboot')
