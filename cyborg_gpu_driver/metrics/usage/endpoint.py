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

"""``/usage`` of the exporter: GPU-hours of a period, as JSON.

Another process reads the records. Reading all 64 files of the audit record
takes seconds of CPU time and some 500 MB, and the threads of one Python
process share a CPU, so a scrape would have to wait.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import threading
from collections.abc import Callable
from collections.abc import Iterable
from multiprocessing import connection
from typing import Any
from urllib import parse

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments
from cyborg_gpu_driver.metrics.usage import ledger
from cyborg_gpu_driver.record import codec

PATH = '/usage'
_NAMES = ('start', 'end')
_TEXT_MAX = 64
"""Maximum characters of a time."""
_SECONDS = 45.0
"""Seconds that a request may wait for the previous one, and for its answer."""
_CONTEXT = multiprocessing.get_context('spawn')

_Start = Callable[..., Any]


class Endpoint:
    """A WSGI application that answers GPU-hour requests, one at a time.

    :param state_path: ``[gpu] state_path``.
    :param host: the compute node's name, used until the agent has written
        its own.
    :param seconds: how long a request may wait for the previous one, and
        then for its answer.
    """

    def __init__(self, state_path: str, host: str,
                 seconds: float = _SECONDS):
        self._state_path = state_path
        self._host = host
        self._seconds = seconds
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: _Start
                 ) -> Iterable[bytes]:
        if environ['REQUEST_METHOD'] != 'GET':
            return _refuse(start, '405 Method Not Allowed', 'use GET',
                           ('Allow', 'GET'))
        try:
            period = _period(environ.get('QUERY_STRING', ''))
        except exception.InvalidValue as error:
            return _refuse(start, '400 Bad Request', str(error))
        if not self._turn.acquire(timeout=self._seconds):
            return _refuse(start, '503 Service Unavailable',
                           'busy with other requests for GPU-hours',
                           ('Retry-After', '60'))
        try:
            answer = _apart(self._seconds, self._state_path, self._host,
                            *period)
        except exception.GpuDriverError as error:
            return _refuse(start, '500 Internal Server Error', str(error))
        finally:
            self._turn.release()
        start('200 OK', [('Content-Type', 'application/json'),
                         ('Content-Length', str(len(answer)))])
        return [answer]


def _period(query: str) -> tuple[float, float]:
    """Return the period that a query asks for.

    :raises InvalidValue: if the query is malformed.
    """
    try:
        found = parse.parse_qs(query, keep_blank_values=True,
                               strict_parsing=bool(query), max_num_fields=8,
                               errors='strict')
    except ValueError as error:
        raise _wrong(query, str(error)) from error
    for name, values in found.items():
        if name not in _NAMES or len(values) > 1:
            raise _wrong(query, 'expected only start and end, each at most '
                                'once')
        if len(values[0]) > _TEXT_MAX:
            raise _wrong(query, f'{name} is too long for a time')
    return moments.period(*(found.get(name, [None])[0] for name in _NAMES),
                          names=_NAMES)


def _wrong(query: str, expected: str) -> exception.InvalidValue:
    return exception.InvalidValue(what='query', value=query[:200],
                                  expected=expected)


def _refuse(start: _Start, status: str, text: str,
            *headers: tuple[str, str]) -> list[bytes]:
    start(status, [('Content-Type', 'text/plain; charset=utf-8'), *headers])
    return [f'{text}\n'.encode('utf-8', 'replace')]


def _apart(seconds: float, *arguments: Any) -> bytes:
    """Return the JSON of :func:`ledger.tell`, made by another process.

    :raises GpuDriverError: if the process raises it, or does not answer.
    """
    mine, theirs = _CONTEXT.Pipe(duplex=False)
    child = _CONTEXT.Process(target=_tell, args=(theirs, *arguments),
                             daemon=True)
    with mine:
        with theirs:
            child.start()
        try:
            if not mine.poll(seconds):
                raise exception.GpuDriverError(
                    f'the records could not be read in {seconds:g} s')
            good, answer = mine.recv_bytes(1), mine.recv_bytes()
        except (EOFError, OSError) as error:
            raise exception.GpuDriverError(
                'the process that reads the records has ended') from error
        finally:
            child.kill()
            child.join()
    if good != b'1':
        raise exception.GpuDriverError(answer.decode())
    return answer


def _tell(pipe: connection.Connection, *arguments: Any) -> None:
    """Run in the other process, and send the answer through the pipe."""
    # Leave Ctrl-C to the exporter, which also ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = json.dumps(codec.encode(ledger.tell(*arguments)),
                            separators=(',', ':'))
        good = b'1'
    except exception.GpuDriverError as error:
        good, answer = b'0', str(error)
    with contextlib.suppress(OSError):
        pipe.send_bytes(good)
        pipe.send_bytes(answer.encode())
