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
import re
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

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
    def read(self, address: model.PciAddress) -> condition.Facts:
        """Read the health of the GPU at ``address``.

        Makes five calls, more the first time. Does not raise for a hardware
        fault. A GPU that fell off the bus answers GPU_IS_LOST, or UNKNOWN to
        every call (an assumption; nvidia-smi then prints "Unknown Error"). A
        GPU that does not answer is not queried further.
        """
        with self._nvml.about(address):
            return self._read(address)

    def _read(self, address: model.PciAddress) -> condition.Facts:
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
            if error.symbol in gate.ABSENT:
                absent.add(call)
            else:
                self._failures.add(error.symbol)
            return None
        self.answered = True
        return answer

    def facts(self, **facts: Any) -> condition.Facts:
        """Return the facts that follow from the calls and their failures."""
        lost = _LOST in self._failures or (
            _UNKNOWN in self._failures and not self.answered)
        return condition.Facts(
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


# What the PCI bus shows of a GPU's health, whatever its driver.
#
# Sources, all in the kernel's documentation: ``aer_dev_fatal`` in
# Documentation/ABI/testing/sysfs-bus-pci-devices-aer, ``current_link_width``
# in Documentation/ABI/testing/sysfs-bus-pci. A function that is off the bus
# reads as all ones (PCI Local Bus Specification, "master abort"). A function
# that sleeps is woken for a read of its configuration space
# (pci_config_pm_runtime_get in drivers/pci/pci.c).

_TOTAL = re.compile('TOTAL_ERR_FATAL ([0-9]+)', re.ASCII)
_ABSENT = b'\xff\xff\xff\xff'
"""First register (vendor and device id) of a function that does not answer."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A function at one moment; None where the kernel reports nothing."""

    reachable: bool | None = None
    """Whether its configuration space can be read."""
    fatal: int | None = None
    """Fatal errors since the machine was started (AER)."""
    width: int | None = None
    """PCIe lanes in use. The speed of the link is no sign of health: GPUs
    lower it while they are idle (the manual of nvidia-smi, "PCIe Generation
    and Link Width")."""


def read_pci(sysfs: pci.Sysfs, address: model.PciAddress) -> Seen:
    """Read the state of a function. Does not raise for a hardware fault."""
    place = (*pci.DEVICES, str(address))
    try:
        config = sysfs.read_bytes(*place, 'config')
    except exception.SysfsError:
        config = None
    return Seen(
        reachable=None if not config else config[:4] != _ABSENT,
        fatal=_fatal(_optional(sysfs, *place, 'aer_dev_fatal')),
        width=_number(_optional(sysfs, *place, 'current_link_width')))


def wrong_pci(before: Seen, now: Seen) -> tuple[str, ...]:
    """Return what is wrong with a function.

    :param before: its state when NVML last found it healthy.
    :param now: its state now.
    :returns: codes from :data:`health_facts.PCI`.
    """
    return tuple(code for code, found in (
        (condition.UNREACHABLE, now.reachable is False),
        (condition.FATAL, _grew(before.fatal, now.fatal)),
        (condition.LANES, _grew(now.width, before.width))) if found)


def _grew(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def _optional(sysfs: pci.Sysfs, *place: str) -> str | None:
    try:
        return sysfs.read_optional(*place)
    except exception.SysfsError:
        return None


def _fatal(text: str | None) -> int | None:
    match = _TOTAL.search(text or '')
    return _number(match[1]) if match else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
