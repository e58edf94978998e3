# SPDX-License-Identifier: Apache-2.0

"""vGPUs that the agent creates when it starts and then leaves to Nova.

For GPUs of vendor VFIO whose policy has ``fixed_vgpus``. A function has the
same type after a reboot, and under another policy that still wants that type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.record import gpu as gpu_record

_READY = frozenset({change.Action.SCHEDULER})
"""Actions that may be left on a GPU that is ready for its fixed vGPUs."""


class FixedVgpus:
    """Creates and removes fixed vGPUs."""

    def __init__(self, transactions: transaction.Transactions,
                 settings: policies.Settings):
        self._machine = transactions.machine
        self._reader = transactions.reader
        self._transactions = transactions
        self._settings = settings
        self._records = transactions.records

    def plan(self, gpu: model.Gpu) -> tuple[change.Step, ...]:
        """The steps that are left on a GPU; changes nothing."""
        if not self._is_ours(gpu):
            return ()
        record = self._records.read(gpu.address).fixed
        steps = _removal(self._unwanted(gpu, record), record)
        governing = self._ready_policy(gpu)
        if governing is not None:
            steps += self._creation(gpu, fixed.plan(gpu, governing,
                                                    record.types))
        return tuple(steps)

    def _is_ours(self, gpu: model.Gpu) -> bool:
        return self._settings.prepare and not self._settings.ignores(gpu)

    def _policy(self, gpu: model.Gpu) -> policy.Policy | None:
        """The policy that gives a GPU fixed vGPUs; None if none does."""
        governing = self._settings.policy_for(gpu)
        if governing is None or not governing.fixed_vgpus:
            return None
        return governing

    # Removal

    def release(self, gpu: model.Gpu, taken: list[change.Step]) -> str:
        """Remove recorded fixed vGPUs that are unwanted.

        :param taken: the steps that were taken are added to it.
        :returns: why some were not removed, or ``''``.
        """
        record = self._records.read(gpu.address).fixed
        if not self._is_ours(gpu) or record.is_empty or not (
                self._unwanted(gpu, record)
                or self._is_left_over(gpu, record)):
            return ''
        with self._transactions.lock(gpu.address):
            now = self._reader.complete_gpu(gpu.address)
            record = self._records.read(gpu.address).fixed
            cleared, blocked = self._transactions.take_idle(
                now, _removal(self._unwanted(now, record), record), {})
            now = self._transactions.read(
                self._reader.complete_gpu(gpu.address))
            record = self._still_ours(now, record)
            steps = desired.removal(now, record.instances)
            used = self._transactions.in_use(now) if steps else {}
            # An instance below vGPUs that remain is rightly kept.
            gone, refused = self._transactions.take_idle(now, [
                step for step in steps if step.placement not in used], used)
            places = {step.placement for step in gone}
            self._records.put(gpu.address, fixed=dataclasses.replace(
                record, instances=frozenset(
                    item for item in record.instances
                    if item.placement not in places)))
            taken.extend((*cleared, *gone))
            return '; '.join((*blocked, *refused))

    def _unwanted(self, gpu: model.Gpu, record: gpu_record.FixedVgpus
                  ) -> tuple[model.PciAddress, ...]:
        """The functions whose recorded fixed vGPUs are to be removed."""
        bound = {claim.function
                 for claim in self._records.read(gpu.address).claims}
        ours = {vf.address: record.types[vf.address] for vf in gpu.vfs
                if vf.address in record.types
                and vf.address not in bound
                and f'nvidia-{vf.current_vgpu_type}'
                == record.types[vf.address]}
        if not ours:
            return ()
        if self._in_the_way(gpu, ours):
            return tuple(sorted(ours))
        return fixed.surplus(gpu, self._policy(gpu), ours)

    def _is_left_over(self, gpu: model.Gpu, record: gpu_record.FixedVgpus
                      ) -> bool:
        """Whether a killed release has left only GPU instances to destroy."""
        return (bool(record.instances) and self._policy(gpu) is None
                and not any(vf.current_vgpu_type for vf in gpu.vfs
                            if vf.address in record.types))

    def _in_the_way(self, gpu: model.Gpu,
                    ours: Mapping[model.PciAddress, str]) -> bool:
        """Whether only recorded fixed vGPUs keep a GPU from changing."""
        wants = self._settings.wants(gpu)
        if _READY.issuperset(readiness.actions(gpu, wants)):
            return False
        return not (
            any(vgpu.function not in ours for vgpu in gpu.vgpus)
            or self._records.read(gpu.address).claims
            or blockers.of_running(self._machine, gpu))

    def _still_ours(self, gpu: model.Gpu, record: gpu_record.FixedVgpus
                    ) -> gpu_record.FixedVgpus:
        """The record, reduced to the vGPUs and instances that still apply.

        What a policy still wants remains recorded while it does not exist.
        """
        wanted = self._policy(gpu) is not None
        carried = {vf.address: f'nvidia-{vf.current_vgpu_type}'
                   for vf in gpu.vfs if vf.current_vgpu_type}
        types = {function: type_id for function, type_id
                 in record.types.items()
                 if carried.get(function) == type_id or (
                     wanted and function not in carried)}
        instances = record.instances
        if not wanted:
            instances &= set(map(
                spec.of, gpu.mig.instances if gpu.mig else ()))
        return gpu_record.FixedVgpus(types, instances)

    # Creation

    def _ready_policy(self, gpu: model.Gpu) -> policy.Policy | None:
        """The policy to create vGPUs for; None if the GPU needs none now."""
        if (not self._is_ours(gpu)
                or gpu.framework is not model.Framework.VENDOR_VFIO
                or not _READY.issuperset(readiness.actions(
                    gpu, self._settings.wants(gpu)))):
            return None
        return self._policy(gpu)

    def make(self, gpu: model.Gpu, taken: list[change.Step]) -> str:
        """Create the vGPUs that the policy wants, if the GPU is ready.

        :param taken: the steps are added to it after all were taken.
        :raises ChangeFailed: if one fails; none is created then.
        """
        governing = self._ready_policy(gpu)
        if governing is None or not _missing(gpu, fixed.plan(
                gpu, governing, self._records.read(gpu.address).fixed.types)):
            return ''
        with self._transactions.lock(gpu.address):
            now = self._transactions.read(
                self._reader.complete_gpu(gpu.address))
            record = self._records.read(gpu.address).fixed
            planned = fixed.plan(now, governing, record.types)
            missing = _missing(now, planned)
            if not missing:
                return ''
            steps = self._creation(now, planned)

            def check(_gpu: model.Gpu) -> Mapping[str, object]:
                for item in missing:
                    if (governing.mode is policy.Mode.MIG
                            and vfio.instance_under(
                                self._machine, item.function) is None):
                        raise exception.StepFailed(
                            reason=f'{item} is on no GPU instance')
                return {'fixed': gpu_record.FixedVgpus(
                    {**record.types, **{
                        item.function: item.type_id for item in missing}},
                    record.instances | frozenset(planned.instances))}

            self._transactions.run(now, steps, check)
            taken.extend(steps)
            return ''

    def _creation(self, gpu: model.Gpu, planned: fixed.FixedPlan
                  ) -> list[change.Step]:
        """The steps that create the missing parts of a plan.

        GPU instances come first: without one, the kernel answers EIO to a
        vGPU type. Larger vGPUs come first, because fewer places fit them.
        """
        sizes = {kind.mdev_type_id: kind.framebuffer_mib
                 for kind in gpu.vgpu_types}
        return [
            *desired.creation(gpu, planned.instances,
                              self._settings.wants(gpu)),
            *(change.Step(change.Action.CREATE_VGPU, vgpu=item)
              for item in sorted(_missing(gpu, planned), key=lambda item: (
                  -sizes.get(item.type_id, 0), item.function)))]


def _removal(functions: Iterable[model.PciAddress],
             record: gpu_record.FixedVgpus) -> list[change.Step]:
    """The steps that remove the vGPUs of functions."""
    return [change.Step(change.Action.DESTROY_VGPU, vgpu=spec.VgpuSpec(
        function, record.types[function])) for function in functions]


def _missing(gpu: model.Gpu, planned: fixed.FixedPlan
             ) -> list[spec.VgpuSpec]:
    carried = {vf.address: f'nvidia-{vf.current_vgpu_type}'
               for vf in gpu.vfs}
    return [item for item in planned.vgpus
            if carried.get(item.function) != item.type_id]
