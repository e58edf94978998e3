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

"""The exporter's HTTP server: TLS, users, and a changed file."""

import base64
import contextlib
import http.client
import os
import socket
import ssl
import threading

import bcrypt
import fixtures
import prometheus_client
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.metrics import server
from cyborg_gpu_driver.metrics import web_config
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.metrics import exporters


def _hash(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


class _Case(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.directory, 'web.yaml')

    def config(self, text):
        # A new file counts even if it has the same size and is written in the
        # same tick of the clock.
        new = f'{self.path}.new'
        with open(new, 'w', encoding='utf-8') as stream:
            stream.write(text)
        os.replace(new, self.path)


class ServerTest(_Case):

    def serve(self, path=None):
        registry = prometheus_client.CollectorRegistry()
        registry.register(collect.Collector(self.directory, 'host1', '1'))
        running = server.Server(('127.0.0.1', 0), registry,
                                server.Access(path))
        thread = threading.Thread(target=running.serve_forever,
                                  kwargs={'poll_interval': 0.01})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(running.server_close)
        self.addCleanup(running.shutdown)
        self.port = running.server_address[1]

    def get(self, path='/metrics', user='', context=None, method='GET'):
        """Return status and body."""
        connection = (
            http.client.HTTPSConnection(
                '127.0.0.1', self.port, timeout=scope.HANG, context=context)
            if context else http.client.HTTPConnection(
                '127.0.0.1', self.port, timeout=scope.HANG))
        self.addCleanup(connection.close)
        headers = {'Authorization': 'Basic ' + base64.b64encode(
            user.encode()).decode()} if user else {}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_metrics_and_nothing_else(self):
        self.serve()
        status, body = self.get()
        self.assertEqual(200, status)
        self.assertIn('cyborg_gpu_exporter_build_info{Hostname="host1",'
                      'version="1"} 1.0', body)
        self.assertEqual(404, self.get('/')[0])

    def test_users(self):
        self.config(f'basic_auth_users: {{ann: "{_hash("secret")}"}}')
        self.serve(self.path)
        for user, status in (('', 401), ('ann:secret', 200),
                             ('ann:secret', 200), ('ann:wrong', 401),
                             ('bob:secret', 401), ('ann', 401)):
            self.assertEqual(status, self.get(user=user)[0], user)

    def test_a_changed_file_counts_at_once(self):
        self.config(f'basic_auth_users: {{ann: "{_hash("one")}"}}')
        self.serve(self.path)
        self.assertEqual(200, self.get(user='ann:one')[0])
        self.config(f'basic_auth_users: {{ann: "{_hash("two")}"}}')
        self.assertEqual(401, self.get(user='ann:one')[0])
        self.assertEqual(200, self.get(user='ann:two')[0])
        # A file with a mistake gives no access.
        self.config('basic_auth_user: {}')
        self.assertEqual(401, self.get(user='ann:one')[0])
        # Neither does a file that is being written in place.
        for text in ('', '{}', 'basic_auth_users: {}'):
            self.config(text)
            self.assertEqual(401, self.get()[0], text)
        os.unlink(self.path)
        self.assertEqual(401, self.get()[0])

    def test_a_file_that_changes_while_it_is_read(self):
        self.config(f'basic_auth_users: {{ann: "{_hash("one")}"}}')
        load = web_config.load
        changes = [f'basic_auth_users: {{ann: "{_hash("two")}"}}']

        def slow(path):
            found = load(path)
            if changes:
                self.config(changes.pop())
            return found
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.metrics.web_config.load', slow))
        self.serve(self.path)
        self.assertEqual(401, self.get(user='ann:one')[0])
        self.assertEqual(200, self.get(user='ann:two')[0])

    def test_files_that_come_after_the_configuration_that_names_them(self):
        self.config(f'basic_auth_users: {{ann: "{_hash("one")}"}}')
        self.serve(self.path)
        self.config('tls_server_config: {cert_file: new/server.crt, '
                    'key_file: new/server.key}')
        # The previous configuration stays in effect.
        self.assertEqual(200, self.get(user='ann:one')[0])
        new = os.path.join(self.directory, 'new')
        os.mkdir(new)
        certificate, _key = exporters.certificate(new)
        self.assertEqual(200, self.get(context=ssl.create_default_context(
            cafile=certificate))[0])

    def test_passwords_are_checked_one_at_a_time(self):
        self.config(f'basic_auth_users: {{ann: "{_hash("secret")}"}}')
        access = server.Access(self.path)
        now, most = [], []
        both = threading.Barrier(2)

        def check(password, digest):
            now.append(password)
            most.append(len(now))
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.05)
            now.remove(password)
            return False
        self.useFixture(fixtures.MonkeyPatch('bcrypt.checkpw', check))
        header = 'Basic ' + base64.b64encode(b'ann:wrong').decode()
        threads = [threading.Thread(target=access.allows, args=(header,))
                   for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([1, 1], most)

    def test_tls(self):
        certificate, key = exporters.certificate(self.directory)
        # The path is relative to the file.
        self.config('tls_server_config:\n  cert_file: server.crt\n'
                    f'  key_file: {key}\n  min_version: TLS13\n')
        self.serve(self.path)
        self.assertEqual(200, self.get(context=ssl.create_default_context(
            cafile=certificate))[0])
        self.assertRaises((ConnectionError, http.client.HTTPException),
                          self.get)
        old = ssl.create_default_context(cafile=certificate)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        self.assertRaises(ssl.SSLError, self.get, context=old)

    def test_clients_with_certificates(self):
        certificate, key = exporters.certificate(self.directory)
        client = exporters.certificate(self.directory, 'client')
        self.config(f'tls_server_config: {{cert_file: {certificate}, '
                    f'key_file: {key}, client_ca_file: {client[0]}, '
                    'client_auth_type: RequireAndVerifyClientCert}')
        self.serve(self.path)
        context = ssl.create_default_context(cafile=certificate)
        self.assertRaises((ssl.SSLError, ConnectionError,
                           http.client.HTTPException),
                          self.get, context=context)
        context.load_cert_chain(*client)
        self.assertEqual(200, self.get(context=context)[0])

    def test_a_client_that_says_nothing_holds_up_nobody(self):
        certificate, key = exporters.certificate(self.directory)
        self.config(f'tls_server_config: {{cert_file: {certificate}, '
                    f'key_file: {key}}}')
        self.serve(self.path)
        silent = socket.create_connection(('127.0.0.1', self.port))
        self.addCleanup(silent.close)
        self.assertEqual(200, self.get(context=ssl.create_default_context(
            cafile=certificate))[0])

    def test_a_client_that_never_ends_its_request(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.metrics.server._REQUEST_SECONDS', 0.1))
        self.serve()
        slow = socket.create_connection(('127.0.0.1', self.port),
                                        timeout=scope.HANG)
        self.addCleanup(slow.close)
        slow.sendall(b'GET /metrics HTTP/1.1\r\nX: ')
        # In time for each byte, but not for all of them.
        slow.settimeout(0.01)
        for _ in range(1000):
            try:
                slow.sendall(b'x')
                if slow.recv(1):
                    continue
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            return
        self.fail('the connection is still open')

    def test_no_more_connections_than_the_limit(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.metrics.server._CONNECTIONS', 1))
        self.serve()
        silent = socket.create_connection(('127.0.0.1', self.port))
        self.addCleanup(silent.close)
        # Connections are accepted in their order.
        for _ in range(2):
            self.assertRaises((ConnectionError, http.client.HTTPException),
                              self.get)
        silent.close()
        for _ in range(1000):
            try:
                self.assertEqual(200, self.get()[0])
            except (ConnectionError, http.client.HTTPException):
                continue
            return
        self.fail('no connection is free')

    def test_a_connection_is_free_again_after_a_failed_thread(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.metrics.server._CONNECTIONS', 1))
        self.serve()
        failures = [RuntimeError("can't start new thread")]

        class Timer(threading.Timer):
            def start(self):
                if failures:
                    raise failures.pop()
                super().start()
        self.useFixture(fixtures.MonkeyPatch('threading.Timer', Timer))
        self.assertRaises((ConnectionError, http.client.HTTPException),
                          self.get)
        self.assertEqual([], failures)
        for _ in range(100):
            with contextlib.suppress(ConnectionError,
                                     http.client.HTTPException):
                self.assertEqual(200, self.get()[0])
                return
        self.fail('no connection is free')

    def test_records_that_may_not_be_read(self):
        self.serve()
        with open(os.path.join(self.directory, 'gpus'), 'wb'):
            pass
        status, body = self.get()
        self.assertEqual(500, status)
        self.assertIn('gpus', body)


class WebConfigTest(_Case):

    def refusal(self, text):
        self.config(text)
        return str(self.assertRaises(exception.InvalidValue,
                                     server.Access, self.path))

    def test_mistakes_are_named(self):
        for text, expected in (
                ('[', 'not YAML'),
                ('- a', 'expected a mapping'),
                ('[]', 'expected a mapping'),
                ('0', 'expected a mapping'),
                ('tls_config: {}', 'tls_config'),
                ('http_server_config: {http2: true}', 'http_server_config'),
                ('tls_server_config: {cert_file: a}',
                 "tls_server_config: key 'key_file' is missing"),
                ('tls_server_config: {}', "key 'cert_file' is missing"),
                ('tls_server_config: []', 'tls_server_config'),
                ('tls_server_config: {cert_file: 7, key_file: b}',
                 'tls_server_config.cert_file: found 7'),
                ('tls_server_config: {cert_file: a, key_file: b, '
                 'cipher_suites: [x]}', 'cipher_suites'),
                ('tls_server_config: {cert_file: a, key_file: b, '
                 'min_version: TLS10}', 'min_version'),
                ('tls_server_config: {cert_file: a, key_file: b, '
                 'client_auth_type: RequireAnyClientCert}',
                 'client_auth_type'),
                ('tls_server_config: {cert_file: a, key_file: b, '
                 'client_auth_type: RequireAndVerifyClientCert}',
                 'client_ca_file'),
                ('tls_server_config: {cert_file: a, key_file: b}',
                 'the files of tls_server_config'),
                ('basic_auth_users: [ann]', 'basic_auth_users'),
                ('basic_auth_users: []', 'basic_auth_users'),
                ('basic_auth_users: false', 'basic_auth_users'),
                ('basic_auth_users: {ann: x}\nbasic_auth_users: {}',
                 'appears twice'),
                ('basic_auth_users: {ann: 7}', 'bcrypt'),
                ('basic_auth_users: {ann: "'
                 + _hash('x').replace('$04$', '$99$') + '"}', 'bcrypt'),
                ('basic_auth_users: {ann: secret}', 'bcrypt')):
            self.assertIn(expected, self.refusal(text), text)

    def test_no_message_has_a_password(self):
        for text in ('{ann: secret}', 'ann: secret', '{ann: {secret: 1}}',
                     '{ann: [secret]}', '{ann: secret'):
            self.assertNotIn('secret', self.refusal(
                f'basic_auth_users: {text}'), text)

    def test_no_file(self):
        self.assertIn(self.path, str(self.assertRaises(
            exception.InvalidValue, server.Access, self.path)))

    def test_nothing(self):
        self.config('')
        self.assertEqual(web_config.WebConfig(), web_config.load(self.path))
