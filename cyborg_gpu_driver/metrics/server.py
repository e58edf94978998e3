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

"""The HTTP server of the exporter: ``/metrics``, with TLS and users."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from wsgiref import simple_server

import bcrypt
import prometheus_client
from oslo_log import log as logging
from prometheus_client import registry as client_registry

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.metrics import web_config

LOG = logging.getLogger(__name__)

_PATH = '/metrics'
_SECONDS = 30.0
"""Seconds that a client may take for one read or write."""
_REQUEST_SECONDS = 150.0
"""Seconds that a whole request may take: GPU-hours may take 90 seconds."""
_CONNECTIONS = 40
"""Maximum number of open connections; node_exporter has the same limit."""
Application = Callable[[dict[str, Any], Callable[..., Any]],
                       Iterable[bytes]]
"""A WSGI application."""
_TEXT = [('Content-Type', 'text/plain; charset=utf-8')]
_NOBODY = '$2b$10$CwTycUXWue0Thq9StjUM0uJ8wf3Ytm7n5f0nJ7zqGz0n0b9i5w1Wa'
"""The hash to compare with if the user does not exist, so that the check of
an unknown user takes as long as that of a known one."""


class Access:
    """Who may read the metrics, by the current web configuration file.

    The file is read again when it, or a file that it names, has changed. A
    file that has become empty does not remove the protection: it may be empty
    for a moment while an editor or a script writes it in place.

    :param path: path of the file; None to allow all clients, without TLS.
    :raises InvalidValue: if the file is wrong.
    """

    def __init__(self, path: str | None):
        self._path = path
        self._mutex = threading.Lock()
        self._checking = threading.Lock()
        self._marks: dict[str, tuple[int, ...] | None] = {}
        """By path: the file, and those that it names."""
        self._config = web_config.WebConfig()
        self._context: ssl.SSLContext | None = None
        self._known: set[bytes] = set()
        """Digests of accepted passwords, because bcrypt is slow on purpose."""
        if path is not None:
            self._load(path)

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a new connection; None without TLS."""
        self._refresh()
        return self._context

    def allows(self, header: str) -> bool:
        """Whether a request may be answered.

        :param header: its ``Authorization`` header; may be empty.
        """
        self._refresh()
        users = self._config.users
        if not users:
            return True
        scheme, _, text = header.partition(' ')
        try:
            name, colon, password = base64.b64decode(
                text, validate=True).decode().partition(':')
        except (binascii.Error, ValueError):
            return False
        if scheme.lower() != 'basic' or not colon:
            return False
        return self._is_right(users.get(name), password) and name in users

    def _is_right(self, digest: str | None, password: str) -> bool:
        mark = hashlib.sha256(
            f'{digest}:{password}'.encode()).digest()
        if mark in self._known:
            return True
        # One at a time, as Prometheus' exporters do (bcryptMtx in
        # web/handler.go of exporter-toolkit): bcrypt releases Python's lock,
        # so clients with wrong passwords could use 40 CPUs of the host.
        with self._checking:
            right = _matches(password, digest or _NOBODY)
        if right and digest is not None:
            self._known.add(mark)
        return right

    def _refresh(self) -> None:
        """Load the file if it has changed; log a wrong one and ignore it."""
        if self._path is None:
            return
        with self._mutex:
            if self._marks == {path: durable.mark(path)
                               for path in self._marks}:
                return
            try:
                self._load(self._path)
            except exception.InvalidValue as error:
                LOG.error('%s. The previous configuration stays in effect.',
                          error)

    def _load(self, path: str) -> None:
        # The marks are read before the files, also if the files are wrong, so
        # that no later change is missed.
        self._marks = {path: durable.mark(path)}
        config = web_config.load(path)
        for file in config.tls.files if config.tls else ():
            self._marks[file] = durable.mark(file)
        if self._config.protects and not config.protects:
            raise exception.InvalidValue(
                what='--web-config', value=path,
                expected='it has neither TLS nor users any more; restart the '
                         'exporter to serve everybody without TLS')
        try:
            context = config.tls.context() if config.tls else None
        except OSError as error:
            raise exception.InvalidValue(
                what='--web-config', value=path,
                expected=f'the files of tls_server_config: {error}'
            ) from error
        self._config, self._context = config, context
        self._known.clear()


class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """Answers scrapes, each in a separate thread.

    :param address: host and port; port 0 takes any free port.
    :param registry: the metrics to serve.
    :param access: decides which clients may read them.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int],
                 registry: client_registry.CollectorRegistry,
                 access: Access):
        if ':' in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        self._access = access
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._metrics = prometheus_client.make_wsgi_app(registry)
        self.set_app(self._answer)

    def server_bind(self) -> None:
        """Bind without a lookup of this machine's name in the resolver."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """Return a connection; its own thread makes the TLS handshake."""
        connection, address = super().get_request()
        connection.settimeout(_SECONDS)
        context = self._access.context()
        if context is not None:
            connection = context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; close it if there are too many."""
        if not self._free.acquire(blocking=False):
            LOG.debug('Closed a connection from %s: %s others are open',
                      client_address, _CONNECTIONS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread was started that would release the semaphore.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any
                               ) -> None:
        """Answer a request within a time limit."""
        timer = threading.Timer(_REQUEST_SECONDS, _hang_up, (request,))
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:
            # This process can start no thread now: see threading.Thread.
            self.handle_error(request, client_address)
            self.shutdown_request(request)
        finally:
            timer.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failure of a client at level debug: it is not an error."""
        LOG.debug('A client at %s failed: %s', client_address,
                  sys.exc_info()[1])

    def _answer(self, environ: dict[str, Any],
                start: Callable[..., Any]) -> Iterable[bytes]:
        if not self._access.allows(environ.get('HTTP_AUTHORIZATION', '')):
            start('401 Unauthorized', [
                *_TEXT, ('WWW-Authenticate', 'Basic realm="metrics"')])
            return [b'Unauthorized\n']
        if environ.get('PATH_INFO', '') != _PATH:
            start('404 Not Found', [*_TEXT])
            return [f'The metrics are at {_PATH}\n'.encode()]
        try:
            return self._metrics(environ, start)
        except exception.GpuDriverError as error:
            LOG.error('%s', error)
            start('500 Internal Server Error', [*_TEXT])
            return [f'{error}\n'.encode()]


class _Handler(simple_server.WSGIRequestHandler):
    """Logs requests at level debug only."""

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # The shutdown of ssl.SSLSocket is not safe with two threads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _matches(password: str, digest: str) -> bool:
    try:
        # bcrypt uses no more than 72 bytes and ignores the rest.
        return bcrypt.checkpw(password.encode()[:72], digest.encode())
    except ValueError:
        return False
