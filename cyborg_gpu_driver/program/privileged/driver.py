# SPDX-License-Identifier: Apache-2.0

"""Privileged operations on the kernel driver of a whole GPU.

A GPU is unbound only if its driver has consented, or
while no process has its VFIO device open: the driver would wait for its users
(nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c of NVIDIA's open kernel
modules, vfio_unregister_group_dev in drivers/vfio/vfio_main.c of Linux).
"""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.program.privileged import consent
from cyborg_gpu_driver.program.privileged import mig as privileged

LOG = logging.getLogger(__name__)

_DRIVERS = ('bus', 'pci', 'drivers')
_DISPLAY = ('0x0300', '0x0302')
_BRIDGE = '0x0604'
_NONE = '(null)'
"""The content of ``driver_override`` if it is not set. An empty line clears
it (Documentation/ABI/testing/sysfs-bus-pci of the kernel)."""
_RESET_SECONDS = 240.0
"""The kernel waits up to 60 s for the GPU after each method of reset that it
tries (PCIE_RESET_READY_POLL_MS in drivers/pci/pci.c)."""


@privsep.entrypoint
def holders(address: str) -> tuple[tuple[int, str], ...]:
    """What has a GPU open: process ids and names; id 0 is a kernel module.

    Only root sees the open files of other users' processes.
    """
    return usage.holders(privileged.machine(), nvidia_gpu(address))


@privsep.slow_entrypoint
def bind(address: str, driver: str) -> None:
    """Bind a GPU to a kernel driver, with the other functions of its board.

    The other functions are bound to ``vfio-pci`` too, because a guest gets a
    whole IOMMU group (Documentation/driver-api/vfio.rst). With ``nvidia``
    they return to the drivers that the kernel has for them. A function with
    the right driver is not touched.

    :param driver: ``nvidia``, or ``vfio-pci``, which stands for the driver
        that the kernel has for giving the board to guests.
    :raises GpuInUse: if the GPU is in use; nothing was changed.
    :raises StepFailed: if it cannot be bound to that driver. Then it is
        bound to its former driver again, if possible.
    """
    if driver not in (whole.NVIDIA, whole.VFIO_PCI):
        raise exception.InvalidValue(
            what='driver', value=driver,
            expected=f'expected {whole.NVIDIA} or {whole.VFIO_PCI}')
    gpu = nvidia_gpu(address)
    machine = privileged.machine()
    own = driver if driver == whole.NVIDIA else pci.PciBus(
        machine.sysfs).vfio_driver(gpu, machine.module_aliases())
    _check_loaded(gpu, own)
    others = _others(gpu, driver)
    former = _driver(gpu)
    was_persistent = False
    if former == own:
        _override(gpu, own)
    else:
        was_persistent = _take(gpu, former, own)
    try:
        if former != own:
            _bind(gpu, own)
        for other in others:
            _follow(other, driver)
    except exception.DriverStuck:
        raise
    except exception.GpuDriverError as error:
        raise exception.StepFailed(
            f'{gpu}: {error}; '
            f'{_taken_back(gpu, former, was_persistent)}') from error


@privsep.slow_entrypoint
def reopen(address: str) -> bool:
    """Let a GPU be opened again after an unbind that was not made.

    The caller ensures that no other process is about to unbind it.

    :returns: whether the driver had let nobody open it.
    """
    return consent.give_back(nvidia_gpu(address))


@privsep.slow_entrypoint
def reset(address: str) -> None:
    """Unbind a GPU from its driver, reset it, and bind it again.

    A reset through sysfs does not ask the driver, and NVIDIA's driver has no
    callback for it (nv_pci_driver in kernel-open/nvidia/nv-pci.c has no
    err_handler). With a bound driver, a reset would ruin the GPU's state.

    :raises GpuInUse: if the GPU is in use; nothing was changed.
    """
    gpu = nvidia_gpu(address)
    former = _driver(gpu)
    if not _exists(gpu, 'reset'):
        raise exception.StepFailed(
            f'{gpu}: the kernel has no way to reset it (no file "reset" '
            'in sysfs); nothing was changed')
    was_persistent = _take(gpu, former, former)
    try:
        _apart(gpu, 'the kernel did not reset it',
               privileged.machine().sysfs.write, '1', *pci.DEVICES, str(gpu),
               'reset', longer=_RESET_SECONDS)
    except exception.SysfsError as error:
        raise exception.StepFailed(
            f'{gpu}: it was not reset: {error}; '
            f'{_taken_back(gpu, former, was_persistent)}') from error
    if whole.is_vfio(former):
        # The tool that bound it to vfio-pci may have cleared the override
        # since then.
        _override(gpu, former)
    _bind(gpu, former)
    if was_persistent:
        persist(gpu)


def persist(gpu: model.PciAddress) -> None:
    """Turn persistence mode on for a GPU that came back to NVIDIA's driver.

    NVML does it, because nvidia-persistenced cannot open such a GPU
    (enableGPUPersistenceMode in k8s-dra-driver-gpu). The GPU works without
    it, only slower after an idle time, so an error is only logged.
    """
    nvml = privileged.machine().nvml
    try:
        with nvml.lent():
            nvml.call('nvmlDeviceSetPersistenceMode', nvml.device(gpu), 1)
    except exception.NvmlError as error:
        LOG.warning('GPU %(gpu)s: persistence mode cannot be turned on: '
                    '%(error)s', {'gpu': gpu, 'error': error})


def nvidia_gpu(address: str) -> model.PciAddress:
    """Parse the address of a physical NVIDIA GPU."""
    parsed = privileged.nvidia_function(address)
    if (not (_read(parsed, 'class') or '').startswith(_DISPLAY)
            or _exists(parsed, 'physfn')):
        raise exception.UnknownGpu(address=parsed)
    return parsed


