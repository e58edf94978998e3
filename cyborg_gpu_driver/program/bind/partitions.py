# SPDX-License-Identifier: Apache-2.0

"""The kinds of partitions that a handle can have: a vGPU, or a group of GPUs.

A kind says what a bind claims, how a claim's partition is created and
destroyed, and whether it exists. Creating and destroying look before they
act, so that they can finish what a dead process began.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
from collections.abc import Container
from collections.abc import Iterable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

Action = change.Action


class Kind(abc.ABC):
    """One kind of partition. Callers hold the locks of the claim's GPUs."""

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: store.Store):
        self._machine = machine
        self._host = host
        self._records = records

    @abc.abstractmethod
    def claim(self, address: model.PciAddress, asked: plan.Request,
              share: bool) -> gpu_record.Claim:
        """The claim that a bind writes before it creates anything.

        :param share: whether a vGPU may use an existing GPU instance.
        """

    @abc.abstractmethod
    def create(self, claim: gpu_record.Claim) -> gpu_record.Claim:
        """Create the partition of a claim; return the claim as it is then."""

    @abc.abstractmethod
    def destroy(self, claim: gpu_record.Claim) -> None:
        """Destroy all that a claim has, also after an interrupted bind."""

    @abc.abstractmethod
    def refuse_held(self, claim: gpu_record.Claim) -> None:
        """Check that no server runs with the partition of a claim."""

    def exists(self, claim: gpu_record.Claim) -> bool:
        """Whether the partition of a bound claim exists."""
        return True

    def _disconnect(self, claim: gpu_record.Claim) -> None:
        """Deactivate the NVSwitch partition of a claim, if it has one."""
        if claim.fabric_partition is not None:
            executor.take(self._machine, claim.gpu, change.Step(
                Action.DEACTIVATE_PARTITION,
                fabric_partition=claim.fabric_partition))


