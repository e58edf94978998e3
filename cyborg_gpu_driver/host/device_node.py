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

"""Whether a GPU is in use, and who has its device node open.

When a GPU is unbound, NVIDIA's kernel driver waits until its usage count is 0
(nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c of NVIDIA's open kernel
modules), with some versions for ever. Only the driver knows the count: proc
does not show uses that have leaked (NVIDIA/open-gpu-kernel-modules#1119), nor
GPUs that are attached to another descriptor (NV_ESC_ATTACH_GPUS_TO_FD in
kernel-open/nvidia/nv.c, nv-dmabuf.c). So the driver decides, and proc only
names the processes. NVML lists only processes with a context on the GPU.
"""

from __future__ import annotations

import os

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

DISPLAY_MODULE = 'nvidia_drm'
Holder = tuple[int, str]
"""Process id and name; id 0 is a kernel module."""

_MINOR = 'Device Minor:'
_FABRIC_MANAGER = 'nv-fabricmanager'
_NAME_LIMIT = 15
"""TASK_COMM_LEN of linux/sched.h, without the NUL."""
_MAJOR = 195
"""NV_MAJOR_DEVICE_NUMBER in kernel-open/common/inc/nv.h."""
_GPUS = ('driver', 'nvidia', 'gpus')
_MEMORY = 'Video Memory:'
_UNINITIALIZED = '?'


def holders(machine: platform.Platform, address: model.PciAddress,
            proc: str = '/proc') -> tuple[Holder, ...]:
    """Return those who have a GPU open, as far as the machine shows them.

    This process may be one of them.

    :param proc: where proc is mounted.
    :raises UsageUnknown: if the holders cannot be found, for example because
        the driver is not known.
    :raises SysfsError: if the GPU cannot be read.
    """
    driver = pci.PciBus(machine.sysfs).driver(address)
    if driver is None:
        return ()
    if drivers.is_vfio(driver):
        return tuple((pid, open_files.process_name(pid, proc)) for pid
                     in usage.vfio_holders(machine, address, proc))
    if driver != drivers.NVIDIA:
        raise exception.UsageUnknown(
            what=f'GPU {address}', reason=f'it is bound to {driver}, and the '
                                          'users of that driver cannot be '
                                          'determined')
    found = (_openers(machine, address, proc) if machine.gpu_holders is None
             else tuple(machine.gpu_holders(str(address))))
    return found + _display(machine, address)


def is_unused(machine: platform.Platform, address: model.PciAddress) -> bool:
    """Whether the driver without unbindLock says that a GPU is unused.

    The driver initializes a GPU at its first use, and shuts it down after the
    last one unless persistence mode is on (nv_open_device and nv_stop_device
    in kernel-open/nvidia/nv.c). As long as it is not initialized, the file
    ``power`` has question marks (rm_get_power_info in dynamic-power.c).

    nvidia_drm with modeset=1 keeps the GPU initialized. A newer driver makes
    it let go in the course of the unbind, so it is no reason to refuse. But it
    hides whether there is another use, so nobody may have the node open.

    :param machine: with the persistence mode of the GPU off.
    :raises UsageUnknown: if the driver does not say it, or if it is unknown
        who has the node open.
    :raises SysfsError: if a file cannot be read.
    """
    text = machine.proc.read_optional(*_GPUS, str(address), 'power')
    for line in (text or '').splitlines():
        if line.startswith(_MEMORY):
            break
    else:
        raise exception.UsageUnknown(
            what=f'GPU {address}', reason='the driver does not say whether '
            f'it is in use: {"/".join((machine.proc.root, *_GPUS))}/{address}'
            f'/power has no line "{_MEMORY}"')
    if line.removeprefix(_MEMORY).strip() == _UNINITIALIZED:
        return True
    return only_display_uses(machine, address)


def only_display_uses(machine: platform.Platform, address: model.PciAddress,
                      besides: str | None = None) -> bool:
    """Whether only nvidia_drm has a GPU open, which an unbind then ends.

    :param besides: name of a process that may have it open too.
    :raises UsageUnknown, SysfsError: if it is unknown who has it open.
    """
    display = _display(machine, address)
    version = machine.sysfs.read_optional('module', 'nvidia', 'version')
    return (bool(display) and drivers.releases_display(version)
            and display == tuple(holder for holder in holders(
                machine, address) if holder[1] != besides))


def fabric_manager_runs(machine: platform.Platform, proc: str = '/proc'
                        ) -> bool:
    """Whether NVIDIA's fabric manager runs on this machine.

    Where its process would not be visible, it is taken for running: nvidia-smi
    and libnvfm say if it is not.
    """
    if machine.fabric_manager is not None:
        return machine.fabric_manager()
    return not open_files.shows_all(proc) or any(
        open_files.process_name(int(pid), proc)
        == _FABRIC_MANAGER[:_NAME_LIMIT]
        for pid in os.listdir(proc) if pid.isdigit())


def _openers(machine: platform.Platform, address: model.PciAddress, proc: str
             ) -> tuple[tuple[int, str], ...]:
    minor = _minor(address, proc)
    try:
        return tuple((pid, open_files.process_name(pid, proc)) for pid
                     in open_files.device_openers(
                         proc, 'nvidia', os.makedev(_MAJOR, minor)))
    except OSError as error:
        raise exception.UsageUnknown(
            what=f'GPU {address}',
            reason=f'{error.filename}: {error.strerror}') from error


def _minor(address: model.PciAddress, proc: str) -> int:
    """Return the number of the GPU's device node.

    NVML would have to open the GPU to report it. The driver writes it to
    proc (nv_procfs_read_gpu_info in kernel-open/nvidia/nv-procfs.c).
    """
    path = f'{proc}/driver/nvidia/gpus/{address}/information'
    try:
        with open(path, encoding='utf-8', errors='replace') as stream:
            for line in stream:
                if line.startswith(_MINOR):
                    return int(line[len(_MINOR):])
    except (OSError, ValueError) as error:
        raise exception.UsageUnknown(
            what=f'GPU {address}', reason=f'{path}: {error}') from error
    raise exception.UsageUnknown(
        what=f'GPU {address}', reason=f'{path} has no line "{_MINOR}"')


def _display(machine: platform.Platform, address: model.PciAddress
             ) -> tuple[tuple[int, str], ...]:
    """Return nvidia_drm if it has the GPU open in the kernel.

    With modeset=1 it allocates a display device for each GPU, which opens
    the GPU (nv_drm_dev_load in kernel-open/nvidia-drm/nvidia-drm-drv.c;
    nvkms_open_gpu in kernel-open/nvidia-modeset/nvidia-modeset-linux.c).
    """
    on = machine.sysfs.read_optional('module', DISPLAY_MODULE, 'parameters',
                                     'modeset')
    if on == 'Y' and machine.sysfs.exists(*pci.DEVICES, str(address), 'drm'):
        return ((0, DISPLAY_MODULE),)
    return ()
