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


"""Reads the health of GPUs, each on its own."""

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
    """Facts that do not change during a session."""

    generation: int
    slowdown: int | None
    shutdown: int | None
    absent: set[str] = dataclasses.field(default_factory=set)
    """Calls that this GPU, its driver or this pynvml does not have."""


class HealthReader:
    """Reads the health of GPUs through one session.

    :param nvml: the session; opened at the first reading.
    """

    def __init__(self, nvml: nvml_module.NvmlSession):
        self._nvml = nvml
        self._known: dict[model.PciAddress, _Known] = {}

    @gate.series
    def read(self, address: model.PciAddress) -> health_facts.Facts:
        """Read the health of the GPU at ``address``.

        Makes five calls, more the first time. Does not raise for a hardware
        fault. A GPU that fell off the bus answers GPU_IS_LOST, or UNKNOWN to
        every call (an assumption; nvidia-smi then prints "Unknown Error"). A
        GPU that does not answer is not queried further.
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
        """Return remapped rows and retired pages; a GPU has only one of them.

        A GPU in MIG mode does not support the call for rows while it has
        instances (nvml.h, nvmlDeviceGetRemappedRows). So only an answer to
        the call for pages shows that the GPU does not remap rows.
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
        """Read thresholds; newer GPUs do not report them (nvml.h, Ada)."""
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
    """Makes calls about one GPU, and notes which of them failed."""

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
        """Whether NVML has the GPU."""
        return self._device is not None

    @property
    def failed(self) -> bool:
        """Whether a call that the GPU supports was not answered."""
        return bool(self._failures)

    def ask(self, call: str, absent: set[str], *arguments: Any) -> Any:
        """Return the answer of a call, or None.

        A lost GPU is not queried further, because each answer may take long.

        :param absent: calls to skip. This call is added if the GPU turns out
            not to support it.
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
        """Return the facts that follow from the calls and their failures."""
        lost = _LOST in self._failures or (
            _UNKNOWN in self._failures and not self.answered)
        return health_facts.Facts(
            answered=self.answered or lost or bool(
                self._failures & {_RESET, _SILENT}),
            lost=lost, not_answering=_SILENT in self._failures,
            reset_required=_RESET in self._failures, **facts)


def _field(values: Any) -> int | None:
    """Return the value of the only requested field; None if it has none."""
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return values[0].value.uiVal


@gate.series
def instance_place(nvml: nvml_module.NvmlSession, address: model.PciAddress,
                   instance_id: int) -> model.Placement | None:
    """Return the placement of a GPU instance by id; None if not known."""
    try:
        handle = nvml.call('nvmlDeviceGetGpuInstanceById',
                           nvml.device(address), instance_id)
        place = nvml.call('nvmlGpuInstanceGetInfo', handle).placement
    except exception.NvmlError:
        return None
    return model.Placement(place.start, place.size)


def boot_id() -> str:
    """Return the kernel's id of this boot.

    Empty if the kernel has none, for example outside of Linux.
    """
    try:
        with open(_BOOT_ID, encoding='ascii') as stream:
            return stream.read().strip()
    except OSError:
        return ''
