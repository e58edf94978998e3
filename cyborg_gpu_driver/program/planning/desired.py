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

"""The state that a GPU should have, and the steps to it. Pure.

It follows from the GPU's record and policy. All that changes a GPU uses this
module: restore, repair, fixed vGPUs and rollbacks. They compute the steps
again each time the GPU was read.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.record import gpu as gpu_record

Action = action.Action


@dataclasses.dataclass(frozen=True)
class Group:
    """A GPU instance and the claims whose vGPUs are on it."""

    instance: spec.MigInstanceSpec | None
    """None for time-sliced vGPUs, which have no GPU instance."""
    claims: tuple[gpu_record.Claim, ...] = ()


@dataclasses.dataclass(frozen=True)
class Desired:
    """The state that a GPU should have. It does not say what to destroy."""

    wants: readiness.Wants
    """The GPU's modes."""
    groups: tuple[Group, ...] = ()
    """The groups in the order in which they are created."""


def desired(gpu: model.Gpu, record: gpu_record.GpuRecord,
            policy: readiness.Wants) -> Desired:
    """Return the state that a GPU should have.

    Bound claims take precedence, then the layout, then the policy. The
    kernel driver is not part of it: the agent chooses it, because the agent
    knows about servers.

    NVIDIA's driver puts a vGPU on any instance of its profile that has room.
    So each instance is created just before its own vGPUs, and the instances
    with the most vGPUs come first.

    :param gpu: the GPU in its current state.
    :param policy: the state that the policy requires.
    """
    claims = sorted((claim for claim in record.claims
                     if claim.phase is gpu_record.Phase.BOUND
                     and not claim.members),
                    key=lambda claim: claim.function)
    layout = record.layout.layout if record.layout else None
    laid_out = {item.bare: item for item in (
        layout.instances if layout else ())}
    on_it = collections.defaultdict(list)
    for claim in claims:
        on_it[claim.instance].append(claim)
    groups = [
        Group(instance and laid_out.get(instance, instance), tuple(sharers))
        for instance, sharers in sorted(on_it.items(), key=_order)]
    if layout is not None and layout.enabled:
        groups.extend(Group(item) for item in layout.instances
                      if item.bare not in on_it)
    return Desired(_wants(policy, gpu, record.layout, claims), tuple(groups))


def creation(gpu: model.Gpu, instances: Iterable[spec.MigInstanceSpec],
             policy: readiness.Wants) -> tuple[action.Step, ...]:
    """The steps that create those given instances that a GPU lacks.

    :param policy: the state that the policy requires. Only its scheduler is
        used.
    """
    return tuple(
        dataclasses.replace(step, scheduler=readiness.instance_scheduler(
            gpu, policy, step.profile.profile_id if step.profile else None))
        if step.action is Action.CREATE_INSTANCE else step
        for step in _differing(gpu, tuple(instances), ()))


def removal(gpu: model.Gpu, instances: Collection[spec.MigInstanceSpec]
            ) -> tuple[action.Step, ...]:
    """The steps that destroy those given instances that a GPU has."""
    return _differing(gpu, (), instances)


def rollback(gpu: model.Gpu, change: gpu_record.Change
             ) -> tuple[action.Step, ...]:
    """The steps that restore the state of a GPU before a change.

    Instances are created again in their old places, with their compute
    instances. Ids and UUIDs cannot be restored. An instance that did not
    exist before and that no step touched is of another tool, and is kept.
    The MIG mode is not among the steps.

    :param gpu: the GPU with its compute instances, in the MIG mode that it
        had before.
    """
    there = {vgpu.function: vgpu.type_id for vgpu in gpu.vgpus}
    return (
        *(action.Step(Action.DESTROY_VGPU, vgpu=vgpu)
          for vgpu in reversed(change.vgpus)
          if there.get(vgpu.function) == vgpu.type_id),
        *_differing(gpu, remaining(gpu, change), change.touched))


def remaining(gpu: model.Gpu, change: gpu_record.Change
              ) -> tuple[spec.MigInstanceSpec, ...]:
    """The instances before a change that a rollback keeps or creates again.

    A missing instance that no step touched is left out: something else, such
    as an unbind, has destroyed it meanwhile.
    """
    live = {spec.of(instance)
            for instance in (gpu.mig.instances if gpu.mig else ())}
    return tuple(item for item in change.before.instances
                 if item.bare in live or item.bare in change.touched)


