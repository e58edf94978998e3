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


"""The harness itself, with the driver that Cyborg ships for tests."""

from concurrent import futures

from cyborg_gpu_driver.tests.functional import base
from demo_lib import nova_part

PROFILE = {'resources:FPGA': '1', 'trait:CUSTOM_FAKE_DEVICE': 'required'}


class FakeDriverTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.cloud = self.use_cloud(drivers=['fake_driver'])
        self.cloud.report()
        self.cloud.cyborg.create_device_profile('fake', PROFILE)

    def test_report(self):
        resource_class, inventory = self.cloud.inventory(
            'compute1_FakeDevice')
        self.assertEqual('FPGA', resource_class)
        self.assertEqual(16, inventory['total'])
        self.assertIn('CUSTOM_FAKE_DEVICE', self.cloud.placement.traits(
            self.cloud.provider('compute1_FakeDevice')['uuid']))

    def test_server(self):
        before = self.cloud.placement.snapshot()
        server = self.cloud.bind('fake')
        provider = self.cloud.provider('compute1_FakeDevice')['uuid']
        self.assertEqual((provider,), server.providers)
        self.assertEqual({'FPGA': 1}, self.cloud.placement.usages(provider))
        (arq,) = server.arqs
        self.assertEqual('Bound', arq['state'])
        self.assertEqual('TEST_PCI', arq['attach_handle_type'])
        self.assertEqual(
            [(arq['uuid'], 'completed')],
            [(event['tag'], event['status'])
             for event in self.cloud.cloud.events.events])
        self.cloud.unbind(server)
        self.assertEqual([], self.cloud.cyborg.arqs())
        self.assertEqual(before, self.cloud.placement.snapshot())

    def test_snapshot_is_what_the_api_answers(self):
        self.cloud.bind('fake')
        over_http = self.cloud.cloud.placement.snapshot()
        self.assertEqual({'FPGA': 1},
                         over_http['compute1_FakeDevice']['usages'])
        self.assertEqual(over_http, self.cloud.placement.snapshot())

    def test_servers_at_once(self):
        before = self.cloud.placement.snapshot()
        with futures.ThreadPoolExecutor(4) as pool:
            servers = list(pool.map(self.cloud.bind, ['fake'] * 8))
            handles = {server.arqs[0]['attach_handle_uuid']
                       for server in servers}
            list(pool.map(self.cloud.unbind, servers))
        self.assertEqual(8, len(handles))
        self.assertEqual([], self.cloud.cyborg.arqs())
        self.assertEqual(before, self.cloud.placement.snapshot())

    def test_no_candidates(self):
        self.cloud.cyborg.create_device_profile('greedy', {
            'resources:FPGA': '17'})
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, 'greedy')
