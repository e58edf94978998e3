# SPDX-License-Identifier: Apache-2.0

"""Restoring the GPUs after a reboot or a crash.

An interrupted change is rolled back. Then each GPU gets what is missing of
its modes, the partitions bound to handles, the instances of its layout
(:mod:`.desired`) and the fixed vGPUs of its policy. NVIDIA's driver needs
that order. A restore destroys nothing, and does nothing on a GPU that lacks
nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Iterator

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.program.ready import fixed
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)

Tell = Callable[[str], object]


class Restorer:
    """Restores GPUs of one machine."""

    def __init__(self, transactions: transaction.Transactions,
                 vgpus: partitions.Vgpus,
                 fixed_vgpus: fixed.FixedVgpus,
                 settings: policies.Settings, cloud: services.Services):
        self._machine = transactions.machine
        self._reader = transactions.reader
        self._transactions = transactions
        self._fixed = fixed_vgpus
        self._settings = settings
        self._cloud = cloud
        self._records = transactions.records
        self._vgpus = vgpus

    def restore(self, gpu: model.Gpu, saved: gpu_record.SavedLayout | None,
                tell: Tell = lambda words: None,
                modes_set: Callable[[], object] = lambda: None
                ) -> apply.Status:
        """Restore one GPU.

        If one part fails, the others are restored all the same.

        :param saved: its part of the checkpoint, None if it has none.
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
        done: list[str] = []
        try:
            self._restore(gpu, saved, done, modes_set)
        finally:
            for words in done:
                tell(words)
        return apply.Status.CHANGED if done else apply.Status.UNCHANGED

    def _restore(self, gpu: model.Gpu, saved: gpu_record.SavedLayout | None,
                 done: list[str], modes_set: Callable[[], object]) -> None:
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
            gpu = self._modes(gpu, record, done, failed)
            modes_set()
            for group in desired.groups(record):
                with _noted(failed, 'GPU instance '
                            f'{group.instance and group.instance.bare}'):
                    self._group(gpu, group, done, failed)
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
                self._group(gpu, group, done, failed, handle)
        if failed:
            raise exception.StepFailed(reason='; '.join(failed))
        return done

    def _modes(self, gpu: model.Gpu, record: gpu_record.GpuRecord,
               done: list[str], failed: list[str]) -> model.Gpu:
        """Restore MIG mode, virtual functions, mixed sizes and schedulers."""
        role = roles.in_force(gpu, gpu_record.claimed(record.claims))

        def wanted(now: model.Gpu) -> readiness.Wants:
            return desired.wants(now, record, self._settings.wants(now, role))

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

    def _group(self, gpu: model.Gpu, group: desired.Group, done: list[str],
               failed: list[str], handle: str | None = None) -> None:
        """Create a GPU instance and its vGPUs, as far as they are missing.

        :param handle: the only handle whose vGPU is created; None for all.
        """
        claims = group.claims
        if group.instance is not None:
            gpu = self._transactions.read(gpu)
            claims = self._vgpus.create_instance(
                gpu, claims, group.instance,
                self._settings.wants(gpu, policy.Mode.MIG), done)
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


@contextlib.contextmanager
def _noted(failed: list[str], what: str) -> Iterator[None]:
    """Add an error of this library to ``failed`` instead of raising it."""
    try:
        yield
    except exception.GpuDriverError as error:
        failed.append(f'{what}: {error}')
