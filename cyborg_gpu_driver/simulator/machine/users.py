# SPDX-License-Identifier: Apache-2.0

"""The users of a simulated machine's GPUs: processes and guests."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu
from cyborg_gpu_driver.simulator.driver import vgpu as rules
from cyborg_gpu_driver.simulator.machine import opens
from cyborg_gpu_driver.simulator.machine import store

if TYPE_CHECKING:
    from cyborg_gpu_driver.simulator import fabric
    from cyborg_gpu_driver.simulator.sysfs import sysfs

_FIRST_PID = 100000
_LOOK_EVERY = 0.02
"""In seconds. The real nv_pci_remove_helper checks every half second."""


class Part:
    """The GPUs and the state of ``machine.Machine``.

    :param state: file that keeps the machine's state, which processes may
        share; None keeps the state in memory.
    """

    os: sysfs.SimulatedOs
    _fabric_library: fabric.Library

    def __init__(self, host: spec.Host, state: str | None = None):
        self.host = host
        self.allowed = True
        self._store = store.Store(host, state)
        self.opens = opens.Opens(state)
        self.gpus = tuple(driver_gpu.Gpu(self, gpu) for gpu in host.gpus)
        self._by_address = {gpu.address: gpu for gpu in self.gpus}
        self.drivers = driver_gpu.Drivers(self)

    @property
    def state(self) -> state_module.State:
        """The state; use it only within :meth:`operation`."""
        return self._store.state

    def operation(self, write: bool = False
                  ) -> contextlib.AbstractContextManager[object]:
        """Hold the machine, so that nothing else changes it meanwhile."""
        return self._store.operation(write)

    def gpu(self, address: str) -> driver_gpu.Gpu:
        """Return the GPU at an address, which is written as in sysfs.

        :raises HostUnusable: if there is no GPU at the address.
        """
        try:
            return self._by_address[str(address)]
        except KeyError:
            raise self.wrong(f'no GPU at {address}; the GPUs are '
                             + ', '.join(self._by_address)) from None

    def wrong(self, reason: str) -> exception.HostUnusable:
        """Return the error that something cannot be done to the machine."""
        return exception.HostUnusable(
            f'simulated machine {self.host.name!r}: {reason}')


class DriverBinding(Part):
    """The part of a machine that binds and unbinds drivers."""

    pause: Callable[[float], object] = staticmethod(time.sleep)
    """Called by a system call that waits, before it checks again."""

    def system_call(self, action: Callable[[], Any]) -> Any:
        """Repeat an action of the kernel as long as it raises Waits.

        The machine is held during the action, and not in between.

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
                raise self.wrong(f'no guest has {address}')
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


