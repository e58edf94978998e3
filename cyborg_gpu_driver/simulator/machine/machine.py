# SPDX-License-Identifier: Apache-2.0

"""A simulated machine: NVIDIA GPUs with their driver, seen from two sides.

``machine.library`` is NVML's C library, ``machine.os`` the kernel's sysfs.
Both work on one state. Other events of a machine (a reboot, a process, a GPU
that falls off the bus) are methods of the machine.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

import pynvml

from cyborg_gpu_driver.simulator import fabric
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu
from cyborg_gpu_driver.simulator.driver import vgpu
from cyborg_gpu_driver.simulator.library import library
from cyborg_gpu_driver.simulator.machine import faults as machine_faults
from cyborg_gpu_driver.simulator.machine import users as machine_users
from cyborg_gpu_driver.simulator.sysfs import sysfs
from cyborg_gpu_driver.simulator.sysfs import tree

# Put a simulated library under the real pynvml, and remove it again.

_POINTERS = pynvml._nvmlGetFunctionPointer_cache


def _patch(machine):
    """Let pynvml use a machine's library; return what it used before."""
    def load():
        """Replaces the function of pynvml that loads libnvidia-ml.so.1."""
        with machine.operation():
            code = machine.state.nvml
        if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise pynvml.NVMLError(code)
    with pynvml.libLoadLock:
        before = _saved()
        # pynvml caches each function that it has looked up.
        _POINTERS.clear()
        pynvml.nvmlLib = machine.library
        pynvml._LoadNvmlLibrary = load
        pynvml._nvmlLib_refcount = 0
    return before


