# SPDX-License-Identifier: Apache-2.0

"""Making GPUs ready: for their policies, and for what they have by records.

The agent prepares each GPU for its policy as soon as the GPU is idle. Fixed
vGPUs of a former policy are removed before that, because they would keep the
GPU from being idle; those of the policy are created after that. What is in
use is never touched: the preparer names what keeps a GPU from being made
ready, and leaves the GPU as it is.

After a reboot or a crash a GPU is restored: it gets what is missing of its
modes, the partitions bound to handles, the instances of its layout
(:mod:`.desired`) and the fixed vGPUs of its policy. NVIDIA's driver needs
that order. A restore destroys nothing, and does nothing on a GPU that lacks
nothing.

Both roll back an interrupted change first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy as policy_module
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.program.ready import fixed
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)

_PAUSE = 60.0
"""Seconds from a failed attempt at a GPU to the next attempt."""
_HARMLESS = frozenset({change.Action.SCHEDULER})
"""Actions possible beside vGPUs while no virtual machine runs (nvml.h on
nvmlDeviceSetVgpuSchedulerState and nvmlGpuInstanceSetVgpuSchedulerState)."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was done to one GPU, and why it does not match its policy."""

    gpu: model.PciAddress
    steps: tuple[change.Step, ...] = ()
    """The steps that were taken, including one that failed; of a plan, the
    steps that are left."""
    reason: str = ''
    """Why the GPU does not match its policy; empty if it does."""
    rolled_back: bool = False
    """Whether a change of a process that died was rolled back first."""

    @property
    def done(self) -> tuple[str, ...]:
        """What was done, for people; empty if the GPU has not changed."""
        return (*((transaction.RECOVERED,) if self.rolled_back else ()),
                *map(str, self.steps))


