# SPDX-License-Identifier: Apache-2.0


"""The part of Nova's API that Cyborg calls: external events.

Cyborg tells Nova when an instance's accelerators are bound. The demonstration
plays the part of Nova, so it receives these events.
"""

from __future__ import annotations

import json
import threading

from demo_lib import httpd


class ComputeEvents:
    """An endpoint for ``POST /v2.1/os-server-external-events``."""

    def __init__(self):
        self._changed = threading.Condition()
        self._events: list[dict] = []
        self._httpd = httpd.Httpd(self._application)

    @property
    def url(self) -> str:
        return self._httpd.url + '/v2.1'

    @property
    def events(self) -> tuple[dict, ...]:
        """Every event so far, oldest first."""
        with self._changed:
            return tuple(self._events)

    def wait_for(self, instance: str, count: int, timeout: float) -> bool:
        """Wait until ``count`` events of ``instance`` have arrived.

        :param timeout: seconds.
        :returns: whether they have arrived in time.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: sum(event['server_uuid'] == instance
                            for event in self._events) >= count, timeout)

    def stop(self) -> None:
        self._httpd.stop()

    def _application(self, environ, start_response):
        if (environ['REQUEST_METHOD'] == 'POST'
                and environ['PATH_INFO'].endswith(
                    '/os-server-external-events')):
            body = self._receive(environ)
        else:
            body = {'version': {
                'id': 'v2.1', 'status': 'CURRENT', 'version': '2.100',
                'min_version': '2.1',
                'links': [{'rel': 'self', 'href': self.url + '/'}]}}
        data = json.dumps(body).encode('utf-8')
        start_response('200 OK', [('Content-Type', 'application/json'),
                                  ('Content-Length', str(len(data)))])
        return [data]

    def _receive(self, environ):
        length = int(environ.get('CONTENT_LENGTH') or 0)
        events = json.loads(environ['wsgi.input'].read(length))['events']
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()
        return {'events': [dict(event, code=200) for event in events]}
