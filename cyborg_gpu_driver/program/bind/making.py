# SPDX-License-Identifier: Apache-2.0

"""Create the partition of a bind and remove it, under the GPU's lock.

The steps of a bind: plan, write the claim, create, read back, write the
claim. If a step fails, the bind is rolled back before the error is raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Iterator
from typing import TypeGuard

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.bind import turns
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import executor
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
    """Makes and removes partitions; callers hold the locks of their GPUs.

    :param host: the state of the machine.
    :param records: the records of the machine.
    :param history: the audit log.
    :param vgpus: creates and destroys vGPUs.
    :param groups: creates and destroys groups.
    """

    def __init__(self, host: live.LiveHost, records: store.Store,
                 history: audit.Audit, vgpus: partitions.Vgpus,
                 groups: partitions.Groups):
        self._host = host
        self._records = records
        self._audit = history
        self._vgpus = vgpus
        self._groups = groups

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
            if self._kind(claim.is_group).exists(claim):
                self._records.put_claims(dataclasses.replace(
                    claim, repeats=claim.repeats + 1))
                return True
        self.remove(claim)
        return False

    def make(self, address: model.PciAddress, turn: turns.Turn
             ) -> gpu_record.Claim:
        """Make the partition of a handle.

        Plans with the known state; reads the GPU again if that fails.

        :raises BindRefused: if that is impossible; nothing has changed.
        :raises BindAbandoned: if Cyborg no longer waits for the bind, which
            is rolled back.
        :raises NvmlError, SysfsError, FabricError: if the hardware refused
            it; the bind is rolled back.
        """
        share = True
        for attempt in range(1, _ATTEMPTS + 1):
            turn.check()
            try:
                return self._make(address, turn, share)
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

        :raises NvmlError, SysfsError, FabricError, GpuInUse, UsageUnknown:
            if something could not be removed.
        :raises StepFailed: if a step of the bind has not ended yet, or a GPU
            of a group cannot be reset.
        :raises JournalError: if the record could not be written.
        """
        if claim.phase is gpu_record.Phase.BOUND:
            # Continue even if the record cannot be written: the next
            # server that gets the handle must not find this partition.
            with contextlib.suppress(exception.JournalError):
                self._records.give_back(claim.handle)
        self._kind(claim.is_group).destroy(claim)
        # The record has the times. If the process is killed between the two
        # writes, both are repeated: the line may exist twice, but is never
        # missing.
        ended = self._records.claim(claim.handle, claim.gpu) or claim
        self._audit.record(
            claim.gpus[0], 'undone'
            if claim.phase is gpu_record.Phase.BINDING else 'unbound',
            claim.handle, audit.of_claim(ended))
        self._records.remove_claims(claim.handle)
        for address in claim.gpus:
            with contextlib.suppress(exception.UnknownGpu):
                self._host.refresh_gpu(address)

    def _kind(self, is_group: bool) -> partitions.Kind:
        return self._groups if is_group else self._vgpus

    def _make(self, address: model.PciAddress, turn: turns.Turn, share: bool
              ) -> gpu_record.Claim:
        kind = self._kind(turn.asked.is_group)
        planned = claim = kind.claim(address, turn.asked, share)
        try:
            self._records.put_claims(*claim.on_each())
        except exception.JournalError:
            # A group may have some of its claims.
            with contextlib.suppress(exception.JournalError):
                self._records.remove_claims(claim.handle)
            raise
        try:
            claim = kind.create(claim)
            # In this order: the room that is left is read without a lock,
            # and must never seem larger than it is. A GPU that has
            # disappeared refuses the bind.
            for gpu in claim.gpus:
                self._host.refresh_gpu(gpu)
            turn.check()
            bound = claim.on_each(phase=gpu_record.Phase.BOUND,
                                  since=self._records.clock())
            self._records.put_claims(*reversed(bound))
        except Exception as error:
            if executor.was_refused(error):
                # The instance at the placement is not of this bind.
                self._records.remove_claims(claim.handle)
            else:
                self._roll_back(claim)
            if planned.instance_id is not None and _is_full(error):
                raise _NoRoom(error) from error
            if isinstance(error, exception.StepFailed):
                raise plan.refusal(turn.asked, str(error)) from error
            raise
        return bound[0]

    def _roll_back(self, claim: gpu_record.Claim) -> None:
        """Roll back a bind. What fails is left to the next report."""
        try:
            self.remove(claim)
        except Exception as error:
            # Cyborg must get the error of the bind, not this one.
            LOG.error(
                'Could not roll back the bind of handle %(handle)s on GPU '
                '%(gpus)s: %(error)s. The next report tries again.',
                {'handle': claim.handle,
                 'gpus': ', '.join(map(str, claim.gpus)), 'error': error},
                exc_info=not isinstance(error, exception.GpuDriverError))


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
