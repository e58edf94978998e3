# SPDX-License-Identifier: Apache-2.0

"""All kinds of answers of Placement, and clients that cannot query it."""

import json

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import placement_client
from demo_lib import httpd


class PlacementTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.asked = []
        self.directory = self.useFixture(fixtures.TempDir()).path

    def answer(self, environ, start_response):
        size = int(environ.get('CONTENT_LENGTH') or 0)
        self.asked.append((
            environ['REQUEST_METHOD'], environ['PATH_INFO'],
            environ.get('HTTP_X_AUTH_TOKEN'),
            environ.get('HTTP_OPENSTACK_API_VERSION'),
            environ['wsgi.input'].read(size)))
        found = environ['PATH_INFO'] == '/there'
        start_response('200 OK' if found else '404 Not Found',
                       [('Content-Type', 'application/json')])
        return [json.dumps({'x': 1}).encode()]

    def client(self, **options):
        path = self.directory + '/cyborg.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('[placement]\n' + ''.join(
                f'{name} = {value}\n' for name, value in options.items()))
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[path])
        return placement_client.Placement(conf)

    def test_answers(self):
        server = httpd.Httpd(self.answer)
        self.addCleanup(server.stop)
        client = self.client(
            auth_type='admin_token', token='admin', endpoint=server.url,
            endpoint_override=server.url)
        answer = client.get('/there', version='1.26')
        self.assertEqual((200, {'x': 1}),
                         (answer.status_code, answer.json()))
        self.assertEqual(404, client.get('/', version='1.26').status_code)
        client.put('/there', {'y': 2}, version='1.26')
        self.assertEqual(
            [('GET', '/there', 'admin', 'placement 1.26', b''),
             ('GET', '/', 'admin', 'placement 1.26', b''),
             ('PUT', '/there', 'admin', 'placement 1.26', b'{"y": 2}')],
            self.asked)
        server.stop()
        self.assertRaises(exception.CloudError, client.get, '/there',
                          version='1.26')

    def test_nobody_to_ask_as(self):
        self.assertIn('auth_type', str(self.assertRaises(
            exception.CloudError, self.client)))
        self.assertRaises(exception.CloudError, self.client,
                          auth_type='unheard_of')
