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

"""The drivers of a simulated machine's GPUs, and guests with whole GPUs."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import drivers
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.driver import reset
from cyborg_gpu_driver.simulator.machine import part

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
                except refusal.Waits:
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
            drivers.unbound(gpu)
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
            managed = not drivers.is_vfio(gpu.state.driver)
        wanted = drivers.for_guests(gpu)
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

        :raises SimulationError: if no guest has the GPU.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if not gpu.state.guest:
                raise exception.SimulationError(
                    name=self.host.name, reason=f'no guest has {address}')
            gpu.state.guest = False
            gpu.state.vfio.pop()
            reset.done(gpu)
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
        return all(driver is None or drivers.is_vfio(driver) for driver in map(
            self.drivers.of, self.os.group_of(gpu.address)))
