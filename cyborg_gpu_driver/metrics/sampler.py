# SPDX-License-Identifier: Apache-2.0

"""Samples of the hardware, taken independently of scrapes.

A scrape takes the latest sample of each GPU and does not wait. The sampler
queries the GPUs in parallel, each in its own thread with a deadline, so that a
GPU that hangs does not delay others (:mod:`cyborg_gpu_driver.host.deadline`).

An NVML session opens all GPUs that are bound to nvidia, and NVIDIA's kernel
driver does not release an open GPU: nv_pci_remove_helper of
kernel-open/nvidia/nv-pci.c in NVIDIA's open kernel modules waits until its
usage count is 0. Therefore the sampler queries no GPU while one that a server
may get whole is bound to nvidia, and closes its session whenever another
process of this library wants exclusive access to NVML
(:mod:`cyborg_gpu_driver.host.nvml.access`).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.nvml import telemetry as nvml_telemetry
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

INTERVAL = 15.0
"""Seconds between two rounds: Prometheus' default interval is 60 s,
and 15 s in its examples."""
STALE = 60.0
"""Seconds after which the result of a round is too old: four failed rounds."""
TIMEOUT = 10.0
"""Seconds that a GPU may take for all its answers. For that time this process
may keep others from exclusive access to NVML."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What is known about one GPU."""

    uuid: str = ''
    values: tuple[nvml_telemetry.Value, ...] = ()
    """The values of its latest sample."""
    taken: float | None = None
    """When the query began that the GPU answered last, on the monotonic
    clock; None if it has never answered."""
    age: float | None = None
    """Seconds since then, in a scrape."""
    failed: int = 0
    """How often the GPU did not answer."""


class Sampler:
    """Queries the GPUs of a machine at an interval.

    :param machine: the machine; only this sampler uses its NVML session.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, machine: platform.Platform, state_path: str,
                 clock: Callable[[], float] = time.monotonic):
        self._machine = machine
        machine.nvml.timeout = min(machine.nvml.timeout, TIMEOUT)
        self._host = reader.HostReader(machine)
        self._telemetry = nvml_telemetry.TelemetryReader(machine.nvml)
        self._store = store.of(state_path)
        self._clock = clock
        self._known: dict[model.PciAddress, Gpu] = {}
        self._mutex = threading.Lock()
        self._said = log_once.LogOnce()

    def start(self) -> None:
        """Start to sample regularly, in a separate thread."""
        repeat(self.round, 'samples')

    def round(self) -> None:
        """Query each GPU that NVML sees, once, if all may be opened.

        Never raises because of hardware or other processes.
        """
        gpus = self._readable()
        with self._mutex:
            self._known = {gpu.address: self._known.get(gpu.address, Gpu())
                           for gpu in gpus}
        deadline.each(self._sample, gpus)

    def take(self) -> Mapping[model.PciAddress, Gpu]:
        """The GPUs that are sampled, as they are known now.

        The values of a sample that is too old are left out.
        """
        now = self._clock()
        with self._mutex:
            known = dict(self._known)
        found = {}
        for address, gpu in known.items():
            age = None if gpu.taken is None else now - gpu.taken
            gpu = dataclasses.replace(gpu, age=age)
            found[address] = gpu if age is None or age < STALE else (
                dataclasses.replace(gpu, values=()))
        return found

    def _readable(self) -> tuple[model.Gpu, ...]:
        if (not self._machine.simulated
                and not self._machine.nvml.access.is_shared()):
            self._say('locks', 'No GPU is queried: the files of cyborg-agent '
                      'below [gpu] state_path cannot be used, so the agent '
                      'could not have a GPU closed')
            return ()
        self._said.over('locks')
        gpus = self._host.bound()
        for gpu in gpus:
            reason = self._reserved(gpu)
            if reason:
                self._say('reserved', f'No GPU is queried, because that opens '
                          f'all that are bound to nvidia: GPU {gpu.address} '
                          f'{reason}')
                self._machine.nvml.reset()
                return ()
        self._said.over('reserved')
        return gpus

    def _reserved(self, gpu: model.Gpu) -> str:
        """Why a GPU must not be opened; empty if it may be.

        A GPU must not be opened if it was reported as a whole GPU: after a
        reboot Nova may start its server before the agent has bound the GPU to
        vfio-pci. A GPU in mode auto may be a whole one while nothing is bound
        on it.
        """
        try:
            record = self._store.read(gpu.address)
        except exception.JournalError as error:
            return f'may be a whole one: {error}'
        mode = record.reported.mode if record.reported else None
        if mode in {whole.value for whole in policy.WHOLE} or (
                mode == policy.Mode.AUTO.value and not record.claims):
            return 'is a whole one and not bound to vfio-pci yet'
        return ''

    def _sample(self, gpu: model.Gpu) -> None:
        address, begun = gpu.address, self._clock()
        try:
            sample = self._telemetry.read(address)
        except exception.NvmlClosed as error:
            LOG.debug('GPU %s is not queried: %s', address, error)
            return
        except exception.NvmlError as error:
            self._say(address, f'GPU {address} has no sample: {error}',
                      error.symbol)
            self._note(address, lambda known: dataclasses.replace(
                known, failed=known.failed + 1))
            return
        if sample is None:
            # There is no NVML now.
            self._note(address, lambda known: dataclasses.replace(
                known, values=()))
            return
        self._said.over(address)
        self._note(address, lambda known: dataclasses.replace(
            known, uuid=sample.uuid, values=sample.values, taken=begun))

    def _note(self, address: model.PciAddress,
              change: Callable[[Gpu], Gpu]) -> None:
        with self._mutex:
            known = self._known.get(address)
            if known is not None:
                self._known[address] = change(known)

    def _say(self, about: object, text: str, reason: str = '') -> None:
        """Log a problem once.

        :param reason: identifies the problem; by default the text does.
        """
        if self._said.is_new(reason or text, about=about):
            LOG.warning('%s', text)


def repeat(act: Callable[[], object], name: str) -> None:
    """Call ``act`` now and at an interval, in a daemon thread."""
    repeated = deadline.Repeated(act, INTERVAL, f'cyborg-gpu-{name}')
    repeated.start()
    repeated.ask()
