# SPDX-License-Identifier: Apache-2.0

"""Changes of a GPU that are made completely, or rolled back.

Each step is written to the GPU's record before it is taken. After the last
step, the GPU is read back and checked. If anything fails, the rollback
restores exactly the former state: the same instances at the same placements
(their ids and UUIDs are new if they had to be destroyed). If the hardware
refuses the rollback too, the record says how far it came, and the next change
or restore completes it. A process that dies leaves the same record.

A reboot ends a change: GPU instances do not survive it (MIG User Guide; a boot
configuration of the driver may create others, see
:mod:`cyborg_gpu_driver.program.ready.apply`), and a restore creates the
instances that are needed. Only the MIG mode is rolled back then, because some
boards keep it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.nvml import compute
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change as partition_change
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

RECOVERED = 'roll back an interrupted change'
ROLLED_BACK = 'the GPU is as it was before'
STUCK = ('the rollback failed; run "cyborg-gpu layout restore" or apply a '
         'layout again')

_Blocked = Callable[[model.Gpu, Sequence[partition_change.Step]], str]
_ROUNDS = 3
"""How often a rollback is tried, each time from the GPU's current state."""


class Transactions:
    """Changes GPUs of one machine. The caller holds the GPU's lock."""

    def __init__(self, machine: platform.Platform,
                 host_reader: reader.HostReader, state_path: str):
        self.machine = machine
        self.reader = host_reader
        self.state_path = state_path
        self.records = store.of(state_path)
        self._nvml = machine.nvml
        self._compute = compute.ComputeReader(machine.nvml)

    def read(self, gpu: model.Gpu) -> model.Gpu:
        """A GPU of a snapshot with its MIG mode and instances as they are now.

        Its compute instances are read too.

        :raises ChangeRefused: if the snapshot does not say whether the GPU
            has MIG: a GPU without MIG must not be confused with one whose
            MIG state was not read.
        """
        if gpu.mig is None and gpu.problems:
            raise exception.ChangeRefused(
                gpu=gpu.address, reason='; '.join(gpu.problems))
        return self._read(gpu)

    def lock(self, address: model.PciAddress,
             seconds: float | None = None
             ) -> contextlib.AbstractContextManager:
        """Hold a GPU, see :func:`cyborg_gpu_driver.locks.gpu`."""
        return locks.gpu(self.state_path, address, seconds)

    def in_use(self, gpu: model.Gpu) -> dict[model.Placement, str]:
        """The users of the GPU instances in use, by placement."""
        return blockers.in_use(self.machine, gpu,
                               self.records.read(gpu.address).claims)

    def run(self, gpu: model.Gpu, steps: Sequence[partition_change.Step],
            check: Callable[[model.Gpu], Mapping[str, Any] | None], *,
            may_reset: bool = True,
            modes_set: Callable[[], object] = lambda: None
            ) -> tuple[model.Gpu, bool]:
        """Take all steps, or none.

        :param gpu: as :meth:`read` returns it.
        :param check: called with the GPU as it is after the last step;
            raises if the GPU is not as wanted. It returns the other fields
            of the GPU's record to write when the change is removed from it.
        :param may_reset: False leaves a MIG mode that waits for a reset
            pending, and does not take the steps after it.
        :param modes_set: called before each GPU instance is created.
        :returns: the GPU after the steps, and whether it waits for a reset.
        :raises ChangeFailed: saying whether the rollback succeeded.
        """
        boot = self.machine.boot_id()
        earlier = self.records.read(gpu.address).change
        if earlier is None or earlier.is_past(boot):
            earlier = gpu_record.Change(gpu.address, spec.layout_of(gpu))
        change = gpu_record.Change(
            gpu.address, dataclasses.replace(
                earlier.before, instances=desired.remaining(gpu, earlier)),
            steps=tuple(map(str, steps)), touched=earlier.touched,
            vgpus=earlier.vgpus, boot=boot)
        runner = executor.Executor(self.machine, gpu.address, gpu,
                                   may_reset=may_reset)
        now, doing = gpu, ''
        kept: Mapping[str, Any] = {}
        try:
            for number, step in enumerate(steps):
                if step.action is partition_change.Action.CREATE_INSTANCE:
                    modes_set()
                before, change = change, _about_to(change, number, step)
                doing = 'writing the record'
                self.records.put(gpu.address, change=change)
                doing = str(step)
                try:
                    runner.take(step)
                except exception.NvmlError as error:
                    if executor.was_refused(error):
                        # An instance there belongs to another tool.
                        change = before
                    raise
                if runner.pending:
                    break
            else:
                doing = 'the check at the end'
                now = self._read(gpu, change.vgpus)
                kept = check(now) or {}
            self.records.put(gpu.address, change=None, **kept)
        except Exception as error:
            LOG.warning('GPU %(gpu)s: %(step)s failed: %(error)s; rolling '
                        'back', {'gpu': gpu.address, 'step': doing,
                                 'error': error})
            problem = self._roll_back(gpu, change)
            raise exception.ChangeFailed(
                gpu=gpu.address, step=doing, reason=error,
                outcome=f'{STUCK}: {problem}' if problem else ROLLED_BACK
            ) from error
        return now, runner.pending

    def take_idle(self, gpu: model.Gpu, steps: Iterable[partition_change.Step],
                  used: Mapping[model.Placement, str]
                  ) -> tuple[list[partition_change.Step], list[str]]:
        """Take the steps that do not affect GPU instances in use.

        :param gpu: the GPU as it is now, with compute instances.
        :returns: the steps taken, and why others were not, for people. After
            the hardware refuses a step that is not about a vGPU, no more
            steps are taken: they may need it.
        """
        runner = executor.Executor(self.machine, gpu.address, gpu)
        taken: list[partition_change.Step] = []
        blocked: list[str] = []
        for step in steps:
            reasons = _reasons(step, used)
            if reasons:
                blocked.append(f'{step}: {", ".join(reasons)}')
                continue
            try:
                runner.take(step)
                taken.append(step)
            except exception.GpuDriverError as error:
                blocked.append(f'{step}: {error}')
                if step.vgpu is None:
                    break
        return taken, blocked

    def settle(self, gpu: model.Gpu,
               wants_of: Callable[[model.Gpu], readiness.Wants],
               taken: list[partition_change.Step],
               blocked: _Blocked = lambda gpu, steps: ''
               ) -> tuple[model.Gpu, str]:
        """Give a GPU the modes that are wanted: the only way to do so.

        Each step is chosen from the GPU's state after the last one. Nothing
        is rolled back: whoever settles the GPU next continues.

        :param gpu: the GPU as it is now.
        :param taken: each step is appended to it before it is taken.
        :param blocked: called before the first step, with the GPU and all
            its steps. It returns why they cannot be taken, for people; empty
            if they can.
        :returns: the GPU after the steps, and what ``blocked`` returned.
        :raises StepFailed: if a step had no effect, or cannot be taken.
        """
        before = len(taken)
        while left := readiness.steps(gpu, wants_of(gpu)):
            reason = blocked(gpu, left) if len(taken) == before else ''
            if reason:
                return gpu, reason
            step = left[0]
            if step in taken[before:]:
                raise exception.StepFailed(reason=f'"{step}" had no effect')
            taken.append(step)
            LOG.info('GPU %(gpu)s: %(step)s',
                     {'gpu': gpu.address, 'step': step})
            executor.take(self.machine, gpu.address, step, gpu=gpu)
            gpu = self.reader.complete_gpu(gpu.address)
        return gpu, ''

    def finish(self, gpu: model.Gpu) -> bool:
        """Roll back the change that a dead process left.

        :raises ChangeFailed: if it cannot be rolled back now.
        """
        change = self.records.read(gpu.address).change
        if change is None:
            return False
        if change.is_past(self.machine.boot_id()):
            change = dataclasses.replace(
                change, touched=(), vgpus=(),
                before=dataclasses.replace(change.before, instances=()))
        problem = self._roll_back(gpu, change)
        if problem:
            raise exception.ChangeFailed(
                gpu=gpu.address, reason=problem, outcome=STUCK,
                step='the rollback of an interrupted change')
        return True

    def _roll_back(self, gpu: model.Gpu, change: gpu_record.Change
                   ) -> str | None:
        """Roll a change back. Never raises.

        Each round reads the GPU again and continues from its state, whatever
        the result of an earlier round.

        :returns: None if the GPU is as before and the change is removed from
            its record; else what is in the way, which the record also says.
        """
        problem = None
        for _ in range(_ROUNDS):
            try:
                problem = self._round(gpu, change)
                if problem is None:
                    self.records.put(gpu.address, change=None)
                    return None
            except exception.GpuDriverError as error:
                problem = str(error)
        LOG.error('GPU %(gpu)s: the rollback failed: '
                  '%(problem)s', {'gpu': gpu.address, 'problem': problem})
        try:
            self.records.put(gpu.address, change=dataclasses.replace(
                change, problem=problem))
        except exception.JournalError as error:
            LOG.error('GPU %s: %s', gpu.address, error)
        return problem

    def _round(self, gpu: model.Gpu, change: gpu_record.Change) -> str | None:
        """Roll back as far as possible; return what is left, or None."""
        privileged_gpu.check_ended([str(gpu.address), *(
            str(vgpu.function) for vgpu in change.vgpus)])
        before = change.before
        now = self._read(gpu, change.vgpus)
        if before.enabled and now.mig is not None and not now.mig.enabled:
            reset.put_back(self.machine, gpu, True, before.pending)
            now = self._read(gpu, change.vgpus)
        steps = desired.rollback(now, change)
        used = self.in_use(now) if any(
            step.placement is not None for step in steps) else {}
        _, blocked = self.take_idle(now, steps, used)
        if blocked:
            return '; '.join(blocked)
        if gpu.mig is not None:
            reset.put_back(self.machine, gpu, before.enabled,
                           before.pending)
        left = desired.differences(self._read(gpu, change.vgpus), change)
        return '; '.join(left) or None

    def _read(self, gpu: model.Gpu, vgpus: Collection[spec.VgpuSpec] = ()
              ) -> model.Gpu:
        """As :meth:`read`; with the vGPUs too if ``vgpus`` names some."""
        if vgpus:
            gpu = vfio.read_functions(self.machine, gpu)
        if gpu.mig is None:
            return gpu
        try:
            return self._read_mig(gpu, gpu.mig)
        except exception.NvmlError as error:
            if error.symbol in ('NO_PERMISSION', 'NOT_SUPPORTED'):
                raise
            self._nvml.forget(gpu.address)
        return self._read_mig(gpu, gpu.mig)

    @gate.series
    def _read_mig(self, gpu: model.Gpu, known: model.Mig) -> model.Gpu:
        device = self._nvml.device(gpu.address)
        enabled, pending = self._nvml.mig_mode(device)
        found: tuple[model.GpuInstance, ...] = ()
        if enabled:
            found = tuple(
                dataclasses.replace(instance, compute=self._compute.instances(
                    gpu.address, instance, handle))
                for instance, handle in self._nvml.live_handles(
                    device, known.profiles))
        return dataclasses.replace(gpu, mig=dataclasses.replace(
            known, enabled=enabled, pending=pending, instances=found))


def _about_to(change: gpu_record.Change, number: int,
              step: partition_change.Step
              ) -> gpu_record.Change:
    """The record to write before a step is taken."""
    touched, vgpus = set(change.touched), change.vgpus
    if step.placement is not None and step.profile is not None:
        touched.add(spec.MigInstanceSpec(step.placement,
                                         step.profile.profile_id))
    if step.vgpu is not None and step.vgpu not in vgpus:
        vgpus = (*vgpus, step.vgpu)
    return dataclasses.replace(change, at=number, vgpus=vgpus,
                               touched=tuple(sorted(touched)))


def _reasons(step: partition_change.Step, used: Mapping[model.Placement, str]
             ) -> list[str]:
    """The instances in use that prevent a step, for people."""
    if step.placement is None:
        return []
    return [f'{place} is in use: {reason}' for place, reason in used.items()
            if place.mask & step.placement.mask
            # A new compute instance does not disturb those beside it.
            and not (step.action is partition_change.Action.CREATE_COMPUTE
                     and step.placement == place)]


