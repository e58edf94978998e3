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

"""Making and unmaking what one journal entry names.

Each function is idempotent: it looks before it acts, so that it can finish
what a dead process began.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
from collections.abc import Mapping
from collections.abc import Set

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import gate
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.program import blockers
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.program import privileged_vgpu
from cyborg_gpu_driver.program import vfio

LOG = logging.getLogger(__name__)

_MDEVS = ('bus', 'mdev', 'devices')
_GONE = frozenset({'NOT_FOUND', 'NOT_SUPPORTED'})
"""NOT_SUPPORTED: MIG mode is off, so no instance is left (NVML guide)."""

_REFUSALS = frozenset({'INSUFFICIENT_RESOURCES', 'INVALID_ARGUMENT',
                       'NOT_SUPPORTED', 'NO_PERMISSION', 'UNINITIALIZED'})


def was_refused(error: exception.NvmlError) -> bool:
    """Whether NVML says by this error that it made no instance.

    Any other error leaves open whether there is one, as does any error of
    the calls that follow the creation.
    """
    return (error.call.startswith('nvmlDeviceCreateGpuInstance')
            and error.symbol in _REFUSALS)


@dataclasses.dataclass(frozen=True)
class Usage:
    """Who uses the GPU instances of one GPU."""

    vgpus: Mapping[int, Set[str]]
    """Instance id to the vGPUs that are known to be on it."""
    busy: frozenset[int]
    """Instances that are known to have a vGPU or a process."""
    has_compute: bool
    """Whether the instance that was asked about has compute instances."""
    reason: str
    """What uses that instance, or may; empty if nothing does."""


class Hardware:
    """The changes of bind and unbind on one machine.

    :param machine: where state is read; changes go through
        :mod:`cyborg_gpu_driver.program.privileged`.
    """

    def __init__(self, machine: platform.Platform):
        self._machine = machine

    @gate.series
    def instance_ids(self, address: model.PciAddress,
                     profile: model.GpuInstanceProfile) -> tuple[int, ...]:
        """Ids of the live instances of a profile (one NVML call)."""
        nvml = self._machine.nvml
        return tuple(nvml.gpu_instance_ids(
            nvml.device(address), profile.profile_id,
            profile.max_instances))

    def make_instance(self, entry: journal.Entry) -> journal.Entry:
        """Cut the entry's instance at its placement.

        :returns: the entry with the instance's id, and the boot that the
            id is good for.
        :raises NvmlError: as NVML refused it.
        :raises BindRefused: if the driver put it somewhere else.
        """
        instance_id, start, size = privileged.create_gpu_instance(
            str(entry.gpu), entry.profile_id, entry.placement.start,
            entry.placement.size)
        made = self.numbered(entry, instance_id)
        if model.Placement(start, size) != entry.placement:
            raise _refused(entry, f'asked for {entry.placement}, the driver '
                           f'gave {start}:{size}')
        return made

    def numbered(self, entry: journal.Entry, instance_id: int | None
                 ) -> journal.Entry:
        """The entry with the id of an instance of this boot.

        :param instance_id: None if it is yet to be made.
        """
        return dataclasses.replace(entry, instance_id=instance_id,
                                   boot=self._machine.boot_id())

    def make_vgpu(self, entry: journal.Entry) -> journal.Entry:
        """Create the entry's vGPU and read it back.

        Where it is already, nothing is done.

        :returns: the entry.
        :raises SysfsError: as the kernel refused it.
        :raises BindRefused: if something else is there, or the kernel made
            something else.
        """
        found = self.vgpu_type(entry)
        if found == entry.mdev_type:
            return entry
        if found is not None:
            raise _refused(entry, f'there is a vGPU of type {found}')
        if entry.vfio:
            privileged_vgpu.set_vgpu_type(
                str(entry.function), vgpu_name.type_number(entry.mdev_type))
        else:
            privileged_vgpu.create_mdev(str(entry.function), entry.mdev_type,
                                        entry.handle)
        if entry.vgpu_placement is not None:
            privileged_vgpu.set_vgpu_placement(
                str(entry.function) if entry.vfio else entry.handle,
                entry.vgpu_placement)
        found = self.vgpu_type(entry)
        if found != entry.mdev_type:
            raise _refused(entry, f'the kernel made a vGPU of type {found}')
        return entry

    def vgpu_type(self, entry: journal.Entry) -> str | None:
        """Type of the vGPU that is where the entry's is to be.

        :returns: ``nvidia-474``; None if there is none.
        :raises SysfsError: if that cannot be read.
        """
        if entry.vfio:
            return vfio.type_on(self._machine, entry.function)
        return self.mdev_type(entry.handle)

    def mdev_type(self, handle: str) -> str | None:
        """Type of the mdev with this UUID, None if there is none."""
        return self._machine.sysfs.link_name(*_MDEVS, handle, 'mdev_type')

    def instance_under(self, entry: journal.Entry) -> int | None:
        """Id of the GPU instance that the driver put the vGPU on.

        :returns: None where the driver does not tell, as of an mdev.
        :raises SysfsError: if it cannot be read.
        """
        if not entry.vfio:
            return None
        return vfio.instance_under(self._machine, entry.function)

    def remove_vgpu(self, entry: journal.Entry, gpu: model.Gpu | None
                    ) -> None:
        """Remove the entry's vGPU; does nothing if it is gone.

        :param gpu: the entry's, where it is of vendor VFIO.
        :raises SysfsError: EBUSY while a guest holds it.
        :raises VgpuInUse: if somebody uses it.
        :raises UsageUnknown, NvmlError: if that is not known.
        """
        if not entry.vfio:
            self.remove_mdev(entry.handle)
        elif self.vgpu_type(entry) == entry.mdev_type:
            vfio.check_idle(self._machine, gpu, entry.function)
            privileged_vgpu.set_vgpu_type(str(entry.function), 0)

    def remove_mdev(self, handle: str) -> None:
        """Remove the mdev of a handle; does nothing if it is gone.

        :raises SysfsError: EBUSY while a guest holds it.
        """
        if not self._machine.sysfs.exists(*_MDEVS, handle):
            return
        try:
            privileged_vgpu.remove_mdev(handle)
        except exception.SysfsError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def undefine_mdev(self, handle: str) -> None:
        """Let mdevctl forget the mdev of a handle; never raises.

        What it keeps takes a vGPU at the next boot, and is in nobody's way
        until then.
        """
        try:
            privileged_vgpu.undefine_mdev(handle)
        except exception.GpuDriverError as error:
            LOG.warning('%s; its definition stays', error)

    def remove_instance(self, entry: journal.Entry) -> None:
        """Destroy the entry's instance; does nothing if it is gone.

        Instance ids are reused, so the instance with the entry's id is
        destroyed only if it lies where the entry's was cut.

        :raises NvmlError: IN_USE while something runs on it.
        """
        instance_id = self.own_instance(entry)
        if instance_id is None:
            return
        try:
            privileged.destroy_gpu_instance(str(entry.gpu), instance_id)
        except exception.NvmlError as error:
            if error.symbol not in _GONE:
                raise

    def is_past(self, entry: journal.Entry) -> bool:
        """Whether an entry's instance was made before the last boot."""
        return entry.boot not in (None, self._machine.boot_id())

    @gate.series
    def usage(self, gpu: model.Gpu, instance_id: int) -> Usage:
        """Who uses the GPU instances of a GPU; above all, one of them.

        :param gpu: as it is now.
        :raises NvmlError, SysfsError: if that cannot be found out.
        """
        nvml = self._machine.nvml
        vgpus = collections.defaultdict(set)
        for vgpu in usage.vgpus(self._machine, gpu):
            vgpus[vgpu.instance_id].add(vgpu.name)
        processes = {process.instance_id for process
                     in usage.processes(self._machine, gpu.address)}
        places = {instance.instance_id: instance.placement
                  for instance in (gpu.mig.instances if gpu.mig else ())}
        return Usage(
            vgpus, frozenset({*vgpus, *processes}),
            bool(nvml.compute_instances(nvml.device(gpu.address),
                                        instance_id)),
            blockers.in_use(self._machine, gpu, ()).get(
                places.get(instance_id), ''))

    def clear_instance(self, address: model.PciAddress, instance_id: int
                       ) -> None:
        """Destroy the compute instances of a GPU instance in no use.

        A guest may have left them (MIG User Guide: they are made within a
        virtual machine too).

        :raises NvmlError: IN_USE if a process runs on one.
        """
        privileged.destroy_compute_instances(str(address), instance_id)

    @gate.series
    def own_instance(self, entry: journal.Entry) -> int | None:
        """Id of the instance that the entry made, None if there is none.

        A process that died while it cut one has not written the id: then it
        is the one at the entry's placement that was not there before. GPU
        instances do not outlive a boot (MIG User Guide), so what an entry
        of an earlier boot made is gone, whatever lies in its place now.

        :raises NvmlError: if the live instances cannot be read.
        """
        if entry.placement is None or self.is_past(entry):
            return None
        nvml = self._machine.nvml
        try:
            live = nvml.gpu_instances(nvml.device(entry.gpu),
                                      entry.profile_id)
        except exception.NvmlError as error:
            if error.symbol in _GONE:
                return None
            raise
        for instance in live:
            if instance.placement != entry.placement:
                continue
            if (entry.instance_id == instance.instance_id
                    or entry.instance_id is None
                    and instance.instance_id not in entry.foreign_ids):
                return instance.instance_id
        return None


def _refused(entry, reason):
    return exception.BindRefused(
        handle=entry.handle, asked_type=entry.mdev_type,
        address=entry.function, reason=reason)
