# SPDX-License-Identifier: Apache-2.0

"""Privileged operations on vGPUs."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import functions
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.program.privileged import child
from cyborg_gpu_driver.program.privileged import mig as privileged

_MDEVCTL_SECONDS = 5.0
"""Time limit of mdevctl, which removes one file."""
_UNKNOWN = 'No devices match'
"""The message of ``mdevctl undefine`` for an unknown UUID."""


@privsep.entrypoint
def create_mdev(parent: str, mdev_type: str, uuid: str) -> None:
    """Create a mediated device."""
    function = privileged.nvidia_function(parent)
    _write(function, vgpu_name.handle(uuid), 'class', 'mdev_bus',
           str(function), 'mdev_supported_types',
           vgpu_name.mdev_type(mdev_type), 'create')


@privsep.slow_entrypoint
def remove_mdev(uuid: str) -> None:
    """Remove a mediated device that no process has open.

    Linux does not refuse to remove one that a guest has. It asks the guest's
    QEMU to give it up, and waits until it is closed
    (vfio_unregister_group_dev in drivers/vfio/vfio_main.c, which
    mdev_device_remove in drivers/vfio/mdev/mdev_core.c leads to).

    :raises GpuInUse: if a process has it open; nothing was changed.
    """
    machine = privileged.machine()
    handle, _ = _nvidia_mdev(uuid)
    usage.refuse_open(machine, handle)
    try:
        machine.sysfs.apart(machine.driver_timeout, machine.sysfs.write,
                            '1', *functions.DEVICES, handle, 'remove')
    except TimeoutError as error:
        raise exception.DriverStuck(
            address=handle, reason='the kernel did not remove the mdev '
            f'within {machine.driver_timeout} seconds',
            state='it waits until every process has closed it; see the '
            "kernel's log") from error


@privsep.entrypoint
def undefine_mdev(uuid: str) -> None:
    """Remove mdevctl's definition of a mediated device, if it has one.

    libvirt defines the mdevs that Nova asks for through mdevctl, which starts
    them at each boot, and no other program removes the definitions. A
    definition that is kept would take a vGPU from the next boot on. A host
    without mdevctl has no definitions.
    """
    handle, _ = _nvidia_mdev(uuid)
    try:
        child.run(_MDEVCTL_SECONDS, privileged.machine().mdevctl, 'undefine',
                  '--uuid', handle)
    except FileNotFoundError:
        return
    except child.Failed as error:
        if _UNKNOWN not in str(error):
            raise exception.StepFailed(
                f'mdevctl, mdev {handle}: {error}') from error


@privsep.entrypoint
def set_vgpu_type(function: str, type_number: int) -> None:
    """Create a vGPU on a virtual function of vendor VFIO, or remove it.

    That a removal succeeds does not mean that the next guest can use its vGPU
    on the function (kernel/hypeman#321); the caller watches for this.

    :param type_number: number of the vGPU type; 0 removes the vGPU.
    :raises SysfsError: EIO if the GPU has no room for it; EBUSY.
    """
    privileged.check_number('vGPU type', type_number, 1 << 31)
    parsed = privileged.nvidia_function(function)
    _write(parsed, str(type_number), *pci.DEVICES, str(parsed), 'nvidia',
           'current_vgpu_type')


@privsep.entrypoint
def set_vgpu_placement(vgpu: str, placement: int) -> None:
    """Set the placement of a vGPU on a GPU of mixed sizes.

    NVIDIA's vGPU manager reads it when the virtual machine starts. The start
    fails if the placement is taken or is not one of the type's.

    :param vgpu: the mdev's UUID, or the virtual function's PCI address.
    :raises SysfsError: with the kernel's errno; ENOENT if there is no vGPU.
    """
    privileged.check_number('placement id', placement, 1 << 16)
    try:
        handle, function = _nvidia_mdev(vgpu)
        place = (*functions.DEVICES, handle)
    except exception.InvalidValue:
        function = privileged.nvidia_function(vgpu)
        place = (*pci.DEVICES, str(function))
    if function is None:
        raise exception.SysfsError(
            action='write', path='/'.join(place), errno=errno.ENOENT,
            reason=os.strerror(errno.ENOENT))
    _write(function, f'vgpu-placement-id={placement}', *place, 'nvidia',
           'vgpu_params')


@privsep.entrypoint
def vfio_holders(vgpu: str) -> tuple[int, ...]:
    """Processes that have a VFIO device open.

    Only root sees the open files of other users' processes.

    :param vgpu: the PCI address of a function, or the UUID of an mdev.
    """
    device: model.PciAddress | str
    try:
        device, _ = _nvidia_mdev(vgpu)
    except exception.InvalidValue:
        device = privileged.nvidia_function(vgpu)
    return usage.vfio_holders(privileged.machine(), device)


def _nvidia_mdev(uuid: str) -> tuple[str, model.PciAddress | None]:
    """Check that a UUID is unused, or of an mdev of an NVIDIA function.

    :returns: the UUID, and the function; None if there is no such mdev.
    """
    handle = vgpu_name.handle(uuid)
    sysfs = privileged.machine().sysfs
    if not sysfs.exists(*functions.DEVICES, handle):
        return handle, None
    # A link to the device, which is in its parent's directory.
    parent = (sysfs.link_parts(*functions.DEVICES, handle) or ('', ''))[-2]
    try:
        return handle, privileged.nvidia_function(parent)
    except exception.InvalidValue as error:
        raise exception.UnknownGpu(address=parent) from error


def _write(function: model.PciAddress, value: str, *place: str) -> None:
    """Write to a file of NVIDIA's driver, which may never return.

    The write counts as a call about the GPU. While it has not returned, no
    other call is made for the GPU (:mod:`cyborg_gpu_driver.host.deadline`).

    :raises NvmlNotAnswering: if it takes longer than ``[gpu] nvml_timeout``.
    """
    machine = privileged.machine()
    gpu = pci.physical_function(machine.sysfs, str(function)) or function
    deadline.run(gpu, machine.nvml.timeout, f'a write to {place[-1]}',
                 machine.sysfs.write, value, *place)


# Create a GPU's virtual functions with NVIDIA's sriov-manage.
#
# There is no other way: the kernel's control file (``sriov_numvfs``) refuses
# writes with NVIDIA's driver, and NVML has no call for it.

LOG = logging.getLogger(__name__)

_ATTEMPTS = 5
_SECONDS = 120.0
"""Time limit of one attempt. sriov-manage unbinds the GPU and makes up to a
few hundred virtual functions, which takes seconds."""
_PASSING = 'unbindLock'
"""In its output while another unbind is under way, which is temporary."""
_PAUSE = 1.0
"""Seconds between two attempts."""


def manage_functions(address: str, enable: bool, tool: child.Tool,
                     sleep: Callable[[float], object] = time.sleep) -> None:
    """Create or remove all virtual functions of a GPU.

    :param tool: the script's path, or a simulated machine's function for it
        (:attr:`cyborg_gpu_driver.host.platform.Platform.sriov_manage`).
    """
    arguments = ((address, enable) if callable(tool)
                 else ('-e' if enable else '-d', address))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            child.run(_SECONDS, tool, *arguments)
            return
        except FileNotFoundError as error:
            raise exception.StepFailed(
                f'virtual functions of GPU {address}: {tool} cannot be run '
                f'({error}); it comes with NVIDIA vGPU software') from error
        except child.Failed as error:
            if _PASSING not in str(error) or attempt == _ATTEMPTS:
                raise exception.StepFailed(
                    f'virtual functions of GPU {address}: sriov-manage '
                    f'failed: {error}') from error
            LOG.info('GPU %(gpu)s: %(said)s; trying again',
                     {'gpu': address, 'said': error})
        sleep(_PAUSE)
