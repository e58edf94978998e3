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

"""The partition of a claim: a vGPU, and in mode mig a GPU instance below it.

Creating and destroying look before they act, so that they can finish what a
dead process began.

The driver puts a vGPU on any instance of its profile that has room, not
always on the claim's instance. For an mdev it does not say which. So each
claim keeps one instance alive. The last claim of an instance removes it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

Action = change.Action


class Partitions:
    """Creates and destroys the partitions of claims on one machine.

    Callers hold the GPU's lock.

    :param machine: the machine with the GPUs.
    :param records: the records of the machine.
    """

    def __init__(self, machine: platform.Platform, records: store.Store):
        self._machine = machine
        self._records = records

    def vgpu_type(self, vgpu: spec.VgpuSpec) -> str | None:
        """Type (``nvidia-474``) of the vGPU in the place of ``vgpu``, if any.

        :raises SysfsError: if the type cannot be read.
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

    def numbered(self, claim: gpu_record.Claim, instance_id: int | None
                 ) -> gpu_record.Claim:
        """The claim with the id of an instance of this boot.

        :param instance_id: None if the instance is yet to be created.
        """
        return dataclasses.replace(claim, instance_id=instance_id,
                                   boot=self._machine.boot_id())

    def number(self, claims: Iterable[gpu_record.Claim],
               instance: model.GpuInstance) -> tuple[gpu_record.Claim, ...]:
        """Write the id of an instance to the claims that it belongs to.

        :returns: the changed claims.
        :raises JournalError: if they cannot be written to the disk.
        """
        claims = tuple(self.numbered(claim, instance.instance_id)
                       for claim in claims)
        self._records.put_claims(*claims)
        return claims

    def create_instance(self, gpu: model.Gpu, claim: gpu_record.Claim,
                        wanted: readiness.Wants) -> model.GpuInstance:
        """Create the claim's instance at its placement.

        :param wanted: the state that the GPU's policy requires.
        :raises NvmlError: if NVML refused it.
        :raises StepFailed: if the driver chose another placement.
        """
        runner = executor.Executor(self._machine, gpu.address, gpu)
        runner.take(change.Step(
            Action.CREATE_INSTANCE, spec.profile(gpu, claim.profile_id),
            claim.placement, scheduler=readiness.instance_scheduler(
                gpu, wanted, claim.profile_id)))
        return runner.instance(claim.placement)

    def create_vgpu(self, gpu: model.Gpu, claim: gpu_record.Claim
                    ) -> gpu_record.Claim:
        """Create the claim's vGPU, unless it exists.

        The driver may choose another GPU instance than the claim's. If a
        claim made that one, this claim moves to it and its own instance is
        destroyed, unless a claim needs it whose vGPU is on an instance of
        another tool. On such an instance, the claim keeps its own one.

        :returns: the claim with the instance of its vGPU.
        :raises NvmlError, SysfsError: if the hardware refused something.
        :raises StepFailed: if another vGPU is in its place, or the kernel
            made another one.
        """
        runner = executor.Executor(self._machine, claim.gpu, gpu)
        runner.take(change.Step(Action.CREATE_VGPU, vgpu=claim.vgpu))
        if claim.fabric_partition is not None:
            runner.take(change.Step(Action.ACTIVATE_PARTITION,
                                    vgpu=claim.vgpu,
                                    fabric_partition=claim.fabric_partition))
        found = self.instance_under(claim)
        if found is None or found == claim.instance_id:
            return claim
        for other in self._others(claim):
            if other.instance_id == found and self.own_instance(other):
                moved = dataclasses.replace(claim, instance_id=found,
                                            placement=other.placement)
                away = self._away(claim, other)
                if away is not None:
                    # In one step: each instance always has a claim.
                    self._records.put_claims(moved, dataclasses.replace(
                        away, placement=claim.placement,
                        instance_id=claim.instance_id))
                elif not self.sharers(claim):
                    self._destroy(claim)
                return moved
        return claim

    def _away(self, claim: gpu_record.Claim, other: gpu_record.Claim
              ) -> gpu_record.Claim | None:
        """A claim with ``other``'s instance and its vGPU on another one."""
        return next((
            item for item in self._others(claim)
            if _place(item) == _place(other)
            and item.phase is gpu_record.Phase.BOUND and self.instance_under(
                item) not in (None, item.instance_id)), None)

    def instance_under(self, claim: gpu_record.Claim) -> int | None:
        """Id of the GPU instance that the driver put the vGPU on.

        :returns: None if the driver does not tell, as for an mdev.
        :raises SysfsError: if the id cannot be read.
        """
        if not claim.vfio:
            return None
        return vfio.instance_under(self._machine, claim.function)

    def destroy_vgpu(self, address: model.PciAddress, vgpu: spec.VgpuSpec,
                     gpu: model.Gpu | None = None) -> None:
        """Destroy a vGPU; does nothing if it is gone.

        :param address: the GPU's address.
        :param gpu: the GPU, if the vGPU is of vendor VFIO.
        :raises GpuInUse: if the vGPU is in use.
        :raises UsageUnknown, NvmlError: if its use cannot be found out.
        :raises SysfsError, DriverStuck: if the kernel does not remove it.
        """
        executor.Executor(self._machine, address, gpu).take(
            change.Step(Action.DESTROY_VGPU, vgpu=vgpu))

    def disconnect(self, claim: gpu_record.Claim) -> None:
        """Deactivate the NVSwitch partition of a vGPU that is gone.

        :raises FabricError: if the fabric manager refused it.
        """
        if claim.fabric_partition is not None:
            executor.Executor(self._machine, claim.gpu).take(change.Step(
                Action.DEACTIVATE_PARTITION,
                fabric_partition=claim.fabric_partition))

    def undefine_mdev(self, handle: str) -> None:
        """Remove the definition of a handle's mdev. Never raises."""
        try:
            privileged_vgpu.undefine_mdev(handle)
        except exception.GpuDriverError as error:
            LOG.warning('%s; its definition is kept', error)

    def destroy_instance(self, claim: gpu_record.Claim,
                         read: Callable[[model.PciAddress], model.Gpu]
                         ) -> spec.MigInstanceSpec | None:
        """Destroy the instance of a claim, unless other claims share it.

        Compute instances are destroyed only if nothing uses their GPU
        instance, never to find out whether something does.

        :param claim: a claim whose vGPU is gone.
        :param read: reads a GPU again.
        :returns: the destroyed instance, which another claim may have had
            before; None if none was destroyed.
        :raises NvmlError: IN_USE while something runs on it, or may.
        :raises SysfsError: if its use cannot be found out.
        """
        if (claim.placement is None
                or claim.is_past(self._machine.boot_id())
                or self.sharers(claim)):
            return None
        try:
            self._destroy(claim)
        except exception.NvmlError as error:
            if error.symbol != 'IN_USE':
                raise
            return self._remove_used(claim, read, error)
        return claim.instance

    @gate.series
    def own_instance(self, claim: gpu_record.Claim
                     ) -> model.GpuInstance | None:
        """The live instance that the claim made; None if there is none.

        :raises NvmlError: if the live instances cannot be read.
        """
        boot = self._machine.boot_id()
        if claim.profile_id is None or claim.is_past(boot):
            return None
        nvml = self._machine.nvml
        try:
            live = nvml.gpu_instances(nvml.device(claim.gpu),
                                      claim.profile_id)
        except exception.NvmlError as error:
            if error.symbol in executor.GONE:
                return None
            raise
        return next((instance for instance in live
                     if claim.made(instance, boot)), None)

    def _destroy(self, claim: gpu_record.Claim) -> None:
        """Destroy the claim's instance; does nothing if it is gone.

        Instance ids are reused, so the instance with the claim's id is
        destroyed only if it has the claim's placement.

        :raises NvmlError: IN_USE while something runs on it.
        """
        instance = self.own_instance(claim)
        if instance is not None:
            self._take(claim, instance, Action.DESTROY_INSTANCE)

    def _take(self, claim: gpu_record.Claim, instance: model.GpuInstance,
              *actions: change.Action) -> None:
        runner = executor.Executor(self._machine, claim.gpu)
        runner.know(instance)
        for item in actions:
            runner.take(change.Step(item, placement=instance.placement))

    def _remove_used(self, claim: gpu_record.Claim,
                     read: Callable[[model.PciAddress], model.Gpu],
                     error: exception.NvmlError
                     ) -> spec.MigInstanceSpec | None:
        instance = self.own_instance(claim)
        if instance is None:
            raise error
        number, gpu = instance.instance_id, read(claim.gpu)
        vgpus = usage.vgpus(self._machine, gpu)
        here = {name for name, on in vgpus if on == number}
        for other in self._finished(claim):
            if desired.vgpu_name(other) in here:
                # The other claim's vGPU runs on this claim's instance, so
                # this claim's vGPU may have been on the other's instance.
                moved = dataclasses.replace(
                    claim, placement=other.placement,
                    instance_id=other.instance_id)
                self._records.put_claims(moved, dataclasses.replace(
                    other, placement=claim.placement, instance_id=number))
                return self.destroy_instance(moved, read)
        busy = {on for _, on in vgpus} | {
            process.instance_id for process
            in usage.processes(self._machine, gpu.address)}
        if number in busy:
            raise error
        if not self._has_compute(gpu.address, number):
            return self._exchange(claim, number, busy, error)
        if blockers.in_use(self._machine, gpu, ()).get(instance.placement):
            raise error
        # A guest may have left compute instances (MIG User Guide: they are
        # created within a virtual machine too).
        self._take(claim, instance, Action.DESTROY_COMPUTE,
                   Action.DESTROY_INSTANCE)
        return claim.instance

    @gate.series
    def _has_compute(self, address: model.PciAddress, instance_id: int
                     ) -> bool:
        nvml = self._machine.nvml
        return bool(nvml.compute_instances(nvml.device(address),
                                           instance_id))

    def _exchange(self, claim: gpu_record.Claim, number: int,
                  busy: Container[int | None], error: exception.NvmlError
                  ) -> spec.MigInstanceSpec | None:
        """Swap instances with the claim whose vGPU is on this one.

        NVML does not tell whose vGPU that is, because its guest does not
        run. NVML refuses to destroy an instance that has a vGPU, so one that
        it destroys was empty. If none is empty, a claim that the records have
        on a shared instance has its vGPU on this one. It is unknown which.
        """
        groups = collections.defaultdict(list)
        for other in self._finished(claim):
            if other.instance_id not in busy:
                groups[_place(other)].append(other)

        def on_ours(other: gpu_record.Claim) -> gpu_record.Claim:
            return dataclasses.replace(other, placement=claim.placement,
                                       instance_id=number)

        for others in groups.values():
            try:
                self._destroy(others[0])
            except exception.NvmlError as refused:
                if refused.symbol != 'IN_USE':
                    raise
                continue
            self._records.put_claims(
                dataclasses.replace(
                    claim, placement=others[0].placement,
                    instance_id=others[0].instance_id),
                *map(on_ours, others))
            return others[0].instance
        for others in groups.values():
            if len(others) > 1:
                self._records.put_claims(on_ours(others[-1]))
                return None
        raise error

    def _finished(self, claim: gpu_record.Claim) -> list[gpu_record.Claim]:
        """The claims of :meth:`_others` whose bind has ended."""
        return [other for other in self._others(claim)
                if other.phase is not gpu_record.Phase.BINDING]

    def _others(self, claim: gpu_record.Claim) -> list[gpu_record.Claim]:
        """Other claims on instances of the same profile, of this boot."""
        boot = self._machine.boot_id()
        return [other for other in self._records.claims(claim.gpu)
                if other.handle != claim.handle
                and other.placement is not None
                and not other.is_past(boot)
                and other.profile_id == claim.profile_id]

    def sharers(self, claim: gpu_record.Claim) -> list[gpu_record.Claim]:
        """The other claims that share the claim's instance."""
        return [other for other in self._others(claim)
                if _place(other) == _place(claim)]


def _place(claim: gpu_record.Claim
           ) -> tuple[model.Placement | None, int | None]:
    return claim.placement, claim.instance_id