class Preparer:
    """Makes GPUs ready for their policies.

    A GPU of mode auto is read once in each of its roles while it is idle
    (:class:`~cyborg_gpu_driver.partition.roles.RoleFacts`).
    """

    def __init__(self, transactions: transaction.Transactions,
                 settings: policies.Settings, gpu_health: health.GpuHealth,
                 cloud: services.Services, vgpus: partitions.Vgpus,
                 fixed_vgpus: fixed.FixedVgpus,
                 clock: Callable[[], float] = time.monotonic):
        self._machine = transactions.machine
        self._reader = transactions.reader
        self._transactions = transactions
        self._settings = settings
        self._health = gpu_health
        self._cloud = cloud
        self._records = transactions.records
        self._vgpus = vgpus
        self._fixed = fixed_vgpus
        self._clock = clock
        self._failed: dict[model.PciAddress, tuple[float, Outcome]] = {}
        """The GPUs of failed attempts: when they ended, and how."""
        self._said = log_once.LogOnce()
        self._tried: set[tuple[model.PciAddress, policy_module.Mode]] = set()
        """Roles that this process does not try again."""

    def plan(self, gpu: model.Gpu) -> Outcome:
        """The steps that are left on a GPU, and what prevents them."""
        steps = readiness.steps(gpu, self._wants_anew(gpu)(gpu))
        reasons = [self._in_the_way(gpu, steps) if steps else '']
        try:
            steps += self._fixed.plan(gpu)
        except exception.GpuDriverError as error:
            reasons.append(str(error))
        return Outcome(gpu.address, steps, _joined(reasons))

    def prepare(self, gpu: model.Gpu) -> Outcome:
        """Make one GPU ready, as far as it is idle. Never raises.

        A GPU on which something failed in the last minute is left alone. A
        reason that differs from the last one of the GPU is logged.
        """
        address = gpu.address
        when, failed = self._failed.pop(address, (0.0, None))
        if failed is not None and self._clock() < when + _PAUSE:
            self._failed[address] = when, failed
            return failed
        outcome, has_failed = self._attempt(gpu)
        if has_failed:
            self._failed[address] = self._clock(), outcome
        if not outcome.reason:
            self._said.over(address)
        elif self._said.is_new(outcome.reason, address):
            LOG.warning(
                'GPU %(gpu)s does not match its policy: %(reason)s',
                {'gpu': address, 'reason': outcome.reason})
        return outcome

    def _attempt(self, gpu: model.Gpu) -> tuple[Outcome, bool]:
        """Make one GPU ready; return also whether something failed."""
        taken: list[change.Step] = []
        reasons: list[str] = []
        rolled_back = has_failed = False

        def recover(gpu: model.Gpu, taken: list[change.Step]) -> str:
            nonlocal rolled_back
            rolled_back = self._roll_back(gpu)
            return ''

        for act in (recover, self._fixed.release, self._make_ready,
                    self._fixed.make):
            before = len(taken)
            try:
                if rolled_back or taken:
                    gpu = self._reader.gpu(gpu.address)
                reasons.append(act(gpu, taken))
            except Exception as error:
                if not isinstance(error, exception.GpuDriverError):
                    # For example of oslo.privsep, if its daemon does not
                    # start. The report of the GPUs must not depend on it.
                    LOG.exception('GPU %s', gpu.address)
                has_failed = True
                reasons.append(': '.join(map(
                    str, (*taken[before:][-1:], error))))
                if act is recover:
                    break
        return Outcome(gpu.address, tuple(taken), _joined(reasons),
                       rolled_back), has_failed

    def _roll_back(self, gpu: model.Gpu) -> bool:
        """Roll back what a dead process left; return whether it left any."""
        rolled_back = False
        if (self._settings.prepare
                and self._records.read(gpu.address).change is not None):
            with self._transactions.lock(gpu.address):
                rolled_back = self._transactions.finish(gpu)
        if vfio.was_cut_off(self._machine, gpu):
            with self._transactions.lock(gpu.address):
                rolled_back |= vfio.roll_back(
                    self._machine, self._reader.gpu(gpu.address))
        return rolled_back

    def _make_ready(self, gpu: model.Gpu, taken: list[change.Step]) -> str:
        """Take all steps that a GPU needs.

        :returns: why the steps cannot be taken, or ``''``.
        """
        unread = self._unread(gpu)
        if not unread and not readiness.steps(
                gpu, self._wants_anew(gpu)(gpu)):
            return ''
        with (self._cloud.partitioning(gpu.address) if unread
              else contextlib.nullcontext('')) as reason:
            if reason:
                return reason
            with self._transactions.lock(gpu.address):
                now = self._reader.complete_gpu(gpu.address)
                wants = self._wants_anew(now)
                if unread:
                    reason = self._in_the_way(
                        now, readiness.steps(now, wants(now)), True)
                    if reason:
                        return reason
                    now = self._read_roles(now, taken)
                _, reason = self._transactions.settle(now, wants, taken,
                                                      self._in_the_way)
        if self._health.dead_functions(gpu.address) and any(
                step.action is change.Action.DISABLE_FUNCTIONS
                for step in taken):
            self._health.functions_renewed(gpu.address)
        return reason

    def _unread(self, gpu: model.Gpu) -> tuple[policy_module.Mode, ...]:
        """The roles of a GPU's policy in which it must still be read."""
        governing = self._settings.policy_for(gpu)
        if governing is None or governing.mode is not policy_module.Mode.AUTO:
            return ()
        known = self._records.read(gpu.address).by_role
        return tuple(
            role for role in governing.roles if role in roles.PARTITIONED
            and (not roles.holds(known.get(role.value), gpu)
                 or known[role.value].is_doubtful)
            and (gpu.address, role) not in self._tried)

    def _read_roles(self, gpu: model.Gpu, taken: list[change.Step]
                    ) -> model.Gpu:
        """Let an idle GPU take its roles in turn, and record the facts.

        The caller holds the GPU's lock, and keeps servers from getting it.
        """
        for role in self._unread(gpu):
            gpu, found = self._in_role(gpu, role, taken)
            known = self._records.read(gpu.address).by_role
            self._records.put(gpu.address, by_role={
                **known, role.value: found})
            self._tried.add((gpu.address, role))
            if found.problem:
                LOG.warning('GPU %(gpu)s: role %(role)s is not offered: '
                            '%(problem)s', {
                                'gpu': gpu.address, 'role': role.value,
                                'problem': found.problem})
        return gpu

    def _in_role(self, gpu: model.Gpu, role: policy_module.Mode,
                 taken: list[change.Step]
                 ) -> tuple[model.Gpu, roles.RoleFacts]:
        before = len(taken)
        try:
            gpu, _ = self._transactions.settle(
                gpu, lambda now: self._settings.wants(now, role), taken)
            problem = roles.unsupported(gpu, role)
            if problem:
                return gpu, roles.RoleFacts(gpu.device_id, problem)
            if not roles.stands(gpu, role):
                return gpu, roles.RoleFacts(
                    gpu.device_id, 'the GPU did not take this role',
                    is_doubtful=True)
            return gpu, roles.of(gpu)
        except exception.GpuDriverError as error:
            return (self._reader.complete_gpu(gpu.address),
                    roles.RoleFacts(
                        gpu.device_id, f'{taken[-1]}: {error}'
                        if len(taken) > before else str(error),
                        is_doubtful=True))

    def _wants_anew(self, gpu: model.Gpu
                    ) -> Callable[[model.Gpu], readiness.Wants]:
        """What the policy needs of a GPU, first without dead functions.

        Only ``sriov-manage -d`` and ``-e`` cure a dead function
        (kernel/hypeman#321).

        :param gpu: the GPU before the first step.
        """
        if (not gpu.vfs or not self._health.dead_functions(gpu.address)
                or not self._settings.prepare
                or self._settings.policies is None):
            return self._wants
        gone = False

        def wants(now: model.Gpu) -> readiness.Wants:
            nonlocal gone
            gone |= not now.vfs
            return self._wants(now) if gone else readiness.Wants(vfs=False)

        return wants

    def _wants(self, gpu: model.Gpu) -> readiness.Wants:
        """What the policy needs of a GPU, in the GPU's current role."""
        claims = self._records.peek(gpu.address).claims
        return self._settings.wants(gpu, roles.in_force(
            gpu, gpu_record.claimed(claims)))

    def _in_the_way(self, gpu: model.Gpu, steps: Iterable[change.Step],
                    is_unread: bool = False) -> str:
        """Why the steps cannot be taken now, for people; or ``''``.

        :param is_unread: whether the GPU is also to take its roles in turn.
        """
        doubts = condition.doubts(gpu)
        if doubts:
            return '; '.join(doubts)
        actions = {step.action for step in steps}
        unhealthy = self._health.unhealthy(gpu.address)
        if change.Action.BIND_VFIO in actions and unhealthy:
            return (f'it is unhealthy ({"; ".join(unhealthy.reasons)}); it '
                    'stays bound to its driver, which reports when it is '
                    'healthy again')
        try:
            if not is_unread and _HARMLESS.issuperset(actions):
                found = blockers.of_running(self._machine, gpu)
            elif not is_unread and readiness.HARMLESS.issuperset(actions):
                found = blockers.of_preparing(self._machine, gpu, ())
            else:
                record = self._records.read(gpu.address)
                found = blockers.of_preparing(self._machine, gpu,
                                              record.claims)
                if not found and record.change:
                    found = ('a change of its layout did not finish',)
                if not found:
                    found = tuple(filter(None, [
                        self._cloud.claimed(gpu.address)]))
        except Exception as error:
            return f'it is not known whether it is idle: {error}'
        return 'in use: ' + ', '.join(found) if found else ''

    # After a reboot or a crash: what bound handles and the layout have too

    def restore(self, gpu: model.Gpu, saved: gpu_record.SavedLayout | None,
                done: list[str],
                modes_set: Callable[[], object] = lambda: None) -> None:
        """Restore one GPU.

        If one part fails, the others are restored all the same.

        :param saved: its part of the checkpoint, None if it has none.
        :param done: what was done is appended to it, for people.
        :param modes_set: called once its modes are restored.
        :raises ChangeRefused: if the checkpoint is of another board, if
            the snapshot does not say whether the GPU has MIG, or if
            something that runs is in the way.
        :raises ChangeFailed: naming the parts that failed.
        """
        if saved is not None and saved.device_id != gpu.device_id:
            raise exception.ChangeRefused(
                gpu=gpu.address, reason='the checkpoint is of a board with '
                f'PCI device id {saved.device_id}, but this board has '
                f'{gpu.device_id}: apply a layout and make a new checkpoint')
        failed: list[str] = []
        with self._transactions.lock(gpu.address, locks.COMMAND_SECONDS):
            self._records.check_gpu(gpu.address)
            if self._transactions.finish(gpu):
                done.append(transaction.RECOVERED)
            record = dataclasses.replace(self._records.read(gpu.address),
                                         layout=saved)
            bound = any(claim.phase is gpu_record.Phase.BOUND
                        and not claim.is_group for claim in record.claims)
            if saved is not None or bound:
                self._transactions.read(gpu)
            gpu = self._restore_modes(gpu, record, done, failed)
            modes_set()
            for group in desired.groups(record):
                with _noted(failed, 'GPU instance '
                            f'{group.instance and group.instance.bare}'):
                    self._restore_group(gpu, group, done, failed)
            for claim in record.claims:
                with _noted(failed, f'handle {claim.handle}'):
                    # A group has one partition, restored with its first GPU.
                    step = claim.is_group and partitions.connect(
                        self._machine, claim)
                    if step:
                        done.append(str(step))
        taken: list[change.Step] = []
        with _noted(failed, 'fixed vGPUs'):
            self._fixed.make(gpu, taken)
        done.extend(map(str, taken))
        if failed:
            raise exception.ChangeFailed(
                f'GPU {gpu.address}: not everything was restored: '
                + '; '.join(failed))

    def restore_claim(self, gpu: model.Gpu, handle: str) -> list[str]:
        """Create what a bound handle lacks. The caller holds the GPU's lock.

        All claims on its GPU instance get the id of the new instance.
        """
        done: list[str] = []
        failed: list[str] = []
        for group in desired.groups(self._records.read(gpu.address)):
            if any(claim.handle == handle for claim in group.claims):
                self._restore_group(gpu, group, done, failed, handle)
        if failed:
            raise exception.StepFailed(reason='; '.join(failed))
        return done

    def _restore_modes(self, gpu: model.Gpu, record: gpu_record.GpuRecord,
                       done: list[str], failed: list[str]) -> model.Gpu:
        """Restore MIG mode, virtual functions, mixed sizes and schedulers."""
        def wanted(now: model.Gpu) -> readiness.Wants:
            return desired.wants(now, record, self._wants(now))

        def blocked(now: model.Gpu, _steps: object) -> str:
            needed = readiness.steps(now, desired.wants(
                now, record, readiness.Wants()))
            found = ', '.join(blockers.of_preparing(self._machine, now, ()))
            if found and needed:
                raise exception.ChangeRefused(gpu=gpu.address,
                                              reason=f'blocked by {found}')
            if not found and not needed:
                found = self._cloud.claimed(gpu.address)
            if found:
                # Only the policy needs more, and the agent provides that as
                # soon as the GPU is idle.
                LOG.info('GPU %(gpu)s is not made ready for its policy: '
                         '%(reason)s', {'gpu': gpu.address, 'reason': found})
            return found

        if not readiness.steps(gpu, wanted(gpu)):
            return gpu
        taken: list[change.Step] = []
        try:
            gpu, _ = self._transactions.settle(
                self._reader.complete_gpu(gpu.address), wanted, taken,
                blocked)
        except exception.GpuDriverError as error:
            # A guest can run without its scheduler, but not without a vGPU.
            if not (taken and taken[-1].action is change.Action.SCHEDULER):
                raise
            failed.append(f'{taken.pop()}: {error}')
            gpu = self._reader.complete_gpu(gpu.address)
        finally:
            done.extend(map(str, taken))
        return gpu

    def _restore_group(self, gpu: model.Gpu, group: desired.Group,
                       done: list[str], failed: list[str],
                       handle: str | None = None) -> None:
        """Create a GPU instance and its vGPUs, as far as they are missing.

        :param handle: the only handle whose vGPU is created; None for all.
        """
        claims = group.claims
        if group.instance is not None:
            gpu = self._transactions.read(gpu)
            claims = self._vgpus.create_instance(
                gpu, claims, group.instance, done)
        for claim in claims:
            with _noted(failed, f'handle {claim.handle}'):
                if (handle not in (None, claim.handle)
                        or self._vgpus.exists(claim)):
                    continue
                made = self._vgpus.create_vgpu(gpu, claim)
                if made != claim:
                    self._records.put_claims(made)
                done.append(f'create vGPU {claim.handle} on '
                            f'{claim.function}')


def _joined(reasons: Iterable[str]) -> str:
    return '; '.join(filter(None, reasons))


@contextlib.contextmanager
def _noted(failed: list[str], what: str) -> Iterator[None]:
    """Add an error of this library to ``failed`` instead of raising it."""
    try:
        yield
    except exception.GpuDriverError as error:
        failed.append(f'{what}: {error}')
