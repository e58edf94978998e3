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

"""The servers of a measurement, with answers of Nova and other services."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import interference as servers
from cyborg_gpu_driver.tests.unit.cloud import services

_ID = '6f7a4a52-7a1c-4b7e-9f53-58ab1c3f4d10'


def _server(status, task=None, **more):
    return {'server': {'id': _ID, 'status': status,
                       'OS-EXT-STS:task_state': task,
                       'OS-EXT-SRV-ATTR:host': 'compute1', **more}}


class ServersCase(base.BaseTestCase):

    def cloud(self, compute):
        return self.useFixture(services.Services({
            'compute': services.documents({
                f'/v2.1{path}': found for path, found in compute.items()},
                services.NOVA)})).cloud


class BodyTest(base.BaseTestCase):

    def test_least(self):
        body = servers.Made('flavor', 'image').body('n', 'm', 'data', None)
        self.assertEqual({'server': {
            'name': 'n', 'flavorRef': 'flavor', 'imageRef': 'image',
            'networks': 'none', 'config_drive': True, 'user_data': 'data',
            'metadata': {servers.MARK: 'm'}}}, body)

    def test_all(self):
        body = servers.Made('flavor', 'image', 'net', 'key').body(
            'n', 'm', 'data', 'compute1')['server']
        self.assertEqual([{'uuid': 'net'}], body['networks'])
        self.assertEqual(('compute1', 'key'),
                         (body['host'], body['key_name']))


class ResolveTest(ServersCase):

    def resolve(self, flavors, specs=None, name='gpu'):
        cloud = self.cloud({
            '/flavors/detail': {'flavors': flavors},
            '/flavors/1/os-extra_specs': {'extra_specs': specs or {}}})
        return self.assertRaises(exception.CloudError, servers.resolve,
                                 cloud, name, 'image', None, None)

    def test_flavor_without_device_profile(self):
        self.assertIn('accel:device_profile', str(self.resolve(
            [{'id': '1', 'name': 'gpu'}])))

    def test_no_flavor(self):
        self.assertIn('there is no flavor gpu', str(self.resolve([])))

    def test_two_flavors(self):
        self.assertIn('2 flavors are named gpu', str(self.resolve(
            [{'id': '1', 'name': 'gpu'}, {'id': '2', 'name': 'gpu'}])))

    def test_answer_that_is_none(self):
        self.assertIn('there is no flavor', str(self.resolve([{'id': '1'}])))


class LookTest(ServersCase):

    def look(self, *args, **kwargs):
        return servers.look(self.cloud(
            {f'/servers/{_ID}': _server(*args, **kwargs)}), _ID)

    def test_on_the_way(self):
        self.assertEqual(servers.Now(False, 'compute1'),
                         self.look('BUILD', 'spawning'))
        self.assertEqual(servers.Now(False, 'compute1'),
                         self.look('ACTIVE', 'powering-off'))
        self.assertEqual(servers.Now(True, 'compute1'), self.look('ACTIVE'))

    def test_no_host(self):
        now = self.look('ERROR', fault={'message': 'No valid host'})
        self.assertIn('No valid host', now.problem)
        self.assertIn('ERROR', self.look('ERROR').problem)

    def test_deleted(self):
        self.assertIn('deleted', servers.look(self.cloud({}), _ID).problem)


class ConsoleTest(ServersCase):

    def test_guest_that_is_not_there_yet(self):
        self.assertEqual('', servers.console(self.cloud({}), _ID))

    def test_text(self):
        cloud = self.cloud({f'/servers/{_ID}/action': {'output': 'hello'}})
        self.assertEqual('hello', servers.console(cloud, _ID))


class OthersTest(base.BaseTestCase):

    def test_all_servers_on_the_gpu(self):
        def provider(uuid, gpu):
            return {'uuid': uuid, 'root_provider_uuid': 'root',
                    'name': f'compute1_gpu_{gpu}_1g.10gb'}

        cloud = self.useFixture(services.Services({
            'accelerator': services.documents({
                '/v2/accelerator_requests': {'arqs': [
                    {'device_rp_uuid': uuid, 'instance_uuid': server,
                     'hostname': 'compute1', 'uuid': 'arq', 'state': 'Bound'}
                    for uuid, server in (
                         ('here', 'a'), ('here', 'ours'), ('here', 'b'),
                         ('here', None), ('there', 'c'))]}},
                {'id': 'v2.0', 'status': 'CURRENT'}),
            'placement': services.documents({
                '/': services.PLACEMENT,
                '/resource_providers': {'resource_providers': [
                    provider('here', '0000:07:00.0'),
                    provider('there', '0000:08:00.0')]},
                '/allocation_candidates': {'provider_summaries': {
                    'here': {'traits': []}, 'there': {'traits': []}}}})
        })).cloud
        self.assertEqual({'a', 'b'}, servers.others(
            cloud, frozenset({('compute1', '0000:07:00.0')}), ['ours']))


class DeleteTest(ServersCase):

    def delete(self, answers):
        now = [0.0]

        def sleep(seconds):
            now[0] += seconds

        return servers.delete(self.cloud(answers), [_ID],
                              clock=lambda: now[0], sleep=sleep)

    def test_gone_already(self):
        self.assertEqual({}, self.delete({}))

    def test_not_gone_in_time(self):
        found = self.delete({f'/servers/{_ID}': _server('ACTIVE')})
        self.assertIn('not deleted after 300 s', found[_ID])

    def test_marked(self):
        cloud = self.cloud({'/servers/detail': {'servers': [
            {'id': 'a', 'name': 'one', 'metadata': {servers.MARK: 'x'}},
            {'id': 'b', 'name': 'two', 'metadata': {servers.MARK: 'y'}},
            {'id': 'c', 'name': 'three', 'metadata': {}}]}})
        self.assertEqual({'a': 'one', 'b': 'two'}, servers.marked(cloud))
        self.assertEqual({'a': 'one'}, servers.marked(cloud, 'x'))
