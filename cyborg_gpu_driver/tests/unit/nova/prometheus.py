# SPDX-License-Identifier: Apache-2.0

"""Answers of Prometheus, and a server that gives them."""

from __future__ import annotations

import http.server
import json
import threading

import fixtures

from cyborg_gpu_driver.tests import scope


def item(host='compute1', address='0000:18:00.0', value='0.5', **labels):
    return {'metric': {'Hostname': host, 'address': address, **labels},
            'value': [1790000000.1, value]}


def answer(*items, **data):
    return {'status': 'success',
            'data': {'resultType': 'vector', 'result': list(items), **data}}


class Prometheus(fixtures.Fixture):
    """An HTTP server that answers as a test specifies."""

    def __init__(self):
        self.status, self.length = 200, None
        self.content = json.dumps(answer(item())).encode()
        self.urls = []
        self.asked = threading.Event()
        self.release = threading.Event()
        self.release.set()

    def _setUp(self):
        fixture = self

        class Handler(http.server.BaseHTTPRequestHandler):

            def do_GET(self):
                fixture.urls.append(self.path)
                fixture.asked.set()
                fixture.release.wait(scope.HANG)
                self.send_response(fixture.status)
                if fixture.status == 302:
                    self.send_header('Location', '/elsewhere')
                self.send_header('Content-Length', str(
                    fixture.length or len(fixture.content)))
                self.end_headers()
                try:
                    self.wfile.write(fixture.content)
                except OSError:
                    pass  # The client has closed the connection.

            def log_message(self, *_args):
                pass

        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.addCleanup(self.release.set)
        self.url = f'http://127.0.0.1:{server.server_address[1]}/prom/'
