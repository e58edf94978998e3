# SPDX-License-Identifier: Apache-2.0

"""What runs on a GPU now: processes and virtual machines, by instance."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.host.sysfs import functions
from cyborg_gpu_driver.host.sysfs import pci

_NODES = '/dev/vfio'
_NO_PLACEMENT = 0xffff
"""NVML_INVALID_VGPU_PLACEMENT_ID, which pynvml lacks."""


@gate.series
def processes(machine: platform.Platform, address: model.PciAddress
              ) -> tuple[nvml_process.Process, ...]:
    """Return the processes on a GPU and its instances."""
    return nvml_process.processes(machine.nvml, machine.nvml.device(address))


@dataclasses.dataclass(frozen=True)
class GuestVgpu:
    """A vGPU that a guest runs, as NVML knows it. NVML knows no others.

    NVML does not report its PCI function on the host:
    nvmlVgpuInstanceGetGpuPciId returns the address within the guest.
    """

    type_id: str
    """``nvidia-474``."""
    uuid: str | None = None
    """UUID of the mdev; None with vendor VFIO."""
    instance_id: int | None = None
    placement_id: int | None = None
    """Placement id in mixed-size mode."""

    def may_be_on(self, function: model.VirtualFunction) -> bool:
        """Whether all known facts allow that the vGPU is on ``function``."""
        if self.uuid is not None:
            return any(item.uuid == self.uuid for item in function.mdevs)
        return (self.type_id == f'nvidia-{function.current_vgpu_type}'
                and _agree(self.instance_id, function.gpu_instance_id)
                and _agree(self.placement_id, function.placement_id))


@gate.series
def guests(machine: platform.Platform, gpu: model.Gpu
           ) -> tuple[GuestVgpu, ...]:
    """Return the vGPUs of a GPU that guests run."""
    nvml = machine.nvml
    # A vGPU's number does not show which GPU a call concerns.
    return nvml.in_turn(gpu.address, lambda: tuple(
        _guest(nvml, gpu.framework, vgpu) for vgpu in nvml.optional(
            'nvmlDeviceGetActiveVgpus', nvml.device(gpu.address)) or ()))


def _guest(nvml: nvml_module.NvmlSession, framework: model.Framework,
           vgpu: int) -> GuestVgpu:
    uuid = placement = None
    if framework is model.Framework.VENDOR_VFIO:
        placement = nvml.optional('nvmlVgpuInstanceGetPlacementId', vgpu)
    else:
        uuid = nvml.optional('nvmlVgpuInstanceGetMdevUUID', vgpu)
    return GuestVgpu(
        type_id=f'nvidia-{nvml.call("nvmlVgpuInstanceGetType", vgpu)}',
        uuid=gate.text(uuid).lower() if uuid else None,
        instance_id=gate.known(nvml.call(
            'nvmlVgpuInstanceGetGpuInstanceId', vgpu)),
        placement_id=None if placement == _NO_PLACEMENT else placement)


@gate.series
def may_run(machine: platform.Platform, gpu: model.Gpu,
            function: model.PciAddress) -> bool:
    """Whether NVML reports a running vGPU that may be on a function.

    If NVML's facts fit several functions, those whose VFIO device is open
    are assumed to have the guests. So use this in addition to
    :func:`vfio_holders`, not instead of it.
    """
    alike = [vgpu for vgpu in guests(machine, gpu)
             if any(vgpu.may_be_on(vf) for vf in gpu.vfs
                    if vf.address == function)]
    if not alike:
        return False
    others = [vf.address for vf in gpu.vfs if vf.address != function
              and any(vgpu.may_be_on(vf) for vgpu in alike)]
    return len(alike) > sum(bool(vfio_holders(machine, other))
                            for other in others)


@gate.series
def vgpus(machine: platform.Platform, gpu: model.Gpu
          ) -> tuple[tuple[str, int], ...]:
    """Return the vGPUs whose GPU instance is known, by name, with its id.

    The name is the mdev's UUID, or the address of the virtual function.

    NVML reports it for vGPUs that a guest runs, and sysfs
    (``gpu_instance_id`` of the virtual function) for each vGPU of the
    vendor's VFIO driver. For an mdev without a guest it is unknown.
    """
    found = {(str(function.address), function.gpu_instance_id)
             for function in gpu.vfs
             if function.gpu_instance_id is not None}
    for vgpu in guests(machine, gpu):
        if vgpu.instance_id is None:
            continue
        names = [vgpu.uuid] if vgpu.uuid else [
            str(function.address) for function in gpu.vfs
            if vgpu.may_be_on(function)]
        found.update((name, vgpu.instance_id)
                     for name in names or [vgpu.type_id])
    return tuple(sorted(found))


def vfio_holders(machine: platform.Platform, device: model.PciAddress | str
                 ) -> tuple[int, ...]:
    """Return the ids of processes that have a VFIO device open.

    The device is ``/dev/vfio/devices/vfio<n>``, with the n of the directory
    ``vfio-dev``. Its group is ``/dev/vfio/<n>``, with the n of the IOMMU
    group (Documentation/driver-api/vfio.rst of the kernel).

    :returns: process ids. A process that has the group open may use another
        function of the group. An mdev has a group of its own.
    :raises UsageUnknown: if a process cannot be inspected, or there may be
        processes that are not visible, and the kernel does not say that
        nobody has the group open.
    """
    if machine.vfio_holders is not None:
        return tuple(machine.vfio_holders(str(device)))
    place = (*(pci.DEVICES if isinstance(device, model.PciAddress)
               else functions.DEVICES), str(device))
    devices = [f'/vfio/devices/{name}'
               for name in machine.sysfs.listdir(*place, 'vfio-dev')]
    group = machine.sysfs.link_name(*place, 'iommu_group')
    if group is not None:
        devices.append(f'/vfio/{group}')
    try:
        return (open_files.openers(machine.proc.root, tuple(devices))
                if devices else ())
    except OSError as error:
        if group is not None and _is_closed(machine, group):
            return ()
        raise exception.UsageUnknown(
            what=device, reason=f'{error.filename}: {error.strerror}'
        ) from error


def _is_closed(machine: platform.Platform, group: str) -> bool:
    """Whether the kernel says that nobody has a VFIO group or device open.

    The kernel lets one process at a time open a group, and none while a
    device of the group is open (vfio_group_fops_open in drivers/vfio/group.c
    of Linux). False if it does not say so.
    """
    number = machine.sysfs.read_optional('class', 'vfio', group, 'dev')
    try:
        descriptor = os.open(f'{_NODES}/{group}', os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor).st_rdev
        finally:
            os.close(descriptor)
    except OSError:
        return False
    # A container may have the node of a group that is gone.
    return number == f'{os.major(found)}:{os.minor(found)}'


def refuse_open(machine: platform.Platform, vgpu: model.PciAddress | str
                ) -> None:
    """Check that no process has a vGPU's VFIO device open."""
    holders = vfio_holders(machine, vgpu)
    if holders:
        raise exception.GpuInUse(
            f'the vGPU {vgpu} is in use: its VFIO device is open in '
            + ', '.join(f'process {pid}' for pid in holders))


