# SPDX-License-Identifier: Apache-2.0


"""Requests to Placement over loopback."""

from __future__ import annotations

import json
import urllib.parse

import fixtures
from keystoneauth1 import fixture
from oslo_config import cfg
from oslo_log import log as logging
from oslotest import base

from cyborg_gpu_driver.cmd.doctor import placement
from cyborg_gpu_driver.tests.unit.cloud import services
from demo_lib import httpd

SECRET = 'hunter2'
_REFUSED = '127.0.0.1:1'
"""A port on which no process listens."""
_PASSWORD = f'''
auth_type = password
username = cyborg
password = {SECRET}
user_domain_name = Default
project_name = service
project_domain_name = Default
'''


class Service:
    """A Placement that answers with one status and knows one provider."""

    def __init__(self, status='200 OK', body=None):
        self._status = status
        self._body = body

    def __call__(self, environ, start_response):
        version = environ['PATH_INFO'] == '/'
        start_response('200 OK' if version else self._status,
                       [('Content-Type', 'application/json')])
        if version:
            return [json.dumps(services.PLACEMENT).encode()]
        return [json.dumps(self._answer(environ)).encode()
                if self._body is None else self._body]

    def _answer(self, environ):
        query = urllib.parse.parse_qs(environ['QUERY_STRING'])
        return {'resource_providers': [{'uuid': 'u'}] if query['name']
                == ['a b'] else []}


def _keystone(environ, start_response):
    """A Keystone that names its version and refuses every token."""
    posted = environ['REQUEST_METHOD'] == 'POST'
    version = not posted and environ['PATH_INFO'].startswith('/v3')
    start_response('401 Unauthorized' if posted else '200 OK',
                   [('Content-Type', 'application/json')])
    url = f'http://{environ["HTTP_HOST"]}/v3'
    return [json.dumps({'version': fixture.V3Discovery(url)} if version
                       else {'error': {}}).encode()]


class AskTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = self.useFixture(fixtures.TempDir()).path + '/c.conf'

    def ask(self, text, names=('a b', 'c')):
        with open(self.path, 'w', encoding='utf-8') as stream:
            stream.write(f'[placement]\n{text}\n')
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[self.path])
        return placement.ask(conf, names)

    def serve(self, *args):
        server = httpd.Httpd(Service(*args))
        self.addCleanup(server.stop)
        return (f'auth_type = none\nendpoint = {server.url}\n'
                f'endpoint_override = {server.url}\n')

    def fails(self, words, answer):
        self.assertEqual(frozenset(), answer.providers)
        self.assertIn(words, f'{answer.problem} / {answer.advice}')
        self.assertNotIn(SECRET, f'{answer.problem} {answer.advice}')
        self.assertTrue(answer.advice)

    def test_providers(self):
        self.assertEqual(placement.Answer(frozenset(('a b',))),
                         self.ask(self.serve()))

    def test_refusals(self):
        for status, words in (('401 No', 'the token'),
                              ('403 No', 'the role service'),
                              ('404 No', 'endpoint_override'),
                              ('500 Sorry', 'check Placement'),
                              ('418 Teapot', 'HTTP 418')):
            self.fails(words, self.ask(self.serve(status)))

    def test_something_else_answers(self):
        for body in (b'<html>', b'[]', b'{}'):
            self.fails('cannot be queried', self.ask(
                self.serve('200 OK', body)))

    def test_no_credentials(self):
        for text in ('', 'auth_type = nosuch', 'auth_type = password'):
            self.fails('Set auth_type', self.ask(text))

    def test_keystone_refuses(self):
        server = httpd.Httpd(_keystone)
        self.addCleanup(server.stop)
        self.fails('Correct username', self.ask(
            f'{_PASSWORD}auth_url = {server.url}/v3'))

    def test_nothing_is_logged_of_an_address_with_a_password(self):
        logged = self.useFixture(fixtures.FakeLogger())
        self.fails('cannot be queried', self.ask(
            f'{_PASSWORD}auth_url = http://x:{SECRET}@{_REFUSED}/v3'))
        logging.getLogger(__name__).warning('after')
        self.assertNotIn(SECRET, logged.output)
        self.assertIn('after', logged.output)
