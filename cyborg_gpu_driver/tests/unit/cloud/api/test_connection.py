# SPDX-License-Identifier: Apache-2.0

"""Valid and invalid answers of a cloud's Cyborg and Placement."""

import socket

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import placement_client
from cyborg_gpu_driver.tests.unit.cloud import keystone


class NamedTest(base.BaseTestCase):

    def test_the_environment_names_a_cloud(self):
        for environment, named in (
                ({}, False), ({'OS_USERNAME': 'x'}, False),
                ({'OS_CLOUD': ''}, False), ({'OS_CLOUD': 'here'}, True),
                ({'OS_AUTH_URL': 'http://here/v3'}, True)):
            self.assertEqual(named, connection.is_named(environment))


def _requests(cloud):
    with cloud.errors():
        return cyborg.requests(cloud)


class ConnectionTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.status, self.body, self.asked = '200 OK', b'', []

    def application(self, environ, start_response):
        """Answer in place of Cyborg, with what the test specifies."""
        self.asked.append((environ['PATH_INFO'], environ['QUERY_STRING']))
        start_response(self.status, [('Content-Type', 'application/json')])
        return [self.body]

    def keystone(self, **options):
        return self.useFixture(keystone.KeystoneFixture(
            self.application, **options))

    def refusal(self, name=None):
        """The error message for a cloud that cannot be queried."""
        return str(self.assertRaises(
            exception.CloudError,
            lambda: _requests(connection.Cloud.named(name))))

    def test_a_list(self):
        self.keystone()
        self.body = (b'{"arqs": [{"uuid": "a", "state": "Bound", '
                     b'"attach_handle_uuid": "b"}]}')
        (found,) = cyborg.requests(connection.Cloud.named(),
                                   instance_uuid='one')
        self.assertEqual(('a', 'b'), (found.uuid, found.attach_handle_uuid))
        self.assertEqual([('/v2/accelerator_requests', 'instance=one')],
                         self.asked)

    def test_something_else_than_a_list(self):
        url = self.keystone().auth_url
        for self.body in (b'', b'<html>', b'[]', b'{}', b'{"arqs": null}',
                          b'{"arqs": {}}', b'{"arqs": ["a"]}'):
            self.assertIn(f'cloud {url}: ', self.refusal())

    def test_who_is_no_administrator_is_not_answered_in_part(self):
        self.body = b'{"arqs": []}'
        for roles in ((), ('member', 'reader'), ('manager',)):
            self.keystone(roles=roles)
            self.assertIn('role admin', self.refusal())
        self.assertEqual([], self.asked)

    def test_a_cloud_that_does_not_answer_is_named(self):
        with socket.socket() as unused:
            unused.bind(('127.0.0.1', 0))
            nowhere = f'http://127.0.0.1:{unused.getsockname()[1]}/v3'
        cloud = self.keystone()
        cloud.name('OS_AUTH_URL', nowhere)
        self.assertIn(f'cloud {nowhere}: ', self.refusal())
        cloud.write_clouds(far=nowhere)
        self.assertIn('cloud far: ', self.refusal('far'))
        cloud.name('OS_CLOUD', 'far')
        self.assertIn('cloud far: ', self.refusal())

    def test_credentials_that_are_not_whole(self):
        cloud = self.keystone()
        for variable in ('OS_PASSWORD', 'OS_USERNAME'):
            with fixtures.EnvironmentVariable(variable):
                self.assertIn(f'cloud {cloud.auth_url}: ', self.refusal())
        cloud.write_clouds(here=5)
        cloud.name('OS_CLOUD', 'here')
        self.assertIn('cloud here: ', self.refusal())

    def test_the_cloud_that_is_named_is_asked(self):
        cloud = self.keystone()
        cloud.write_clouds(here=cloud.auth_url)
        cloud.name('OS_CLOUD', 'elsewhere')
        self.body = b'{"arqs": []}'
        self.assertEqual([], _requests(connection.Cloud.named('here')))


class PlacementTest(base.BaseTestCase):

    def client(self, **options):
        path = self.useFixture(fixtures.TempDir()).path + '/cyborg.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('[placement]\n' + ''.join(
                f'{name} = {value}\n' for name, value in options.items()))
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[path])
        return placement_client.Placement(conf)

    def test_no_answer(self):
        nowhere = 'http://127.0.0.1:9'
        client = self.client(
            auth_type='admin_token', token='admin', endpoint=nowhere,
            endpoint_override=nowhere)
        self.assertRaises(exception.CloudError, client.get, '/there',
                          version='1.26')

    def test_nobody_to_ask_as(self):
        self.assertIn('auth_type', str(self.assertRaises(
            exception.CloudError, self.client)))
        self.assertRaises(exception.CloudError, self.client,
                          auth_type='unheard_of')
