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

"""A local metadata service with the documents of a test."""

import http.server
import threading


class MetadataServer:
    """A metadata service that answers as the test specifies.

    ``documents`` has the answers by name: bytes, an HTTP status, or a list
    of them. The server gives each item of a list once, and repeats the last
    one. ``asked`` has the paths of the requests.
    """

    def __init__(self):
        self.documents = {}
        self.asked = []
        self._server = None
        self._port = 0
        self.open()

    @property
    def url(self):
        return f'http://127.0.0.1:{self._port}/openstack/latest'

    def open(self):
        """Start to answer, at the same address as before."""
        self._server = http.server.ThreadingHTTPServer(
            ('127.0.0.1', self._port), self._handler())
        self._port = self._server.server_port
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever,
                                        kwargs={'poll_interval': 0.01})
        self._thread.start()

    def close(self):
        """Stop the server, so that nothing answers at its address."""
        if self._server is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def _answer(self, path):
        self.asked.append(path)
        answer = self.documents.get(path.rpartition('/')[2], 404)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        return (200, answer) if isinstance(answer, bytes) else (answer, b'')

    def _handler(self):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = outer._answer(self.path)
                self.send_response(status)
                self.send_header('Content-Length', str(len(body)))
                if 300 <= status < 400:
                    self.send_header('Location', outer.url + '/elsewhere')
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments):
                """Write nothing to standard error."""

        return Handler