def replace(before: Any, after: Any) -> None:
    """Replace one library by another, if pynvml uses the first one."""
    with pynvml.libLoadLock:
        if pynvml.nvmlLib is before:
            _POINTERS.clear()
            pynvml.nvmlLib = after
            pynvml._nvmlLib_refcount = 0


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restore at exit what pynvml uses at entry."""
    with pynvml.libLoadLock:
        before = _saved()
    try:
        yield
    finally:
        _restore(before)


def _saved():
    return (pynvml.nvmlLib, pynvml._LoadNvmlLibrary,
            pynvml._nvmlLib_refcount, dict(_POINTERS))


def _restore(before):
    with pynvml.libLoadLock:
        (pynvml.nvmlLib, pynvml._LoadNvmlLibrary, pynvml._nvmlLib_refcount,
         pointers) = before
        _POINTERS.clear()
        _POINTERS.update(pointers)


names = files.names


class Machine(machine_faults.FabricService, machine_faults.HardwareFaults,
              machine_users.Users):
    """One simulated machine, as one process sees it.

    ``calls`` counts calls by C symbol and ``faults`` makes calls and files
    fail, both only in this process.
    """

    def __init__(self, host: spec.Host, state: str | None = None):
        super().__init__(host, state)
        self.faults = faults.Faults()
        self.calls: collections.Counter[str] = collections.Counter()
        self.library = library.Library(self)
        self._fabric_library = fabric.Library(self)
        self.os = sysfs.SimulatedOs(self, sysfs.ROOT, tree.build(self))
        self.proc = sysfs.SimulatedOs(self, '/proc', tree.build_proc(self))
        self._before: list[tuple[Any, ...]] = []
        """What pynvml used before each :meth:`install`."""

    @classmethod
    def load(cls, name_or_path: str, state: str | None = None) -> Machine:
        """Return the machine of a name (see :func:`names`) or of a file.

        :raises HostUnusable: if there is no such machine, or its file or
            the state file cannot be used.
        """
        machine = cls(files.load(name_or_path), state)
        # This creates the state file, so that a bad path fails here.
        with machine.operation(write=True):
            return machine

    @property
    def privileged(self) -> bool:
        """Whether this process counts as root: it may write the state file.

        Setting this to False also revokes NVIDIA's capability ``mig/config``,
        which shows GPU instances. On a real machine the capability also
        allows a process to create them; this is not simulated.
        """
        return self.allowed and self._store.writable

    @privileged.setter
    def privileged(self, allowed: bool) -> None:
        self.allowed = allowed

    def without_threads(self) -> contextlib.AbstractContextManager[object]:
        """Keep the other threads of this process from the machine.

        Unlike in an operation, other processes may use the machine.
        """
        return self._store.lock

    def install(self) -> Machine:
        """Make pynvml in this process use :attr:`library`."""
        self._before.append(_patch(self))
        return self

    def uninstall(self) -> None:
        """Restore what pynvml used before :meth:`install`.

        The last call ends NVML in this process, as the process's end does.
        """
        _restore(self._before.pop())
        if not self._before:
            with self.operation():
                self.opens.close()
            # A session that is left open is not that of the next process.
            self.library = self.library.after_reboot()

    def __enter__(self) -> Machine:
        return self.install()

    def __exit__(self, *details: object) -> None:
        self.uninstall()

    def reset_calls(self) -> None:
        """Set all counts of :attr:`calls` to zero."""
        with self.operation():
            self.calls.clear()

    def reset_gpu(self, address: str) -> None:
        """Reset a GPU in a test, whoever has its device node open."""
        gpu = self.gpu(address)
        with self.operation(write=True):
            if gpu.busy() or gpu.state.vfs:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            driver_gpu.done(gpu)

    def reboot(self) -> None:
        """Start the machine again.

        Instances, vGPUs and VFs are gone; MIG mode remains on Ampere only.
        Lost GPUs are back. NVML sessions and handles are dead. No process
        closes them, because no process outlives a reboot.
        """
        with self.operation(write=True):
            self.state.boot += 1
            self.state.starts += 1
            for function in self.host.functions:
                self.state.functions[function.address] = (
                    state_module.Function(function.driver))
            for gpu in self.gpus:
                state = gpu.state
                gpu.clear()
                state.instances.clear()
                gpu.remove_node()
                state.driver = gpu.spec.driver
                state.override = None
                state.vfio.clear()
                state.aer = 0
                state.removing = state.guest = state.managed = False
                state.lost = state.dead = state.persistence = False
                state.daemon = self.state.persistenced and gpu.bound
                state.outsiders = state_module.openers(self.host, gpu.spec)
                state.returned = False
                state.vfs = 0
                if gpu.model.mig is not None:
                    state.pending = (state.pending
                                     and gpu.model.mig.needs_reset)
                    state.mig = state.pending
            self._boot_fabric()
        before, self.library = self.library, self.library.after_reboot()
        replace(before, self.library)

    def sriov_manage(self, address: str, enable: bool = True,
                     count: int | None = None,
                     unless_open: bool = False) -> None:
        """Create or remove virtual functions, as NVIDIA's sriov-manage.

        See :func:`.driver.vgpu.manage`.

        :param address: a GPU's address, or ``ALL``, which skips GPUs without
            SR-IOV.
        """
        gpus = self.gpus if address == 'ALL' else (self.gpu(address),)
        with self.operation(write=True):
            for gpu in gpus:
                with self.program('sriov-manage', gpu.address):
                    try:
                        vgpu.manage(gpu, enable, count, unless_open)
                    except OSError as error:
                        if (address != 'ALL'
                                or error.errno != errno.ENODEV):
                            raise

    def define_mdev(self, uuid: str) -> None:
        """Define an mdev in mdevctl's files, as Nova (libvirt) does.

        The definition outlives the mdev and reboots.
        """
        with self.operation(write=True):
            if uuid not in self.state.defined:
                self.state.defined.append(uuid)

    def undefine_mdev(self, uuid: str) -> None:
        """Remove an mdev from mdevctl's files, as ``mdevctl undefine``."""
        with self.operation(write=True), self.program('mdevctl'):
            if uuid not in self.state.defined:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            self.state.defined.remove(uuid)

    @property
    def defined_mdevs(self) -> tuple[str, ...]:
        """UUIDs of the mdevs that are defined in mdevctl's files."""
        with self.operation():
            return tuple(self.state.defined)

    @contextlib.contextmanager
    def program(self, name: str, address: str | None = None
                ) -> Iterator[None]:
        """Count one run of a program, and apply a fault of that program."""
        self.calls[name] += 1
        fault = self.faults.symbol(name, address)
        if fault is None or fault.after:
            yield
        if fault:
            raise OSError(fault.code, os.strerror(fault.code))

    @property
    def boot_id(self) -> str:
        """An identifier that changes with each start of the machine."""
        with self.operation():
            return f'{self.host.name} {self.state.starts}'

    def unload_library(self, code: int = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
                       ) -> None:
        """Make nvmlInit return an error from now on. The GPUs do not change.
        """
        with self.operation(write=True):
            self.state.nvml = code
            self.state.boot += 1

    def load_library(self) -> None:
        """Make NVML available again. Processes must open new sessions."""
        with self.operation(write=True):
            self.state.nvml = pynvml.NVML_SUCCESS
