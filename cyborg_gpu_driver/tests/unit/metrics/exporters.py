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

"""Exporters of hosts, as clients reach them."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import os
import threading

import fixtures
import prometheus_client
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.metrics import server
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.tests import scope

GPU = model.PciAddress.parse('0000:3b:00.0')


class Exporter(fixtures.Fixture):
    """An exporter of one host, and the records that it serves.

    :param address: host and port to serve on; port 0 takes any.
    :param config: path of its web configuration.
    :param hardware: the samples of the hardware, or None.
    :param domains: the answers of libvirt, or None.
    """

    def __init__(self, address=('127.0.0.1', 0), config=None, hardware=None,
                 domains=None):
        self.host = address[0]
        self._address = address
        self._config = config
        self._hardware = hardware
        self._domains = domains

    def _setUp(self):
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(collect.Collector(
            self.state_path, self.host, '1', self._hardware,
            self._domains))
        self.server = server.Server(
            self._address, self.registry, server.Access(self._config))
        self.port = self.server.server_address[1]
        thread = threading.Thread(target=self.server.serve_forever,
                                  kwargs={'poll_interval': 0.01})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def name(self, host):
        """Write another name of the host, as the agent does."""
        state.Keeper(self.state_path, host).write()

    def get(self, path, method='GET'):
        """Return the status, headers and body of an answer."""
        connection = http.client.HTTPConnection(self.host, self.port,
                                                timeout=scope.HANG)
        self.addCleanup(connection.close)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def certificate(directory, name='server'):
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
