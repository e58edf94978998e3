# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu exporter``."""

import datetime
import http.client
import ipaddress
import os
import socket
import ssl

import fixtures
import prometheus_client
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid
from oslotest import base as test_base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import exporter
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests import thread_limit
from cyborg_gpu_driver.tests.unit.cmd import base


class ExporterTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.directory, 'gpus.prom')

    def refusal(self, *arguments):
        return self.run_program(
            '--config-file', os.devnull, 'exporter', '--state-path',
            self.directory, *arguments, code=1)[1]

    def test_a_file_for_node_exporter(self):
        self.run_program('--config-file', os.devnull, 'exporter',
                         '--state-path', self.directory, '--textfile',
                         self.path)
        with open(self.path, encoding='utf-8') as stream:
            self.assertIn('cyborg_gpu_exporter_build_info', stream.read())
        self.assertEqual(['gpus.prom'], os.listdir(self.directory))

    def test_with_values_of_the_hardware(self):
        self.run_program('--simulate', 'l40sx4', 'exporter', '--nvml',
                         '--textfile', self.path)
        with open(self.path, encoding='utf-8') as stream:
            text = stream.read()
        self.assertEqual(4, text.count('\ncyborg_gpu_power_watts{'))

    def test_with_the_servers_of_libvirt(self):
        self.run_program('--simulate', 'l40sx4', 'exporter', '--libvirt',
                         '--textfile', self.path)
        self.assertEqual(['gpus.prom'], os.listdir(self.directory))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.domains.MODULE', 'no_such_module'))
        self.assertIn('python3-libvirt', self.refusal(
            '--libvirt', '--textfile', self.path))

    def test_mistakes_are_named(self):
        self.assertIn('.prom', self.refusal('--textfile', 'gpus.txt'))
        self.assertIn('--textfile', self.refusal(
            '--textfile', os.path.join(self.directory, 'no', 'x.prom')))
        for option in ('--keyfile', '--client-cafile'):
            self.assertIn('it needs --certfile', self.refusal(
                option, self.path))
        self.assertIn('has no effect with --textfile', self.refusal(
            '--textfile', self.path, '--certfile', '/nowhere'))
        taken = socket.create_server(('127.0.0.1', 0))
        self.addCleanup(taken.close)
        place = f'127.0.0.1:{taken.getsockname()[1]}'
        error = self.refusal('--listen', place)
        self.assertIn(f'--listen {place!r}', error)
        self.assertIn('in use', error)

    def test_addresses(self):
        for text, expected in (('127.0.0.1:9836', ('127.0.0.1', 9836)),
                               (':1', ('', 1)), ('[::1]:2', ('::1', 2))):
            self.assertEqual(expected, exporter.address(text))
        for text in ('9836', 'host', 'host:', 'host:x', '::1:2', ':65536'):
            self.assertRaises(exception.InvalidValue, exporter.address, text)


class ServeTest(test_base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path

    def serve(self, *files, host='127.0.0.1'):
        registry = prometheus_client.CollectorRegistry()
        registry.register(collect.Collector(self.directory, 'host1', '1'))
        running, thread = exporter.start(f'{host}:0', registry, *files)
        self.addCleanup(thread.join)
        self.addCleanup(running.server_close)
        self.addCleanup(running.shutdown)
        self.port = running.server_address[1]

    def get(self, context=None, host='127.0.0.1'):
        """Return status and body."""
        arguments = {'host': host, 'port': self.port, 'timeout': scope.HANG}
        connection = (
            http.client.HTTPSConnection(**arguments, context=context)
            if context else http.client.HTTPConnection(**arguments))
        self.addCleanup(connection.close)
        connection.request('GET', '/metrics')
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_metrics(self):
        self.serve()
        status, body = self.get()
        self.assertEqual(200, status)
        self.assertIn('cyborg_gpu_exporter_build_info{Hostname="host1",'
                      'version="1"} 1.0', body)

    def test_tls(self):
        certificate, key = _certificate(self.directory)
        both = os.path.join(self.directory, 'both.pem')
        with open(both, 'wb') as stream:
            for path in (key, certificate):
                with open(path, 'rb') as part:
                    stream.write(part.read())
        for files in (certificate, key), (both,):
            self.serve(*files)
            self.assertEqual(200, self.get(ssl.create_default_context(
                cafile=certificate))[0])
        self.assertRaises((ConnectionError, http.client.HTTPException),
                          self.get)

    def test_clients_with_certificates(self):
        certificate, key = _certificate(self.directory)
        client = _certificate(self.directory, 'client')
        self.serve(certificate, key, client[0])
        context = ssl.create_default_context(cafile=certificate)
        self.assertRaises((ssl.SSLError, ConnectionError,
                           http.client.HTTPException), self.get, context)
        context.load_cert_chain(*client)
        self.assertEqual(200, self.get(context)[0])

    def silent(self):
        """Connect, and send nothing."""
        client = socket.create_connection(('127.0.0.1', self.port),
                                          timeout=scope.HANG)
        self.addCleanup(client.close)
        return client

    def test_a_client_without_a_thread_is_left(self):
        # TasksMax of the unit limits them.
        self.serve()
        with thread_limit.reached():
            self.assertEqual(b'', self.silent().recv(1))
        self.assertEqual(200, self.get()[0])

    def test_clients_that_say_nothing(self):
        self.serve()
        clients = [self.silent() for _ in range(50)]
        self.assertEqual((200, 50), (self.get()[0], len(clients)))
        self.useFixture(fixtures.MonkeyPatch(
            f'{exporter.__name__}._SECONDS', 0.05))
        self.serve()
        self.assertEqual(b'', self.silent().recv(1))
        self.serve(*_certificate(self.directory))
        self.assertEqual(b'', self.silent().recv(1))

    def test_records_that_may_not_be_read(self):
        self.serve()
        with open(os.path.join(self.directory, 'gpus'), 'wb'):
            pass
        self.assertEqual(500, self.get()[0])

    def test_files_that_cannot_be_used(self):
        certificate, key = _certificate(self.directory)
        none = os.path.join(self.directory, 'none')
        for files, option in (((none,), '--certfile'),
                              ((certificate, none), '--keyfile'),
                              ((certificate, key, none), '--client-cafile'),
                              ((certificate,), '--certfile'),
                              ((key, certificate), '--certfile')):
            error = str(self.assertRaises(exception.InvalidValue, self.serve,
                                          *files))
            self.assertIn(option, error)


def _certificate(directory, name='server'):
    """Create a self-signed certificate for 127.0.0.1, and its key.

    :returns: the paths of both.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (x509.CertificateBuilder().subject_name(subject)
            .issuer_name(subject).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([
                x509.IPAddress(ipaddress.ip_address('127.0.0.1'))]), False)
            .sign(key, hashes.SHA256()))
    paths = [os.path.join(directory, f'{name}.{end}')
             for end in ('crt', 'key')]
    for path, data in zip(paths, (
            made.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption())), strict=True):
        with open(path, 'wb') as stream:
            stream.write(data)
    return paths
