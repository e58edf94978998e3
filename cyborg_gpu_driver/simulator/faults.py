# SPDX-License-Identifier: Apache-2.0

"""Faults and latencies that a test or a demonstration injects."""

from __future__ import annotations

import dataclasses
import fnmatch
import time
from collections.abc import Callable

VANISHES = 'instance-vanishes'
"""A GPU instance is not there although its creation has succeeded, as people
report of ``nvidia-smi mig -cgi`` (edpm-ansible,
edpm_nvidia_mig_apply.service.j2)."""


class Refused(Exception):
    """An NVML call returns an error.

    The exception never leaves the simulator: the library returns ``code``
    (``nvmlReturn_t``) as the C function would.
    """

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Waits(Exception):
    """The kernel does not return from a system call yet."""


class Unavailable(Exception):
    """The driver cannot create a vGPU on this function now.

    Each interface of the driver reports this with its own errno.
    """


@dataclasses.dataclass
class Fault:
    """A fault of the calls of a C symbol or of the accesses to files."""

    kind: str
    """``call``, ``write``, ``read`` or :data:`VANISHES`."""
    pattern: str
    """C symbol or path; both may have globs."""
    code: int
    """nvmlReturn_t for a symbol, errno for a path."""
    nth: int
    """The first matching call that fails, counted from 1."""
    times: int | None
    """How many calls fail from the ``nth`` on; None for all."""
    after: bool
    """Whether the call does its work before it returns the error."""
    address: str | None
    """If given, only calls on this GPU fail."""
    seen: int = 0

    def strikes(self) -> bool:
        self.seen += 1
        return self.seen >= self.nth and (
            self.times is None or self.seen < self.nth + self.times)


class Faults:
    """The faults of one machine in one process."""

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        """Remove all faults and delays."""
        self._faults: list[Fault] = []
        self._delays: dict[str, tuple[Callable[[float], object], float]] = {}

    def fail(self, symbol: str, code: int, nth: int = 1,
             times: int | None = 1, after: bool = False,
             address: str | None = None) -> None:
        """Make calls of a C symbol return ``code``; see :class:`Fault`.

        :param symbol: such as ``nvmlDeviceCreateGpuInstanceWithPlacement``;
            globs are allowed; ``sriov-manage``, ``mdevctl`` and
            ``nvidia-smi`` stand for those programs, and :data:`VANISHES` for
            a new GPU instance.
        :param code: nvmlReturn_t; for a program an errno: ENOENT if it is
            not installed, EBUSY or EAGAIN for sriov-manage's unbindLock.
        """
        kind = VANISHES if symbol == VANISHES else 'call'
        self._faults.append(
            Fault(kind, symbol, code, nth, times, after, address))

    def fail_write(self, path: str, errno: int, nth: int = 1,
                   times: int | None = 1, after: bool = False) -> None:
        """Make writes to files that match the glob ``path`` fail."""
        self._faults.append(
            Fault('write', path, errno, nth, times, after, None))

    def fail_read(self, path: str, errno: int, nth: int = 1,
                  times: int | None = 1) -> None:
        """Make reads of files and links that match the glob fail."""
        self._faults.append(
            Fault('read', path, errno, nth, times, False, None))

    def delay(self, symbol: str, seconds: float,
              sleep: Callable[[float], object] = time.sleep) -> None:
        """Make each call of ``symbol`` take ``seconds`` longer.

        ``sleep`` is called with ``seconds`` while no lock is held.
        """
        self._delays[symbol] = (sleep, seconds)

    def wait(self, symbol: str) -> None:
        if symbol in self._delays:
            sleep, seconds = self._delays[symbol]
            sleep(seconds)

    def symbol(self, symbol: str, address: str | None) -> Fault | None:
        return self._strike('call', address, symbol)

    def vanishes(self, address: str) -> bool:
        """Whether a GPU instance that was just created vanishes."""
        return self._strike(VANISHES, address, VANISHES) is not None

    def write(self, *paths: str) -> Fault | None:
        return self._strike('write', None, *paths)

    def read(self, *paths: str) -> Fault | None:
        return self._strike('read', None, *paths)

    def _strike(self, kind, address, *names):
        # Each fault counts its matching calls.
        return next(iter([
            fault for fault in self._faults if fault.kind == kind
            and fault.address in (None, address)
            and any(fnmatch.fnmatchcase(name, fault.pattern)
                    for name in names)
            and fault.strikes()]), None)
