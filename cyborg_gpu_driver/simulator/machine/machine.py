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
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import fabric
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu
from cyborg_gpu_driver.simulator.driver import vgpu
from cyborg_gpu_driver.simulator.library import device as library_device
from cyborg_gpu_driver.simulator.library import library
from cyborg_gpu_driver.simulator.machine import faults as machine_faults
from cyborg_gpu_driver.simulator.machine import part
from cyborg_gpu_driver.simulator.machine import store
from cyborg_gpu_driver.simulator.machine import users as machine_users
from cyborg_gpu_driver.simulator.sysfs import sysfs
from cyborg_gpu_driver.simulator.sysfs import tree

# The drivers of a simulated machine's GPUs, and guests with whole GPUs.

_FIRST_PID = 300000
_LOOK_EVERY = 0.02
"""In seconds. The real nv_pci_remove_helper checks every half second."""


class DriverBinding(part.Part):
    """The part of a machine that binds and unbinds drivers."""

    pause: Callable[[float], object] = staticmethod(time.sleep)
    """Called by a system call that waits, before it checks again."""

    def system_call(self, action: Callable[[], Any]) -> Any:
        """Repeat an action of the kernel until it ends; return its result.

        :param action: called within an operation, again and again as long as
            it raises Waits; the machine is not held in between.
        :raises OSError: EINTR if the machine was started again meanwhile.
        """
        start = None
        while True:
            with self.operation(write=True):
                if start not in (None, self.state.starts):
                    raise OSError(errno.EINTR, os.strerror(errno.EINTR))
                start = self.state.starts
                try:
                    return action()
                except faults.Waits:
                    pass
            self.pause(_LOOK_EVERY)

    def bind_driver(self, address: str, driver: str | None) -> None:
        """Set a GPU's kernel driver, as if it had been bound since the boot.

        This is a shortcut for tests. The simulated sysfs binds drivers as on
        a real machine. Processes that have the GPU open lose it.

        :param driver: None for no driver.
        :raises OSError: EBUSY while the GPU is in use.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if gpu.busy() or gpu.state.vfs or gpu.state.vfio:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            gpu.clear()
            driver_gpu.unbound(gpu)
            gpu.state.driver = driver
            gpu.state.dead = False

    @property
    def blocked_unbinds(self) -> tuple[state_module.BlockedUnbind, ...]:
        """Unbinds that had to wait for holders, possibly forever."""
        with self.operation():
            return tuple(self.state.blocked)

    @property
    def damage(self) -> tuple[state_module.Damage, ...]:
        """The mistakes so far that would break a GPU or a guest."""
        with self.operation():
            return tuple(self.state.damage)

    def attach_whole(self, address: str) -> int:
        """Start a guest that has a whole GPU, as libvirt does.

        With managed='yes' libvirt unbinds the GPU from its driver (so this
        waits while a process has the GPU open), binds it to vfio-pci and
        opens it (virPCIDeviceDetach in src/util/virpci.c of libvirt). A GPU
        that is already bound to vfio-pci remains so, also after the guest.

        :returns: id of the virtual machine's process.
        :raises OSError: EBUSY if a guest has the GPU; EPERM if the GPU's
            IOMMU group is not viable, because another function of the group
            has another driver; ENODEV if vfio-pci does not take the GPU.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if gpu.state.vfio:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            managed = not driver_gpu.is_vfio(gpu.state.driver)
        wanted = driver_gpu.for_guests(gpu)
        if managed:
            self._rebind(gpu, wanted)
        with self.operation(write=True):
            if gpu.state.driver != wanted:
                gpu.harm(f'given to a guest without {wanted}')
            if not self._viable(gpu):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            gpu.state.managed = managed
            gpu.state.guest = True
            gpu.state.vfio.append(_FIRST_PID + self.state.number())
            return gpu.state.vfio[-1]

    def detach_whole(self, address: str) -> None:
        """End the guest that has a whole GPU, as libvirt does.

        VFIO resets the GPU (vfio_pci_core_disable). libvirt binds the GPU to
        its driver again if it has unbound the GPU from one.

        :raises HostUnusable: if no guest has the GPU.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if not gpu.state.guest:
                raise exception.HostUnusable(
                    f'simulated machine {self.host.name!r}: no guest has '
                    f'{address}')
            gpu.state.guest = False
            gpu.state.vfio.pop()
            driver_gpu.done(gpu)
            managed, gpu.state.managed = gpu.state.managed, False
        if managed:
            self._rebind(gpu, None)

    def _rebind(self, gpu, override):
        """Bind a GPU to another driver by libvirt's writes to sysfs.

        See virPCIDeviceBindWithDriverOverride and virPCIDeviceRebind.
        """
        def unbind():
            core.set_override(gpu.address, override or '')
            if gpu.state.driver is not None:
                core.unbind(gpu.state.driver, gpu.address)
            core.probe(gpu.address)
        core = self.drivers
        self.system_call(unbind)
        with self.operation():
            if override is not None and gpu.state.driver != override:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def _viable(self, gpu):
        """Whether VFIO lets a guest use the GPU's IOMMU group.

        Documentation/driver-api/vfio.rst: each function of the group must be
        bound to vfio-pci or to no driver.
        """
        return all(driver is None or driver_gpu.is_vfio(driver)
                   for driver in map(
            self.drivers.of, self.os.group_of(gpu.address)))


# Put a simulated library under the real pynvml, and remove it again.

_POINTERS = pynvml._nvmlGetFunctionPointer_cache


class Patch:
    """One replacement of ``pynvml.nvmlLib``. Undo them in reverse order."""

    def __init__(self, machine):
        self._machine = machine
        self._before = None

    def apply(self) -> Patch:
        with pynvml.libLoadLock:
            self._before = _saved()
            # pynvml caches each function that it has looked up.
            _POINTERS.clear()
            pynvml.nvmlLib = self._machine.library
            pynvml._LoadNvmlLibrary = self._load
            pynvml._nvmlLib_refcount = 0
        return self

    def undo(self) -> None:
        with pynvml.libLoadLock:
            _restore(self._before)

    def _load(self):
        """Replaces the function of pynvml that loads libnvidia-ml.so.1."""
        with self._machine.operation():
            code = self._machine.state.nvml
        if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise pynvml.NVMLError(code)


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
        with pynvml.libLoadLock:
            _restore(before)


def _saved():
    return (pynvml.nvmlLib, pynvml._LoadNvmlLibrary,
            pynvml._nvmlLib_refcount, dict(_POINTERS))


def _restore(before):
    (pynvml.nvmlLib, pynvml._LoadNvmlLibrary, pynvml._nvmlLib_refcount,
     pointers) = before
    _POINTERS.clear()
    _POINTERS.update(pointers)


names = files.names


class Machine(DriverBinding, machine_faults.FabricService,
              machine_faults.HardwareFaults, machine_users.Users):
    """One simulated machine, as one process sees it.

    :param host: the description of the machine.
    :param state: file that keeps the machine's state, which processes may
        share; None keeps the state in memory.

    ``calls`` counts calls by C symbol and ``faults`` makes calls and files
    fail, both only in this process.
    """

    def __init__(self, host: spec.Host, state: str | None = None):
        self.host = host
        self.faults = faults.Faults()
        self.calls: collections.Counter[str] = collections.Counter()
        self._allowed = True
        self._store = store.Store(host, state)
        self.opens = machine_users.Opens(state)
        self.gpus = tuple(driver_gpu.Gpu(self, gpu) for gpu in host.gpus)
        self._by_address = {gpu.address: gpu for gpu in self.gpus}
        self.drivers = driver_gpu.Drivers(self)
        self.library = library.Library(self)
        self._fabric_library = fabric.Library(self)
        self.os = sysfs.SimulatedOs(self, sysfs.ROOT, tree.build(self))
        self.proc = sysfs.SimulatedOs(self, '/proc', tree.build_proc(self))
        self._patches: list[Patch] = []

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

        Setting this to False revokes root and :attr:`reads_instances`.
        """
        return self._allowed and self._store.writable

    @privileged.setter
    def privileged(self, allowed: bool) -> None:
        self._allowed = allowed

    @property
    def reads_instances(self) -> bool:
        """Whether this process can read NVIDIA's capability ``mig/config``.

        The capability shows GPU instances. On a real machine it also allows
        a process to create them; this is not simulated.
        """
        return self._allowed

    reads_usage = True
    """Whether this process can read NVIDIA's capability ``mig/monitor``.

    Every user can (osRmCapRegisterSys in src/nvidia/arch/nvalloc/unix/src/os.c
    of NVIDIA's open kernel modules), but a container may lack its node."""

    @property
    def state(self) -> state_module.State:
        """The state; use it only within :meth:`operation`."""
        return self._store.state

    def operation(self, write: bool = False
                  ) -> contextlib.AbstractContextManager[object]:
        """Hold the machine, so that nothing else changes it meanwhile."""
        return self._store.operation(write)

    def without_threads(self) -> contextlib.AbstractContextManager[object]:
        """Keep the other threads of this process from the machine.

        A process that stops in this context holds nothing of the machine.
        """
        return self._store.without_threads()

    def install(self) -> Machine:
        """Make pynvml in this process use :attr:`library`."""
        self._patches.append(Patch(self).apply())
        return self

    def uninstall(self) -> None:
        """Restore what pynvml used before :meth:`install`.

        The last call ends NVML in this process, as the process's end does.
        """
        self._patches.pop().undo()
        if not self._patches:
            with self.operation():
                self.opens.close()
            # A session that is left open is not that of the next process.
            self.library = self.library.after_reboot()

    def __enter__(self) -> Machine:
        return self.install()

    def __exit__(self, *details: object) -> None:
        self.uninstall()

    def gpu(self, address: str) -> driver_gpu.Gpu:
        """Return the GPU at an address, which is written as in sysfs.

        :raises HostUnusable: if there is no GPU at the address.
        """
        try:
            return self._by_address[str(address)]
        except KeyError:
            raise exception.HostUnusable(
                f'simulated machine {self.host.name!r}: no GPU at {address}; '
                'the GPUs are ' + ', '.join(self._by_address)) from None

    def reset_calls(self) -> None:
        """Set all counts of :attr:`calls` to zero."""
        with self.operation():
            self.calls.clear()

    def reset_gpu(self, address: str) -> None:
        """Reset a GPU, even if processes have its device node open.

        This is a shortcut for tests; nvidia-smi does :meth:`smi_reset`.

        A pending MIG mode becomes current, and handles are dead.

        :raises OSError: EBUSY while processes, vGPUs or VFs use the GPU.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if gpu.busy() or gpu.state.vfs:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            driver_gpu.done(gpu)

    def smi_reset(self, name: str) -> None:
        """Reset a GPU with nvidia-smi.

        :param name: address in any spelling, UUID, or NVML's index.
        :raises OSError: as :func:`reset.by_driver`; ENXIO if there is no
            such GPU; the code of a fault of the name ``nvidia-smi``.
        """
        with self.operation(write=True):
            gpu = self._named(name)
            with self._tool('nvidia-smi', gpu and gpu.address):
                if gpu is None:
                    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
                driver_gpu.by_driver(gpu)

    def smi_persistence(self, name: str, enable: bool) -> bool:
        """Set the persistence mode of a GPU with nvidia-smi.

        nvidia-smi asks nvidia-persistenced if that runs, otherwise NVML. The
        daemon cannot open a GPU that was unbound since it started
        (NVIDIA/k8s-dra-driver-gpu#1037).

        :param name: as for :meth:`smi_reset`.
        :returns: whether the mode has changed.
        :raises OSError: ENXIO if there is no such GPU; EIO if the daemon
            cannot open it; the code of a fault of the name ``nvidia-smi``.
        """
        with self.operation(write=True):
            gpu = self._named(name)
            with self._tool('nvidia-smi', gpu and gpu.address):
                if gpu is None:
                    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
                state = gpu.state
                before = state.persistence, state.daemon
                if not self.state.persistenced:
                    state.persistence = enable
                elif enable and state.returned:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                else:
                    state.daemon = enable
                return before != (state.persistence, state.daemon)

    def _named(self, name):
        """The GPU that a user of nvidia-smi names; None if there is none."""
        gpus = self.library.visible()
        if name.isdecimal():
            return gpus[int(name)] if int(name) < len(gpus) else None
        address = library_device.sysfs_address(name)
        return next((gpu for gpu in gpus
                     if name == gpu.spec.uuid or address == gpu.address),
                    None)

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
                state.aer = [0, 0, 0]
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

        It unbinds the GPU from its driver meanwhile, so that handles die.

        Mixed-size mode and the scheduler's setting are lost. A GPU that
        already has the requested state does not change.

        :param address: a GPU's address, or ``ALL``, which skips GPUs without
            SR-IOV.
        :param count: how many; None for all that the model has.
        :param unless_open: refuse while a process has the GPU open, as the
            script does; tests that prepare a machine need not close it.
        :raises OSError: EBUSY while the GPU is in use, ENODEV if the GPU is
            not bound to NVIDIA's driver or has no SR-IOV.
        """
        gpus = self.gpus if address == 'ALL' else (self.gpu(address),)
        with self.operation(write=True):
            for gpu in gpus:
                with self._tool('sriov-manage', gpu.address):
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
        """Remove an mdev from mdevctl's files, as ``mdevctl undefine``.

        :raises OSError: ENODEV if it is not defined, or the code of a fault
            of the name ``mdevctl``.
        """
        with self.operation(write=True), self._tool('mdevctl'):
            if uuid not in self.state.defined:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            self.state.defined.remove(uuid)

    @property
    def defined_mdevs(self) -> tuple[str, ...]:
        """UUIDs of the mdevs that are defined in mdevctl's files."""
        with self.operation():
            return tuple(self.state.defined)

    @contextlib.contextmanager
    def _tool(self, name, address=None):
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
        """Make NVML unavailable. The GPUs do not change.

        :param code: what nvmlInit returns from now on:
            NVML_ERROR_LIBRARY_NOT_FOUND or NVML_ERROR_DRIVER_NOT_LOADED.
        """
        with self.operation(write=True):
            self.state.nvml = code
            self.state.boot += 1

    def load_library(self) -> None:
        """Make NVML available again. Processes must open new sessions."""
        with self.operation(write=True):
            self.state.nvml = pynvml.NVML_SUCCESS
