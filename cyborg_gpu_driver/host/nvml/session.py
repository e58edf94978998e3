# SPDX-License-Identifier: Apache-2.0


"""The session with NVIDIA's management library (NVML), through pynvml.

Only this module and :mod:`.gate` call pynvml. The first call opens the
session, in the process that makes the call: the agent forks after it has
created its drivers, and a session does not survive a fork.

Every call has a deadline and runs in a thread of the GPU that it concerns
(:mod:`cyborg_gpu_driver.host.deadline`). The driver makes calls on one GPU
take turns: seen on an H100 and an H200, driver 580.159.04.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.nvml import access
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import mig as nvml_mig
from cyborg_gpu_driver.host.snapshot import model

LOG = logging.getLogger(__name__)

INIT = 'nvmlInit'
"""The ``call`` of an error that means that there is no session."""

TIMEOUT = 30.0
"""Seconds for one call, and for all calls together that read one GPU.

A bind has to end before Cyborg gives up after [DEFAULT] rpc_response_timeout,
60 s. The driver itself gives up on the GPU system processor (GSP) after 6 s,
after 4 s on a host for vGPUs and after 45 s on a GPU in compute mode: one and
a half times what osGetTimeoutParams sets (arch/nvalloc/unix/src/os.c, and
_kgspRpcRecvPoll in kernel/gpu/gsp/kernel_gsp.c, of src/nvidia in NVIDIA's open
kernel modules, 595.45.04). Only the last of these exceeds this limit."""

_LONG = {INIT: 4, 'nvmlDeviceSetMigMode': 4}
"""Calls that may take this many times the timeout. nvmlInit loads the driver
if nothing keeps it loaded. A change of the MIG mode resets the GPU (nvml.h);
no bind waits for it, because the GPU has no instances then."""

_OWN_THREAD = frozenset({'nvmlEventSetWait_v2'})
"""Calls that wait on purpose, in a thread that does nothing else."""

_EVENTS = 'The event set of NVML'
_BY_ADDRESS = 'nvmlDeviceGetHandleByPciBusId'
_BY_INDEX = 'nvmlDeviceGetHandleByIndex'


@dataclasses.dataclass
class _Open:
    """The state of one open session."""

    library: Any
    devices: dict[model.PciAddress, Any] = dataclasses.field(
        default_factory=dict)
    owners: dict[int, Hashable] = dataclasses.field(default_factory=dict)
    """Owner of each handle, by the address in the handle."""


class NvmlSession(gate.Gate, nvml_mig.MigCalls):
    """One session with NVML, shared by the threads of a process.

    :param timeout: seconds for one call, and for all calls together in a
        :meth:`in_turn`.
    """

    def __init__(self, timeout: float = TIMEOUT,
                 shared: access.Access | None = None):
        super().__init__(timeout, shared)
        self.generation = 0
        """A number that grows each time the session is opened. Handles and
        static facts from an earlier generation may be wrong, because the
        driver may have been replaced."""
        self._said = log_once.LogOnce()
        self.library_missing = False
        """Whether the last attempt found no NVML library at all."""

    def another(self) -> NvmlSession:
        """Create a session like this one that opens and closes separately."""
        return NvmlSession(self.timeout, self.access)

    # The session itself

    def problem(self) -> str | None:
        """Open the session if needed; return why it cannot be opened.

        A healthy machine may have no library or no driver. This is logged
        once, and each call tries again.
        """
        try:
            with self.kept():
                self._opened()
        except exception.NvmlError as error:
            return gate.reason(error)
        return None

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of pynvml.

        :raises NvmlError: FUNCTION_NOT_FOUND if pynvml or the library is
            too old; NOT_SUPPORTED if the GPU does not support it; and so on.
        """
        with self.kept():
            return self._call(name, *args)

    def optional(self, name: str, *args: Any) -> Any:
        """Like :meth:`call`; None if the GPU or driver does not have it."""
        try:
            return self.call(name, *args)
        except exception.NvmlError as error:
            if error.symbol in gate.ABSENT:
                return None
            raise

    def _call(self, name: str, *args: Any) -> Any:
        session = self._opened()
        function = gate.function(name)
        if function is None:
            raise gate.error(
                name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            if name in _OWN_THREAD:
                return function(*args)
            owner = _owner(session, name, args)
            answer = deadline.run(owner, self._seconds(name), name, function,
                                  *args)
        except pynvml.NVMLError as error:
            wrapped = gate.error(name, error.value)
            if wrapped.symbol in gate.NO_SESSION:
                self.close(session)
            raise wrapped from error
        if isinstance(answer, ctypes._Pointer):
            session.owners[nvml_mig.pointer(answer)] = owner
        return answer

    def in_turn(self, address: model.PciAddress, function: Callable[..., Any],
                *arguments: Any) -> Any:
        """Call a function in the thread of a GPU, with all its calls of NVML.

        Together they may take as long as a single call otherwise. Calls that
        do not name a GPU by a handle count as calls about this GPU.
        """
        with self.kept():
            self._opened()
            return deadline.run(address, self.timeout, 'a series of calls',
                                function, *arguments)

    def belongs(self, handle: Any, owner: Any) -> None:
        """Record that ``handle`` is of the same GPU as ``owner``.

        Call this for each handle that NVML returns in a structure.
        """
        owners = self._opened().owners
        owners[nvml_mig.pointer(handle)] = owners.get(
            nvml_mig.pointer(owner), gate.NVML)

    def _seconds(self, name: str) -> float:
        """Return how many seconds a call may take."""
        return self.timeout * _LONG.get(name, 1)

    def _opened(self) -> _Open:
        session = self.session
        if session is not None:
            return session
        if deadline.owner() is not None:
            # Who waits for this thread opens the session again.
            raise gate.error(INIT, pynvml.NVML_ERROR_UNINITIALIZED)
        with self.changing:
            if self.session is not None:
                return self.session
            self.opening()
            try:
                deadline.run(gate.NVML, self._seconds(INIT), INIT,
                             pynvml.nvmlInit, undo=pynvml.nvmlShutdown)
            except pynvml.NVMLError as error:
                self.closed()
                raise self._refused(error.value) from error
            self.library_missing = False
            self._said.over()
            self.generation += 1
            self.session = _Open(pynvml.nvmlLib)
            return self.session

    def _refused(self, code: int) -> exception.NvmlError:
        error = gate.error(INIT, code)
        self.library_missing = error.symbol == gate.MISSING
        reason = gate.reason(error)
        if self._said.is_new(reason):
            # A healthy machine may have no library and no driver.
            LOG.log(logging.INFO
                    if error.symbol in (gate.MISSING, gate.NOT_LOADED)
                    else logging.WARNING, 'NVML is not available: %s', reason)
        return error

    # The machine

    def driver_version(self) -> str:
        """Version of the kernel driver (nvmlSystemGetDriverVersion)."""
        return gate.text(self.call('nvmlSystemGetDriverVersion'))

    def device_count(self) -> int:
        """Number of GPUs that NVML knows (nvmlDeviceGetCount)."""
        return self.call('nvmlDeviceGetCount')

    def device(self, address: model.PciAddress) -> Any:
        """Return the handle of the GPU at ``address``, cached per session.

        Use the handle only within one block of :meth:`kept`.
        """
        with self.kept():
            session = self._opened()
            handle = session.devices.get(address)
            if handle is None:
                handle = self.call('nvmlDeviceGetHandleByPciBusId',
                                   str(address))
                session.devices[address] = handle
            return handle

    def uuid(self, device: Any) -> str:
        """UUID of a GPU or a MIG device (nvmlDeviceGetUUID)."""
        return gate.text(self.call('nvmlDeviceGetUUID', device))

    def forget(self, address: model.PciAddress) -> None:
        """Drop the cached handle of the GPU at ``address``."""
        session = self.session
        if session is not None:
            session.devices.pop(address, None)

    def addresses(self) -> tuple[model.PciAddress, ...]:
        """Return the addresses of the GPUs that NVML knows and can open.

        Makes two calls per GPU.
        """
        found = []
        for index in range(self.device_count()):
            try:
                handle = self.call('nvmlDeviceGetHandleByIndex', index)
                info = self.call('nvmlDeviceGetPciInfo', handle)
            except exception.NvmlError as error:
                LOG.debug('GPU %d: %s', index, error)
                continue
            found.append(model.PciAddress.parse(gate.text(info.busId)))
        return tuple(sorted(found))


def _owner(session: _Open, name: str, arguments: tuple[Any, ...]) -> Hashable:
    """Return what a call concerns: a GPU's address, or a text."""
    first = arguments[0] if arguments else None
    owner = None
    if isinstance(first, ctypes._Pointer):
        owner = session.owners.get(nvml_mig.pointer(first))
    elif name == _BY_ADDRESS:
        owner = model.PciAddress.parse(arguments[0])
    elif name == _BY_INDEX:
        owner = f'The GPU with index {first}'
    elif name.startswith('nvmlEventSet'):
        owner = _EVENTS
    return owner or deadline.owner() or gate.NVML