def _take(gpu: model.PciAddress, former: str | None, driver: str | None
          ) -> bool:
    """Unbind a GPU that is not in use.

    :param driver: the driver to which it is bound afterwards.
    :returns: whether persistence mode was on.
    :raises GpuInUse, UsageUnknown, SysfsError, DriverStuck: nothing was
        changed but persistence mode.
    """
    functions = pci.PciBus(privileged.machine().sysfs).numvfs(gpu)
    if functions:
        raise exception.GpuInUse(
            gpu=gpu, reason=f'it has {functions} virtual functions '
            f'(sriov-manage -d {gpu} removes them)')
    if former != whole.NVIDIA:
        found = usage.holders(privileged.machine(), gpu)
        if found:
            raise exception.GpuInUse(
                gpu=gpu, reason='open in ' + consent.describe(found))
        _override(gpu, driver)
        _unbind(gpu, former)
        return False
    was_persistent = consent.end_persistence(gpu)
    try:
        with consent.given(gpu):
            _override(gpu, driver)
            _unbind(gpu, former)
    except exception.GpuDriverError:
        if was_persistent:
            persist(gpu)
        raise
    return was_persistent


def _check_loaded(gpu: model.PciAddress, driver: str) -> None:
    if not privileged.machine().sysfs.exists(*_DRIVERS, driver):
        raise exception.StepFailed(
            f'{gpu}: the kernel has no driver {driver}: run modprobe '
            f'{driver}; nothing was changed')


def _others(gpu: model.PciAddress, driver: str) -> list[str]:
    """The other functions of the board that have to be bound with the GPU."""
    board = [name for name in privileged.machine().sysfs.listdir(
        *pci.DEVICES) if name != str(gpu) and _board(name) == _board(gpu)
        and not _exists(name, 'physfn')]
    if driver != whole.VFIO_PCI:
        return board
    bus = pci.PciBus(privileged.machine().sysfs)
    group = bus.iommu_group(gpu)
    reason = whole.obstacle(str(gpu), group, bus.neighbours(gpu, group),
                            follow=True)
    if reason:
        raise exception.StepFailed(f'{gpu}: {reason}; nothing was changed')
    return [name for name in board
            if not (_read(name, 'class') or '').startswith(_BRIDGE)]


def _follow(other: str, driver: str) -> None:
    """Bind another function of the board as the GPU was bound."""
    now = _driver(other)
    _override(other, driver)
    if driver == whole.VFIO_PCI:
        if now != whole.VFIO_PCI:
            _unbind(other, now)
            _bind(other, whole.VFIO_PCI)
    elif whole.is_vfio(now) or now is None:
        _unbind(other, now)
        _apart(other, 'no driver was bound to it',
               privileged.machine().sysfs.write, other, 'bus', 'pci',
               'drivers_probe')


def _override(function: model.PciAddress | str, driver: str | None) -> None:
    """Set which driver may bind a function; the kernel checks each bind."""
    sysfs = privileged.machine().sysfs
    late = 'another bind or unbind of it did not end'
    place = (*pci.DEVICES, str(function), 'driver_override')
    now = _apart(function, late, sysfs.read_optional, *place) or _NONE
    wanted = driver if driver and whole.is_vfio(driver) else _NONE
    if now != wanted:
        _apart(function, late, sysfs.write,
               '\n' if wanted == _NONE else wanted, *place)


def _unbind(function: model.PciAddress | str, driver: str | None) -> None:
    """Unbind a function from its driver, if it has one."""
    if driver is None:
        return
    LOG.info('Unbinding %(function)s from driver %(driver)s',
             {'function': function, 'driver': driver})
    _apart(function, f'driver {driver} did not release it',
           privileged.machine().sysfs.write, str(function), *_DRIVERS, driver,
           'unbind')


def _bind(function: model.PciAddress | str, driver: str | None) -> None:
    """Bind a function without a driver to a driver."""
    if driver is None:
        return
    _apart(function, f'driver {driver} did not bind to it',
           privileged.machine().sysfs.write, str(function), *_DRIVERS, driver,
           'bind')
    if _driver(function) != driver:
        raise exception.StepFailed(
            f'{function}: driver {driver} did not bind to it; its driver '
            f"is {_driver(function) or 'none'}")


def _apart(function: model.PciAddress | str, late: str,
           act: Callable[..., str | None], *arguments: str,
           longer: float = 0.0) -> str:
    """Make an access to sysfs that needs the lock of a function.

    The kernel holds the lock while a driver is bound or unbound
    (drivers/base/dd.c), which may never end. The files ``driver_override``
    and ``reset`` take it too (drivers/pci/pci-sysfs.c, drivers/pci/pci.c).

    :param late: what did not happen if the kernel does not return in time.
    :param longer: seconds to wait beyond the platform's ``driver_timeout``.
    """
    machine = privileged.machine()
    seconds = machine.driver_timeout + longer
    try:
        return machine.sysfs.apart(seconds, act, *arguments)
    except TimeoutError as error:
        raise exception.DriverStuck(
            address=function, reason=f'{late} within {seconds:g} seconds',
            state='the kernel cannot be interrupted: it may still finish, or '
            'wait until the host is restarted; see its log') from error


def _taken_back(gpu: model.PciAddress, former: str | None,
                was_persistent: bool) -> str:
    """Bind a GPU to its former driver; return its state as text."""
    try:
        if _driver(gpu) != former:
            _take(gpu, _driver(gpu), former)
            _bind(gpu, former)
            if was_persistent:
                persist(gpu)
    except exception.GpuDriverError as error:
        return (f'it could not be given back to its former driver, '
                f'{former or "none"} ({error})')
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
    """The domain, bus and device, which all functions of a board share."""
    return str(name).rpartition('.')[0]
