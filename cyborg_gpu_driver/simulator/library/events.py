# SPDX-License-Identifier: Apache-2.0

"""NVML's events: sets of GPUs for whose events a process waits.

Events are part of the machine's state, so that a process receives events that
another process has caused.
"""

from __future__ import annotations

import ctypes
import dataclasses
import time

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.library import device as library_device

Refused = faults.Refused
_LOOK_EVERY = 0.05
"""In seconds. Another process cannot wake a waiting process."""
_MICROSECONDS = 1_000_000
_sleep = ctypes.CDLL(None).usleep
_SUPPORTED = (pynvml.nvmlEventTypeSingleBitEccError
              | pynvml.nvmlEventTypeDoubleBitEccError
              | pynvml.nvmlEventTypePState
              | pynvml.nvmlEventTypeXidCriticalError
              | pynvml.nvmlEventTypeClock)
_SUPPORTED_BY_HOPPER = pynvml.nvmlEventTypeAll
"""Seen on an H100 and an H200, driver 580.159.04."""


@dataclasses.dataclass
class _Registered:
    """A GPU in a set."""

    handle: int
    epoch: int
    """Epoch of the GPU. After a reset, the GPU sends no more events."""
    types: int
    seen: int
    """Number of the machine's last event that the set does not report."""


@abi.symbol('nvmlEventSetCreate')
def create(library, reference):
    abi.put_handle(reference, library.events.make({}))


@abi.symbol('nvmlEventSetFree')
def free(library, event_set):
    library.events.free(event_set)


def _supported(gpu):
    return (_SUPPORTED_BY_HOPPER if gpu.model.architecture
            == pynvml.NVML_DEVICE_ARCH_HOPPER else _SUPPORTED)


@abi.symbol('nvmlDeviceRegisterEvents')
def register(library, handle, types, event_set):
    gpu = library.gpu(handle)
    types = abi.number(types)
    if types & ~_supported(gpu):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    library.events.get(event_set)[gpu.address] = _Registered(
        abi.handle(handle), gpu.state.epoch, types,
        library.machine.state.counter)


def _linger(library, event_set, _data, milliseconds):
    """Wait until the call can return, or until its timeout."""
    end = time.monotonic() + abi.number(milliseconds) / 1000
    while not _has_answer(library, event_set):
        left = end - time.monotonic()
        if left <= 0:
            return
        _sleep(int(min(left, _LOOK_EVERY) * _MICROSECONDS))


def _has_answer(library, event_set):
    with library.machine.operation():
        if not library.open:
            return True
        try:
            members = library.events.get(event_set)
        except Refused:
            return True
        return (_next(library, members) is not None
                or _any_lost(library, members))


@abi.symbol('nvmlEventSetWait_v2', 'nvmlEventSetWait', before=_linger)
def wait(library, event_set, data, milliseconds):
    members = library.events.get(event_set)
    event = _next(library, members)
    if event is None:
        raise Refused(pynvml.NVML_ERROR_GPU_IS_LOST
                      if _any_lost(library, members)
                      else pynvml.NVML_ERROR_TIMEOUT)
    member = members[event.gpu]
    member.seen = event.number
    data = abi.target(data)
    data.device = abi.as_handle(member.handle, pynvml.c_nvmlDevice_t)
    data.eventType = _type(event)
    data.eventData = event.xid or 0
    data.gpuInstanceId = abi.or_none(event.instance)
    data.computeInstanceId = abi.or_none(event.compute)


def _type(event):
    if event.xid is None:
        return pynvml.nvmlEventTypeDoubleBitEccError
    return pynvml.nvmlEventTypeXidCriticalError


def _next(library, members) -> state_module.Xid | None:
    """The oldest event that the set has not reported yet."""
    for event in library.machine.state.xids:
        member = members.get(event.gpu)
        if (member is not None and event.number > member.seen
                and _type(event) & member.types
                and library.machine.gpu(event.gpu).state.epoch
                == member.epoch):
            return event
    return None


def _any_lost(library, members):
    return any(library.machine.gpu(address).unreachable
               for address in members)


abi.numbers(library_device.gpu_of, {
    'nvmlDeviceGetSupportedEventTypes': _supported})
