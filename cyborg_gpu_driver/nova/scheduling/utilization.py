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

"""How busy GPUs are, as Prometheus says.

The metrics are those of ``cyborg-gpu exporter --nvml``
(:mod:`cyborg_gpu_driver.metrics.definitions`).
"""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import requests
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.conf import weigher
from cyborg_gpu_driver.host import deadline

Gpu = tuple[str, str]
"""A compute node, as Placement names it, and a PCI address."""

_OF_GPU = 'sum by (Hostname, address) (avg_over_time({}[2m]))'
QUERY = ' or '.join(map(_OF_GPU.format, (
    'cyborg_gpu_vgpu_utilization_ratio', 'cyborg_gpu_utilization_ratio')))
"""The sum over all vGPUs of a GPU, or otherwise the value of the GPU itself,
which NVML has for a GPU that is not in MIG mode. The query takes the mean of
two minutes, because a single sample says little."""
_FORM = ('expected the vector of an instant query, each with Hostname, '
         'address and a number')


def parse(document: Any) -> dict[Gpu, float]:
    """Return the part of the time in which each GPU is busy, 0 to 1.

    Prometheus' HTTP API, "Instant queries": ``{"status": "success", "data":
    {"resultType": "vector", "result": [{"metric": {...}, "value": [TIME,
    "0.5"]}]}}``.

    :param document: the answer, from JSON.
    :raises InvalidValue: if the answer has another form.
    """
    data = _of(document, dict).get('data')
    if (document.get('status') != 'success'
            or _of(data, dict).get('resultType') != 'vector'):
        raise _wrong(document)
    return dict(map(_item, _of(data.get('result'), list)))


def _item(item):
    labels: Mapping[str, Any] = _of(_of(item, dict).get('metric'), dict)
    value = item.get('value')
    try:
        _time, text = value
        number = float(_of(text, str))
    except (TypeError, ValueError) as error:
        raise _wrong(item) from error
    if math.isnan(number):
        raise _wrong(item)
    return ((_of(labels.get('Hostname'), str),
             _of(labels.get('address'), str)), min(1.0, max(0.0, number)))


def _of(value, kind):
    if not isinstance(value, kind):
        raise _wrong(value)
    return value


def _wrong(value):
    return exception.InvalidValue(
        what='answer of Prometheus', value=repr(value)[:100], expected=_FORM)


# Asks Prometheus how busy GPUs are, while requests continue.

LOG = logging.getLogger(__name__)

_PATH = '/api/v1/query'
_EVERY = 30.0
"""Seconds between two queries."""
_OLD = 120.0
"""Seconds after which an answer is too old to use."""
_DEADLINE = 10.0
"""Seconds for one answer."""
_SIZE_MOST = 16 << 20
"""Maximum size of an answer in bytes: about 100,000 GPUs."""
_CHUNK = 1 << 16


class Utilization:
    """How busy GPUs are, by the last answer of Prometheus.

    No request waits for Prometheus: :meth:`of` answers from memory, and a
    thread, started at the first use, queries Prometheus. Without an answer,
    or if the last one is too old, the utilization is unknown.

    :param url: URL of Prometheus; None or empty for no Prometheus.
    :raises InvalidConfiguration: if the value is not a URL.
    """

    def __init__(self, url: str | None,
                 clock: Callable[[], float] = time.monotonic):
        self._url = _checked(url)
        self._clock = clock
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._answer: tuple[float, Mapping[Gpu, float]] = (
            clock() - _OLD, {})
        self._said = log_once.LogOnce()

    def of(self, host: str, addresses: Iterable[str]) -> float | None:
        """Return the part of the time in which the busiest GPU is busy.

        :param host: the compute node, as Placement names it.
        :param addresses: PCI addresses of the GPUs on the compute node.
        :returns: 0 to 1; None if that is not known for each of the GPUs.
        """
        if not self._url:
            return None
        self._start()
        read, known = self._answer
        wanted = {(host, address) for address in addresses}
        if (self._clock() - read >= _OLD or not wanted
                or not wanted <= known.keys()):
            return None
        return max(known[gpu] for gpu in wanted)

    def ask(self) -> None:
        """Query Prometheus now; log a failure once."""
        try:
            known = parse(json.loads(_get(self._url or '')))
        except Exception as error:
            # A weigher must not fail a request, whatever the error is.
            self._say(error)
            return
        self._answer = self._clock(), known
        if self._said.over():
            LOG.info('Prometheus returns the utilization of GPUs again')

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self):
        # A thread does not survive in a forked child process, and Nova's
        # workers are such children.
        if self._thread is not None and self._thread.is_alive():
            return
        with self._starting:
            self._thread = deadline.is_alive(self._thread, self._run,
                                             'gpu-utilization')

    def _run(self):
        self.ask()
        while not self._over.wait(_EVERY):
            self.ask()

    def _say(self, error):
        reason = exception.steady(error)
        if self._said.is_new(reason):
            LOG.warning('The utilization of GPUs is not considered, because '
                        'Prometheus does not return it: %s', reason)


def _checked(url):
    if not url:
        return None
    try:
        parts = urllib.parse.urlsplit(url)
        good = (parts.scheme in ('http', 'https') and parts.hostname
                and not parts.query and not parts.fragment
                and parts.port != 0)
    except ValueError:
        good = False
    if not good:
        raise exception.InvalidConfiguration(
            group=weigher.GROUP.name, option='prometheus_url', value=url,
            reason='expected a URL such as http://prometheus:9090')
    return url.rstrip('/') + _PATH


def _get(url: str) -> bytes:
    """Return the answer of Prometheus to the query.

    :raises Exception: if there is none in time, or it is too large.
    """
    end = time.monotonic() + _DEADLINE
    with requests.get(url, params={'query': QUERY}, stream=True,
                      timeout=_DEADLINE, allow_redirects=False) as response:
        content = bytearray()
        for chunk in response.iter_content(_CHUNK):
            content += chunk
            if len(content) > _SIZE_MOST:
                raise _refused(f'more than {_SIZE_MOST} bytes')
            if time.monotonic() > end:
                raise _refused(f'no answer in {_DEADLINE:g} s')
        if response.status_code != requests.codes.ok:
            raise _refused(f'status {response.status_code}')
    return bytes(content)


def _refused(reason):
    return exception.InvalidValue(
        what='answer', value=reason, expected='expected the answer to an '
        'instant query')
