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
    """A session that closes when other processes want NVML closed.

    It remains open while it is in use, or no other process wants NVML closed.
    """

    def __init__(self, timeout: float,
                 shared: access_module.Access | None = None):
        self.access = shared or access_module.Access()
        self.timeout = timeout
        """Seconds that one call may take."""
        self.session: Any = None
        """The state of the open session, with ``library``; None if closed."""
        self.stays_open = True
        """Whether the session remains open while it is not in use."""
        self.changing = threading.Lock()
        """Held while the session is opened or closed."""
        self._mutex = threading.RLock()
        self._users = 0
        self._in_vain = False
        """Whether the last caller waited in vain: the next does not wait."""
        self._held: int | None = None
        self.is_open = False
        """Whether NVML may be open, so that the lock is kept."""
        self._trouble = log_once.LogOnce()
        with _mutex:
            _gates.add(self)

    @contextlib.contextmanager
    def kept(self, seconds: float | None = None) -> Iterator[None]:
        """Keep the session open for a series of calls.

        Handles are valid for one session. Between two series the session
        may be closed, because another process wants it closed. The block
        must not wait for such a process, for example for a GPU's lock.

        :param seconds: how long to wait while others have NVML to themselves.
        """
        if deadline.owner() is not None:
            # Who waits for this thread keeps the session.
            yield
            return
        self._enter(self.access.timeout if seconds is None else seconds)
        try:
            yield
        finally:
            with self._mutex:
                self._users -= 1
                if not self._users and not self.access.is_owner() and (
                        not self.stays_open or self._must_close()):
                    self.close(self.session)

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
        with self.access.alone(self.yield_to_others):
            try:
                yield
            finally:
                self.reset()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Call NVML on behalf of the process that has it to itself.

        NVML is closed after the block.
        """
        with self.access.lent():
            try:
                yield
            finally:
                self.reset()

    def reset(self) -> bool:
        """Close the session; the next call opens a new one.

        Use this after the driver was reloaded or a GPU was reset or lost,
        because the handles are then invalid. Never raises.

        :returns: whether the session is closed; see :meth:`close`.
        """
        return self.close(self.session)

    def opening(self) -> None:
        """Take the shared lock; call this before NVML is opened.

        :raises RuntimeError: if there is no thread that would close NVML for
            others, and none can be started now.
        """
        took = self._held is None
        if took:
            self._held = self.access.share()
            # At exit, the process closes NVML without our help.
            self._release = weakref.finalize(
                self, access_module.release, self._held)
            self._release.atexit = False
        self.is_open = True
        with _mutex:
            _open.add(self)
        try:
            _closer.start()
        except RuntimeError:
            if took:
                self.closed()
            raise

    def closed(self) -> None:
        """Release the shared lock; call this after NVML was closed."""
        self.is_open = False
        with _mutex:
            _open.discard(self)
        if self._held is not None:
            self._held = None
            self._release()

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
                if self._trouble.is_new(stuck):
                    LOG.warning('NVML cannot be closed: %s has not returned.',
                                stuck)
                return False
            self._trouble.over()
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
            self._held is None or not self.access.is_current(self._held))
            or self.access.wanted())

    def forked(self) -> None:
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
        if self._held is not None:
            self._release.detach()
            os.close(self._held)
            self._held = None

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


def _session_of(owner: Any) -> Gate:
    if isinstance(owner, Gate):
        return owner
    for name in ('nvml', '_nvml'):
        if hasattr(owner, name):
            return getattr(owner, name)
    return owner._machine.nvml


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_open: set[Gate] = set()
"""Sessions that nobody uses any more stay here until others want them closed.
"""
_mutex = threading.Lock()
_said = log_once.LogOnce()


def _close_for_others() -> None:
    """Close the sessions that others want closed.

    An idle session does not notice that. Without the thread that calls this,
    no other process could have NVML to itself.
    """
    with _mutex:
        gates = [*_open]
    for gate in gates:
        with _said.noted(LOG.error, 'An NVML session cannot be closed for '
                         'another process', about=id(gate)):
            gate.yield_to_others()


_closer = deadline.Repeated(_close_for_others, access_module.POLL,
                            'cyborg-gpu-nvml')


def _forget_after_fork() -> None:
    global _closer, _mutex
    _closer = deadline.Repeated(_close_for_others, access_module.POLL,
                                'cyborg-gpu-nvml')
    # A lock that another thread held while this process was forked would
    # stay locked here forever.
    _mutex = threading.Lock()
    _open.clear()
    for gate in [*_gates]:
        gate.forked()


os.register_at_fork(after_in_child=_forget_after_fork)
