# SPDX-License-Identifier: Apache-2.0

"""The one privileged context of this library (oslo.privsep).

Its daemon keeps the user id 0, which owns the control files of sysfs and
lets the programs that it runs (sriov-manage, mdevctl) have root's rights
again. The daemon also keeps these capabilities:

* CAP_SYS_ADMIN: NVIDIA's driver requires it of a process that changes MIG
  mode, mixed-size mode or the scheduler. It includes all of the driver's own
  capabilities, such as the one to create GPU instances (MIG User Guide,
  Device Nodes and Capabilities).
* CAP_DAC_READ_SEARCH: to list ``/proc/<pid>/fd`` of a guest's process, which
  belongs to another user and is closed to others.
* CAP_SYS_PTRACE: to follow the links there (proc_pid_fd(5)). Without these
  two it is unknown which process has a VFIO device open, and no virtual
  function is cleared.

It does not need CAP_DAC_OVERRIDE, which allows writes to files of others.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import exception

with warnings.catch_warnings():
    # oslo.privsep imports eventlet, which warns that it is deprecated. Users
    # of a command can do nothing about that.
    warnings.simplefilter('ignore')
    from oslo_privsep import capabilities
    from oslo_privsep import comm
    from oslo_privsep import daemon
    from oslo_privsep import priv_context

gpu_context = priv_context.PrivContext(
    'cyborg_gpu_driver',
    cfg_section='cyborg_gpu_privileged',
    pypath=__name__ + '.gpu_context',
    capabilities=[capabilities.CAP_SYS_ADMIN,
                  capabilities.CAP_DAC_READ_SEARCH,
                  capabilities.CAP_SYS_PTRACE])

_FAILURES = (OSError, comm.PrivsepTimeout, daemon.FailedToDropPrivileges,
             daemon.ProtocolError)
"""Exceptions of oslo.privsep if its daemon does not start, does not answer or
has ended, and for an unexpected exception of a function in the daemon."""


_SLOW_SECONDS = 900.0
"""More than a reset takes, or a driver that releases a GPU. The operation has
deadlines of its own, which an operator may have raised."""

_has_run = False
"""Whether this process has ever had a privileged process."""
_running: dict[object, tuple[str, Any]] = {}
"""The calls that run in this process: function and first argument."""
_ended = threading.Condition()
"""Held while ``_running`` is used; notified when a call ends."""


def set_timeout(seconds: float) -> None:
    """Set how long a call of the privileged process may take.

    The limit is for a process that does not answer at all; an operation
    there has deadlines of its own. Calls of a :func:`slow_entrypoint` have
    more time.
    """
    gpu_context.timeout = seconds


def entrypoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function run in the privileged process (decorator).

    This is the one boundary where errors of the operating system and of
    oslo.privsep become errors of this library.

    :raises HostUnusable: in place of such an error, and if the
        process does not answer in time (:func:`set_timeout`). The process
        may still carry out the call later.
    """
    return _convert_errors(function, gpu_context.entrypoint(function))


def may_run() -> bool:
    """Whether a call that this process has given up may still run.

    False if no privileged process could be started.
    """
    return _has_run or not gpu_context.client_mode


def unfinished(subjects: Collection[str], seconds: float) -> tuple[str, ...]:
    """Wait until the calls about some subjects have ended in this process."""
    def found() -> tuple[str, ...]:
        return tuple(sorted(name for name, subject in _running.values()
                            if subject in subjects))

    with _ended:
        _ended.wait_for(lambda: not found(), seconds)
        return found()


def slow_entrypoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """As :func:`entrypoint`, for a function that may take minutes."""
    return _convert_errors(function, gpu_context.entrypoint_with_timeout(
        _SLOW_SECONDS)(function))


@contextlib.contextmanager
def _noted(name: str, subject: Any = None) -> Iterator[None]:
    """Note a call while it runs in this process."""
    if gpu_context.client_mode:
        yield
        return
    token = object()
    with _ended:
        _running[token] = name, subject
    try:
        yield
    finally:
        with _ended:
            del _running[token]
            _ended.notify_all()


def _convert_errors(function: Callable[..., Any], inner: Callable[..., Any]
                    ) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        global _has_run
        try:
            with _noted(function.__name__, *arguments[:1]):
                return inner(*arguments, **named)
        except _FAILURES as error:
            raise exception.HostUnusable(
                f'privileged call {function.__name__}: '
                f'{str(error) or type(error).__name__}; see '
                '[cyborg_gpu_privileged] helper_command') from error
        finally:
            if gpu_context.channel is not None:
                _has_run = True

    # The daemon uses these to decide whether it may run the function.
    vars(call).update(vars(inner))
    return call