class Vgpus(Kind):
    """vGPUs: mdevs, or vendor VFIO; in mode mig with a GPU instance below.

    The driver puts a vGPU on any instance of its profile that has room, not
    always on the claim's instance. For an mdev it does not say which. So
    each claim keeps one instance alive. The last claim of an instance
    removes it.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: store.Store, gpu_health: health.GpuHealth):
        super().__init__(machine, host, records)
        self._health = gpu_health

    def claim(self, address: model.PciAddress, asked: plan.Request,
              share: bool) -> gpu_record.Claim:
        gpu = self._host.gpu(address)
        available = self._host.offers(gpu)
        offer = plan.find_offer(gpu, available, asked)
        claim = plan.plan(gpu, available, offer, asked,
                          self._records.claims(address),
                          self._machine.boot_id(), share)
        try:
            partition = privileged_fabric.partition_of_vgpu(
                gpu, asked.mdev_type)
        except (exception.FabricError, exception.StepFailed) as error:
            raise plan.refusal(asked, str(error)) from error
        claim = dataclasses.replace(claim, fabric_partition=partition)
        if self.vgpu_type(claim.vgpu) is not None:
            raise plan.refusal(asked, (
                'that virtual function carries a vGPU' if claim.vfio
                else 'an mdev with that UUID exists')
                + ' that this driver did not create')
        return claim

    def create(self, claim: gpu_record.Claim) -> gpu_record.Claim:
        gpu = self._host.gpu(claim.gpu)
        if claim.instance is not None and claim.instance_id is None:
            (claim,) = self.create_instance(
                gpu, (claim,), claim.instance, [])
        return self.create_vgpu(gpu, claim)

    def destroy(self, claim: gpu_record.Claim) -> None:
        if claim.since is None:
            privileged_gpu.check_ended(
                sorted({str(claim.gpu), str(claim.function)}))
        self.release(claim)
        instance = self.destroy_instance(claim)
        if instance is not None:
            self._health.instance_gone(claim.gpu, instance.placement)

    def release(self, claim: gpu_record.Claim) -> None:
        """Destroy only the vGPU of a claim, the first half of a destroy."""
        executor.take(
            self._machine, claim.gpu,
            change.Step(Action.DESTROY_VGPU, vgpu=claim.vgpu),
            gpu=self._host.gpu(claim.gpu) if claim.vfio else None)
        self._disconnect(claim)

    def refuse_held(self, claim: gpu_record.Claim) -> None:
        if privileged_vgpu.vfio_holders(claim.vgpu_name):
            raise exception.GpuInUse(
                gpu=claim.gpu, reason='a server runs with that vGPU')

    def exists(self, claim: gpu_record.Claim) -> bool:
        return self.vgpu_type(claim.vgpu) == claim.mdev_type

    def vgpu_type(self, vgpu: spec.VgpuSpec) -> str | None:
        """Type (``nvidia-474``) of the vGPU in the place of ``vgpu``, if any.
        """
        return executor.type_of(self._machine, vgpu)

    def create_instance(self, gpu: model.Gpu,
                        claims: tuple[gpu_record.Claim, ...],
                        wanted: spec.MigInstanceSpec, done: list[str]
                        ) -> tuple[gpu_record.Claim, ...]:
        """Create the instance of claims at its placement, unless it exists.

        The claims are in the record without an id before the creation, and
        with the id right after it. So only the instance of a process that
        dies in between is known by its place, which was free before.

        :param gpu: as it is now.
        :param done: each step that was taken is appended to it, for people.
        :raises StepFailed: if another tool has created it.
        """
        boot = self._machine.boot_id()
        there = next((
            instance for instance in (gpu.mig.instances if gpu.mig else ())
            if spec.of(instance) == wanted.bare), None)
        if there is None:
            self._records.put_claims(*_numbered(claims, None, boot))
        elif claims and not any(claim.made(there, boot) for claim in claims):
            raise exception.StepFailed(
                reason=f'another tool has created GPU instance '
                f'{there.instance_id} at {wanted.placement}; destroy it, '
                'then run cyborg-gpu layout restore')
        steps = desired.creation(
            gpu, (wanted,), self._host.settings.wants(gpu, policy.Mode.MIG))
        try:
            runner = executor.take(self._machine, gpu.address, *steps,
                                   gpu=gpu, done=done)
        except exception.NvmlError as error:
            if executor.was_refused(error):
                self._records.put_claims(*claims)
            raise
        claims = _numbered(
            claims, runner.instance(wanted.placement).instance_id, boot)
        self._records.put_claims(*claims)
        return claims

    def create_vgpu(self, gpu: model.Gpu, claim: gpu_record.Claim
                    ) -> gpu_record.Claim:
        """Create the claim's vGPU, unless it exists.

        The driver may choose another GPU instance than the claim's. If a
        claim made that one, this claim moves to it and its own instance is
        destroyed, unless a claim needs it whose vGPU is on an instance of
        another tool. On such an instance, the claim keeps its own one.
        """
        executor.take(
            self._machine, claim.gpu,
            change.Step(Action.CREATE_VGPU, vgpu=claim.vgpu),
            *_activation(claim), gpu=gpu)
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
        """Id of the GPU instance below the vGPU; not told of an mdev."""
        if not claim.vfio:
            return None
        return vfio.instance_under(self._machine, claim.function)

    def undefine_mdev(self, handle: str) -> None:
        """Remove the definition of a handle's mdev. Never raises."""
        try:
            privileged_vgpu.undefine_mdev(handle)
        except exception.GpuDriverError as error:
            LOG.warning('%s; its definition is kept', error)

    def destroy_instance(self, claim: gpu_record.Claim
                         ) -> spec.MigInstanceSpec | None:
        """Destroy the instance of a claim, unless other claims share it.

        Compute instances are destroyed only if nothing uses their GPU
        instance, never to find out whether something does.

        :param claim: a claim whose vGPU is gone.
        :returns: the destroyed instance, which another claim may have had
            before; None if none was destroyed.
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
            return self._remove_used(claim, error)
        return claim.instance

    @gate.series
    def own_instance(self, claim: gpu_record.Claim
                     ) -> model.GpuInstance | None:
        """The live instance that the claim made; None if there is none."""
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
        """
        instance = self.own_instance(claim)
        if instance is not None:
            executor.take(self._machine, claim.gpu, change.Step(
                Action.DESTROY_INSTANCE, placement=instance.placement),
                instance=instance)

    def _remove_used(self, claim: gpu_record.Claim,
                     error: exception.NvmlError
                     ) -> spec.MigInstanceSpec | None:
        instance = self.own_instance(claim)
        if instance is None:
            raise error
        number = instance.instance_id
        gpu = self._host.refresh_gpu(claim.gpu)
        vgpus = usage.vgpus(self._machine, gpu)
        here = {name for name, on in vgpus if on == number}
        for other in self._finished(claim):
            if other.vgpu_name in here:
                # The other claim's vGPU runs on this claim's instance, so
                # this claim's vGPU may have been on the other's instance.
                moved = dataclasses.replace(
                    claim, placement=other.placement,
                    instance_id=other.instance_id)
                self._records.put_claims(moved, dataclasses.replace(
                    other, placement=claim.placement, instance_id=number))
                return self.destroy_instance(moved)
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
        executor.take(self._machine, claim.gpu, *(
            change.Step(action, placement=instance.placement)
            for action in (Action.DESTROY_COMPUTE, Action.DESTROY_INSTANCE)),
            instance=instance)
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