class Users(DriverBinding):
    """The part of a machine that simulates processes and guests."""

    def holders(self, address: str) -> tuple[tuple[int, str], ...]:
        """Return process id and name of who has a GPU's device node open.

        Id 0 is a kernel module.
        """
        with self.operation():
            return tuple((holder.pid, holder.name)
                         for holder in self.gpu(address).holders())

    def add_holder(self, address: str, pid: int, name: str,
                   hidden: bool = False) -> None:
        """Let a simulated process open a GPU's device node.

        NVML does not list the process, because it computes nothing. Examples
        are DCGM (nv-hostengine) and nvsm.

        :param hidden: attach the GPU to another descriptor of the process, of
            /dev/nvidiactl or of a dma-buf (NV_ESC_ATTACH_GPUS_TO_FD in
            kernel-open/nvidia/nv.c, nv-dmabuf.c). proc does not show it.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if not gpu.bound:
                raise self.wrong(f'{address} has no device node: it is not '
                                 "bound to NVIDIA's driver")
            if gpu.refused:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            gpu.state.outsiders.append(
                state_module.Holder(pid, name, hidden))

    def remove_holder(self, pid: int) -> None:
        """Let a simulated process close all device nodes."""
        with self.operation(write=True):
            for gpu in self.gpus:
                gpu.state.outsiders = [
                    holder for holder in gpu.state.outsiders
                    if holder.pid != pid]

    def leak_use(self, address: str, count: int = 1) -> None:
        """Let the driver forget to end some uses of a GPU.

        Then no process has the GPU open, but an unbind waits until the
        machine starts again (NVIDIA/open-gpu-kernel-modules#1119, #1374).
        """
        with self.operation(write=True):
            self.gpu(address).state.leaked += count

    def start_persistenced(self) -> None:
        """Start nvidia-persistenced, which opens all GPUs by default."""
        with self.operation(write=True):
            self.state.persistenced = True
            for gpu in self.gpus:
                gpu.state.daemon = gpu.bound
                gpu.state.returned = False

    def stop_persistenced(self) -> None:
        """Stop nvidia-persistenced, which closes all GPUs."""
        with self.operation(write=True):
            self.state.persistenced = False
            for gpu in self.gpus:
                gpu.state.daemon = False

    def load_drm(self, modeset: bool = True) -> None:
        """Load the kernel module nvidia_drm.

        With ``modeset=1`` the module holds each GPU (nv_drm_dev_load of
        nvidia-drm allocates a device if DRIVER_MODESET is set, which opens
        the GPU). NVIDIA/mig-parted#181 shows a reset that fails because of
        this.
        """
        with self.operation(write=True):
            self.state.drm_modeset = modeset

    def unload_drm(self) -> None:
        """Remove the kernel module nvidia_drm."""
        with self.operation(write=True):
            self.state.drm_modeset = None

    def add_process(self, address: str, pid: int,
                    instance: int | None = None,
                    compute: int | None = None) -> None:
        """Let a process use a GPU, or one of its instances."""
        gpu = self.gpu(address)
        with self.operation(write=True):
            if instance is not None:
                found = gpu.state.instances.get(instance)
                if found is None or (compute is not None
                                     and compute not in found.compute):
                    raise self.wrong(f'{address} has no such instance '
                                     f'({instance}, {compute})')
            gpu.state.processes.append(state_module.Process(
                pid=pid, instance=instance, compute=compute))

    def remove_process(self, pid: int) -> None:
        """Let a process end, so that it uses no GPU any more."""
        with self.operation(write=True):
            for gpu in self.gpus:
                gpu.state.processes = [
                    process for process in gpu.state.processes
                    if process.pid != pid]

    def start_guest(self, vgpu: str, vm: str = '') -> int:
        """Start a virtual machine on a vGPU, which then cannot be removed.

        :param vgpu: an mdev's UUID, the address of a function that carries
            a vGPU, or the address of a GPU that carries none, which the
            guest gets as a whole (:meth:`attach_whole`).
        :param vm: UUID of the virtual machine, or its number on hosts that
            know no UUID; empty for any UUID.
        :returns: id of the virtual machine's process.
        :raises OSError: if the virtual machine does not boot.
        """
        if self._is_whole(vgpu):
            return self.attach_whole(vgpu)
        with self.operation(write=True):
            gpu, found = self._vgpu(vgpu)
            if not found.guest:
                number = self.state.number()
                rules.start_guest(gpu, found, _FIRST_PID + number)
                found.vm = vm or str(uuid.UUID(int=number, version=4))
            return found.holders[-1]

    def stop_guest(self, vgpu: str) -> None:
        """Stop the virtual machine that :meth:`start_guest` started."""
        if self._is_whole(vgpu):
            self.detach_whole(vgpu)
            return
        with self.operation(write=True):
            found = self._vgpu(vgpu)[1]
            if found.guest:
                found.guest = False
                found.vm = ''
                found.holders.pop()

    def kill_guest(self, vgpu: str) -> None:
        """Kill a virtual machine with SIGKILL in its first seconds.

        Its virtual function serves no guest any more. Nothing shows that:
        writes to current_vgpu_type succeed, there is no XID and no message on
        the host. sriov-manage cures it (kernel/hypeman#321, #462: L40S, driver
        580, Linux 6.8).
        """
        self.stop_guest(vgpu)
        with self.operation(write=True):
            gpu, found = self._vgpu(vgpu)
            if found.function not in gpu.state.wedged:
                gpu.state.wedged.append(found.function)

    def work(self, address: str, **meters: Any) -> None:
        """Set how busy a GPU is: fields of :class:`.state.Meters`."""
        gpu = self.gpu(address)
        with self.operation(write=True):
            gpu.state.meters = dataclasses.replace(gpu.state.meters, **meters)

    def work_vgpu(self, vgpu: str, used_mib: int,
                  percents: tuple[int, int, int, int]) -> None:
        """Set how busy a virtual machine keeps its vGPU.

        :param used_mib: framebuffer in use.
        :param percents: how busy SMs, memory, encoder and decoder are.
        """
        with self.operation(write=True):
            found = self._vgpu(vgpu)[1]
            found.used_mib, found.percents = used_mib, list(percents)

    def define_domain(self, uuid: str, xml: str) -> None:
        """Define or change a domain of libvirt."""
        with self.operation(write=True):
            self.state.domains[uuid] = xml

    def undefine_domain(self, uuid: str) -> None:
        """Remove a domain from libvirt."""
        with self.operation(write=True):
            self.state.domains.pop(uuid, None)

    def open_vfio(self, vgpu: str, pid: int) -> None:
        """Let a process open a VFIO device, without a guest yet."""
        with self.operation(write=True):
            self._vfio(vgpu).insert(0, pid)

    def close_vfio(self, vgpu: str, pid: int) -> None:
        """Let a process close a VFIO device."""
        with self.operation(write=True):
            self._vfio(vgpu).remove(pid)

    def vfio_holders(self, name: str) -> tuple[int, ...]:
        """The processes that have a function's or an mdev's device open."""
        with self.operation():
            whole = [pid for gpu in self.gpus if gpu.address == str(name)
                     for pid in gpu.state.vfio]
            return (*whole, *(pid for gpu in self.gpus
                              for vgpu in gpu.state.vgpus
                              if str(name) == (vgpu.uuid or vgpu.function)
                              for pid in vgpu.holders))

    def _is_whole(self, name):
        """Whether a name is the address of a GPU that carries no vGPU."""
        with self.operation():
            return any(gpu.address == str(name)
                       and not gpu.vgpus_on(gpu.address)
                       for gpu in self.gpus)

    def _vfio(self, name):
        """The list of processes that have a VFIO device open, to change it.
        """
        if not self._is_whole(name):
            return self._vgpu(name)[1].holders
        state = self.gpu(name).state
        if not driver_gpu.is_vfio(state.driver):
            raise self.wrong(f'vfio-pci does not have {name}')
        return state.vfio

    def _vgpu(self, name):
        for gpu in self.gpus:
            for vgpu in gpu.state.vgpus:
                if str(name) in (vgpu.uuid, vgpu.function):
                    return gpu, vgpu
        raise self.wrong(f'there is no vGPU {name}')
