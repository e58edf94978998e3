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


"""Asking GPUs for their health, each for itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import library as nvml_library
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import health_facts
from cyborg_gpu_driver.host.snapshot import model

_BOOT_ID = '/proc/sys/kernel/random/boot_id'
_LOST = 'GPU_IS_LOST'
_RESET = 'RESET_REQUIRED'
_UNKNOWN = 'UNKNOWN'
_SILENT = exception.NvmlNotAnswering.symbol
_ROWS = 'nvmlDeviceGetRemappedRows'


@dataclasses.dataclass
class _Known:
    """What stays as it is while a session lasts."""

    generation: int
    slowdown: int | None
    shutdown: int | None
    absent: set[str] = dataclasses.field(default_factory=set)
    """Calls that this GPU, its driver or our pynvml does not have."""


class HealthReader:
    """Reads the health of GPUs through one session.

    :param nvml: the session; opened at the first reading.
    """

    def __init__(self, nvml: nvml_module.NvmlSession):
        self._nvml = nvml
        self._known: dict[model.PciAddress, _Known] = {}

    @gate.series
    def read(self, address: model.PciAddress) -> health_facts.Facts:
        """What the GPU at ``address`` says; five calls, more at first.

        Does not raise for anything that hardware does. A GPU that fell off
        the bus answers GPU_IS_LOST, or UNKNOWN to every call (believed;
        nvidia-smi then prints "Unknown Error"). One that does not answer is
        asked nothing more.
        """
        with self._nvml.about(address):
            return self._read(address)

    def _read(self, address: model.PciAddress) -> health_facts.Facts:
        asked = _Questions(self._nvml, address)
        if not asked.reachable:
            return asked.facts()
        known = self._static(address, asked)
        rows, retired = self._memory(asked, known)
        reasons = asked.ask('nvmlDeviceGetCurrentClocksEventReasons',
                            known.absent)
        return asked.facts(
            ecc_uncorrected=asked.ask(
                'nvmlDeviceGetTotalEccErrors', known.absent,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC),
            remapped_rows=rows and rows[0] + rows[1],
            remap_pending=rows and bool(rows[2]),
            remap_failed=rows and bool(rows[3]),
            retired_pending=None if retired is None else bool(retired),
            temperature=asked.ask('nvmlDeviceGetTemperature', known.absent,
                                  pynvml.NVML_TEMPERATURE_GPU),
            slowdown_temperature=known.slowdown,
            shutdown_temperature=known.shutdown,
            thermal_slowdown=None if reasons is None else bool(
                reasons & pynvml.nvmlClocksEventReasonHwThermalSlowdown),
            recovery_action=_field(asked.ask(
                'nvmlDeviceGetFieldValues', known.absent,
                [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])))

    @staticmethod
    def _memory(asked: _Questions, known: _Known) -> tuple[Any, Any]:
        """Remapped rows and retired pages; a GPU has the one or the other.

        A GPU in MIG mode with instances does not support the question for
        rows (nvml.h, nvmlDeviceGetRemappedRows), and does again when they
        are gone. So only the answer to the other question says that the GPU
        remaps no rows.
        """
        rows = retired = None
        if _ROWS not in known.absent:
            rows = asked.ask(_ROWS, set())
        if rows is None:
            retired = asked.ask('nvmlDeviceGetRetiredPagesPendingStatus',
                                known.absent)
            if retired is not None:
                known.absent.add(_ROWS)
        return rows, retired

    def _static(self, address: model.PciAddress, asked: _Questions) -> _Known:
        """Thresholds; newer GPUs do not tell them (nvml.h, Ada)."""
        known = self._known.get(address)
        if known is None or known.generation != self._nvml.generation:
            absent: set[str] = set()
            slowdown, shutdown = (
                asked.ask('nvmlDeviceGetTemperatureThreshold', absent, kind)
                for kind in (pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
                             pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN))
            known = _Known(self._nvml.generation, slowdown, shutdown)
            if not asked.failed:
                self._known[address] = known
        return known


class _Questions:
    """Questions to one GPU, and what became of them."""

    def __init__(self, nvml: nvml_module.NvmlSession,
                 address: model.PciAddress):
        self._nvml = nvml
        self._failures: set[str] = set()
        self._device = None
        self.answered = False
        try:
            self._device = nvml.device(address)
        except exception.NvmlError as error:
            self._failures.add(error.symbol)

    @property
    def reachable(self) -> bool:
        """Whether there is a GPU to ask."""
        return self._device is not None

    @property
    def failed(self) -> bool:
        """Whether a question that it can answer was not answered."""
        return bool(self._failures)

    def ask(self, call: str, absent: set[str], *arguments: Any) -> Any:
        """The answer, or None.

        A GPU that is lost is asked nothing more: each answer may take long.

        :param absent: calls not to be made; one more if this turns out to
            be one.
        """
        if call in absent or self._failures & {_LOST, _SILENT}:
            return None
        try:
            answer = self._nvml.call(call, self._device, *arguments)
        except exception.NvmlError as error:
            if error.symbol in nvml_library.ABSENT:
                absent.add(call)
            else:
                self._failures.add(error.symbol)
            return None
        self.answered = True
        return answer

    def facts(self, **facts: Any) -> health_facts.Facts:
        """What all that amounts to."""
        lost = _LOST in self._failures or (
            _UNKNOWN in self._failures and not self.answered)
        return health_facts.Facts(
            answered=self.answered or lost or bool(
                self._failures & {_RESET, _SILENT}),
            lost=lost, not_answering=_SILENT in self._failures,
            reset_required=_RESET in self._failures, **facts)


def _field(values: Any) -> int | None:
    """The value of the only field asked for; None if it has none."""
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return values[0].value.uiVal


@gate.series
def instance_place(nvml: nvml_module.NvmlSession, address: model.PciAddress,
                   instance_id: int) -> model.Placement | None:
    """Where the GPU instance of an id lies; None if that is not known."""
    try:
        handle = nvml.call('nvmlDeviceGetGpuInstanceById',
                           nvml.device(address), instance_id)
        place = nvml.call('nvmlGpuInstanceGetInfo', handle).placement
    except exception.NvmlError:
        return None
    return model.Placement(place.start, place.size)


def boot_id() -> str:
    """What the kernel calls the time since it was started.

    Empty where it does not say, as outside of Linux.
    """
    try:
        with open(_BOOT_ID, encoding='ascii') as stream:
            return stream.read().strip()
    except OSError:
        return ''