class Groups(Kind):
    """Groups of whole GPUs that NVLink connects.

    A bind writes a claim on each GPU before it activates the partition. An
    unbind deactivates the partition before it removes a claim. So no
    partition is active without an owner, whenever a process dies.

    A GPU is reset after its server has left and its partition is inactive.
    It is never reset between the activation of its partition and the start
    of the server: no source says what a reset does to an active partition.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: store.Store, history: audit.Audit,
                 resetter: reset.Resetter):
        super().__init__(machine, host, records)
        self._audit = history
        self._resetter = resetter

    def claim(self, address: model.PciAddress, asked: plan.Request,
              share: bool) -> gpu_record.Claim:
        group = self._host.group(asked.function, asked.mdev_type)
        gpu = self._host.gpu(asked.function)
        offer = plan.find_offer(gpu, self._host.offers(gpu), asked)
        if group is None or offer.members != group.members:
            raise plan.refusal(asked, 'its GPUs are not known')
        for member in group.members:
            owners = self._records.owners(member)
            if owners:
                raise plan.refusal(
                    asked, f'GPU {member} of the group is taken: {owners}')
        if not offer.creatable:
            raise plan.refusal(asked, offer.busy or 'it is in use')
        try:
            for member in group.members:
                reset.refuse_held(member)
        except exception.GpuInUse as error:
            raise plan.refusal(asked, str(error)) from error
        self._check_boot(asked, group)
        return gpu_record.Claim(
            handle=asked.handle, gpu=group.leader, function=asked.function,
            mdev_type=asked.mdev_type, profile=group.profile,
            phase=gpu_record.Phase.BINDING, boot=self._machine.boot_id(),
            fabric_partition=group.partition, members=group.members)

    def create(self, claim: gpu_record.Claim) -> gpu_record.Claim:
        # A partition that is active was left by a deleted server.
        self._disconnect(claim)
        executor.take(self._machine, claim.gpu, *_activation(claim))
        return claim

    def destroy(self, claim: gpu_record.Claim) -> None:
        # After a bind that did not finish no GPU is reset, because the group
        # had no server yet.
        had_server = claim.phase is not gpu_record.Phase.BINDING
        if had_server:
            self.refuse_held(claim)
        self._disconnect(claim)
        if had_server and self._host.settings.clean_whole_gpus:
            for address in claim.gpus:
                evidence = self._resetter.reset(
                    self._host.refresh_gpu(address), lambda: None)
                self._audit.record(address, 'cleaned', claim.handle,
                                   evidence)

    def refuse_held(self, claim: gpu_record.Claim) -> None:
        for address in claim.gpus:
            reset.refuse_held(address)

    def _check_boot(self, asked: plan.Request, group: nvlink.Group) -> None:
        """Refuse a group if a module id was not read since the host started.

        The GPUs of a partition are identified by their module ids.
        """
        if group.partition is None:
            return
        for address in group.members:
            known = self._records.peek(address).nvlink
            if known is None or known.boot != self._machine.boot_id():
                raise plan.refusal(
                    asked, f'the module ID of GPU {address} has not '
                    'been read since the host started: the GPU must be bound '
                    'to nvidia when the agent starts')


def _numbered(claims: Iterable[gpu_record.Claim], instance_id: int | None,
              boot: str) -> tuple[gpu_record.Claim, ...]:
    """The claims with the id of their instance of this boot, if it exists."""
    return tuple(dataclasses.replace(claim, instance_id=instance_id, boot=boot)
                 for claim in claims)


def _place(claim: gpu_record.Claim
           ) -> tuple[model.Placement | None, int | None]:
    return claim.placement, claim.instance_id


def connect(machine: platform.Platform, claim: gpu_record.Claim
            ) -> change.Step | None:
    """Activate the NVSwitch partition of a bound claim, if it is inactive.

    The caller holds the locks of the claim's GPUs.
    """
    if (claim.fabric_partition is None or not claim.is_owned
            or claim.fabric_partition in privileged_fabric.active_of(
                privileged_fabric.read_partitions())):
        return None
    (step,) = _activation(claim)
    executor.take(machine, claim.gpu, step)
    return step


def _activation(claim: gpu_record.Claim) -> list[change.Step]:
    """The step that activates the NVSwitch partition of a claim, if any."""
    return [] if claim.fabric_partition is None else [change.Step(
        Action.ACTIVATE_PARTITION,
        vgpu=None if claim.is_group else claim.vgpu,
        fabric_partition=claim.fabric_partition)]
