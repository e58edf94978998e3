# SPDX-License-Identifier: Apache-2.0

"""Answers of Prometheus, and a server that gives them."""

from __future__ import annotations

import json
import threading

import fixtures

from cyborg_gpu_driver.tests import scope
from demo_lib import httpd


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
        self.release = threading.Event()
        self.release.set()

    def _setUp(self):
        server = httpd.Httpd(self._application)
        self.addCleanup(server.stop)
        self.addCleanup(self.release.set)
        self.url = f'{server.url}/prom/'

    def _application(self, environ, start_response):
        self.urls.append(environ['PATH_INFO'])
        self.release.wait(scope.HANG)
        start_response(f'{self.status} X', [
            ('Location', '/elsewhere'),
            ('Content-Length', str(self.length or len(self.content)))])
        return [self.content]
