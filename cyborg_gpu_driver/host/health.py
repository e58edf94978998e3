# SPDX-License-Identifier: Apache-2.0

"""Reads the health of GPUs, and receives their errors as they happen."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import mig as nvml_mig
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

LOG = logging.getLogger(__name__)

_LOST = 'GPU_IS_LOST'
_RESET = 'RESET_REQUIRED'
_UNKNOWN = 'UNKNOWN'
_SILENT = exception.NvmlNotAnswering.symbol


@gate.series
def read(nvml: nvml_module.NvmlSession, address: model.PciAddress
         ) -> condition.Facts:
    """Read the health of the GPU at ``address``.

    Does not raise for a hardware fault. A GPU that fell off the bus answers
    GPU_IS_LOST, or UNKNOWN to every call (an assumption; nvidia-smi then
    prints "Unknown Error"). A GPU that does not answer is not queried
    further.
    """
    try:
        return nvml.in_turn(address, _read, nvml, address)
    except exception.NvmlError as error:
        is_silent = error.symbol == _SILENT
        return condition.Facts(answered=is_silent, not_answering=is_silent)


def _read(nvml: nvml_module.NvmlSession, address: model.PciAddress
          ) -> condition.Facts:
    asked = _Questions(nvml, address)
    # A GPU remaps rows or retires pages. A GPU in MIG mode does not
    # support the call for rows while it has instances (nvml.h).
    rows = asked.ask('nvmlDeviceGetRemappedRows')
    retired = None if rows else asked.ask(
        'nvmlDeviceGetRetiredPagesPendingStatus')
    reasons = asked.ask('nvmlDeviceGetCurrentClocksEventReasons')
    return asked.facts(
        ecc_uncorrected=asked.ask(
            'nvmlDeviceGetTotalEccErrors',
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC),
        remapped_rows=rows and rows[0] + rows[1],
        remap_pending=rows and bool(rows[2]),
        remap_failed=rows and bool(rows[3]),
        retired_pending=None if retired is None else bool(retired),
        thermal_slowdown=None if reasons is None else bool(
            reasons & pynvml.nvmlClocksEventReasonHwThermalSlowdown),
        recovery_action=_field(asked.ask(
            'nvmlDeviceGetFieldValues',
            [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])))


class _Questions:
    """Makes calls about one GPU, and notes which of them failed."""

    def __init__(self, nvml: nvml_module.NvmlSession,
                 address: model.PciAddress):
        self._nvml = nvml
        self._failures: set[str] = set()
        self._answered = False
        self._device = None
        try:
            self._device = nvml.device(address)
        except exception.NvmlError as error:
            self._failures.add(error.symbol)

    def ask(self, call: str, *arguments: Any) -> Any:
        """Return the answer of a call, or None.

        A lost GPU is not queried further, because each answer may take long.
        """
        if self._device is None or _LOST in self._failures:
            return None
        try:
            answer = self._nvml.call(call, self._device, *arguments)
        except exception.NvmlNotAnswering:
            raise
        except exception.NvmlError as error:
            if error.symbol not in gate.ABSENT:
                self._failures.add(error.symbol)
            return None
        self._answered = True
        return answer

    def facts(self, **facts: Any) -> condition.Facts:
        """Return the facts that follow from the calls and their failures."""
        lost = _LOST in self._failures or (
            _UNKNOWN in self._failures and not self._answered)
        return condition.Facts(
            answered=self._answered or lost or _RESET in self._failures,
            lost=lost, reset_required=_RESET in self._failures, **facts)


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
        handle = nvml.gpu_instance(nvml.device(address), instance_id)
        place = nvml.call('nvmlGpuInstanceGetInfo', handle).placement
    except exception.NvmlError:
        return None
    return model.Placement(place.start, place.size)


# What the PCI bus shows of a GPU's health, whatever its driver.
#
# Sources, all in the kernel's documentation: ``aer_dev_fatal`` in
# Documentation/ABI/testing/sysfs-bus-pci-devices-aer, ``current_link_width``
# in Documentation/ABI/testing/sysfs-bus-pci. A function that is off the bus
# reads as all ones (PCI Local Bus Specification, "master abort"). A function
# that sleeps is woken for a read of its configuration space
# (pci_config_pm_runtime_get in drivers/pci/pci.c).

_TOTAL = re.compile('TOTAL_ERR_FATAL ([0-9]+)', re.ASCII)
_WIDTH = re.compile('^([0-9]+)$', re.ASCII)
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
        fatal=_number(_TOTAL, sysfs, *place, 'aer_dev_fatal'),
        width=_number(_WIDTH, sysfs, *place, 'current_link_width'))


def wrong_pci(before: Seen, now: Seen) -> tuple[str, ...]:
    """Return what is wrong with a function.

    :param before: its state when NVML last found it healthy.
    """
    return tuple(code for code, found in (
        (condition.UNREACHABLE, now.reachable is False),
        (condition.FATAL, _grew(before.fatal, now.fatal)),
        (condition.LANES, _grew(now.width, before.width))) if found)


def _grew(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def _number(pattern: re.Pattern[str], sysfs: pci.Sysfs, *place: str
            ) -> int | None:
    """Return the number that a file has; None if it has none."""
    try:
        match = pattern.search(sysfs.read_optional(*place) or '')
    except exception.SysfsError:
        return None
    return int(match[1]) if match else None


# Errors of GPUs at the moment that they happen.
#
# NVML reports events to a thread that waits in an NVML call. The call releases
# the interpreter's lock, so waiting blocks no other thread.

OFF_THE_BUS = 79
"""XID of a GPU that fell off the bus (NVIDIA's XID catalogue)."""
DOUBLE_BIT = 48
"""XID of an uncorrected ECC error, which also has its own event type."""

_TYPES = (pynvml.nvmlEventTypeXidCriticalError
          | pynvml.nvmlEventTypeDoubleBitEccError)
_STILL_MEMBERS = {None, exception.NvmlNotAnswering.symbol}
"""States of GPUs with which a set is kept. To remove a GPU, the set has to be
freed, which may hang too while a call about the GPU hangs."""
_WAIT_MS = 1000
"""How long one call waits. Stopping and pausing take that long."""
_RETRY = 10.0
"""Seconds until the GPUs are waited on again after an error. Each attempt
may load the driver again that an operator has just removed."""

Callback = Callable[[condition.Event], object]


class Watcher:
    """A thread that receives the errors of a process's GPUs.

    The thread has its own NVML session, so that the end of the process's
    session does not remove what the thread waits on. NVML may go away and
    come back.

    :param nvml: the process's session. It has to notice first that NVML has
        come back, because its handles are then invalid.
    """

    def __init__(self, nvml: nvml_module.NvmlSession, callback: Callback):
        self._callback = callback
        self._set = EventSet(nvml, nvml.another())
        self._thread = deadline.Repeated(self._listen, _RETRY,
                                         'cyborg-gpu-events')
        self._wanted: frozenset[model.PciAddress] = frozenset()
        self._look = False

    def watch(self, addresses: Iterable[model.PciAddress]) -> None:
        """Receive errors of these GPUs from now on, and of no others.

        Call this with each report. It starts the thread, in the process that
        does the work, and tries GPUs again that could not be watched or were
        reset.
        """
        self._wanted = frozenset(addresses)
        self._look = True
        self._thread.start()
        self._thread.ask()

    def stop(self) -> None:
        """End the thread; :meth:`watch` starts a new one."""
        if self._thread.stop():
            self._set.close()

    def _listen(self) -> None:
        """Report events until there is no GPU to wait on."""
        try:
            while not self._thread.is_stopping:
                look, self._look = self._look, False
                if look or self._set.members and not self._set.is_current():
                    self._tell(self._set.settle(self._wanted))
                if not self._set.members:
                    return
                self._tell(self._set.wait(_WAIT_MS))
        except Exception as error:
            self._look = True
            self._set.close()
            if not isinstance(error, exception.NvmlError):
                raise
            LOG.debug('Waiting for events of the GPUs: %s', error)

    def _tell(self, events: Iterable[condition.Event]) -> None:
        for event in events:
            try:
                self._callback(event)
            except Exception:
                LOG.exception('XID %(xid)s of GPU %(gpu)s was lost',
                              {'xid': event.xid, 'gpu': event.address})


class EventSet:
    """The GPUs that one thread waits on, through its own session."""

    def __init__(self, shared: nvml_module.NvmlSession,
                 nvml: nvml_module.NvmlSession):
        self._shared = shared
        self._nvml = nvml
        self._handle = None
        self._session: Any = None
        """The session of the set, with which the set ends. Freeing it in the
        next session would free memory twice."""
        self._said = log_once.LogOnce()
        self._unfit: set[model.PciAddress] = set()
        """GPUs that break a set when they are put into it."""
        self.members: dict[int, model.PciAddress] = {}
        """GPUs in the set, by the address that their handles point to."""

    def is_current(self) -> bool:
        """Whether the set exists: its session may be closed for others."""
        return (self._handle is not None
                and self._session is self._nvml.session)

    def settle(self, wanted: frozenset[model.PciAddress]
               ) -> list[condition.Event]:
        """Put these GPUs and no others into the set, as far as possible.

        A GPU that refuses is left out and does not affect the others.
        """
        with self._nvml.kept(0):
            if not self.is_current():
                self.members.clear()
            before = set(self.members.values())
            states = {address: self._state(address) for address in before}
            if not before <= wanted or set(states.values()) - _STILL_MEMBERS:
                self.close()
        if not self.is_current() and wanted:
            with self._shared.kept(0):
                self._shared.device_count()
        with self._nvml.kept(0):
            if not self.is_current() and wanted:
                self.members.clear()
                self._handle = self._nvml.call('nvmlEventSetCreate')
                self._session = self._nvml.session
            for address in sorted(wanted - self._unfit
                                  - set(self.members.values())):
                self._register(address)
        return [condition.Event(address, OFF_THE_BUS)
                for address in sorted(states)
                if states[address] == 'GPU_IS_LOST']

    def wait(self, milliseconds: int) -> list[condition.Event]:
        """Return the next event, if there is one within that time."""
        try:
            with self._nvml.kept(0):
                return self._next(milliseconds)
        except exception.NvmlError as error:
            if error.symbol == 'TIMEOUT':
                return []
            if error.symbol != 'GPU_IS_LOST':
                raise
            # One lost GPU breaks the set for all GPUs.
            lost = self.settle(frozenset(self.members.values()))
            if not lost:
                raise
            return lost

    def _next(self, milliseconds: int) -> list[condition.Event]:
        if not self.is_current():
            return []
        data = self._nvml.call('nvmlEventSetWait_v2', self._handle,
                               milliseconds)
        return [condition.Event(
            self._address(data.device), _xid(data),
            gate.known(data.gpuInstanceId),
            gate.known(data.computeInstanceId))]

    def close(self) -> None:
        """Free the set and close the session. Does not raise."""
        self.members.clear()
        with (contextlib.suppress(exception.NvmlError),
              self._nvml.kept(0)):
            if self.is_current():
                self._nvml.call('nvmlEventSetFree', self._handle)
        self._handle = None
        self._nvml.reset()

    def _state(self, address: model.PciAddress) -> str | None:
        """Return None if the GPU's handle is valid, else the error."""
        try:
            self._nvml.call('nvmlDeviceGetSupportedEventTypes',
                            self._nvml.device(address))
        except exception.NvmlError as error:
            return error.symbol
        return None

    def _register(self, address: model.PciAddress) -> None:
        try:
            device = self._nvml.device(address)
            types = _TYPES & self._nvml.call(
                'nvmlDeviceGetSupportedEventTypes', device)
            if not types:
                raise gate.error('nvmlDeviceRegisterEvents',
                                 pynvml.NVML_ERROR_NOT_SUPPORTED)
            self._nvml.call('nvmlDeviceRegisterEvents', device, types,
                            self._handle)
            self.members[nvml_mig.pointer(device)] = address
        except exception.NvmlError as error:
            if error.call == nvml_module.INIT:
                raise
            self._nvml.forget(address)
            self._say(address, error)
            if (error.symbol == 'UNKNOWN'
                    and error.call == 'nvmlDeviceRegisterEvents'):
                # nvml.h: the set is then "in undefined state".
                self._unfit.add(address)
                raise

    def _say(self, address: model.PciAddress, error: exception.NvmlError
             ) -> None:
        """Log once why a GPU is not waited on."""
        if self._said.is_new(error.symbol, about=(address, error.symbol)):
            LOG.info('GPU %(gpu)s sends no error events (%(error)s); each '
                     'report reads its health instead.',
                     {'gpu': address, 'error': error})

    def _address(self, device: Any) -> model.PciAddress:
        known = self.members.get(nvml_mig.pointer(device))
        if known is not None:
            return known
        info = self._nvml.call('nvmlDeviceGetPciInfo', device)
        return model.PciAddress.parse(gate.text(info.busId))


def _xid(data: Any) -> int:
    """Return the XID; ``eventData`` has it for XID events only (nvml.h)."""
    if data.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
        return DOUBLE_BIT
    return data.eventData
