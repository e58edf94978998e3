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

"""What runs on a GPU now: processes and virtual machines, by instance."""

from __future__ import annotations

import dataclasses
import os

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import library as nvml_library
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import mdev
from cyborg_gpu_driver.host.sysfs import pci

_NODES = '/dev/vfio'
_NO_PLACEMENT = 0xffff
"""NVML_INVALID_VGPU_PLACEMENT_ID, which pynvml lacks."""


@dataclasses.dataclass(frozen=True, order=True)
class RunningVgpu:
    """A vGPU on a GPU instance."""

    name: str
    """The mdev's UUID, or the address of its virtual function."""
    instance_id: int


@gate.series
def processes(machine: platform.Platform, address: model.PciAddress
              ) -> tuple[nvml_process.Process, ...]:
    """Return the processes on a GPU and its instances.

    :raises NvmlError: if they cannot be read.
    """
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
    """Return the vGPUs of a GPU that guests run.

    :raises NvmlError: if they cannot be read.
    """
    nvml = machine.nvml
    # A vGPU's number does not show which GPU a call concerns.
    with nvml.about(gpu.address):
        return tuple(_guest(nvml, gpu.framework, vgpu) for vgpu in
                     nvml.optional('nvmlDeviceGetActiveVgpus',
                                   nvml.device(gpu.address)) or ())


def _guest(nvml: nvml_module.NvmlSession, framework: model.Framework,
           vgpu: int) -> GuestVgpu:
    uuid = placement = None
    if framework is model.Framework.VENDOR_VFIO:
        placement = nvml.optional('nvmlVgpuInstanceGetPlacementId', vgpu)
    else:
        uuid = nvml.optional('nvmlVgpuInstanceGetMdevUUID', vgpu)
    return GuestVgpu(
        type_id=f'nvidia-{nvml.call("nvmlVgpuInstanceGetType", vgpu)}',
        uuid=nvml_library.text(uuid).lower() if uuid else None,
        instance_id=nvml_library.known(nvml.call(
            'nvmlVgpuInstanceGetGpuInstanceId', vgpu)),
        placement_id=None if placement == _NO_PLACEMENT else placement)


@gate.series
def may_run(machine: platform.Platform, gpu: model.Gpu,
            function: model.PciAddress, proc: str = '/proc') -> bool:
    """Whether NVML reports a running vGPU that may be on a function.

    If NVML's facts fit several functions, those whose VFIO device is open
    are assumed to have the guests. So use this in addition to
    :func:`vfio_holders`, not instead of it.

    :param gpu: a fresh snapshot of the GPU.
    :param function: one of its virtual functions.
    :raises NvmlError, SysfsError, UsageUnknown: if this cannot be
        determined.
    """
    alike = [vgpu for vgpu in guests(machine, gpu)
             if any(vgpu.may_be_on(vf) for vf in gpu.vfs
                    if vf.address == function)]
    if not alike:
        return False
    others = [vf.address for vf in gpu.vfs if vf.address != function
              and any(vgpu.may_be_on(vf) for vgpu in alike)]
    return len(alike) > sum(bool(vfio_holders(machine, other, proc))
                            for other in others)


@gate.series
def vgpus(machine: platform.Platform, gpu: model.Gpu
          ) -> tuple[RunningVgpu, ...]:
    """Return the vGPUs whose GPU instance is known.

    NVML reports it for vGPUs that a guest runs, and sysfs
    (``gpu_instance_id`` of the virtual function) for each vGPU of the
    vendor's VFIO driver. For an mdev without a guest it is unknown.

    :raises NvmlError: if they cannot be read.
    """
    found = {RunningVgpu(str(function.address), function.gpu_instance_id)
             for function in gpu.vfs
             if function.gpu_instance_id is not None}
    for vgpu in guests(machine, gpu):
        if vgpu.instance_id is None:
            continue
        names = [vgpu.uuid] if vgpu.uuid else [
            str(function.address) for function in gpu.vfs
            if vgpu.may_be_on(function)]
        found.update(RunningVgpu(name, vgpu.instance_id)
                     for name in names or [vgpu.type_id])
    return tuple(sorted(found))


def vfio_holders(machine: platform.Platform, device: model.PciAddress | str,
                 proc: str = '/proc') -> tuple[int, ...]:
    """Return the ids of processes that have a VFIO device open.

    The device is ``/dev/vfio/devices/vfio<n>``, with the n of the directory
    ``vfio-dev``. Its group is ``/dev/vfio/<n>``, with the n of the IOMMU
    group (Documentation/driver-api/vfio.rst of the kernel).

    :param device: a PCI function, or the UUID of an mdev.
    :param proc: where proc is mounted.
    :returns: process ids. A process that has the group open may use another
        function of the group. An mdev has a group of its own.
    :raises UsageUnknown: if a process cannot be inspected, or there may be
        processes that are not visible, and the kernel does not say that
        nobody has the group open.
    :raises SysfsError: if the device cannot be read.
    """
    if machine.vfio_holders is not None:
        return tuple(machine.vfio_holders(str(device)))
    place = (*(pci.DEVICES if isinstance(device, model.PciAddress)
               else mdev.DEVICES), str(device))
    devices = [f'/vfio/devices/{name}'
               for name in machine.sysfs.listdir(*place, 'vfio-dev')]
    group = machine.sysfs.link_name(*place, 'iommu_group')
    if group is not None:
        devices.append(f'/vfio/{group}')
    try:
        return open_files.openers(proc, tuple(devices)) if devices else ()
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
    """Check that no process has a vGPU's VFIO device open.

    :param vgpu: the UUID of its mdev, or the address of its function.
    :raises VgpuInUse: naming the processes.
    :raises UsageUnknown, SysfsError: as :func:`vfio_holders`.
    """
    holders = vfio_holders(machine, vgpu)
    if holders:
        raise exception.VgpuInUse(
            vgpu=vgpu, reason='its VFIO device is open in '
            + ', '.join(f'process {pid}' for pid in holders))


def _agree(one: object, other: object) -> bool:
    return one is None or other is None or one == other
