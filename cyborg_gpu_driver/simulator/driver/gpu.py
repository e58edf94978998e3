# SPDX-License-Identifier: Apache-2.0

"""A GPU of a simulated machine: its description and its current state."""

from __future__ import annotations

import errno
import os

import pynvml

from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module

PERSISTENCED = state_module.Holder(812, 'nvidia-persiste')
"""The process of nvidia-persistenced, with its name as the kernel has it."""


class Gpu:
    """One GPU. Use it only within an operation on its machine."""

    def __init__(self, machine, gpu_spec: spec.Gpu):
        self.machine = machine
        self.spec = gpu_spec
        self.model = gpu_spec.model
        self.address = gpu_spec.address
        self.vf_addresses = tuple(
            _vf_address(gpu_spec, index)
            for index in range(gpu_spec.model.totalvfs))

    @property
    def state(self) -> state_module.Gpu:
        return self.machine.state.gpus[self.address]

    @property
    def bound(self) -> bool:
        """Whether the GPU is bound to NVIDIA's driver, so that NVML knows it.
        """
        return self.state.driver == 'nvidia'

    @property
    def unreachable(self) -> bool:
        """Whether the driver cannot communicate with the GPU."""
        return self.state.lost or self.state.dead or self.state.removing

    @property
    def refused(self) -> bool:
        """Whether the driver does not open the GPU.

        confComputeConstructEngine in conf_compute.c of NVIDIA's open kernel
        modules: NV_ERR_INVALID_OPERATION if confidential computing is on in
        the board, and this machine is no confidential guest itself.
        """
        return self.state.locked or self.state.confidential

    @property
    def framework(self) -> str:
        """The vGPU framework (spec.FRAMEWORKS); ``none`` unless bound."""
        return self.spec.framework if self.bound else spec.NO_FRAMEWORK

    @property
    def vgpu_on_pf(self) -> bool:
        """Whether the PF itself carries the vGPUs: no SR-IOV (Turing)."""
        return not self.model.totalvfs

    @property
    def on_switches(self) -> bool:
        """Whether the GPU's NVLinks lead to NVSwitches."""
        return self.machine.host.module(self.address) != 0

    def vfs(self) -> tuple[str, ...]:
        """The addresses of the virtual functions that exist now."""
        return self.vf_addresses[:self.state.vfs]

    def vgpu_functions(self) -> tuple[str, ...]:
        """The addresses of the functions that can carry a vGPU."""
        return (self.address,) if self.vgpu_on_pf else self.vfs()

    def vgpus_on(self, function: str) -> list[state_module.Vgpu]:
        return [vgpu for vgpu in self.state.vgpus
                if vgpu.function == function]

    def mig(self) -> spec.Mig:
        """The capabilities of the model in MIG mode."""
        if self.model.mig is None:
            raise faults.Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.model.mig

    def busy(self) -> bool:
        """Whether processes or vGPUs use the GPU."""
        return bool(self.state.processes or self.state.vgpus)

    def held(self) -> bool:
        """Whether the driver's usage count of the GPU is not 0.

        The count is that of nv_open_device in kernel-open/nvidia/nv.c of
        NVIDIA's open kernel modules.
        """
        return self.used() or bool(
            self.bound and self.machine.state.drm_modeset)

    def used(self) -> bool:
        """As :meth:`held`, but for the module nvidia_drm."""
        state = self.state
        return bool(state.outsiders or state.processes or state.leaked
                    or state.daemon
                    or any(vgpu.guest for vgpu in state.vgpus)
                    or self.bound and self.machine.opens.held(self))

    @property
    def drm_lets_go(self) -> bool:
        """Whether an unbind makes nvidia_drm let go of the GPU.

        nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c calls
        nvidia_modeset_remove from 580.105.08 on, before it waits.
        """
        return self.machine.host.driver_since(580, 105, 8)

    def held_by_others(self) -> bool:
        """Whether anything but this process and nvidia-persistenced uses it.

        The daemon is left out because libnvidia-ml knows its socket, as
        nvidia-smi does.
        """
        return bool(
            any(holder.pid != os.getpid() for holder in self.holders()
                if holder != PERSISTENCED) or self.state.leaked
            or any(holder.hidden for holder in self.state.outsiders))

    def holders(self) -> list[state_module.Holder]:
        """Return the holders of the device node."""
        if not self.bound:
            return []
        found = [*self.machine.opens.holders(self),
                 *(holder for holder in self.state.outsiders
                   if not holder.hidden)]
        if self.state.daemon:
            found.append(PERSISTENCED)
        known = {holder.pid for holder in found}
        found += [state_module.Holder(process.pid, 'python3')
                  for process in self.state.processes
                  if process.pid not in known]
        found += [state_module.Holder(vgpu.holders[-1], 'nvidia-vgpu-mgr')
                  for vgpu in self.state.vgpus if vgpu.guest]
        if self.machine.state.drm_modeset:
            found.append(state_module.Holder(0, 'nvidia_drm'))
        return found

    def remove_node(self) -> None:
        """Remove the device node, as the driver does when it is unbound."""
        state = self.state
        state.outsiders.clear()
        state.leaked = 0
        state.locked = state.daemon = False
        self.machine.opens.remove(self)

    def harm(self, mistake: str) -> None:
        """Record a mistake that would break something on a real machine."""
        self.machine.state.damage.append(
            state_module.Damage(self.address, mistake))

    def clear(self) -> None:
        """Remove the state that does not outlive a reset."""
        self._forget_users()
        self.state.wedged.clear()
        self.state.heal()
        self.forget_settings()

    def driver_leaves(self) -> None:
        """Remove the state that does not outlive an unbind of the driver."""
        self._forget_users()
        self.state.ecc = [0, 0]
        self.state.persistence = False
        if not self.machine.host.keeps_mig:
            self.forget_mode()
        self.forget_settings()

    def forget_mode(self) -> None:
        """End MIG mode where only the driver keeps it.

        Ampere keeps the mode in its InfoROM (MIG user guide, "Enable MIG
        Mode").
        """
        if self.model.mig is not None and not self.model.mig.needs_reset:
            self.state.mig = self.state.pending = False

    def _forget_users(self):
        self.state.processes.clear()
        self.state.vgpus.clear()

    def forget_settings(self) -> None:
        """Reset the settings that the driver keeps only while it is bound."""
        if not (self.machine.host.keeps_mig
                and self.state.mig and self.state.pending):
            self.state.instances.clear()
        for instance in self.state.instances.values():
            # The driver creates it again, with the same ids.
            instance.serial = self.machine.state.number()
        self.state.heterogeneous = False
        self.state.scheduler = state_module.Scheduler()
        self.state.epoch += 1


