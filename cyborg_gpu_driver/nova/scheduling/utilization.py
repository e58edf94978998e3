# SPDX-License-Identifier: Apache-2.0

"""How busy GPUs are, as Prometheus says.

The metrics are those of ``cyborg-gpu exporter --nvml``
(:mod:`cyborg_gpu_driver.metrics.definitions`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver import prometheus
from cyborg_gpu_driver.host import deadline

LOG = logging.getLogger(__name__)

Gpu = tuple[str, ...]
"""A compute node, as Placement names it, and a PCI address."""

_LABELS = ('Hostname', 'address')
_OF_GPU = '{} by (Hostname, address) (avg_over_time({}[2m]))'
QUERY = ' or '.join(_OF_GPU.format(*item) for item in (
    ('sum', 'cyborg_gpu_vgpu_utilization_ratio'),
    ('sum', 'cyborg_gpu_utilization_ratio'),
    ('max', 'cyborg_gpu_instance_utilization_ratio')))
"""The sum over all vGPUs of a GPU, or otherwise the value of the GPU itself,
which NVML has for a GPU that is not in MIG mode, or that of the busiest GPU
instance, which NVML has from Hopper on. The query takes the mean of two
minutes, because a single sample says little."""
_EVERY = 30.0
"""Seconds between two queries."""
_OLD = 120.0
"""Seconds after which an answer is too old to use."""
_DEADLINE = 10.0
"""Seconds for one answer."""


class Utilization:
    """How busy GPUs are, by the last answer of Prometheus.

    No request waits for Prometheus: :meth:`of` answers from memory, and a
    thread, started at the first use, queries Prometheus. Without an answer,
    or if the last one is too old, the utilization is unknown.
    """

    def __init__(self, url: str | None,
                 clock: Callable[[], float] = time.monotonic):
        self._url = url
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
            known = prometheus.query(self._url or '', QUERY, _LABELS,
                                     _DEADLINE)
        except Exception as error:
            # A weigher must not fail a request, whatever the error is.
            self._say(error)
            return
        self._answer = self._clock(), {
            gpu: min(1.0, max(0.0, value)) for gpu, value in known.items()}
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
            self._thread = deadline.ensure_thread(self._thread, self._run,
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
