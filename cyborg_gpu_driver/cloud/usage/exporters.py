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

"""Read GPU-hours from the exporters of hosts.

This module uses :mod:`http.client`, because neither requests nor urllib3 has
a deadline for a whole response: their timeouts apply to each read of a
socket, and a header may take any number of reads.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
from urllib import parse

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.metrics.usage import document

URL = 'https://{host}:9836'
"""The default URL of an exporter."""
_HOST = '{host}'
_PATH = '/usage'
_SCHEMES = {'http': 80, 'https': 443}
_AT_ONCE = 16
"""Number of parallel requests. An exporter answers within a few seconds."""
_AGAIN = 0.5
"""Seconds between attempts to end a connection after its deadline."""
_TEXT_MAX = 300
"""Number of bytes that are read of the text of an error."""
_REASONS: Mapping[int, str] = {
    http.HTTPStatus.UNAUTHORIZED: 'it needs a user and password, or refuses '
                                  'those of --credentials',
    http.HTTPStatus.NOT_FOUND: f'it has no {_PATH}: its release is too old'}
# A host name comes from the name of a resource provider and becomes a part of
# a URL.
_NAME = re.compile('[A-Za-z0-9]([A-Za-z0-9._-]{0,252})', re.ASCII)

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Answer:
    """The response of one host, or the reason why there is none."""

    host: str
    found: document.Document | None
    reason: str = ''


class Exporters:
    """The exporters of a cloud's hosts.

    :param url: of an exporter, with ``{host}`` for the name of its host.
    :param credentials: ``USER:PASSWORD``; None for no credentials.
    :param context: for TLS.
    :param seconds: how long each host may take to answer.
    :raises InvalidValue: if the URL is not valid, or if a password would be
        sent without TLS.
    """

    def __init__(self, url: str, credentials: str | None = None,
                 context: ssl.SSLContext | None = None,
                 seconds: float = 60.0):
        self._url = url
        self._context = context
        self._seconds = seconds
        self._headers = {'Accept': 'application/json'}
        if self._split('host').scheme == 'http' and credentials is not None:
            raise _wrong(url, 'expected https: a password is not sent '
                         'without TLS')
        if credentials is not None:
            self._headers['Authorization'] = 'Basic ' + base64.b64encode(
                credentials.encode()).decode()

    def ask(self, hosts: Sequence[str], start: float, end: float,
            progress: Progress = lambda done, total: None
            ) -> tuple[Answer, ...]:
        """Return the usage of hosts in a period; reads several in parallel.

        :param start: in seconds since the epoch.
        :param progress: called with the number of finished hosts and of all.
        :returns: the answers, in the order of the hosts.
        """
        pool = futures.ThreadPoolExecutor(_AT_ONCE)
        try:
            asked = {pool.submit(self._one, host, start, end): host
                     for host in hosts}
            found = {}
            for done, future in enumerate(futures.as_completed(asked), 1):
                progress(done, len(hosts))
                found[asked[future]] = future.result()
        finally:
            # After Ctrl-C the command does not wait for all hosts.
            pool.shutdown(wait=False, cancel_futures=True)
        return tuple(found[host] for host in hosts)

    def _one(self, host: str, start: float, end: float) -> Answer:
        deadline = time.monotonic() + self._seconds
        try:
            return Answer(host, self._read(host, start, end))
        except exception.ExporterError as error:
            return Answer(host, None, str(error))
        except (OSError, http.client.HTTPException, ValueError,
                RecursionError) as error:
            reason = ('it did not answer in time'
                      if isinstance(error, TimeoutError)
                      or time.monotonic() >= deadline
                      else str(error) or repr(error))
            return Answer(host, None, str(exception.ExporterError(
                host=host, reason=reason)))

    def _read(self, host: str, start: float, end: float
              ) -> document.Document:
        """Return the response of one exporter.

        :raises ExporterError: if there is no valid response.
        :raises OSError, HTTPException, ValueError, RecursionError: likewise.
        """
        if not _NAME.fullmatch(host):
            raise exception.ExporterError(
                host=host, reason='this is not the name of a host')
        query = parse.urlencode({'start': moments.of(start).isoformat(),
                                'end': moments.of(end).isoformat()})
        found = document.decode(json.loads(self._body(host, query)))
        if found.host != host:
            raise exception.ExporterError(
                host=host, reason='the exporter at this URL is that of host '
                f'{found.host}')
        return found

    def _body(self, host: str, query: str) -> bytes:
        split = self._split(host)
        connection = self._connection(split)
        # The timeout of a socket applies to each of many reads.
        done = threading.Event()
        threading.Thread(target=_hang_up, daemon=True,
                         args=(connection, self._seconds, done)).start()
        try:
            connection.request(
                'GET', f'{split.path.rstrip("/")}{_PATH}?{query}',
                headers=self._headers)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise exception.ExporterError(
                    host=host, reason=f'HTTP {answer.status}: '
                    + (_REASONS.get(answer.status) or _text(answer)))
            body = answer.read(document.SIZE_MAX + 1)
            if len(body) > document.SIZE_MAX:
                raise exception.ExporterError(
                    host=host, reason='the answer is longer than '
                    f'{document.SIZE_MAX} bytes')
            return body
        finally:
            done.set()
            connection.close()

    def _connection(self, split: parse.SplitResult
                    ) -> http.client.HTTPConnection:
        port = split.port or _SCHEMES[split.scheme]
        if split.scheme == 'https':
            return http.client.HTTPSConnection(
                str(split.hostname), port, timeout=self._seconds,
                context=self._context)
        return http.client.HTTPConnection(str(split.hostname), port,
                                          timeout=self._seconds)

    def _split(self, host: str) -> parse.SplitResult:
        """Return the parts of a host's URL.

        :raises InvalidValue: if it is not a valid URL.
        """
        try:
            split = parse.urlsplit(self._url.replace(_HOST, host))
            usable = (split.scheme in _SCHEMES and split.hostname
                      and split.port != 0)
        except ValueError:
            usable = False
        if (not usable or _HOST not in self._url or split.query
                or split.fragment or '@' in split.netloc
                or not self._url.isascii() or not self._url.isprintable()
                or set('{} ') & set(split.geturl())):
            raise _wrong(self._url, f'expected a URL such as {URL}')
        return split


def tls(cacert: str | None = None, cert: str | None = None,
        key: str | None = None) -> ssl.SSLContext:
    """Return the TLS context for connections to exporters.

    :param cacert: file with the authorities that sign the certificates of
        exporters; None for those that this machine trusts.
    :param cert: file with a client certificate.
    :param key: file with its key; None if it is in ``cert``.
    :raises InvalidValue: if a file cannot be used.
    """
    option, path = '--cacert', cacert
    try:
        context = ssl.create_default_context(cafile=cacert)
        if cert is not None:
            option, path = '--cert', cert
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise exception.InvalidValue(
            what=option, value=path,
            expected=f'cannot be used: {error}') from error
    return context


def _wrong(url: str, expected: str) -> exception.InvalidValue:
    return exception.InvalidValue(what='--exporter-url', value=url,
                                  expected=expected)


def _hang_up(connection: http.client.HTTPConnection, seconds: float,
             done: threading.Event) -> None:
    """Shut down a connection at its deadline.

    This repeats, because a connection may be established only after the
    deadline if its host name has several addresses.
    """
    while not done.wait(seconds):
        seconds = _AGAIN
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown, which is not made for two threads.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


def _text(answer: http.client.HTTPResponse) -> str:
    """Return an exporter's error message, without unprintable characters."""
    text = answer.read(_TEXT_MAX).decode('utf-8', 'replace')
    return ''.join(filter(str.isprintable, ' '.join(text.split())))
