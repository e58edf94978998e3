# SPDX-License-Identifier: Apache-2.0


"""Serves a WSGI application on loopback, with one thread per request."""

from __future__ import annotations

import socketserver
import threading
from wsgiref import simple_server


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self):
        # HTTPServer would ask the resolver for this machine's full name,
        # which takes seconds if no name server answers.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()


class _Handler(simple_server.WSGIRequestHandler):

    def address_string(self):
        return self.client_address[0]

    def log_message(self, format, *args):
        """Log nothing: the applications have their own logs."""


class Httpd:
    """Serve ``application`` on a free port of 127.0.0.1 until stopped."""

    def __init__(self, application):
        self._server = simple_server.make_server(
            '127.0.0.1', 0, application, server_class=_Server,
            handler_class=_Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={'poll_interval': 0.02},
            name='httpd', daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, without a trailing slash."""
        return 'http://127.0.0.1:%d' % self._server.server_port

    def stop(self) -> None:
        """Stop answering requests, and release the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
