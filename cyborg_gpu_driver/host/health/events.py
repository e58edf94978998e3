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


"""Receives errors of GPUs at the moment that they happen.

NVML reports events to a thread that waits in an NVML call. The call releases
the interpreter's lock, so waiting blocks no other thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
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

LOG = logging.getLogger(__name__)

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
_FIRST_DELAY = 1.0
_LONGEST_DELAY = 60.0
_STOP_SECONDS = 5.0
"""How long :meth:`Watcher.stop` waits for a thread that may be stuck in NVML.
The thread keeps no process alive."""

Callback = Callable[[condition.Event], object]


class Watcher:
    """A thread that receives the errors of a process's GPUs.

    The thread has its own NVML session, so that the end of the process's
    session does not remove what the thread waits on. NVML may go away and
    come back.

    :param nvml: the process's session. It has to notice first that NVML has
        come back, because its handles are then invalid.
    :param callback: called in the thread with each event.
    """

    def __init__(self, nvml: nvml_module.NvmlSession, callback: Callback):
        self._callback = callback
        self._wake = threading.Event()
        self._set = EventSet(nvml, nvml.another(), self._wake)
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted: frozenset[model.PciAddress] = frozenset()
        self._look = False
        self._stopping = False
        self._said = log_once.LogOnce()

    def watch(self, addresses: Iterable[model.PciAddress]) -> None:
        """Receive errors of these GPUs from now on, and of no others.

        Call this with each report. It starts the thread, in the process that
        does the work, and tries GPUs again that could not be watched or were
        reset.
        """
        with self._mutex:
            self._wanted = frozenset(addresses)
            self._look = True
            self._wake.set()
            if self._thread is None or not self._thread.is_alive():
                self._stopping = False
            self._thread = deadline.is_alive(self._thread, self._run,
                                             'cyborg-gpu-events')

    def stop(self) -> None:
        """End the thread; :meth:`watch` starts a new one."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        delay = _FIRST_DELAY
        while not self._stopping:
            self._wake.clear()
            with self._mutex:
                wanted = self._wanted
                look, self._look = self._look, False
            try:
                if look or self._set.was_taken():
                    self._tell(self._set.settle(wanted))
                if not self._set.members:
                    self._wake.wait()
                    continue
                self._tell(self._set.wait(_WAIT_MS))
                delay = _FIRST_DELAY
            except Exception as error:
                self._say_failure(error)
                self._close()
                with self._mutex:
                    self._look = True
                if isinstance(error, exception.NvmlClosed):
                    delay = _FIRST_DELAY
                self._wake.wait(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
        self._close()

    def _say_failure(self, error: Exception) -> None:
        """Log the error that ended the wait; an unexpected error once."""
        if isinstance(error, exception.NvmlError):
            LOG.debug('Waiting for events of the GPUs: %s', error)
            return
        text = f'{type(error).__name__}: {exception.steady(error)}'
        if self._said.is_new(text, about=text):
            LOG.error('Cannot wait for error events of the GPUs; trying '
                      'again: %s', text, exc_info=error)

    def _close(self) -> None:
        try:
            self._set.close()
        except Exception as error:
            self._say_failure(error)

    def _tell(self, events: Iterable[condition.Event]) -> None:
        for event in events:
            try:
                self._callback(event)
            except Exception:
                LOG.exception('XID %(xid)s of GPU %(gpu)s was lost',
                              {'xid': event.xid, 'gpu': event.address})


class EventSet:
    """The GPUs that one thread waits on, through its own session.

    :param shared: the process's session.
    :param nvml: the thread's session.
    :param wake: is set when the event set was freed for another process.
    """

    def __init__(self, shared: nvml_module.NvmlSession,
                 nvml: nvml_module.NvmlSession,
                 wake: threading.Event | None = None):
        self._shared = shared
        self._nvml = nvml
        self._handle = None
        self._said = log_once.LogOnce()
        self._unfit: set[model.PciAddress] = set()
        """GPUs that break a set when they are put into it."""
        self.members: dict[int, model.PciAddress] = {}
        """GPUs in the set, by the address that their handles point to."""
        self._was_taken = False
        self._wake = wake or threading.Event()
        nvml.before_closing = self._give_up

    def was_taken(self) -> bool:
        """Whether the set was freed for another process since the last call.

        No GPU is waited on then, until :meth:`settle` is called.
        """
        taken, self._was_taken = self._was_taken, False
        return taken

    def settle(self, wanted: frozenset[model.PciAddress]
               ) -> list[condition.Event]:
        """Put these GPUs and no others into the set, as far as possible.

        A GPU that refuses is left out and does not affect the others.

        :returns: one event for each member that turns out to be lost.
        :raises NvmlError: if NVML itself is not available.
        :raises NvmlClosed: if another process has NVML to itself.
        """
        with self._nvml.kept(0):
            before = set(self.members.values())
            states = {address: self._state(address) for address in before}
            if not before <= wanted or set(states.values()) - _STILL_MEMBERS:
                self.close()
        if self._handle is None and wanted:
            with self._shared.kept(0):
                self._shared.device_count()
        with self._nvml.kept(0):
            if self._handle is None and wanted:
                self._handle = self._call('nvmlEventSetCreate')
            for address in sorted(wanted - self._unfit
                                  - set(self.members.values())):
                self._register(address)
        return [condition.Event(address, OFF_THE_BUS)
                for address in sorted(states)
                if states[address] == 'GPU_IS_LOST']

    def wait(self, milliseconds: int) -> list[condition.Event]:
        """Return the next event, if there is one within that time.

        :raises NvmlError: if the set can no longer be used.
        :raises NvmlClosed: if another process has NVML to itself.
        """
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
        if self._handle is None:
            return []
        data = self._call('nvmlEventSetWait_v2', self._handle, milliseconds)
        return [condition.Event(
            self._address(data.device), _xid(data),
            gate.known(data.gpuInstanceId),
            gate.known(data.computeInstanceId))]

    def close(self) -> None:
        """Free the set and close the session. Does not raise."""
        self.members.clear()
        if self._handle is not None:
            with contextlib.suppress(exception.NvmlError):
                self._call('nvmlEventSetFree', self._handle)
        self._handle = None
        self._nvml.reset()

    def _give_up(self, call: Callable[..., Any]) -> None:
        """Free the set, because its session is being closed for others."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self.members.clear()
            self._was_taken = True
            self._wake.set()
            with contextlib.suppress(exception.NvmlError):
                call('nvmlEventSetFree', handle)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self._nvml.call(name, *arguments)
        except exception.NvmlError as error:
            if error.symbol in gate.NO_SESSION:
                # The set has ended with the session. Freeing it in the next
                # session would free memory twice.
                self._handle = None
            raise

    def _state(self, address: model.PciAddress) -> str | None:
        """Return None if the GPU's handle is valid, else the error."""
        try:
            self._call('nvmlDeviceGetSupportedEventTypes',
                       self._nvml.device(address))
        except exception.NvmlError as error:
            return error.symbol
        return None

    def _register(self, address: model.PciAddress) -> None:
        try:
            device = self._nvml.device(address)
            types = _TYPES & self._call(
                'nvmlDeviceGetSupportedEventTypes', device)
            if not types:
                raise gate.error('nvmlDeviceRegisterEvents',
                                 pynvml.NVML_ERROR_NOT_SUPPORTED)
            self._call('nvmlDeviceRegisterEvents', device, types,
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
        info = self._call('nvmlDeviceGetPciInfo', device)
        return model.PciAddress.parse(gate.text(info.busId))


def _xid(data: Any) -> int:
    """Return the XID; ``eventData`` has it for XID events only (nvml.h)."""
    if data.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
        return DOUBLE_BIT
    return data.eventData
