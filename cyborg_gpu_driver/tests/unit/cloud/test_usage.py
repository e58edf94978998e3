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

"""How clients read the answers of good and bad exporters."""

import contextlib
import json
import os
import socket
import threading

import bcrypt
import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud.usage import exporters
from cyborg_gpu_driver.cloud.usage import sums
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics.usage import document
from cyborg_gpu_driver.tests.unit.metrics import exporters as running

_HOST = '127.0.0.1'
_GPU = model.PciAddress.parse('0000:3b:00.0')
_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
_OTHER = '0d7e5b36-92a4-4c37-8b0f-3b8e7f0a1c55'
_START = 1793491200.0


class _Raw(fixtures.Fixture):
    """A server that sends bytes and then waits until the client closes.

    :param drip: bytes to send repeatedly instead of waiting.
    """

    def __init__(self, answer, drip=b''):
        self._answer = answer
        self._drip = drip

    def _setUp(self):
        self._socket = socket.create_server((_HOST, 0))
        self.port = self._socket.getsockname()[1]
        thread = threading.Thread(target=self._serve)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self._socket.close)

    def _serve(self):
        connection, _ = self._socket.accept()
        with connection:
            connection.sendall(self._answer)
            if self._drip:
                connection.settimeout(0.02)
                with contextlib.suppress(ConnectionError):
                    while not self._has_ended(connection):
                        connection.sendall(self._drip)
            while connection.recv(4096):
                pass

    def _has_ended(self, connection):
        try:
            return not connection.recv(4096)
        except TimeoutError:
            return False


def _http(body, status='200 OK'):
    return (f'HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n'
            f'{body}').encode()


