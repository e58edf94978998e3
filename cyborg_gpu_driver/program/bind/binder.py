# SPDX-License-Identifier: Apache-2.0

"""Carry out binds and unbinds, and finish what they left.

The steps of a bind: plan, write the claim, create, read back, write the
claim. If a step fails, the bind is rolled back before the error is raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import admission
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)

CAME_UP_SECONDS = 10.0
"""A server that gives its vGPU back earlier never came up."""
UNBIND_SECONDS = 5.0
"""Time until an unbind answers. The rest of its work continues."""
_ATTEMPTS = 3
"""Plans to try if another program changes the GPU at the same time."""
_TAKEN = 'INSUFFICIENT_RESOURCES'
"""NVML's error if another program has taken the chosen placement."""
_PASSING = frozenset({'UNINITIALIZED', 'INVALID_ARGUMENT', _TAKEN})
"""The first two are NVML's errors if another thread has ended the session,
and for a handle of an ended session: sriov-manage needs NVML closed for all
GPUs."""
_NO_ROOM = (errno.ENOSPC, errno.EIO)
"""The kernel's errors if no GPU instance has room for the vGPU: for an mdev,
and for vendor VFIO."""


class Binder:
    """Carries out binds and unbinds on one machine."""

    def __init__(self, host: live.LiveHost, vgpus: partitions.Vgpus,
                 groups: partitions.Groups, admitted: admission.Admission,
                 transactions: transaction.Transactions,
                 history: audit.Audit, cloud: services.Services,
                 gpu_health: health.GpuHealth, running: admission.Turns):
        self._host = host
        self._vgpus = vgpus
        self._groups = groups
        self._admission = admitted
        self._transactions = transactions
        self._records = transactions.records
        self._audit = history
        self._cloud = cloud
        self._turns = running
        self._health = gpu_health
        self._failed: set[model.PciAddress] = set()
        """Virtual functions whose last server never came up."""
        self._kept = log_once.LogOnce()
        """By handle: why its leftovers could not be removed."""

    def bind(self, pci_addr: str, asked_type: str, ah_uuid: str,
             seconds: float = 30.0) -> None:
        """Create the partition of an attach handle, unless it exists.

        :raises BindRefused: if the bind is impossible; nothing has changed.
        :raises BindAbandoned: if the bind took too long, or Cyborg gave the
            handle back meanwhile. The bind is rolled back.
        """
        asked = plan.parse_request(pci_addr, asked_type, ah_uuid)
        with self._turns.turn(asked, seconds) as turn:
            address = self._host.owner(asked.function)
            self._admission.check_servers(address, asked)
            made = done = None
            try:
                gpus = self._host.changed_by(address, asked)
                with (self._partitioning(address, asked),
                      locks.gpus(self._records.state_path, gpus, turn.left,
                                 f'the bind of handle {asked.handle}')):
                    turn.check()
                    self._recover(gpus, asked)
                    made = self._bind(address, gpus, turn)
                    done = True
            except Exception as error:
                # A complete bind must not be answered as failed: Cyborg
                # would never give its handle back.
                if done:
                    LOG.exception('After the bind of handle %s', asked.handle)
                else:
                    self._admission.over(asked.handle)
                    if not isinstance(error, exception.LockTimeout):
                        raise
                    if turn.cancelled:
                        turn.check()
                    raise plan.refusal(asked, str(error)) from error
            finally:
                # Also after a refused bind: otherwise Placement promises
                # the same place to the next server.
                self._cloud.publish(address)
        if made is None:
            LOG.info('Handle %s is already bound', asked.handle)
            return
        self._audit.record(made.gpu, 'bound', made.handle,
                           audit.of_claim(made))
        LOG.info('Bound handle %(handle)s: %(profile)s%(where)s on GPU '
                 '%(gpu)s, function %(function)s',
                 {'handle': made.handle, 'profile': made.profile,
                  'where': f' at {made.placement}' if made.placement else '',
                  'function': made.function,
                  'gpu': ' and '.join(map(str, made.gpus))})

    def unbind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """Remove the partition of an attach handle; idempotent.

        Cancels the binds of the handle that are under way. Its record
        keeps what a guest still holds and what could not be removed in
        time; :meth:`recover` removes it later. If the record cannot be
        written, this process remembers the unbind as long as it lives.

        :raises BindRefused: if the handle is bound as something else, which
            is not touched.
        :raises StepFailed: if the removal is not finished yet.
        """
        asked = plan.parse_request(pci_addr, asked_type, ah_uuid)
        self._turns.cancel(asked.handle)
        self._admission.over(asked.handle)
        try:
            claim = self._records.claim(asked.handle)
        except exception.JournalError:
            with contextlib.suppress(exception.JournalError):
                self._records.give_back(asked.handle)
            raise
        if claim is None:
            claim = self._unrecorded(asked)
        if claim is None:
            LOG.info('Handle %s has nothing on this machine', asked.handle)
            return
        _check_same(claim, asked)
        self._note_end(claim)
        # The unbind continues even if the record cannot be written.
        with contextlib.suppress(exception.JournalError):
            self._records.give_back(asked.handle)
        if claim.is_group:  # Resets of GPUs take longer than Cyborg waits.
            self._cloud.publish(claim.gpu)
        self._soon(claim)

    def _note_end(self, claim: gpu_record.Claim) -> None:
        """Set a virtual function aside on which no server comes up.

        A guest that is killed in its first seconds can leave a function of
        vendor VFIO on which no guest can use its vGPU, although each vGPU is
        created without an error (kernel/hypeman#321, #462). Nova gives the
        handle of a server that does not come up back within seconds. Once may
        have any reason, twice in a row counts.
        """
        if (not claim.vfio or claim.since is None
                or claim.phase is not gpu_record.Phase.BOUND):
            return
        function = claim.function
        if self._records.clock() - claim.since >= CAME_UP_SECONDS:
            self._failed.discard(function)
        elif function not in self._failed:
            self._failed.add(function)
        else:
            self._failed.discard(function)
            self._health.function_died(claim.gpu, function)

    def recover(self) -> None:
        """Finish what dead processes and unbinds left. Never raises."""
        try:
            left = self._left()
        except exception.JournalError as error:
            LOG.error('%s', error)
            return
        self._kept.keep({claim.handle for claim in left})
        locked: dict[model.PciAddress, str] = {}
        for claim in left:
            reason = locked.get(claim.gpu)
            try:
                if reason is None and self._return(claim, None):
                    LOG.info('Removed the leftovers of handle %s on GPU %s',
                             claim.handle, claim.gpu)
            except exception.LockTimeout as error:
                # Do not wait for the lock again for the GPU's other claims.
                reason = locked[claim.gpu] = str(error)
            except Exception as error:
                # The report of the GPUs must not fail because of this.
                reason = str(error)
                if not isinstance(error, exception.GpuDriverError):
                    LOG.exception('GPU %s', claim.gpu)
            if reason:
                self._tell_kept(claim, reason)

    def _recover(self, gpus: frozenset[model.PciAddress], asked: plan.Request
                 ) -> None:
        """Finish on locked GPUs what dead processes and unbinds have left.

        A bind could take a place that the rollback of a change needs. And an
        unfinished claim of another handle finds its instance by placement:
        it must not find the one that the bind makes.
        """
        for gpu in gpus:
            try:
                if self._transactions.finish(self._host.gpu(gpu)):
                    self._host.refresh_gpu(gpu)
            except exception.ChangeFailed as error:
                raise plan.refusal(asked, str(error)) from error
            for claim in self._left(gpu):
                if (claim.handle == asked.handle
                        or not gpus.issuperset(claim.gpus)):
                    continue
                try:
                    self._remove(claim)
                except Exception as error:
                    self._tell_kept(claim, str(error))
                    continue
                if _may_be_defined(claim):
                    # Cyborg does not wait for mdevctl.
                    deadline.begin_thread(
                        self._vgpus.undefine_mdev, claim.handle,
                        name=f'mdevctl undefine {claim.handle}')

    def _left(self, gpu: model.PciAddress | None = None
              ) -> list[gpu_record.Claim]:
        """The unfinished claims on one GPU, or on all."""
        return [claim for claim in self._records.claims(gpu)
                if claim.phase is not gpu_record.Phase.BOUND
                and claim.leads]

    def _bind(self, address: model.PciAddress,
              gpus: frozenset[model.PciAddress], turn: admission.Turn
              ) -> gpu_record.Claim | None:
        """Bind on locked GPUs.

        :returns: the new claim; None if it was bound already.
        """
        if self._is_made(address, turn.asked):
            return None
        for gpu in gpus:
            self._admission.check_closed(gpu, turn.asked)
            self._host.refresh_gpu(gpu)
        self._take_role(address, turn)
        return self._make(address, gpus, turn)

    def _soon(self, claim: gpu_record.Claim) -> None:
        """Remove what a claim has, and wait for that up to the limit.

        :raises StepFailed: if it takes longer; it continues in its thread.
        """
        unbind = admission.begin(f'the unbind of handle {claim.handle}',
                                 self._return, claim, UNBIND_SECONDS)
        futures.wait([unbind], UNBIND_SECONDS)
        if unbind.done():
            unbind.result()
            return

        def tell(late: futures.Future) -> None:
            if late.exception() is not None:
                LOG.error('Unbind of handle %(handle)s: %(error)s',
                          {'handle': claim.handle, 'error': late.exception()})

        unbind.add_done_callback(tell)
        raise exception.StepFailed(
            reason=f'not finished after {UNBIND_SECONDS:g} s. It '
            'continues, and each report retries what is left then')

    def _return(self, claim: gpu_record.Claim, seconds: float | None
                ) -> bool:
        """Remove what a claim has, unless it is gone or bound again.

        mdevctl runs without the GPU's lock.
        """
        try:
            if _may_be_defined(claim):
                if not self._if_left(claim, seconds, self._vgpus.release):
                    return False
                self._vgpus.undefine_mdev(claim.handle)
            return self._if_left(claim, seconds, self._remove)
        finally:
            # What could not be removed has no server and no allocation any
            # more. So Placement would promise its place to the next server.
            self._cloud.publish(claim.gpu)

    def _if_left(self, claim: gpu_record.Claim, seconds: float | None,
                 act: Callable[[gpu_record.Claim], None]) -> bool:
        """Lock the GPUs, and act on a claim, unless it is gone or bound."""
        with locks.gpus(self._records.state_path, claim.gpus, seconds):
            current = self._records.claim(claim.handle)
            if (current is None
                    or current.phase is gpu_record.Phase.BOUND):
                return False
            act(current)
            return True

    def _unrecorded(self, asked: plan.Request) -> gpu_record.Claim | None:
        """Write the claim of a handle that no record has, for its mdev.

        The mdev has the handle's UUID, so it belongs to Cyborg. Its GPU
        instance is unknown and is kept. So is a vGPU of vendor VFIO, which
        has no UUID that would tell its owner.
        """
        if (asked.is_group
                or self._vgpus.vgpu_type(asked.mdev) != asked.mdev_type):
            return None
        address = self._host.owner(asked.function)
        claim = gpu_record.Claim(
            handle=asked.handle, gpu=address, function=asked.function,
            mdev_type=asked.mdev_type, profile=asked.mdev_type,
            phase=gpu_record.Phase.UNBINDING)
        with self._records.gpu(address) as draft:
            if any(other.handle == asked.handle
                   for other in draft.record.claims):
                # A later bind made it.
                return None
            draft.record = draft.record.with_claims([claim])
        LOG.warning('No record has a claim of handle %(handle)s, whose mdev '
                    'is on GPU %(gpu)s. It is removed; the GPU instance that '
                    'it may have used is kept.',
                    {'handle': asked.handle, 'gpu': address})
        return claim

    def _tell_kept(self, claim: gpu_record.Claim, reason: str) -> None:
        """Log once why leftovers cannot be removed."""
        if self._kept.is_new(reason, claim.handle):
            LOG.warning(
                'Could not remove everything that handle %(handle)s has on '
                'GPU %(gpu)s: %(error)s. Each report tries again.',
                {'handle': claim.handle, 'gpu': claim.gpu, 'error': reason})

    # Give a GPU in mode auto the role that a bind needs

    @contextlib.contextmanager
    def _partitioning(self, address: model.PciAddress, asked: plan.Request
                      ) -> Iterator[None]:
        """Let no server get a GPU as a whole while a part of it is bound.

        Cyborg does not tell the driver about a server that gets a whole
        GPU. The server's allocation in Placement precedes its bind. So the
        whole GPU is reserved first and its allocations are read after that.
        The caller does not hold the GPU's lock.
        """
        governing = self._host.settings.policy_for(self._host.gpu(address))
        if (governing is None
                or policy.Mode.PASSTHROUGH not in governing.roles):
            yield
            return
        with self._cloud.partitioning(address) as reason:
            if reason:
                raise plan.refusal(asked, reason)
            yield

    def _take_role(self, address: model.PciAddress, turn: admission.Turn
                   ) -> None:
        """Give a GPU the role that a bind needs; the caller holds its lock.

        If a step fails, the next report reverts those before it.
        """
        gpu = self._host.gpu(address)
        governing = self._host.settings.policy_for(gpu)
        if governing is None or governing.mode is not policy.Mode.AUTO:
            return
        role = plan.find_offer(gpu, self._host.offers(gpu), turn.asked).mode
        force = self._host.role(gpu)
        if force is role:
            return
        if force is not None:
            raise plan.refusal(
                turn.asked, f'GPU {address} is in role {force.value}, which '
                'it keeps until nothing is bound on it')
        if self._records.read(address).claims_lost:
            raise plan.refusal(
                turn.asked, f'the record of GPU {address} was damaged, and '
                'what is bound on it is not known yet')
        taken: list[change.Step] = []

        def wants(now: model.Gpu) -> readiness.Wants:
            turn.check()
            return self._host.settings.wants(now, role)

        try:
            _, reason = self._transactions.settle(gpu, wants, taken,
                                                  self._in_use)
            if reason:
                raise exception.GpuInUse(f'in use: {reason}')
        except exception.BindAbandoned:
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

    def _in_use(self, gpu: model.Gpu, _steps: object) -> str:
        return ', '.join(condition.doubts(gpu) or blockers.of_preparing(
            self._transactions.machine, gpu, ()))

    # Create the partition of a bind, or remove it; the GPUs are locked

    def _is_made(self, address: model.PciAddress, asked: plan.Request
                 ) -> bool:
        """Whether it is bound; else remove what an unbind has left of it."""
        claim = self._records.claim(asked.handle, address)
        if claim is None:
            self._records.given_away(asked.handle)
            return False
        is_bound = claim.phase is gpu_record.Phase.BOUND
        if is_bound or claim.gpu != address:
            # The lock of another GPU is not held.
            _check_same(claim, asked)
        kind = self._kind(claim.is_group)
        if is_bound and kind.exists(claim):
            try:
                # Its server cannot run before the bind is answered. Cyborg
                # gives the handle to another one if its database was
                # restored and is older than the first bind.
                kind.refuse_held(claim)
            except exception.GpuInUse as error:
                raise plan.refusal(asked, str(error)) from error
            self._records.put_claims(dataclasses.replace(
                claim, repeats=claim.repeats + 1))
            return True
        self._remove(claim)
        return False

    def _make(self, address: model.PciAddress,
              gpus: frozenset[model.PciAddress], turn: admission.Turn
              ) -> gpu_record.Claim:
        """Make the partition of a handle, or none.

        If another program or thread was quicker, or the GPU could not be
        read, the GPU is read again and the bind is planned again.
        """
        kind = self._kind(turn.asked.is_group)
        share, attempts = True, _ATTEMPTS
        while True:
            turn.check()
            attempts -= 1
            planned = None
            try:
                planned = kind.claim(address, turn.asked, share)
                return self._attempt(kind, planned, turn)
            except exception.BindAbandoned:
                raise
            except exception.GpuDriverError as error:
                is_full = planned is not None and (
                    planned.instance_id is not None and _is_full(error))
                is_passing = (
                    isinstance(error, exception.NvmlError)
                    and error.symbol in _PASSING or planned is None
                    and condition.doubts(self._host.gpu(address)))
                if (not (is_full or is_passing) or not attempts
                        or self._records.claim(turn.asked.handle, address)):
                    reason = _reason(error)
                    if reason:
                        raise plan.refusal(turn.asked, reason) from error
                    raise
                share = share and not is_full
                LOG.info('Handle %(handle)s is bound again on GPU %(gpu)s, '
                         'because of: %(error)s',
                         {'handle': turn.asked.handle, 'gpu': address,
                          'error': error})
            for gpu in gpus:
                self._host.refresh_gpu(gpu)

    def _remove(self, claim: gpu_record.Claim) -> None:
        """Remove all that a claim has, also after an interrupted bind."""
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

    def _attempt(self, kind: partitions.Kind, claim: gpu_record.Claim,
                 turn: admission.Turn) -> gpu_record.Claim:
        try:
            self._records.put_claims(*claim.on_each())
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
            if turn.cancelled:
                # An unbind may have read the record before.
                turn.check()
            return bound[0]
        except Exception as error:
            if executor.was_refused(error):
                # The instance at the placement is not of this bind.
                self._records.remove_claims(claim.handle)
            else:
                self._roll_back(claim)
            raise

    def _roll_back(self, claim: gpu_record.Claim) -> None:
        """Roll back a bind. What fails is left to the next report."""
        try:
            # The record may have the id of the instance.
            self._remove(self._records.claim(claim.handle, claim.gpu)
                         or claim)
        except Exception as error:
            # Cyborg must get the error of the bind, not this one.
            LOG.error(
                'Could not roll back the bind of handle %(handle)s on GPU '
                '%(gpus)s: %(error)s. The next report tries again.',
                {'handle': claim.handle,
                 'gpus': ', '.join(map(str, claim.gpus)), 'error': error},
                exc_info=not isinstance(error, exception.GpuDriverError))


def _check_same(claim: gpu_record.Claim, asked: plan.Request) -> None:
    """Refuse a handle that is bound as something else, or elsewhere.

    Nova looks for the vGPU on the function in the current request.
    """
    if claim.mdev_type != asked.mdev_type:
        raise plan.refusal(asked, f'the handle is bound as {claim.mdev_type}')
    if claim.function != asked.function:
        raise plan.refusal(asked, f'the handle is bound on {claim.function}')


def _reason(error: exception.GpuDriverError) -> str:
    """Why a bind is refused, if it cannot be carried out; else ``''``."""
    if isinstance(error, exception.NvmlError) and error.symbol == _TAKEN:
        return 'another program has taken the chosen placement'
    return str(error) if isinstance(error, exception.StepFailed) else ''


def _may_be_defined(claim: gpu_record.Claim) -> bool:
    """Whether mdevctl may have a definition of the claim's mdev."""
    return claim.is_mdev and claim.phase is not gpu_record.Phase.BINDING


def _is_full(error: exception.GpuDriverError) -> bool:
    """Whether an error says that no GPU instance has room for the vGPU."""
    return (isinstance(error, exception.VgpuNotCreatable)
            or isinstance(error, exception.SysfsError)
            and error.errno in _NO_ROOM)
