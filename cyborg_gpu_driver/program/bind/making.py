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

"""Create the partition of a bind and remove it, under the GPU's lock.

The steps of a bind: plan, write the claim, create, read back, write the
claim. If a step fails, the bind is rolled back before the error is raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable
from collections.abc import Iterator
from typing import TypeGuard

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.bind import turns
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

# Give a GPU in mode auto the role that a bind needs.

LOG = logging.getLogger(__name__)


class RoleTaker:
    """Gives idle GPUs the roles that binds ask for.

    :param host: the state of the machine.
    :param transactions: has the machine and its records.
    :param cloud: ensures that no server gets a GPU as a whole.
    """

    def __init__(self, host: live.LiveHost,
                 transactions: transaction.Transactions,
                 cloud: services.Services):
        self._host = host
        self._transactions = transactions
        self._records = transactions.records
        self._cloud = cloud

    @contextlib.contextmanager
    def partitioning(self, address: model.PciAddress, asked: plan.Request
                     ) -> Iterator[None]:
        """Let no server get a GPU as a whole while a part of it is bound.

        Cyborg does not tell the driver about a server that gets a whole
        GPU. The server's allocation in Placement precedes its bind. So the
        whole GPU is reserved first and its allocations are read after that.
        The caller does not hold the GPU's lock.

        :raises BindRefused: if a server has or may have the whole GPU.
        """
        if not self._may_be_whole(self._host.gpu(address)):
            yield
            return
        with self._cloud.partitioning(address) as reason:
            if reason:
                raise plan.refusal(asked, reason)
            yield

    def take(self, address: model.PciAddress, turn: turns.Turn) -> None:
        """Give a GPU the role that a bind needs; the caller holds its lock.

        :raises BindRefused: if the GPU has another role, or cannot take this
            one now. The next report reverts the steps taken until then.
        :raises BindAbandoned: if Cyborg no longer waits for the bind.
        :raises JournalError: if the GPU's record cannot be read.
        """
        gpu = self._host.gpu(address)
        governing = self._host.policy_for(gpu)
        if governing is None or governing.mode is not policy.Mode.AUTO:
            return
        role = plan.find_offer(gpu, self._host.offers(gpu), turn.asked).mode
        force = self._host.role(gpu)
        if force is role:
            return
        if force is not None:
            raise plan.refusal(turn.asked, _other_role(address, force))
        if self._records.read(address).claims_lost:
            raise plan.refusal(
                turn.asked, f'the record of GPU {address} was damaged, and '
                'what is bound on it is not known yet')
        taken: list[change.Step] = []
        try:
            self._switch(address, role, turn, taken)
        except (exception.BindRefused, exception.BindAbandoned):
            raise
        except exception.GpuDriverError as error:
            step = f'{taken[-1]}: ' if taken else ''
            raise plan.refusal(
                turn.asked, f'GPU {address} cannot take role {role.value}: '
                f'{step}{error}') from error
        finally:
            self._host.refresh_gpu(address)
        if taken:
            LOG.info('GPU %(gpu)s has taken role %(role)s',
                     {'gpu': address, 'role': role.value})

    def _switch(self, address: model.PciAddress, role: policy.Mode,
                turn: turns.Turn, taken: list[change.Step]) -> None:
        def wants(now: model.Gpu) -> readiness.Wants:
            turn.check()
            return self._host.wants(now, role)

        now = self._transactions.reader.complete_gpu(address)
        if not readiness.steps(now, wants(now)):
            return
        force = roles.in_force(now, ())
        if force is not None and force is not role:
            raise plan.refusal(turn.asked, _other_role(address, force))
        found = blockers.of_preparing(self._transactions.machine, now, ())
        if found:
            raise plan.refusal(
                turn.asked, f'GPU {address} cannot take role {role.value}: '
                'in use: ' + ', '.join(found))
        self._transactions.settle(now, wants, taken)

    def _may_be_whole(self, gpu: model.Gpu) -> bool:
        governing = self._host.policy_for(gpu)
        return (governing is not None
                and policy.Mode.PASSTHROUGH in governing.roles)


def _other_role(address: model.PciAddress, role: policy.Mode) -> str:
    return (f'GPU {address} is in role {role.value}, which it keeps until '
            'nothing is bound on it')


# Bind and unbind groups of whole GPUs that NVLink connects.
#
# A bind writes a claim on each GPU before it activates the partition. An
# unbind deactivates the partition before it removes a claim. So no partition
# is active without an owner, whenever a process dies.
#
# A GPU is reset after its server has left and its partition is inactive. It is
# never reset between the activation of its partition and the start of the
# server: no source says what a reset does to an active partition.

Action = change.Action


class Groups:
    """Binds and unbinds groups; callers hold the locks of their GPUs.

    :param machine: the machine with the GPUs.
    :param host: the state of the machine.
    :param records: the records of the machine.
    :param history: the audit log.
    :param resetter: resets GPUs.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: store.Store, history: audit.Audit,
                 resetter: reset.Resetter):
        self._machine = machine
        self._host = host
        self._records = records
        self._audit = history
        self._resetter = resetter

    def make(self, turn: turns.Turn) -> gpu_record.Claim:
        """Bind a free group to a handle.

        :returns: the claim on the first GPU.
        :raises BindRefused: if the group is not free; nothing has changed.
        :raises BindAbandoned: if Cyborg no longer waits for the bind, which
            is rolled back.
        :raises FabricError: if the fabric manager refused it; rolled back.
        """
        asked = turn.asked
        group = self._check(turn)
        claim = gpu_record.Claim(
            handle=asked.handle, gpu=group.leader, function=asked.function,
            mdev_type=asked.mdev_type, profile=group.profile,
            phase=gpu_record.Phase.BINDING, boot=self._machine.boot_id(),
            fabric_partition=group.partition, members=group.members)
        try:
            self._records.put_claims(*claim.on_each())
            # A partition that is active was left by a deleted server.
            self._take(claim, Action.DEACTIVATE_PARTITION)
            self._take(claim, Action.ACTIVATE_PARTITION)
            for address in claim.gpus:
                # A GPU that has disappeared refuses the bind.
                self._host.refresh_gpu(address)
            turn.check()
            bound = claim.on_each(phase=gpu_record.Phase.BOUND,
                                  since=self._records.clock())
            self._records.put_claims(*reversed(bound))
        except Exception as error:
            _roll_back(self.remove, claim)
            if isinstance(error, exception.StepFailed):
                raise plan.refusal(asked, str(error)) from error
            raise
        return bound[0]

    def remove(self, claim: gpu_record.Claim) -> None:
        """Release a group: deactivate its partition, and reset its GPUs.

        After a bind that did not finish no GPU is reset, because the group
        had no server yet.

        :raises GpuInUse: while a process has one of its GPUs open.
        :raises FabricError: if the fabric manager refused it.
        :raises StepFailed: if a GPU cannot be reset, or is not clean.
        :raises NvmlError, SysfsError, UsageUnknown, StepFailed: as
            the machine answers.
        :raises JournalError: if the claims could not be removed.
        """
        had_server = claim.phase is not gpu_record.Phase.BINDING
        if claim.phase is gpu_record.Phase.BOUND:
            # The unbind continues even if the record cannot be written.
            with contextlib.suppress(exception.JournalError):
                self._records.give_back(claim.handle)
        if had_server:
            for address in claim.gpus:
                reset.refuse_held(address)
        self._take(claim, Action.DEACTIVATE_PARTITION)
        if had_server and self._host.cleans:
            for address in claim.gpus:
                self._clean(claim, address)
        ended = self._records.claim(claim.handle, claim.gpu) or claim
        self._audit.record(
            claim.gpus[0], 'unbound' if had_server else 'undone',
            claim.handle, audit.of_claim(ended))
        self._records.remove_claims(claim.handle)
        for address in claim.gpus:
            with contextlib.suppress(exception.UnknownGpu):
                self._host.refresh_gpu(address)

    def _check(self, turn: turns.Turn) -> nvlink.Group:
        """Return the requested group, if it is free.

        :raises BindRefused: if there is no such group, or one of its GPUs
            is claimed or in use.
        """
        asked = turn.asked
        group = self._host.group(asked.function, asked.mdev_type)
        for address in group.members if group else ():
            self._host.refresh_gpu(address)
        gpu = self._host.gpu(asked.function)
        offer = plan.find_offer(gpu, self._host.offers(gpu), asked)
        if group is None or offer.members != group.members:
            raise plan.refusal(asked, 'its GPUs are not known')
        for address in group.members:
            owners = self._records.owners(address)
            if owners:
                raise plan.refusal(
                    asked, f'GPU {address} of the group is taken: {owners}')
        if not offer.creatable:
            raise plan.refusal(asked, offer.busy or 'it is in use')
        try:
            for address in group.members:
                reset.refuse_held(address)
        except exception.GpuInUse as error:
            raise plan.refusal(asked, str(error)) from error
        self._check_boot(turn, group)
        return group

    def _check_boot(self, turn: turns.Turn, group: nvlink.Group) -> None:
        """Refuse a group if a module id was not read since the host started.

        The GPUs of a partition are identified by their module ids.
        """
        if group.partition is None:
            return
        for address in group.members:
            known = self._records.peek(address).nvlink
            if known is None or known.boot != self._machine.boot_id():
                raise plan.refusal(
                    turn.asked, f'the module ID of GPU {address} has not '
                    'been read since the host started: the GPU must be bound '
                    'to nvidia when the agent starts')

    def _clean(self, claim: gpu_record.Claim, address: model.PciAddress
               ) -> None:
        evidence = self._resetter.reset(self._host.refresh_gpu(address),
                                        lambda: None)
        self._audit.record(address, 'cleaned', claim.handle, evidence)

    def _take(self, claim: gpu_record.Claim, what: change.Action) -> None:
        """Change the partition of a group, if it has one."""
        if claim.fabric_partition is not None:
            executor.Executor(self._machine, claim.gpu).take(change.Step(
                what, fabric_partition=claim.fabric_partition))


