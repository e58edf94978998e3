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

"""The metadata service, which gives a server its metadata.

It has an address of its own (Nova's documentation, "Metadata service"), so
requests use no proxy. It never redirects, so redirections are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
import urllib.parse
from collections.abc import Callable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal.first_boot import layout_sources

URL = 'http://169.254.169.254/openstack/latest'

_ATTEMPT = 5.0
"""Seconds that one request may take."""
_PAUSE = 1.0
_CHUNK = 1 << 16
_ANY_PORT = 80
_CONNECTIONS = {'http': http.client.HTTPConnection,
                'https': http.client.HTTPSConnection}
_NOT_NOW = frozenset({http.HTTPStatus.REQUEST_TIMEOUT,
                      http.HTTPStatus.TOO_MANY_REQUESTS})


class MetadataService:
    """Queries the metadata service, and retries while it does not answer.

    :param url: base URL of its documents.
    :param timeout: seconds, for all requests together.
    :param doubtful: whether the service did not answer at the last boot.
        Then there is only one attempt, unless there is no route to it yet.
    :param clock: a monotonic clock, in seconds.
    :param sleep: waits for a number of seconds.
    :raises InvalidValue: if ``url`` is not a usable URL.
    """

    def __init__(self, url: str, timeout: float, doubtful: bool = False,
                 clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], object] = time.sleep):
        self.url = url.rstrip('/')
        self._connect, self._host, self._port, self._path = _parts(self.url)
        self._clock = clock
        self._sleep = sleep
        self._end = clock() + timeout
        self._doubtful = doubtful
        self._answered = False
        self.silent: str | None = None
        """Why there seems to be no such service; None if a service has
        answered, or if there was no request."""

    def read(self, name: str) -> str | None:
        """Return a document; None without the document or the service.

        :raises LayoutSourceError: if the service exists and does not return
            the document.
        """
        while self.silent is None:
            try:
                status, text = self._ask(name)
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or repr(error)
            else:
                if status == http.HTTPStatus.OK:
                    return text
                if status == http.HTTPStatus.NOT_FOUND:
                    return None
                problem = f'returned HTTP {status}'
                if status < 500 and status not in _NOT_NOW:
                    raise self._refused(name, problem)
            if self._left() <= _PAUSE or (
                    self._doubtful and not self._answered
                    and self._has_route()):
                if self._answered:
                    raise self._refused(name, problem)
                self.silent = problem
                return None
            self._sleep(_PAUSE)
        return None

    def _ask(self, name):
        """Return the HTTP status and the text."""
        connection = self._connect(
            self._host, self._port,
            timeout=max(0.1, min(_ATTEMPT, self._left())))
        try:
            connection.request('GET', f'{self._path}/{name}')
            response = connection.getresponse()
            self._answered = True
            return response.status, layout_sources.decoded(
                self._body(response), f'{self.url}/{name}')
        finally:
            connection.close()

    def _body(self, response):
        """Return the whole body, or more than the limit."""
        body = b''
        while len(body) <= layout_sources.LIMIT:
            chunk = response.read1(_CHUNK)
            if not chunk:
                break
            body += chunk
            if self._left() <= 0:
                raise TimeoutError('it did not answer in time')
        return body

    def _has_route(self):
        """Whether the kernel has a route to the service.

        If it does, no late network is the cause. Connecting a datagram socket
        looks up the route and sends nothing (connect(2), udp(7)). Resolving a
        host name may need a network.
        """
        try:
            address = ipaddress.ip_address(self._host)
            with socket.socket(
                    socket.AF_INET if address.version == 4
                    else socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
                datagrams.connect((self._host, self._port or _ANY_PORT))
        except (OSError, ValueError):
            return False
        return True

    def _left(self):
        return self._end - self._clock()

    def _refused(self, name, reason):
        return exception.LayoutSourceError(source=f'{self.url}/{name}',
                                           reason=reason)


def _parts(url):
    try:
        parts = urllib.parse.urlsplit(url)
        if (parts.scheme in _CONNECTIONS and parts.hostname
                and not parts.query and not parts.fragment):
            return (_CONNECTIONS[parts.scheme], parts.hostname, parts.port,
                    parts.path)
    except ValueError:
        pass
    raise exception.InvalidValue(
        what='metadata service', value=url,
        expected=f'expected a URL such as {URL}')