class ExporterTest(base.BaseTestCase):

    def ask(self, port, scheme='http', host=_HOST, **kwargs):
        (answer,) = exporters.Exporters(
            f'{scheme}://{{host}}:{port}', **kwargs).ask(
                [host], _START, _START + 3600)
        return answer

    def refusal(self, answer, **kwargs):
        server = self.useFixture(_Raw(answer))
        found = self.ask(server.port, **kwargs)
        self.assertIsNone(found.found)
        self.assertIn(f'exporter of host {_HOST}', found.reason)
        return found.reason

    def test_with_tls_and_a_password(self):
        directory = self.useFixture(fixtures.TempDir()).path
        certificate, key = running.certificate(directory)
        digest = bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()
        path = os.path.join(directory, 'web.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(
                f'tls_server_config: {{cert_file: {certificate}, key_file: '
                f'{key}, client_ca_file: {certificate}, client_auth_type: '
                'RequireAndVerifyClientCert}\n'
                f'basic_auth_users: {{ann: "{digest}"}}\n')
        exporter = self.useFixture(running.Exporter(config=path))
        exporter.uses(_SERVER, _START)
        context = exporters.tls(certificate, certificate, key)
        answer = self.ask(exporter.port, 'https', credentials='ann:secret',
                          context=context)
        self.assertEqual('', answer.reason)
        self.assertEqual(3600.0, answer.found.sums[0].seconds)
        self.assertIn('401', self.ask(exporter.port, 'https',
                                      credentials='ann:x',
                                      context=context).reason)
        self.assertIn('certificate verify failed', self.ask(
            exporter.port, 'https', credentials='ann:secret',
            context=exporters.tls()).reason)

    def test_answers_that_are_none(self):
        for answer, expected in (
                (_http('[]'), 'version 1'), (_http('nonsense'), 'Expecting'),
                (_http('no', '404 Not Found'), 'it has no /usage'),
                (_http('no \x1b[2J', '500 X'), 'HTTP 500: no [2J'),
                (_http('', '302 Found\r\nLocation: http://x/'), 'HTTP 302'),
                (b'SSH-2.0-x\r\n', 'SSH-2.0'),
                (_http(json.dumps({'version': 1, 'host': 'other',
                                   'start': 0, 'end': 1})), 'host other')):
            self.assertIn(expected, self.refusal(answer))

    def test_an_answer_that_never_ends(self):
        head = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n'
        for answer in (b'', head, head[:-2]):
            self.assertIn('did not answer in time',
                          self.refusal(answer, seconds=0.1))

    def test_an_answer_that_comes_byte_by_byte(self):
        server = self.useFixture(_Raw(b'HTTP/1.1 200 OK\r\nX: ', b'x'))
        self.assertIn('did not answer in time',
                      self.ask(server.port, seconds=0.2).reason)

    def test_a_connection_that_comes_late(self):
        """The exporter's name has another address that did not answer."""
        server = self.useFixture(_Raw(b'HTTP/1.1 200 OK\r\nX: ', b'x'))
        connect, over = socket.create_connection, threading.Event()

        def late(*arguments, **kwargs):
            over.wait(0.2)
            return connect(*arguments, **kwargs)

        self.useFixture(fixtures.MonkeyPatch('socket.create_connection',
                                             late))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.cloud.usage.exporters._AGAIN', 0.05))
        self.assertIn('did not answer in time',
                      self.ask(server.port, seconds=0.1).reason)

    def test_an_answer_that_is_nested_deeply(self):
        self.assertIn('recursion', self.refusal(_http('[' * 200_000)))

    def test_an_answer_that_is_too_long(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.metrics.usage.document.SIZE_MAX', 10))
        self.assertIn('longer than 10 bytes',
                      self.refusal(_http('"' + 'x' * 10 + '"')))

    def test_nobody_is_there(self):
        with socket.create_server((_HOST, 0)) as taken:
            port = taken.getsockname()[1]
        self.assertIn('refused', self.ask(port).reason)
        for name in ('', 'a/b', 'a@b', 'a:1', 'a b', 'x' * 254):
            self.assertIn('not the name', self.ask(port, host=name).reason)
        self.assertIn('exporter of host', self.ask(
            port, host='a' * 64 + '.invalid').reason)

    def test_urls(self):
        for url in ('https://{host}', 'http://{host}:1/below/',
                    'https://proxy/{host}', 'https://{host}.example.com:2'):
            exporters.Exporters(url)
        for url in ('', '{host}', 'ftp://{host}', 'https://one:1',
                    'https://{host}:x', 'https://{host}:99999',
                    'https://{host}:0', 'https://a:b@{host}',
                    'https://{host}/?x=1', 'https://{host}/#x',
                    'https://{host}/{other}', 'https://{host} ',
                    'https://{host}/\r\nX: 1', 'https://{host}/\xe9'):
            error = self.assertRaises(exception.InvalidValue,
                                      exporters.Exporters, url)
            self.assertIn('--exporter-url', str(error), url)
        self.assertIn('without TLS', str(self.assertRaises(
            exception.InvalidValue, exporters.Exporters, 'http://{host}',
            'ann:secret')))

    def test_files_that_cannot_be_used(self):
        for arguments, option in ((('/dev/null',), '--cacert'),
                                  (('/nowhere',), '--cacert'),
                                  ((None, '/nowhere'), '--cert')):
            self.assertIn(option, str(self.assertRaises(
                exception.InvalidValue, exporters.tls, *arguments)))


class SumsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.hosts = [document.Document(1, name, 0.0, 1.0, (
            document.Sum(_GPU, '1g.10gb', 2, 7.0, _SERVER, 'ours'),
            document.Sum(_GPU, '1g.10gb', 1, 1.0, _OTHER),
            document.Sum(_GPU, '2g.20gb', 1, 0.25)))
            for name in ('a', 'b')]

    def total(self, *by, projects=None, project=None):
        return [(*item.keys.values(), item.count, item.seconds)
                for item in sums.total(self.hosts, by, projects or {},
                                       project)]

    def test_by(self):
        self.assertEqual([(8, 16.5)], self.total())
        self.assertEqual([('', 4, 2.5), ('ours', 4, 14.0)],
                         self.total('project'))
        self.assertEqual([('a', str(_GPU), 4, 8.25), ('b', str(_GPU), 4,
                                                      8.25)],
                         self.total('host', 'gpu'))
        self.assertEqual(
            [('1g.10gb', _OTHER, 2, 2.0), ('1g.10gb', _SERVER, 4, 14.0),
             ('2g.20gb', '', 2, 0.5)], self.total('profile', 'server'))

    def test_projects_that_nova_knows(self):
        self.assertEqual({_OTHER}, sums.unknown(self.hosts))
        # The project that the host has recorded takes precedence.
        projects = {_OTHER: 'theirs', _SERVER: 'theirs'}
        self.assertEqual([('', 2, 0.5), ('ours', 4, 14.0), ('theirs', 2, 2.0)],
                         self.total('project', projects=projects))
        self.assertEqual([(2, 2.0)], self.total(projects=projects,
                                                project='theirs'))
        self.assertEqual([], self.total(project='nobody'))
