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

"""The kernel's driver core: which PCI function is bound to which driver.

The module follows drivers/base/bus.c and dd.c of Linux, and for the PCI bus
drivers/pci/pci-driver.c and Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import errno
import os

from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.driver import refusal

NVIDIA = 'nvidia'
VFIO = 'vfio-pci'
GRACE = 'nvgrace_gpu_vfio_pci'
_GRACE_BOARDS = ('2342', '2345', '2348', '2941', '31c2')
"""nvgrace_gpu_vfio_pci_table in drivers/vfio/pci/nvgrace-gpu/main.c of Linux.
"""
_ALWAYS = (NVIDIA, VFIO, GRACE)
"""Modules that are loaded on every machine."""
_LONGEST = 4094
"""Characters of a driver_override: a page less two."""


ALIASES = 'alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n' + ''.join(
    f'alias vfio_pci:v000010DEd0000{device.upper()}sv*sd*bc*sc*i* {GRACE}\n'
    for device in _GRACE_BOARDS)
"""What modules.alias of the kernel says of VFIO."""


def is_vfio(driver: str | None) -> bool:
    """Whether a driver gives functions to guests."""
    return driver in (VFIO, GRACE)


def for_guests(gpu: gpu_module.Gpu) -> str:
    """The driver that gives a GPU, with its memory, to guests."""
    return GRACE if gpu.model.device in _GRACE_BOARDS else VFIO


class Drivers:
    """The drivers of a machine. Use them only within an operation on it."""

    def __init__(self, machine):
        self._machine = machine
        self._vfs = {vf: gpu for gpu in machine.gpus
                     for vf in gpu.vf_addresses}

    def names(self) -> list[str]:
        """Return the names of all drivers whose modules are loaded."""
        functions = {function.driver
                     for function in self._machine.host.functions}
        bound = {state.driver for state in self._states()}
        return sorted({*_ALWAYS, *functions, *bound} - {None})

    def of(self, address: str) -> str | None:
        """Return the driver to which a function is bound."""
        if address in self._vfs:
            return NVIDIA if self._vfs[address].bound else None
        return self._state(address).driver

    def override(self, address: str) -> str:
        """Return the content of a function's ``driver_override``."""
        found = None if address in self._vfs else self._state(address).override
        return found or '(null)'

    def set_override(self, address: str, text: str) -> None:
        """Let a function match only one driver, or any for an empty line.

        :raises OSError: EINVAL for a text that is too long; EOPNOTSUPP for
            a virtual function, whose driver never changes here.
        """
        if address in self._vfs:
            _fail(errno.EOPNOTSUPP)
        if len(text) > _LONGEST:
            _fail(errno.EINVAL)
        self._state(address).override = text.removesuffix('\n') or None

    def unbind(self, driver: str, text: str) -> None:
        """Unbind a function from its driver.

        :raises OSError: ENODEV if there is no such function, or it is not
            bound to this driver.
        :raises Waits: while the function is in use.
        """
        address = text.removesuffix('\n')
        if not self._known(address) or self.of(address) != driver:
            _fail(errno.ENODEV)
        gpu = self._gpu(address)
        if gpu is None:
            self._state(address).driver = None
            return
        if self._waits(gpu):
            raise refusal.Waits()
        unbound(gpu)

    def bind(self, driver: str, text: str) -> None:
        """Bind a function to a driver.

        :raises OSError: ENODEV if there is no such function, or the driver
            does not match it or fails; EBUSY if it is bound to a driver.
        """
        address = text.removesuffix('\n')
        if not self._known(address) or not self._matches(driver, address):
            _fail(errno.ENODEV)
        if self.of(address) is not None:
            _fail(errno.EBUSY)
        self._probe(driver, address)

    def probe(self, text: str) -> None:
        """Bind a function without a driver to the first one that matches.

        :raises OSError: ENODEV if there is no such function. If no driver
            takes the function, this is not an error.
        """
        address = text.removesuffix('\n')
        if not self._known(address):
            _fail(errno.ENODEV)
        if self.of(address) is not None:
            return
        first = self._first(address)
        for driver in sorted(self.names(), key=lambda name: name != first):
            if self._matches(driver, address):
                try:
                    self._probe(driver, address)
                except OSError:
                    continue
                return

    def _probe(self, driver, address):
        gpu = self._gpu(address)
        if gpu is not None and driver == NVIDIA and gpu.unreachable:
            # RmInitAdapter fails.
            _fail(errno.ENODEV)
        self._state(address).driver = driver

    def _matches(self, driver, address):
        """Whether a driver matches a function (pci_match_device of Linux).

        It matches by name if the function has an override, else by id.
        """
        override = self._state(address).override
        if override is not None:
            return override == driver
        return driver == self._first(address) or (
            driver == NVIDIA and self._gpu(address) is not None)

    def _first(self, address):
        """The driver that a function had, or would have had, at boot.

        vfio-pci matches only the ids in its parameter ``ids``, with which an
        operator binds GPUs to it at boot.
        """
        gpu = self._gpu(address)
        if gpu is None:
            return self._machine.host.function(address).driver
        return gpu.spec.driver or NVIDIA

    def _waits(self, gpu):
        """Whether an unbind of a GPU from its driver still has to wait.

        nvidia: nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c of
        NVIDIA's open kernel modules. It removes the GPU from the list that
        open() searches, then waits until the usage count is 0. If the count
        has leaked, it waits until the machine starts again.
        vfio-pci: vfio_unregister_group_dev in drivers/vfio/vfio_main.c.
        """
        held = bool(gpu.state.vfio) if not gpu.bound else (
            gpu.used() if gpu.drm_lets_go else gpu.held())
        if held and not gpu.state.removing:
            gpu.state.removing = True
            self._machine.state.blocked.append(state_module.BlockedUnbind(
                gpu.address, gpu.state.driver,
                [*gpu.holders(), *(state_module.Holder(pid, 'qemu')
                                   for pid in gpu.state.vfio)]))
        return held

    def _states(self):
        return (*self._machine.state.gpus.values(),
                *self._machine.state.functions.values())

    def _state(self, address):
        gpu = self._gpu(address)
        return self._machine.state.functions[address] if gpu is None else (
            gpu.state)

    def _gpu(self, address) -> gpu_module.Gpu | None:
        return next((gpu for gpu in self._machine.gpus
                     if gpu.address == address), None)

    def _known(self, address):
        """Whether there is such a function. VFs never change their driver.
        """
        return (self._gpu(address) is not None
                or address in self._machine.state.functions)


def unbound(gpu: gpu_module.Gpu) -> None:
    """Set the state of a GPU that was unbound from its driver."""
    state = gpu.state
    if gpu.bound:
        if state.vfs:
            gpu.harm('unbound with virtual functions')
        state.vfs = 0
        gpu.driver_leaves()
        gpu.remove_node()
        state.returned = True
    state.driver = None
    state.removing = False


def _fail(code):
    raise OSError(code, os.strerror(code))
