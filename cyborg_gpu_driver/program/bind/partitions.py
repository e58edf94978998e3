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

"""What one claim stands for: a vGPU, and in mode mig a GPU instance below it.

Creating and destroying look before they act, so that they can finish what a
process that died began.

The driver puts a vGPU on any instance of its profile that has room for it,
not always on the one that it was meant for, and of an mdev it never tells.
So a claim says which instance it keeps alive; an instance goes when no claim
is left that does.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Set

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program.planning import differences
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import vfio

LOG = logging.getLogger(__name__)

Action = action.Action


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


class Partitions:
    """Creates and destroys what claims stand for, on one machine.

    To be used under the GPU's lock.

    :param machine: where state is read.
    :param records: the journal.
    """

    def __init__(self, machine: platform.Platform, records: journal.Journal):
        self._machine = machine
        self._journal = records

    def vgpu_type(self, vgpu: spec.VgpuSpec) -> str | None:
        """Type of the vGPU (``nvidia-474``) where ``vgpu`` is to be, if any.

        :raises SysfsError: if that cannot be read.
        """
        return executor.type_of(self._machine, vgpu)

    @gate.series
    def instance_ids(self, address: model.PciAddress,
                     profile: model.GpuInstanceProfile) -> tuple[int, ...]:
        """Ids of the live instances of a profile (one NVML call)."""
        nvml = self._machine.nvml
        return tuple(nvml.gpu_instance_ids(
            nvml.device(address), profile.profile_id,
            profile.max_instances))

    def numbered(self, entry: journal.Entry, instance_id: int | None
                 ) -> journal.Entry:
        """The entry with the id of an instance of this boot.

        :param instance_id: None if it is yet to be created.
        """
        return dataclasses.replace(entry, instance_id=instance_id,
                                   boot=self._machine.boot_id())

    def number(self, entries: Iterable[journal.Entry],
               instance: model.GpuInstance) -> tuple[journal.Entry, ...]:
        """Write that an instance is the one of these entries.

        :returns: the entries as they are now.
        :raises JournalError: if that cannot be put on the disk.
        """
        entries = tuple(self.numbered(entry, instance.instance_id)
                        for entry in entries)
        self._journal.put(*entries)
        return entries

    def create_instance(self, gpu: model.Gpu, entry: journal.Entry,
                        wanted: readiness.Wants) -> model.GpuInstance:
        """Create the entry's instance at its placement.

        :param wanted: what the policy needs of the GPU.
        :raises NvmlError: as NVML refused it.
        :raises StepFailed: if the driver put it somewhere else.
        """
        runner = executor.Executor(self._machine, gpu.address, gpu)
        runner.take(action.Step(
            Action.CREATE_INSTANCE, spec.profile(gpu, entry.profile_id),
            entry.placement, scheduler=readiness.instance_scheduler(
                gpu, wanted, entry.profile_id)))
        return runner.instance(entry.placement)

    def create_vgpu(self, gpu: model.Gpu, entry: journal.Entry
                    ) -> tuple[journal.Entry, int | None]:
        """Create the entry's vGPU; nothing, where it is already.

        If the driver puts it on another instance of ours, the one that was
        to be its own goes again. If that is a stranger's, ours stays the
        entry's, to be destroyed with it. Where the driver does not tell,
        the entry stays as it is.

        :returns: the entry, with the instance that the vGPU really lies
            on, and that instance's id as the driver tells it.
        :raises NvmlError, SysfsError: if the hardware refused something.
        :raises StepFailed: if something else is there, or the kernel made
            something else.
        """
        runner = executor.Executor(self._machine, entry.gpu, gpu)
        runner.take(action.Step(Action.CREATE_VGPU, vgpu=entry.vgpu))
        if entry.fabric_partition is not None:
            runner.take(action.Step(Action.ACTIVATE_PARTITION,
                                    vgpu=entry.vgpu,
                                    fabric_partition=entry.fabric_partition))
        found = self.instance_under(entry)
        if found is None or found == entry.instance_id:
            return entry, found
        for other in self._others(entry):
            if other.instance_id == found and self.own_instance(other):
                if not self._sharers(entry):
                    self._destroy(entry)
                return dataclasses.replace(
                    entry, placement=other.placement,
                    instance_id=found), found
        return entry, found

    def instance_under(self, entry: journal.Entry) -> int | None:
        """Id of the GPU instance that the driver put the vGPU on.

        :returns: None where the driver does not tell, as of an mdev.
        :raises SysfsError: if it cannot be read.
        """
        if not entry.vfio:
            return None
        return vfio.instance_under(self._machine, entry.function)

    def destroy_vgpu(self, address: model.PciAddress, vgpu: spec.VgpuSpec,
                     gpu: model.Gpu | None = None) -> None:
        """Destroy a vGPU; does nothing if it is gone.

        :param address: of its GPU.
        :param gpu: the GPU, where the vGPU is of vendor VFIO.
        :raises SysfsError: EBUSY while a guest holds it.
        :raises VgpuInUse: if somebody uses it.
        :raises UsageUnknown, NvmlError: if that is not known.
        """
        executor.Executor(self._machine, address, gpu).take(
            action.Step(Action.DESTROY_VGPU, vgpu=vgpu))

    def disconnect(self, entry: journal.Entry) -> None:
        """Deactivate the NVSwitch partition of a vGPU that is gone.

        :raises FabricError: as the fabric manager refused it.
        """
        if entry.fabric_partition is not None:
            executor.Executor(self._machine, entry.gpu).take(action.Step(
                Action.DEACTIVATE_PARTITION,
                fabric_partition=entry.fabric_partition))

    def undefine_mdev(self, handle: str) -> None:
        """Let mdevctl forget the mdev of a handle; never raises."""
        try:
            privileged_vgpu.undefine_mdev(handle)
        except exception.GpuDriverError as error:
            LOG.warning('%s; its definition stays', error)

    def destroy_instance(self, entry: journal.Entry,
                         read: Callable[[model.PciAddress], model.Gpu]
                         ) -> spec.MigInstanceSpec | None:
        """Destroy the instance of an entry, if no other keeps it alive.

        Nothing is destroyed to find out who uses it: compute instances go
        only where nothing uses the instance that they are in.

        :param entry: its vGPU is gone.
        :param read: reads a GPU again.
        :returns: what was destroyed, which may have been another's before;
            None if nothing was.
        :raises NvmlError: IN_USE while something runs on it, or may.
        :raises SysfsError: if who uses it cannot be found out.
        """
        if (entry.placement is None or self._is_past(entry)
                or self._sharers(entry)):
            return None
        try:
            self._destroy(entry)
        except exception.NvmlError as error:
            if error.symbol != 'IN_USE':
                raise
            return self._remove_used(entry, read, error)
        return entry.instance

    @gate.series
    def own_instance(self, entry: journal.Entry) -> model.GpuInstance | None:
        """The live instance that the entry made, None if there is none.

        A process that died while it created one has not written the id:
        then it is the one at the entry's placement that was not there
        before. GPU instances do not outlive a boot (MIG User Guide), so
        what an entry of an earlier boot made is gone, whatever lies in its
        place now.

        :raises NvmlError: if the live instances cannot be read.
        """
        if (entry.placement is None or entry.profile_id is None
                or self._is_past(entry)):
            return None
        nvml = self._machine.nvml
        try:
            live = nvml.gpu_instances(nvml.device(entry.gpu),
                                      entry.profile_id)
        except exception.NvmlError as error:
            if error.symbol in executor.GONE:
                return None
            raise
        for instance in live:
            if instance.placement != entry.placement:
                continue
            if (entry.instance_id == instance.instance_id
                    or entry.instance_id is None
                    and instance.instance_id not in entry.foreign_ids):
                return instance
        return None

    @gate.series
    def usage(self, gpu: model.Gpu, instance_id: int) -> Usage:
        """Who uses the GPU instances of a GPU; above all, one of them.

        :raises NvmlError, SysfsError: if that cannot be found out.
        """
        nvml = self._machine.nvml
        vgpus = collections.defaultdict(set)
        for vgpu in usage.vgpus(self._machine, gpu):
            vgpus[vgpu.instance_id].add(vgpu.name)
        processes = {process.instance_id for process
                     in usage.processes(self._machine, gpu.address)}
        used = blockers.in_use(self._machine, gpu, ())
        reason = ''.join(
            used.get(instance.placement, '')
            for instance in (gpu.mig.instances if gpu.mig else ())
            if instance.instance_id == instance_id)
        return Usage(
            vgpus, frozenset({*vgpus, *processes}),
            bool(nvml.compute_instances(nvml.device(gpu.address),
                                        instance_id)), reason)

    def _is_past(self, entry: journal.Entry) -> bool:
        """Whether an entry's instance was made before the last boot."""
        return entry.boot not in (None, self._machine.boot_id())

    def _destroy(self, entry: journal.Entry) -> None:
        """Destroy the entry's instance; does nothing if it is gone.

        Instance ids are reused, so the instance with the entry's id is
        destroyed only if it lies where the entry's was created.

        :raises NvmlError: IN_USE while something runs on it.
        """
        instance = self.own_instance(entry)
        if instance is not None:
            self._take(entry, instance, Action.DESTROY_INSTANCE)

    def _take(self, entry: journal.Entry, instance: model.GpuInstance,
              *actions: action.Action) -> None:
        runner = executor.Executor(self._machine, entry.gpu)
        runner.know(instance)
        for item in actions:
            runner.take(action.Step(item, placement=instance.placement))

    def _remove_used(self, entry: journal.Entry,
                     read: Callable[[model.PciAddress], model.Gpu],
                     error: exception.NvmlError
                     ) -> spec.MigInstanceSpec | None:
        instance = self.own_instance(entry)
        if instance is None:
            raise error
        number = instance.instance_id
        used = self.usage(read(entry.gpu), number)
        for other in self._finished(entry):
            if differences.vgpu_name(other) in used.vgpus[number]:
                # It runs on ours, so ours may have sat on its.
                moved = dataclasses.replace(
                    entry, placement=other.placement,
                    instance_id=other.instance_id)
                self._journal.put(moved, dataclasses.replace(
                    other, placement=entry.placement, instance_id=number))
                return self.destroy_instance(moved, read)
        if number in used.busy:
            raise error
        if not used.has_compute:
            return self._exchange(entry, number, used.busy, error)
        if used.reason:
            raise error
        # A guest may have left some (MIG User Guide: they are created within
        # a virtual machine too).
        self._take(entry, instance, Action.DESTROY_COMPUTE,
                   Action.DESTROY_INSTANCE)
        return entry.instance

    def _exchange(self, entry: journal.Entry, number: int,
                  busy: frozenset[int], error: exception.NvmlError
                  ) -> spec.MigInstanceSpec | None:
        """Give the instance to whose vGPU is on it, and remove theirs.

        NVML says that there is a vGPU and nobody tells whose: its guest
        does not run. Then NVML refuses each instance that has a vGPU, and
        the one that it does not refuse is empty. Where there are vGPUs on
        each of the others' too, one of those that are taken to share an
        instance is on ours; which, nobody tells.
        """
        groups = collections.defaultdict(list)
        for other in self._finished(entry):
            if other.instance_id not in busy:
                groups[_place(other)].append(other)
        def on_ours(other: journal.Entry) -> journal.Entry:
            return dataclasses.replace(other, placement=entry.placement,
                                       instance_id=number)

        for others in groups.values():
            try:
                self._destroy(others[0])
            except exception.NvmlError as refused:
                if refused.symbol != 'IN_USE':
                    raise
                continue
            self._journal.put(
                dataclasses.replace(
                    entry, placement=others[0].placement,
                    instance_id=others[0].instance_id),
                *map(on_ours, others))
            return others[0].instance
        for others in groups.values():
            if len(others) > 1:
                self._journal.put(on_ours(others[-1]))
                return None
        raise error

    def _finished(self, entry: journal.Entry) -> list[journal.Entry]:
        """The others whose bind has ended."""
        return [other for other in self._others(entry)
                if other.phase is not journal.Phase.BINDING]

    def _others(self, entry: journal.Entry) -> list[journal.Entry]:
        """Other entries on instances of the same profile."""
        return [other for other in self._journal.entries(entry.gpu)
                if other.handle != entry.handle
                and other.placement is not None
                and other.profile_id == entry.profile_id]

    def _sharers(self, entry: journal.Entry) -> list[journal.Entry]:
        return [other for other in self._others(entry)
                if _place(other) == _place(entry)]


def _place(entry: journal.Entry
           ) -> tuple[model.Placement | None, int | None]:
    return entry.placement, entry.instance_id
