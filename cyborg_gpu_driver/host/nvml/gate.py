# SPDX-License-Identifier: Apache-2.0

"""Decides when an NVML session is open and when it closes for others."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.nvml import access as access_module

LOG = logging.getLogger(__name__)

NVML = 'NVML'
"""The owner of calls that concern no GPU."""
ABSENT = frozenset({'NOT_SUPPORTED', 'FUNCTION_NOT_FOUND'})
"""Errors that mean that a GPU or its driver does not support a call."""
NO_SESSION = frozenset({'UNINITIALIZED', 'DRIVER_NOT_LOADED'})
"""Errors that mean that the session has ended."""

# The newest name of pynvml that the library needs.
if not hasattr(pynvml, 'c_nvmlGpuFabricInfo_v3_t'):
    raise exception.HostUnusable(
        reason=f'{pynvml.__file__} is of nvidia-ml-py '
               f'{importlib.metadata.version("nvidia-ml-py")}, and this '
               'library needs 13.580.65 or later')

_INDEX_LIMIT = 64
_NO_NUMBER = 0xffffffff
_PREFIX = 'NVML_ERROR_'
_SYMBOLS = {getattr(pynvml, name): name[len(_PREFIX):]
            for name in dir(pynvml) if name.startswith(_PREFIX)}
MISSING = 'LIBRARY_NOT_FOUND'
NOT_LOADED = 'DRIVER_NOT_LOADED'
_REASONS = {
    MISSING: 'there is no NVML library (libnvidia-ml.so.1) on this machine',
    NOT_LOADED: 'the NVIDIA kernel driver is not loaded',
    'LIB_RM_VERSION_MISMATCH': 'the NVML library and the loaded NVIDIA '
                               'kernel driver are of different versions; a '
                               'process keeps the library that it has '
                               'loaded, so restart it after an upgrade',
    'NO_PERMISSION': 'this user may not open the NVIDIA driver',
}


def function(name: str) -> Callable[..., Any] | None:
    """Return a function of pynvml, corrected where pynvml is wrong."""
    return _CORRECTED.get(name) or getattr(pynvml, name, None)


def _framebuffer_usage(vgpu: int) -> int:
    """Return the bytes of nvmlVgpuInstanceGetFbUsage.

    NVML writes an ``unsigned long long`` (nvml.h), but pynvml 13.615 passes
    an ``unsigned int``, which loses what is above 4 GiB.
    """
    used = ctypes.c_ulonglong()
    code = pynvml._nvmlGetFunctionPointer('nvmlVgpuInstanceGetFbUsage')(
        vgpu, ctypes.byref(used))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return used.value


_CORRECTED = {'nvmlVgpuInstanceGetFbUsage': _framebuffer_usage}


def symbol(code: int) -> str:
    """Name of an ``nvmlReturn_t`` without ``NVML_ERROR_`` (nvml.h)."""
    if code == pynvml.NVML_SUCCESS:
        return 'SUCCESS'
    return _SYMBOLS.get(code, f'CODE_{code}')


def error(call: str, code: int) -> exception.NvmlError:
    """Return this library's exception for the return code of a call."""
    return exception.NvmlError(call=call, code=code, symbol=symbol(code))


def reason(failure: exception.NvmlError) -> str:
    """Return why NVML cannot be opened, as text for users."""
    return _REASONS.get(failure.symbol, str(failure))


def indexed(ask: Callable[[int], Any], limit: int = _INDEX_LIMIT
            ) -> Iterator[tuple[int, Any]]:
    """Yield each index with what NVML has there.

    All indices are tried, because a kind's numbers differ between boards.
    NVML answers NOT_SUPPORTED for a gap and INVALID_ARGUMENT at the end.

    :param limit: the index at which to stop if NVML never reports the end.
    """
    for index in range(limit):
        try:
            found = ask(index)
        except exception.NvmlError as failure:
            if failure.symbol == 'INVALID_ARGUMENT':
                return
            if failure.symbol != 'NOT_SUPPORTED':
                raise
        else:
            yield index, found


def known(number: int | None) -> int | None:
    """Return a number of NVML; None for 0xffffffff, which stands for none."""
    return None if number == _NO_NUMBER else number


def text(value: str | bytes) -> str:
    """Return the text in a buffer up to NUL; structures contain bytes."""
    if isinstance(value, bytes):
        value = value.decode('utf-8', 'replace')
    return value.split('\0', 1)[0]


