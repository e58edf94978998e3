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

"""Privileged operations on the kernel driver of a whole GPU.

As in :mod:`cyborg_gpu_driver.program.privileged.mig`, each checks its
arguments again. A GPU is unbound from its driver only while no process has it
open: NVIDIA's driver would wait for the holder, for ever in some versions
(nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c).
"""

from __future__ import annotations

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host import device_node
from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.program.privileged import holders as holders_module
from cyborg_gpu_driver.program.privileged import mig as privileged

LOG = logging.getLogger(__name__)

_DRIVERS = ('bus', 'pci', 'drivers')
_GROUPS = ('kernel', 'iommu_groups')
_DISPLAY = ('0x0300', '0x0302')
_BRIDGE = '0x0604'
_NONE = '(null)'
"""What ``driver_override`` reads where nothing is written; an empty line
clears it (Documentation/ABI/testing/sysfs-bus-pci of the kernel)."""


@privsep.entrypoint
def holders(address: str) -> tuple[tuple[int, str], ...]:
    """Who has a GPU open: process ids and names; id 0 is a kernel module.

    Files of processes of other users are root's to see.

    :raises UsageUnknown, SysfsError: if that cannot be found out.
    """
    return device_node.holders(privileged.machine(), nvidia_gpu(address))


@privsep.slow_entrypoint
def bind(address: str, driver: str) -> None:
    """Give a GPU to a driver, with the other functions of its board.

    Those go to ``vfio-pci`` with it, because a guest gets an IOMMU group as
    a whole (Documentation/driver-api/vfio.rst), and back to the drivers that
    the kernel has for them. What is right already is left alone.

    :param driver: ``nvidia`` or ``vfio-pci``.
    :raises GpuInUse: if somebody has it open; nothing was changed.
    :raises DriverStuck: if its driver does not let go of it.
    :raises DriverError: if it cannot be given to that driver; where its own
        driver takes it back, it has it again.
    :raises UsageUnknown, SysfsError: if the GPU cannot be looked at.
    """
    if driver not in (drivers.NVIDIA, drivers.VFIO_PCI):
        raise exception.InvalidValue(
            what='driver', value=driver,
            expected=f'expected {drivers.NVIDIA} or {drivers.VFIO_PCI}')
    gpu = nvidia_gpu(address)
    _check_loaded(gpu, driver)
    others = _others(gpu, driver)
    former = _driver(gpu)
    if former != driver:
        _check_idle(gpu)
    _override(gpu, driver)
    try:
        if former != driver:
            _unbind(gpu, former)
            _bind(gpu, driver)
        for other in others:
            _follow(other, driver)
    except exception.DriverStuck:
        raise
    except exception.GpuDriverError as error:
        raise exception.DriverError(
            address=gpu, reason=str(error),
            state=_taken_back(gpu, former)) from error


@privsep.slow_entrypoint
def reset(address: str) -> None:
    """Reset a GPU while no driver has it, and give it back to its own.

    A reset through sysfs asks no driver, and NVIDIA's has no callback to
    hear of one (nv_pci_driver in kernel-open/nvidia/nv-pci.c has no
    err_handler): under a bound driver it would ruin the GPU's state.

    :raises GpuInUse: if somebody has it open; nothing was changed.
    :raises DriverStuck: if its driver does not let go of it.
    :raises DriverError: if it could not be reset, or bound again.
    :raises UsageUnknown, SysfsError: if the GPU cannot be looked at.
    """
    gpu = nvidia_gpu(address)
    former = _driver(gpu)
    _check_idle(gpu)
    _unbind(gpu, former)
    try:
        privileged.machine().sysfs.write('1', *pci.DEVICES, str(gpu),
                                         'reset')
    except exception.SysfsError as error:
        raise exception.DriverError(
            address=gpu, reason=f'it was not reset: {error}',
            state=_taken_back(gpu, former)) from error
    if former == drivers.VFIO_PCI:
        # Whoever bound it may have taken back what let vfio-pci have it.
        _override(gpu, former)
    _bind(gpu, former)


def nvidia_gpu(address: str) -> model.PciAddress:
    """The address of a physical GPU of NVIDIA's.

    :raises InvalidPciAddress, UnknownGpu: if it is something else.
    """
    parsed = privileged.nvidia_function(address)
    if (not (_read(parsed, 'class') or '').startswith(_DISPLAY)
            or _exists(parsed, 'physfn')):
        raise exception.UnknownGpu(address=parsed)
    return parsed


def refuse_held(gpu: model.PciAddress) -> None:
    """See to it that nobody has a GPU open, this process included.

    :raises GpuInUse: naming who has it open.
    :raises UsageUnknown, SysfsError: if that cannot be found out.
    """
    privileged.machine().nvml.reset()
    found = device_node.holders(privileged.machine(), gpu)
    if found:
        raise exception.GpuInUse(
            gpu=gpu, reason='open in ' + holders_module.describe(found))


def _check_idle(gpu: model.PciAddress) -> None:
    """See to it that the GPU can be taken from its driver at once."""
    refuse_held(gpu)
    functions = _read(gpu, 'sriov_numvfs') or '0'
    if functions != '0':
        raise exception.GpuInUse(
            gpu=gpu, reason=f'it has {functions} virtual functions '
            f'(sriov-manage -d {gpu} removes them)')


