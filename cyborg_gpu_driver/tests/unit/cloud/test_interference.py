# SPDX-License-Identifier: Apache-2.0

"""The servers of a measurement, with answers of Nova and other services."""

from __future__ import annotations

from openstack.compute.v2 import server
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import interference as servers
from cyborg_gpu_driver.osc import interference
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running

_ID = '6f7a4a52-7a1c-4b7e-9f53-58ab1c3f4d10'


def _server(status, task=None, **more):
    return {'id': _ID, 'status': status, 'OS-EXT-STS:task_state': task, **more}


class ServersCase(base.BaseTestCase):

    def cloud(self, compute):
        return self.useFixture(services.Services({
            'compute': services.documents({
                f'/v2.1{path}': found for path, found in compute.items()},
                services.NOVA)})).cloud


class AttributesTest(base.BaseTestCase):

    def test_least_and_most(self):
        least = {'name': 'n', 'flavor_id': 'flavor', 'image_id': 'image',
                 'networks': 'none', 'config_drive': True,
                 'user_data': 'data', 'metadata': {servers.MARK: 'm'}}
        self.assertEqual(least, servers.Made('flavor', 'image').attributes(
            'n', 'm', 'data', None))
        self.assertEqual(
            {**least, 'networks': [{'uuid': 'net'}], 'host': 'compute1',
             'key_name': 'key'},
            servers.Made('flavor', 'image', 'net', 'key').attributes(
                'n', 'm', 'data', 'compute1'))


class ResolveTest(ServersCase):

    def test_flavor_without_device_profile(self):
        cloud = self.cloud({'/flavors/detail': {'flavors': [
            {'id': '1', 'name': 'gpu', 'extra_specs': {'a': 'b'}}]}})
        self.assertIn('accel:device_profile', str(self.assertRaises(
            exception.CloudError, servers.resolve, cloud, 'gpu', 'image',
            None, None)))

    def test_flavor_that_is_unknown_or_ambiguous(self):
        """The command says so in one line."""
        for count, said in ((0, 'No Flavor found for gpu'),
                            (2, 'Give the UUID of one')):
            openstack = running.Openstack(self.cloud({
                '/flavors/detail': {'flavors': [
                    {'id': str(number), 'name': 'gpu', 'extra_specs': {}}
                    for number in range(count)]}}))
            text = str(self.assertRaises(
                exception.CloudError, openstack.run,
                interference.MeasureInterference, '--flavor', 'gpu',
                '--image', 'image', '--application', 'a=true',
                '--output', '/dev/null/none'))
            self.assertIn(said, text)
            self.assertEqual([text], text.splitlines())


class ProblemTest(base.BaseTestCase):

    def test_states(self):
        for item, text in (
                (_server('BUILD', 'spawning'), '^$'),
                (_server('ACTIVE', 'powering-off'), '^$'),
                (_server('ERROR', fault={'message': 'No valid host'}),
                 'ERROR: No valid host'),
                (_server('ERROR'), 'ERROR: Nova does not say why')):
            self.assertRegex(servers.problem(server.Server(**item)), text)
        self.assertIn('deleted', servers.problem(None))


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
                services.CYBORG),
            'placement': services.documents({
                '/': services.PLACEMENT,
                '/resource_providers': {'resource_providers': [
                    provider('here', '0000:07:00.0'),
                    provider('there', '0000:08:00.0')]},
                '/allocation_candidates': {'provider_summaries': {
                    uuid: {'traits': [], 'resources': {}}
                    for uuid in ('here', 'there')}}})
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
        found = self.delete({f'/servers/{_ID}': {
            'server': _server('ACTIVE')}})
        self.assertIn('not deleted after 300 s', found[_ID])

    def test_marked(self):
        cloud = self.cloud({'/servers/detail': {'servers': [
            {'id': 'a', 'name': 'one', 'metadata': {servers.MARK: 'x'}},
            {'id': 'b', 'name': 'two', 'metadata': {servers.MARK: 'y'}},
            {'id': 'c', 'name': 'three', 'metadata': {}}]}})
        self.assertEqual(['a'], servers.marked(cloud, 'x'))