class Gate:
    """The connection of one session to NVML, through :class:`access.Access`.

    It outlives the object of its session while the connection is open.
    """

    def __init__(self, access: access_module.Access):
        self.access = access
        self.session: Any = None
        """The state of the open session, with ``library``; None if closed."""
        self.timeout = access.timeout
        """Seconds that nvmlShutdown may take."""
        self.stays_open = True
        """Whether the session remains open while it is not in use."""
        self._is_abandoned = False
        self.changing = threading.Lock()
        """Held while the session is opened or closed."""
        self._mutex = threading.RLock()
        self._users = 0
        self._in_vain = False
        """Whether the last caller waited in vain: the next does not wait."""
        self._held: int | None = None
        self.is_open = False
        """Whether NVML may be open, so that the lock is kept."""
        self._said = log_once.LogOnce()
        _gates.add(self)

    @contextlib.contextmanager
    def kept(self, seconds: float | None = None) -> Iterator[None]:
        """Keep the session from being closed for others.

        :param seconds: how long to wait while others want NVML closed.
        """
        self._enter(self.access.timeout if seconds is None else seconds)
        try:
            yield
        finally:
            with self._mutex:
                self._users -= 1
                if not self._users and not self.access.is_owner() and (
                        not self.stays_open or self._must_close()):
                    self.close(self.session)

    def opening(self) -> None:
        """Take the shared lock; call this before NVML is opened.

        :raises RuntimeError: if there is no thread that would close NVML for
            others, and none can be started now.
        """
        took = self._held is None
        if took:
            self._held = self.access.share()
        self.is_open = True
        try:
            _closer.add(self)
        except RuntimeError:
            if took:
                self.closed()
            raise

    def closed(self) -> None:
        """Release the shared lock; call this after NVML was closed."""
        self.is_open = False
        held, self._held = self._held, None
        access_module.release(held)

    def close(self, session: Any) -> bool:
        """Close a session, unless another thread has already closed it.

        :returns: whether it is closed. While a call has not returned,
            nvmlShutdown is not called: it would wait too, or would free what
            that call works on.
        """
        with self.changing:
            stuck = ', '.join(deadline.stuck())
            if self.session is None or session is not self.session:
                if self.session is None and not stuck:
                    # nvmlInit or nvmlShutdown may have ended too late.
                    self.closed()
                return True
            if stuck:
                if self._said.is_new(stuck):
                    LOG.warning('NVML cannot be closed: %s has not returned.',
                                stuck)
                return False
            self._said.over()
            return self._shut_down(session)

    def _shut_down(self, session: Any) -> bool:
        begun: list[bool] = []

        def call() -> None:
            begun.append(True)
            pynvml.nvmlShutdown()

        self.session = None
        # A replaced library must not delay the calls of its successor.
        if pynvml.nvmlLib is session.library:
            try:
                with contextlib.suppress(pynvml.NVMLError):
                    deadline.run(NVML, self.timeout, 'nvmlShutdown', call)
            except exception.NvmlNotAnswering:
                if not begun:
                    # Another call was ahead for too long.
                    self.session = session
                return False
        self.closed()
        return True

    def abandon(self) -> None:
        """Let the session be closed, because its object no longer exists.

        It takes no lock, because Python collects garbage in any thread, even
        in one that is inside pynvml or has the lock of another session.
        """
        self._is_abandoned = True

    def yield_to_others(self) -> None:
        """Close the session if it is idle and must not stay open."""
        with self._mutex:
            if (not self._users and self.access.owner is None
                    and self._must_close()):
                self.close(self.session)

    def _must_close(self) -> bool:
        # A session that could not be closed when this process had NVML to
        # itself is open without the shared lock.
        return (self.is_open and (
            self._is_abandoned or self._held is None
            or not self.access.is_current(self._held))
            or self.access.wanted())

    def forget(self) -> None:
        """After a fork: let go of the locks that the parent holds.

        nvmlShutdown would end the parent's session, whose open files the
        child has inherited.
        """
        self.access.forget()
        self.session = None
        self.changing = threading.Lock()
        self._mutex = threading.RLock()
        self._users = 0
        self.is_open = False
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _enter(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            with self._mutex:
                if self._may_enter():
                    self._users += 1
                    self._in_vain = False
                    return
            self.yield_to_others()
            if self._in_vain or time.monotonic() >= end:
                self._in_vain = seconds > 0
                raise self.access.closed()
            time.sleep(access_module.POLL)

    def _may_enter(self) -> bool:
        if self.access.owner is not None:
            return self.access.is_owner()
        return self._users > 0 or not self.access.wanted()


class Guarded:
    """A session that closes when other processes want NVML closed.

    It remains open while it is in use, or no other process wants NVML closed.
    """

    def __init__(self, timeout: float,
                 shared: access_module.Access | None = None):
        self.gate = Gate(shared or access_module.Access())
        self.timeout = timeout
        # At exit, the process closes NVML without our help.
        weakref.finalize(self, self.gate.abandon).atexit = False

    def reset(self) -> bool:
        """Close the session; the next call opens a new one.

        Use this after the driver was reloaded or a GPU was reset or lost,
        because the handles are then invalid. Never raises.

        :returns: whether the session is closed; see :meth:`Gate.close`.
        """
        self.gate.timeout = self.timeout
        return self.gate.close(self.gate.session)

    def kept(self, seconds: float | None = None
             ) -> contextlib.AbstractContextManager[None]:
        """Keep the session open for a series of calls.

        Handles are valid for one session. Between two series the session
        may be closed, because another process wants it closed. The block
        must not wait for such a process, for example for a GPU's lock.

        :param seconds: how long to wait while others have NVML to themselves.
        """
        return self.gate.kept(seconds)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Give this thread exclusive access to NVML within the block.

        No other thread, and no other process of this library, has NVML open.
        In the block, NVML is open from the first call of this thread until
        :meth:`reset`, which has to come before a GPU is unbound or reset.
        Do not use this within :meth:`kept`.

        :raises StepFailed: naming the processes that do not close NVML in
            time.
        """
        with self.gate.access.alone(self.gate.yield_to_others):
            try:
                yield
            finally:
                self.reset()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Call NVML on behalf of the process that has it to itself.

        NVML is closed after the block.
        """
        with self.gate.access.lent():
            try:
                yield
            finally:
                self.reset()


def series(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function keep one session open for all its calls (decorator).

    Its first argument is the session, or an object that has the session as
    ``nvml``, ``_nvml`` or ``_machine.nvml``. If the session cannot be kept
    open, the function runs all the same, and its calls raise the error.
    """
    @functools.wraps(function)
    def in_one_session(owner: Any, *arguments: Any, **named: Any) -> Any:
        with contextlib.ExitStack() as kept:
            with contextlib.suppress(exception.NvmlClosed):
                kept.enter_context(_session_of(owner).kept())
            return function(owner, *arguments, **named)
    return in_one_session


def _session_of(owner: Any) -> Guarded:
    if isinstance(owner, Guarded):
        return owner
    for name in ('nvml', '_nvml'):
        if hasattr(owner, name):
            return getattr(owner, name)
    return owner._machine.nvml


class _Closer:
    """The open sessions of this process, and a thread that closes them.

    An idle session does not notice that others want it closed.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.gates: list[Gate] = []
        self._thread: threading.Thread | None = None
        self._said = log_once.LogOnce()

    def add(self, gate: Gate) -> None:
        with self._mutex:
            if gate not in self.gates:
                self.gates.append(gate)
            self._thread = deadline.ensure_thread(self._thread, self._run,
                                                  'cyborg-gpu-nvml')

    def _run(self) -> None:
        """Close sessions for others until none is open. Never raises.

        Without this thread, no other process could have NVML to itself.
        """
        while True:
            time.sleep(access_module.POLL)
            with self._mutex:
                self.gates = [gate for gate in self.gates if gate.is_open]
                if not self.gates:
                    self._thread = None
                    return
            for gate in self.gates:
                try:
                    gate.yield_to_others()
                except Exception as error:
                    reason = exception.steady(error)
                    if self._said.is_new(reason, about=id(gate)):
                        LOG.error('An NVML session cannot be closed for '
                                  'another process: %s', reason)
                else:
                    self._said.over(about=id(gate))


_closer = _Closer()
_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def close_idle() -> None:
    """Close each idle session that must not stay open, now."""
    for gate in [*_closer.gates]:
        gate.yield_to_others()


def _forget_after_fork() -> None:
    global _closer
    _closer = _Closer()
    # A lock that another thread held while this process was forked would
    # stay locked here forever.
    for gate in [*_gates]:
        gate.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