_ATTEMPTS = 3
"""Plans to try if another program changes the GPU at the same time."""

_SESSION_ENDED = frozenset({'UNINITIALIZED', 'INVALID_ARGUMENT'})
"""NVML's errors if another thread has ended the session, and for a handle of
an ended session: sriov-manage needs NVML closed for all GPUs."""
_NO_ROOM = (errno.ENOSPC, errno.EIO)
"""The kernel's errors if no GPU instance has room for the vGPU: for an mdev,
and for vendor VFIO."""


class _NoRoom(Exception):
    """The instance to share has no room; the bind was rolled back."""

    def __init__(self, error: exception.GpuDriverError):
        super().__init__(error)
        self.error = error


class Maker:
    """Makes and removes partitions; callers hold the GPU's lock.

    :param machine: the machine to change.
    :param host: the state of the machine.
    :param parts: creates and destroys the partitions of claims.
    :param records: the records of the machine.
    :param history: the audit log.
    :param gpu_health: forgets the health of destroyed instances.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 parts: partitions.Partitions, records: store.Store,
                 history: audit.Audit, gpu_health: health.GpuHealth):
        self._host = host
        self._parts = parts
        self._records = records
        self._audit = history
        self._health = gpu_health
        self._groups = Groups(machine, host, records, history,
                              reset.Resetter(machine, gpu_health))

    def is_made(self, address: model.PciAddress,
                asked: plan.Request) -> bool:
        """Whether an earlier bind has made what this bind asks for.

        Removes first what an earlier unbind could not remove.

        :raises BindRefused: if the handle is bound as something else.
        :raises NvmlError, SysfsError, GpuInUse, UsageUnknown: if something
            could not be removed.
        """
        claim = self._records.claim(asked.handle, address)
        if claim is None:
            self._records.given_away(asked.handle)
            return False
        if claim.phase is gpu_record.Phase.BOUND or claim.gpu != address:
            # The lock of another GPU is not held.
            check_same(claim, asked)
        if claim.phase is gpu_record.Phase.BOUND:
            if (claim.members or self._parts.vgpu_type(claim.vgpu)
                    == claim.mdev_type):
                self._records.put_claims(dataclasses.replace(
                    claim, repeats=claim.repeats + 1))
                return True
        self.remove(claim)
        return False

    def make(self, address: model.PciAddress, turn: turns.Turn
             ) -> gpu_record.Claim:
        """Make the partition or group of a handle.

        :raises BindRefused: if that is impossible; nothing has changed.
        :raises BindAbandoned: if Cyborg no longer waits for the bind, which
            is rolled back.
        :raises NvmlError, SysfsError, FabricError: if the hardware refused
            it; the bind is rolled back.
        """
        if turn.asked.is_group:
            return self._groups.make(turn)
        return self._make_part(address, turn)

    def _make_part(self, address: model.PciAddress, turn: turns.Turn
                   ) -> gpu_record.Claim:
        """Plan with the known state; read the GPU again if that fails."""
        share = True
        for attempt in range(1, _ATTEMPTS + 1):
            turn.check()
            try:
                return self._make(self._known(address), turn, share)
            except exception.BindAbandoned:
                raise
            except _NoRoom as full:
                LOG.info('The instances on GPU %s have no room for another '
                         'vGPU', address)
                share, failure = False, full.error
            except exception.NvmlError as error:
                if error.symbol in _SESSION_ENDED:
                    LOG.info('NVML was closed in the meantime')
                    failure = error
                elif error.symbol == 'INSUFFICIENT_RESOURCES':
                    LOG.info('GPU %s was changed by another program', address)
                    failure = plan.refusal(
                        turn.asked,
                        'another program has taken the chosen placement')
                else:
                    raise
            except exception.BindRefused as error:
                failure = error
            if (attempt == _ATTEMPTS
                    or self._records.claim(turn.asked.handle, address)
                    is not None):
                break
            before = self._host.gpu(address)
            if (self._host.refresh_gpu(address) == before
                    and isinstance(failure, exception.BindRefused)):
                break
        raise failure

    def remove(self, claim: gpu_record.Claim) -> None:
        """Remove all that a claim has, also after an interrupted bind.

        :raises NvmlError, SysfsError, GpuInUse, UsageUnknown: if something
            could not be removed.
        :raises StepFailed: if a step of the bind has not ended yet.
        :raises JournalError: if the record could not be written.
        """
        if claim.members:
            self._groups.remove(claim)
            return
        if claim.since is None:
            privileged_gpu.check_ended(
                sorted({str(claim.gpu), str(claim.function)}))
        self.remove_vgpu(claim)
        self.remove_instance(claim)

    def remove_vgpu(self, claim: gpu_record.Claim) -> None:
        """Remove the vGPU of a claim, the first half of :meth:`remove`.

        :raises SysfsError, GpuInUse, UsageUnknown, NvmlError: if it could
            not be removed.
        """
        if claim.phase is gpu_record.Phase.BOUND:
            # Continue even if the record cannot be written: the next
            # server that gets the handle must not find this vGPU.
            with contextlib.suppress(exception.JournalError):
                self._records.give_back(claim.handle)
        self._parts.destroy_vgpu(
            claim.gpu, claim.vgpu,
            self._host.gpu(claim.gpu) if claim.vfio else None)
        self._parts.disconnect(claim)

    def remove_instance(self, claim: gpu_record.Claim) -> None:
        """Remove a claim whose vGPU is gone, with its GPU instance.

        :raises NvmlError: IN_USE while something runs on the instance.
        :raises JournalError: if the claim could not be removed.
        """
        instance = self._parts.destroy_instance(claim,
                                                self._host.refresh_gpu)
        if instance is not None:
            self._health.instance_gone(claim.gpu, instance.placement)
        # The record has the times. If the process is killed between the two
        # writes, both are repeated: the line may exist twice, but is never
        # missing.
        ended = self._records.claim(claim.handle, claim.gpu) or claim
        self._audit.record(
            claim.gpu, 'undone' if claim.phase is gpu_record.Phase.BINDING
            else 'unbound', claim.handle, audit.of_claim(ended))
        self._records.remove_claims(claim.handle)
        with contextlib.suppress(exception.UnknownGpu):
            self._host.refresh_gpu(claim.gpu)

    def remove_unrecorded(self, address: model.PciAddress,
                          asked: plan.Request) -> None:
        """Remove the mdev of a handle that no record has.

        :raises GpuInUse, UsageUnknown: if it is, or may be, in use.
        :raises SysfsError, DriverStuck: if the kernel does not remove it.
        """
        self._parts.destroy_vgpu(address, asked.mdev)
        self._host.refresh_gpu(address)

    def _known(self, address: model.PciAddress) -> model.Gpu:
        """The known state of a GPU; read again if it has mixed sizes.

        Only the driver knows the placements of vGPUs that other tools made.
        A taken placement fails when the guest starts, not at the bind.
        """
        gpu = self._host.gpu(address)
        return self._host.refresh_gpu(address) if gpu.mixed_sizes else gpu

    def _make(self, gpu: model.Gpu, turn: turns.Turn, share: bool
              ) -> gpu_record.Claim:
        asked = turn.asked
        available = self._host.offers(gpu)
        offer = plan.find_offer(gpu, available, asked)
        planned = plan.plan(
            gpu, available, offer, asked,
            self._records.claims(gpu.address), self._host.reader.boot_id(),
            share)
        claim = self._claim(gpu, offer, planned, asked)
        self._check_unclaimed(claim, asked)
        self._records.put_claims(claim)
        try:
            if claim.placement is not None and claim.instance_id is None:
                created = self._parts.create_instance(
                    gpu, claim, self._host.wants(gpu))
                claim = self._parts.numbered(claim, created.instance_id)
            claim = self._parts.create_vgpu(gpu, claim)
            # In this order: the room that is left is read without a lock,
            # and must never seem larger than it is.
            self._host.refresh_gpu(gpu.address)
            turn.check()
            claim = dataclasses.replace(claim, phase=gpu_record.Phase.BOUND,
                                        since=self._records.clock())
            self._records.put_claims(claim)
        except Exception as error:
            if executor.was_refused(error):
                # The instance at the placement is not of this bind.
                self._records.remove_claims(claim.handle)
            else:
                _roll_back(self.remove, claim)
            if planned.instance_id is not None and _is_full(error):
                raise _NoRoom(error) from error
            if isinstance(error, exception.StepFailed):
                raise plan.refusal(asked, str(error)) from error
            raise
        return claim

    def _check_unclaimed(self, claim: gpu_record.Claim,
                         asked: plan.Request) -> None:
        """Refuse the bind if its vGPU exists already."""
        if self._parts.vgpu_type(claim.vgpu) is not None:
            raise plan.refusal(asked, (
                'that virtual function carries a vGPU' if claim.vfio
                else 'an mdev with that UUID exists')
                + ' that this driver did not create')

    def _claim(self, gpu: model.Gpu, offer: offers.Offer,
               planned: plan.BindPlan, asked: plan.Request
               ) -> gpu_record.Claim:
        foreign: tuple[int, ...] = ()
        profile = spec.profile(gpu, planned.profile_id)
        if profile is not None and planned.instance_id is None:
            foreign = self._parts.instance_ids(gpu.address, profile)
        return self._parts.numbered(gpu_record.Claim(
            handle=asked.handle, gpu=gpu.address, function=planned.function,
            mdev_type=asked.mdev_type, profile=offer.profile,
            phase=gpu_record.Phase.BINDING, profile_id=planned.profile_id,
            placement=planned.placement, foreign_ids=foreign,
            vfio=gpu.framework is model.Framework.VENDOR_VFIO,
            vgpu_placement=planned.vgpu_placement,
            fabric_partition=_own_partition(gpu, asked)),
            planned.instance_id)


def _roll_back(remove: Callable[[gpu_record.Claim], None],
               claim: gpu_record.Claim) -> None:
    """Roll back a bind. What fails is left to the next report.

    :param remove: removes all that the claim has.
    """
    try:
        remove(claim)
    except Exception as error:
        # Cyborg must get the error of the bind, not this one.
        LOG.error('Could not roll back the bind of handle %(handle)s on GPU '
                  '%(gpus)s: %(error)s. The next report tries again.',
                  {'handle': claim.handle,
                   'gpus': ', '.join(map(str, claim.gpus)), 'error': error},
                  exc_info=not isinstance(error, exception.GpuDriverError))


def _own_partition(gpu: model.Gpu, asked: plan.Request) -> int | None:
    """The NVSwitch partition that the vGPU needs; None if it needs none.

    :raises BindRefused: if the vGPU needs a partition and cannot get it.
    """
    try:
        return privileged_fabric.partition_of_vgpu(gpu, asked.mdev_type)
    except (exception.FabricError, exception.StepFailed) as error:
        raise plan.refusal(asked, str(error)) from error


def check_same(claim: gpu_record.Claim, asked: plan.Request) -> None:
    """Refuse a handle that is bound as something else, or elsewhere.

    Nova looks for the vGPU on the function in the current request.

    :raises BindRefused: if the type or the function differs.
    """
    if claim.mdev_type != asked.mdev_type:
        raise plan.refusal(asked, f'the handle is bound as {claim.mdev_type}')
    if claim.function != asked.function:
        raise plan.refusal(asked, f'the handle is bound on {claim.function}')


def _is_full(error: Exception
             ) -> TypeGuard[exception.SysfsError | exception.VgpuNotCreatable]:
    """Whether an error says that no GPU instance has room for the vGPU."""
    return (isinstance(error, exception.VgpuNotCreatable)
            or isinstance(error, exception.SysfsError)
            and error.errno in _NO_ROOM)