def _vf_address(gpu, index):
    """Address of a VF; its routing id is the PF's + offset + index.

    The offset is the PCIe SR-IOV capability's First VF Offset. All known
    boards have a VF Stride of 1.
    """
    domain, bus, rest = gpu.address.split(':')
    device, function = rest.split('.')
    identifier = ((int(bus, 16) << 8) | (int(device, 16) << 3)
                  | int(function, 16))
    identifier += gpu.model.vf_offset + index
    return (f'{domain}:{identifier >> 8:02x}:'
            f'{identifier >> 3 & 0x1f:02x}.{identifier & 7}')


# The kernel's driver core: which PCI function is bound to which driver.
#
# The module follows drivers/base/bus.c and dd.c of Linux, and for the PCI bus
# drivers/pci/pci-driver.c and Documentation/ABI/testing/sysfs-bus-pci.

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


def for_guests(gpu: Gpu) -> str:
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
        """Let a function match only one driver, or any for an empty line."""
        if address in self._vfs:
            # The driver of a virtual function never changes here.
            _fail(errno.EOPNOTSUPP)
        if len(text) > _LONGEST:
            _fail(errno.EINVAL)
        self._state(address).override = text.removesuffix('\n') or None

    def unbind(self, driver: str, text: str) -> None:
        """Unbind a function from its driver."""
        address = text.removesuffix('\n')
        if not self._known(address) or self.of(address) != driver:
            _fail(errno.ENODEV)
        gpu = self._gpu(address)
        if gpu is None:
            self._state(address).driver = None
            return
        if self._waits(gpu):
            raise faults.Waits()
        unbound(gpu)

    def bind(self, driver: str, text: str) -> None:
        """Bind a function to a driver."""
        address = text.removesuffix('\n')
        if not self._known(address) or not self._matches(driver, address):
            _fail(errno.ENODEV)
        if self.of(address) is not None:
            _fail(errno.EBUSY)
        self._probe(driver, address)

    def probe(self, text: str) -> None:
        """Bind a function without a driver to the first one that matches.

        If no driver takes the function, this is not an error.
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

    def _gpu(self, address) -> Gpu | None:
        return next((gpu for gpu in self._machine.gpus
                     if gpu.address == address), None)

    def _known(self, address):
        """Whether there is such a function. VFs never change their driver."""
        return (self._gpu(address) is not None
                or address in self._machine.state.functions)


def unbound(gpu: Gpu) -> None:
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


# Resets of a GPU. NVIDIA's driver checks for users, the kernel does not.

_OFF_THE_BUS = 79


def by_driver(gpu: Gpu) -> None:
    """Reset a GPU as ``nvidia-smi --gpu-reset`` does.

    A pending MIG mode becomes current, and handles are dead.
    nvidia-persistenced is no obstacle, because nvidia-smi asks it through its
    socket ("You can leave the nvidia-persistenced service running", Fabric
    Manager User Guide). No source says whether nvidia_drm still is one from
    driver 580.105.08 on, where an unbind makes it let go; here it is one.

    :raises OSError: ENODEV if the GPU is not bound to NVIDIA's driver; EIO
        if it is lost; EBUSY while its device node is open
        (NVIDIA/gpu-operator#118, NVIDIA/mig-parted#181) or VFs exist;
        ENOTCONN if it needs a fabric manager and none runs.
    """
    if not gpu.bound:
        _fail(errno.ENODEV)
    if gpu.unreachable:
        _fail(errno.EIO)
    daemon, gpu.state.daemon = gpu.state.daemon, False
    try:
        if gpu.held() or gpu.busy() or gpu.state.vfs:
            _fail(errno.EBUSY)
    finally:
        gpu.state.daemon = daemon
    if not fabric_allows(gpu):
        _fail(errno.ENOTCONN)
    done(gpu)


def by_kernel(gpu: Gpu) -> None:
    """Reset a GPU as a write to its sysfs file ``reset`` does.

    pci_reset_function (drivers/pci/pci.c of Linux) does not check for users.
    It notifies the driver through ``err_handler``, which nv_pci_driver does
    not have (kernel-open/nvidia/nv-pci.c of NVIDIA's open kernel modules).
    So the driver continues with a GPU that has lost its state. Only a reboot,
    or an unbind, a reset and a bind, repair this. No public source says what
    NVML then returns; here the GPU is lost to NVML, with XID 79.

    :raises OSError: ENOTTY if the GPU is off the bus.
    """
    state = gpu.state
    if state.lost:
        _fail(errno.ENOTTY)
    if state.removing:
        raise faults.Waits()
    if state.vfio or any(vgpu.guest for vgpu in state.vgpus):
        gpu.harm('reset under a guest')
    if state.driver is None or is_vfio(state.driver):
        done(gpu)
        return
    gpu.harm(f'reset under the driver {state.driver}')
    state.dead = True
    gpu.machine.raise_xid(gpu.address, _OFF_THE_BUS)


def fabric_allows(gpu: Gpu) -> bool:
    """Whether the state of the fabric manager allows a reset of one GPU.

    The manual page of nvidia-smi: a reset needs a running fabric manager on
    NVSwitch systems with Ampere GPUs, and no longer on Hopper and later.
    """
    return (gpu.model.architecture != pynvml.NVML_DEVICE_ARCH_AMPERE
            or not gpu.on_switches
            or bool(gpu.machine.state.fabric_manager))


def done(gpu: Gpu) -> None:
    """Set the state of a GPU after a reset."""
    gpu.clear()
    gpu.state.resets += 1
    gpu.state.dead = gpu.state.stale = False
    gpu.state.mig = gpu.state.pending