def _agree(one: object, other: object) -> bool:
    return one is None or other is None or one == other


# Whether a GPU is in use, and who has its device node open.
#
# When a GPU is unbound, NVIDIA's kernel driver waits until its usage count is
# 0 (nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c of NVIDIA's open
# kernel modules), with some versions for ever. Only the driver knows the
# count: proc does not show uses that have leaked
# (NVIDIA/open-gpu-kernel-modules#1119), nor GPUs that are attached to another
# descriptor (NV_ESC_ATTACH_GPUS_TO_FD in kernel-open/nvidia/nv.c,
# nv-dmabuf.c). So the driver decides, and proc only names the processes. NVML
# lists only processes with a context on the GPU.

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


def holders(machine: platform.Platform, address: model.PciAddress
            ) -> tuple[Holder, ...]:
    """Return those who have a GPU open, as far as the machine shows them.

    This process may be one of them.

    :raises UsageUnknown: if the holders cannot be found, for example because
        the driver is not known.
    """
    driver = pci.PciBus(machine.sysfs).driver(address)
    if driver is None:
        return ()
    if whole.is_vfio(driver):
        return _named(machine, vfio_holders(machine, address))
    if driver != whole.NVIDIA:
        raise exception.UsageUnknown(
            what=f'GPU {address}', reason=f'it is bound to {driver}, and the '
                                          'users of that driver cannot be '
                                          'determined')
    found = (_openers(machine, address) if machine.gpu_holders is None
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
    """Whether only nvidia_drm has a GPU open, which an unbind then ends."""
    display = _display(machine, address)
    version = machine.sysfs.read_optional('module', 'nvidia', 'version')
    return (bool(display) and whole.releases_display(version)
            and display == tuple(holder for holder in holders(
                machine, address) if holder[1] != besides))


def fabric_manager_runs(machine: platform.Platform) -> bool:
    """Whether NVIDIA's fabric manager runs on this machine.

    Where its process would not be visible, it is taken for running: nvidia-smi
    and libnvfm say if it is not.
    """
    if machine.fabric_manager is not None:
        return machine.fabric_manager()
    proc = machine.proc.root
    return not open_files.shows_all(proc) or any(
        name == _FABRIC_MANAGER[:_NAME_LIMIT] for _, name in _named(
            machine, map(int, filter(str.isdigit, os.listdir(proc)))))


def _named(machine: platform.Platform, pids: Iterable[int]
           ) -> tuple[Holder, ...]:
    return tuple((pid, open_files.process_name(pid, machine.proc.root))
                 for pid in pids)


def _openers(machine: platform.Platform, address: model.PciAddress
             ) -> tuple[Holder, ...]:
    """Return the processes that have the GPU's device node open.

    NVML would have to open the GPU to report the number of the node. The
    driver writes it to proc (nv_procfs_read_gpu_info in
    kernel-open/nvidia/nv-procfs.c).
    """
    place = (*_GPUS, str(address), 'information')
    try:
        minor = next(int(line[len(_MINOR):])
                     for line in machine.proc.read(*place).splitlines()
                     if line.startswith(_MINOR))
        return _named(machine, open_files.device_openers(
            machine.proc.root, 'nvidia', os.makedev(_MAJOR, minor)))
    except (exception.SysfsError, ValueError, StopIteration) as error:
        raise exception.UsageUnknown(
            what=f'GPU {address}', reason=str(error) or 'no line '
            f'"{_MINOR}" in ' + '/'.join((machine.proc.root, *place))
        ) from error
    except OSError as error:
        raise exception.UsageUnknown(
            what=f'GPU {address}',
            reason=f'{error.filename}: {error.strerror}') from error


def _display(machine: platform.Platform, address: model.PciAddress
             ) -> tuple[Holder, ...]:
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
