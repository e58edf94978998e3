# SPDX-License-Identifier: Apache-2.0

"""Decides when an NVML session is open and when it closes for others."""

from __future__ import annotations

import collections
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


def try_shut_down(library: Any, timeout: float,
                  closed: Callable[[], object]) -> bool:
    """Close a session.

    :returns: whether it is closed now; if not, it closes when nvmlShutdown
        returns.
    :raises NvmlNotAnswering: if another call was ahead for too long;
        nvmlShutdown was not called, and the session is still open.
    """
    begun: list[bool] = []

    def call() -> None:
        begun.append(True)
        pynvml.nvmlShutdown()

    # A replaced library must not delay the calls of its successor.
    if pynvml.nvmlLib is library:
        try:
            with contextlib.suppress(pynvml.NVMLError):
                deadline.run(NVML, timeout, 'nvmlShutdown', call)
        except exception.NvmlNotAnswering:
            if begun:
                return False
            raise
    closed()
    return True


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
    """Connects one session to :class:`access.Access`."""

    def __init__(self, access: access_module.Access,
                 close: Callable[[], object]):
        self.access = access
        self.stays_open = True
        """Whether the session remains open while it is not in use."""
        self._let_go = weakref.WeakMethod(close)
        self._mutex = threading.RLock()
        self._users = 0
        self._in_vain = False
        """Whether the last caller waited in vain: the next does not wait."""
        self._held: int | None = None
        self.is_open = False
        """Whether the session is open."""

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
                    self._close()

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

    def yield_to_others(self) -> None:
        """Close the session if it is idle and others want NVML closed."""
        with self._mutex:
            if (not self._users and self.access.owner is None
                    and self._must_close()):
                self._close()

    def _must_close(self) -> bool:
        # A session that could not be closed when this process had NVML to
        # itself is open without the shared lock.
        return (self.is_open and (
            self._held is None or not self.access.is_current(self._held))
            or self.access.wanted())

    def forget(self) -> None:
        """After a fork: let go of the locks that the parent holds."""
        self.access.forget()
        self._mutex = threading.RLock()
        self._users = 0
        self.is_open = False
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _close(self) -> None:
        close = self._let_go()
        if close is not None:
            close()

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

    def __init__(self, shared: access_module.Access | None = None):
        self.gate = Gate(shared or access_module.Access(), self._let_go)
        self.before_closing: Callable[[Callable], object] = (
            lambda call: None)
        """Called before the session is closed for others. Its argument is a
        function that calls a function of pynvml."""

    def reset(self) -> bool:
        """Close the session, and return whether it is closed."""
        raise NotImplementedError

    def _call(self, name: str, *arguments: Any) -> Any:
        raise NotImplementedError

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

    def _let_go(self) -> None:
        """Close the idle session for others."""
        try:
            self.before_closing(self._call)
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
        self._gates: list[weakref.ref[Gate]] = []
        self._thread: threading.Thread | None = None
        self._said = log_once.LogOnce()

    def add(self, gate: Gate) -> None:
        known = weakref.ref(gate)
        with self._mutex:
            if known not in self._gates:
                self._gates.append(known)
            self._thread = deadline.ensure_thread(self._thread, self._run,
                                                  'cyborg-gpu-nvml')

    def _run(self) -> None:
        """Close sessions for others until none is open. Never raises.

        Without this thread, no other process could have NVML to itself.
        """
        while True:
            time.sleep(access_module.POLL)
            with self._tried(None):
                with self._mutex:
                    gates = [gate for gate in (
                        known() for known in self._gates)
                        if gate is not None and gate.is_open]
                    self._gates = [weakref.ref(gate) for gate in gates]
                    if not gates:
                        self._thread = None
                        return
                close_abandoned()
                for gate in gates:
                    with self._tried(id(gate)):
                        gate.yield_to_others()
                del gate, gates

    @contextlib.contextmanager
    def _tried(self, about: int | None) -> Iterator[None]:
        """Log an error of the block once, and go on."""
        try:
            yield
        except Exception as error:
            reason = exception.steady(error)
            if self._said.is_new(reason, about=about):
                LOG.error('An NVML session cannot be closed for another '
                          'process: %s', reason)
        else:
            self._said.over(about=about)


_closer = _Closer()
_abandoned: collections.deque[Callable[[], object]] = collections.deque()
"""Functions that close sessions whose objects no longer exist."""


def close_soon(close: Callable[..., object], *arguments: Any) -> None:
    """Schedule the close of a session whose object no longer exists.

    It takes no lock, because Python collects garbage in any thread, even in
    one that is inside pynvml or has the lock of another session.
    """
    _abandoned.append(functools.partial(close, *arguments))


def shut_down(library: Any, timeout: float, closed: Callable[[], object]
              ) -> None:
    """Close a session whose object no longer exists."""
    if not try_shut_down(library, timeout, closed):
        # nvmlShutdown has not returned yet.
        close_soon(closed)


def close_abandoned() -> None:
    """Close the sessions whose objects no longer exist.

    A failure is only logged, because the caller needs another session. If
    a session cannot be closed yet, the next call tries again.
    """
    while not deadline.stuck():
        try:
            close = _abandoned.popleft()
        except IndexError:
            return
        try:
            close()
        except exception.NvmlNotAnswering:
            _abandoned.append(close)
            return
        except Exception as error:
            LOG.debug('An abandoned NVML session cannot be closed: %s', error)


def _forget_after_fork() -> None:
    global _closer
    _closer = _Closer()
    _abandoned.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