def differences(gpu: model.Gpu, change: gpu_record.Change
                ) -> tuple[str, ...]:
    """What differs from before a change, for people; empty if nothing."""
    found = []
    mig, before = spec.layout_of(gpu), change.before
    for what, is_now, was in (('MIG mode', mig.enabled, before.enabled),
                              ('pending MIG mode', mig.pending,
                               before.pending)):
        if is_now != was:
            found.append(f'{what} was {_mode(was)} and is {_mode(is_now)}')
    found.extend(f'still to do: {step}' for step in rollback(gpu, change))
    return tuple(found)


def _differing(gpu: model.Gpu, wanted: Sequence[spec.MigInstanceSpec],
               touched: Collection[spec.MigInstanceSpec]
               ) -> tuple[action.Step, ...]:
    """Steps to the wanted instances; only ``touched`` ones are destroyed."""
    if gpu.mig is None:
        return ()
    live = {spec.of(instance): instance for instance in gpu.mig.instances}
    by_place = {item.bare: item for item in wanted}
    away: list[action.Step] = []
    missing: list[action.Step] = []
    for place, instance in sorted(live.items()):
        if place not in touched:
            continue
        if place not in by_place:
            away.append(_step(gpu, Action.DESTROY_INSTANCE, place))
            continue
        had = set(by_place[place].compute)
        has = {(part.start, part.size) for part in instance.compute}
        away.extend(_compute(gpu, Action.DESTROY_COMPUTE, place, has - had))
        missing.extend(_compute(gpu, Action.CREATE_COMPUTE, place,
                                had - has))
    for place, item in sorted(by_place.items()):
        if place not in live:
            missing.append(_step(gpu, Action.CREATE_INSTANCE, place))
            missing.extend(_compute(gpu, Action.CREATE_COMPUTE, place,
                                    item.compute))
    return (*away, *missing)


def _step(gpu: model.Gpu, what: action.Action, place: spec.MigInstanceSpec,
          **compute: Any) -> action.Step:
    return action.Step(what, spec.profile(gpu, place.profile_id),
                       place.placement, **compute)


def _compute(gpu: model.Gpu, what: action.Action, place: spec.MigInstanceSpec,
             parts: Iterable[tuple[int, int]]) -> list[action.Step]:
    return [_step(gpu, what, place, slices=size, start=start)
            for start, size in sorted(parts)]


def _mode(enabled: bool) -> str:
    return 'on' if enabled else 'off'


def _order(group: tuple[spec.MigInstanceSpec | None,
                        Sequence[gpu_record.Claim]]) -> tuple:
    instance, claims = group
    return (instance is not None, -len(claims), instance or ())


def _wants(policy: readiness.Wants, gpu: model.Gpu,
           saved: gpu_record.SavedLayout | None,
           claims: Sequence[gpu_record.Claim]) -> readiness.Wants:
    vfs = policy.vfs
    if (any(claim.function != gpu.address for claim in claims)
            or vfs is None and saved is not None and saved.vfs):
        vfs = True
    mixed = policy.mixed
    if claims and (mixed or any(claim.vgpu_placement is not None
                                for claim in claims)):
        mixed = any(claim.vgpu_placement is not None
                    for claim in claims) or None
    scheduler = policy.scheduler
    if (mixed and scheduler
            and scheduler[0] is model.SchedulerPolicy.FIXED_SHARE):
        scheduler = None
    return readiness.Wants(_mig(policy.mig, gpu, saved, claims), vfs, mixed,
                           scheduler)


def _mig(policy: bool | None, gpu: model.Gpu,
         saved: gpu_record.SavedLayout | None,
         claims: Sequence[gpu_record.Claim]) -> bool | None:
    """The MIG mode that a GPU should have; None keeps the current one."""
    if gpu.mig is None:
        return None
    if (any(claim.placement is not None for claim in claims)
            or saved is not None and saved.layout.instances):
        return True
    if claims and policy:
        # Time-sliced vGPUs of an earlier policy, which need MIG off.
        return None
    if policy is None and saved is not None and not gpu.mig.instances:
        return saved.layout.enabled
    return policy