def _check_loaded(gpu: model.PciAddress, driver: str) -> None:
    if not privileged.machine().sysfs.exists(*_DRIVERS, driver):
        raise exception.DriverError(
            address=gpu, reason=f'the kernel has no driver {driver}: run '
            f'modprobe {driver}', state='nothing was changed')


def _others(gpu: model.PciAddress, driver: str) -> list[str]:
    """The other functions that have to go with the GPU.

    :raises DriverError: if something else is in its IOMMU group, which a
        guest would get too.
    """
    board = [name for name in privileged.machine().sysfs.listdir(
        *pci.DEVICES) if name != str(gpu) and _board(name) == _board(gpu)
        and not _exists(name, 'physfn')]
    if driver != drivers.VFIO_PCI:
        return board
    group = privileged.machine().sysfs.link_name(
        *pci.DEVICES, str(gpu), 'iommu_group')
    if group is None:
        raise exception.DriverError(
            address=gpu, reason='it is in no IOMMU group: turn the IOMMU on '
            '(in the firmware, and intel_iommu=on for the kernel)',
            state='nothing was changed')
    for name in privileged.machine().sysfs.listdir(*_GROUPS, group,
                                                   'devices'):
        if (name == str(gpu) or name in board
                or (_read(name, 'class') or '').startswith(_BRIDGE)
                or _driver(name) in (None, drivers.VFIO_PCI)):
            continue
        raise exception.DriverError(
            address=gpu, reason=f'{name} (driver {_driver(name)}) is in the '
            f'same IOMMU group, {group}, and is no part of the GPU: the '
            'slot needs access control (ACS)', state='nothing was changed')
    return [name for name in board
            if not (_read(name, 'class') or '').startswith(_BRIDGE)]


def _follow(other: str, driver: str) -> None:
    """Let a function of the same board go where the GPU has gone."""
    now = _driver(other)
    _override(other, driver)
    if driver == drivers.VFIO_PCI:
        if now != drivers.VFIO_PCI:
            _unbind(other, now)
            _bind(other, drivers.VFIO_PCI)
    elif drivers.is_vfio(now) or now is None:
        _unbind(other, now)
        privileged.machine().sysfs.write(str(other), 'bus', 'pci',
                                         'drivers_probe')


def _override(function: model.PciAddress | str, driver: str | None) -> None:
    """Say which driver may have a function; the kernel asks at each bind."""
    now = _read(function, 'driver_override') or _NONE
    wanted = drivers.VFIO_PCI if driver == drivers.VFIO_PCI else _NONE
    if now != wanted:
        privileged.machine().sysfs.write(
            '\n' if wanted == _NONE else wanted,
            *pci.DEVICES, str(function), 'driver_override')


def _unbind(function: model.PciAddress | str, driver: str | None) -> None:
    """Take a function from its driver, if it has one.

    :raises DriverStuck: if the driver does not return in time.
    """
    if driver is None:
        return
    machine = privileged.machine()
    LOG.info('Unbinding %(function)s from driver %(driver)s',
             {'function': function, 'driver': driver})
    try:
        machine.sysfs.write_apart(machine.driver_timeout, str(function),
                                  *_DRIVERS, driver, 'unbind')
    except TimeoutError as error:
        raise exception.DriverStuck(
            address=function, reason=f'driver {driver} did not release it '
            f'within {machine.driver_timeout} seconds',
            state='it waits until every process has closed the GPU, cannot '
            'be interrupted, and may stay so until the host is restarted; '
            "see the kernel's log") from error


def _bind(function: model.PciAddress | str, driver: str | None) -> None:
    """Give a function without a driver to one.

    :raises DriverError, SysfsError: if it does not take it.
    """
    if driver is None:
        return
    machine = privileged.machine()
    try:
        machine.sysfs.write_apart(machine.driver_timeout, str(function),
                                  *_DRIVERS, driver, 'bind')
    except TimeoutError as error:
        raise exception.DriverStuck(
            address=function, reason=f'driver {driver} has not taken it '
            f'within {machine.driver_timeout} seconds',
            state="it may still do so; see the kernel's log") from error
    if _driver(function) != driver:
        raise exception.DriverError(
            address=function, reason=f'driver {driver} did not take it',
            state=f'its driver is {_driver(function) or "none"}')


def _taken_back(gpu: model.PciAddress, former: str | None) -> str:
    """Give a GPU back to the driver that it had; how it is now, in words."""
    try:
        if _driver(gpu) != former:
            _unbind(gpu, _driver(gpu))
            _override(gpu, former)
            _bind(gpu, former)
    except exception.GpuDriverError as error:
        return (f'its former driver, {former or "none"}, did not take it '
                f'back ({error})')
    return f'its driver is {former or "none"}, as before'


def _driver(function: model.PciAddress | str) -> str | None:
    return privileged.machine().sysfs.link_name(*pci.DEVICES, str(function),
                                                'driver')


def _read(function: model.PciAddress | str, name: str) -> str | None:
    return privileged.machine().sysfs.read_optional(
        *pci.DEVICES, str(function), name)


def _exists(function: model.PciAddress | str, name: str) -> bool:
    return privileged.machine().sysfs.exists(*pci.DEVICES, str(function),
                                             name)


def _board(name: model.PciAddress | str) -> str:
    """What the functions of one board share: domain, bus and device."""
    return str(name).rpartition('.')[0]
