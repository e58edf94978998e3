# SPDX-License-Identifier: Apache-2.0

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
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change as partition_change
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.record import gpu as gpu_record

Action = partition_change.Action


@dataclasses.dataclass(frozen=True)
class Group:
    """A GPU instance and the claims whose vGPUs are on it."""

    instance: spec.MigInstanceSpec | None
    """None for time-sliced vGPUs, which have no GPU instance."""
    claims: tuple[gpu_record.Claim, ...] = ()


def groups(record: gpu_record.GpuRecord) -> tuple[Group, ...]:
    """Return what a GPU should have by its record, in order of creation.

    It does not say what to destroy. NVIDIA's driver puts a vGPU on any
    instance of its profile that has room. So each instance is created just
    before its own vGPUs, and the instances with the most vGPUs come first.
    """
    layout = record.layout.layout if record.layout else None
    laid_out = {item.bare: item for item in (
        layout.instances if layout else ())}
    on_it = collections.defaultdict(list)
    for claim in _bound(record):
        on_it[claim.instance].append(claim)
    found = [
        Group(instance and laid_out.get(instance, instance), tuple(sharers))
        for instance, sharers in sorted(on_it.items(), key=_order)]
    if layout is not None and layout.enabled:
        found.extend(Group(item) for item in layout.instances
                     if item.bare not in on_it)
    return tuple(found)


def wants(gpu: model.Gpu, record: gpu_record.GpuRecord,
          policy: readiness.Wants) -> readiness.Wants:
    """Return the modes that a GPU should have.

    Bound claims take precedence, then the layout, then the policy. The
    kernel driver is not part of it: the agent chooses it, because the agent
    knows about servers.
    """
    claims = _bound(record)
    vfs = policy.vfs
    if (any(claim.function != gpu.address for claim in claims)
            or vfs is None and record.layout is not None
            and record.layout.vfs):
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
    return readiness.Wants(_mig(policy.mig, gpu, record.layout, claims), vfs,
                           mixed, scheduler)


def _bound(record: gpu_record.GpuRecord) -> list[gpu_record.Claim]:
    """The bound claims on vGPUs."""
    return sorted((claim for claim in record.claims
                   if claim.phase is gpu_record.Phase.BOUND
                   and not claim.is_group),
                  key=lambda claim: claim.function)


def creation(gpu: model.Gpu, instances: Iterable[spec.MigInstanceSpec],
             policy: readiness.Wants) -> tuple[partition_change.Step, ...]:
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
            ) -> tuple[partition_change.Step, ...]:
    """The steps that destroy those given instances that a GPU has."""
    return _differing(gpu, (), instances)


def rollback(gpu: model.Gpu, change: gpu_record.Change
             ) -> tuple[partition_change.Step, ...]:
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
        *(partition_change.Step(Action.DESTROY_VGPU, vgpu=vgpu)
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
            was_on, is_on = ('on' if mode else 'off'
                             for mode in (was, is_now))
            found.append(f'{what} was {was_on} and is {is_on}')
    found.extend(f'still to do: {step}' for step in rollback(gpu, change))
    return tuple(found)


def _differing(gpu: model.Gpu, wanted: Sequence[spec.MigInstanceSpec],
               touched: Collection[spec.MigInstanceSpec]
               ) -> tuple[partition_change.Step, ...]:
    """Steps to the wanted instances; only ``touched`` ones are destroyed."""
    if gpu.mig is None:
        return ()
    live = {spec.of(instance): instance for instance in gpu.mig.instances}
    by_place = {item.bare: item for item in wanted}
    away: list[partition_change.Step] = []
    missing: list[partition_change.Step] = []
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


def _step(gpu: model.Gpu, what: partition_change.Action,
          place: spec.MigInstanceSpec,
          **compute: Any) -> partition_change.Step:
    return partition_change.Step(what, spec.profile(gpu, place.profile_id),
                                 place.placement, **compute)


def _compute(gpu: model.Gpu, what: partition_change.Action,
             place: spec.MigInstanceSpec,
             parts: Iterable[tuple[int, int]]) -> list[partition_change.Step]:
    return [_step(gpu, what, place, slices=size, start=start)
            for start, size in sorted(parts)]


def _order(group: tuple[spec.MigInstanceSpec | None,
                        Sequence[gpu_record.Claim]]) -> tuple:
    instance, claims = group
    return (instance is not None, -len(claims), instance or ())


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


# Compare the records, hardware, Cyborg and Placement. Pure.
#
# Unknown facts are not differences.

_REPAIR = '"cyborg-gpu doctor --repair" repairs it'
_RESTORE = '"cyborg-gpu layout restore" restores what is bound'
_PASSING = ('perhaps its server is being created or deleted now; if the '
            'difference persists, check whether the server still exists')
_OF_HOST = frozenset({reconcile.Kind.GPU_GONE, reconcile.Kind.BAD_RECORD})
_OF_REQUESTS = frozenset({reconcile.Kind.NO_REQUEST,
                          reconcile.Kind.NOT_RECORDED})
_OF_USAGES = frozenset({reconcile.Kind.ALLOCATED,
                        reconcile.Kind.NOT_ALLOCATED,
                        reconcile.Kind.RESERVED})


@dataclasses.dataclass(frozen=True)
class Facts:
    """The known facts of one GPU at one moment."""

    gpu: model.Gpu
    record: gpu_record.GpuRecord = gpu_record.GpuRecord()
    governed: bool = True
    """Whether this library manages the vGPUs and instances on the GPU."""
    requests: reconcile.Requests | None = None
    """Cyborg's requests; None if Cyborg could not be asked."""
    usages: tuple[reconcile.Usage, ...] | None = ()
    """Usages of the GPU's providers that Placement returned; None if
    Placement could not be asked."""
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of vGPUs that are or may be in use, and what uses them."""
    in_use: Mapping[model.Placement, str] | None = None
    """Instances in use and what uses them; None if unknown."""
    boot: str = ''
    """Boot id of the machine. An instance of a claim of an earlier boot is
    gone, whatever is in its place."""

    @property
    def claims(self) -> tuple[gpu_record.Claim, ...]:
        """The claims on this GPU."""
        return self.record.claims


def compare(facts: Facts) -> tuple[reconcile.Difference, ...]:
    """All differences between two sources about one GPU."""
    found = [*_layout(facts)]
    if condition.doubts(facts.gpu):
        return tuple(found)
    for claim in facts.claims:
        found.extend(_of_claim(facts, claim))
    if facts.governed:
        found.extend(_not_recorded(facts))
        found.extend(_foreign_vgpus(facts))
        found.extend(_foreign_instances(facts))
    found.extend(_of_placement(facts))
    return tuple(found)


def could_find(facts: Facts | None, kind: reconcile.Kind) -> bool:
    """Whether a comparison had the facts to find a kind of difference.

    If not, a difference that was found before may still exist.

    :param facts: of the GPU; None if the GPU was not compared.
    """
    if kind in _OF_HOST:
        return True
    if facts is None:
        return False
    if condition.doubts(facts.gpu):
        return kind is reconcile.Kind.LAYOUT_CHANGE
    if kind in _OF_REQUESTS:
        return facts.requests is not None
    if kind in _OF_USAGES:
        return facts.usages is not None
    return (kind is not reconcile.Kind.FOREIGN_INSTANCE
            or facts.in_use is not None)


def absent(claims: Iterable[gpu_record.Claim], host: model.Host
           ) -> tuple[reconcile.Difference, ...]:
    """Claims on GPUs that the machine does not show."""
    known = {gpu.address for gpu in host.gpus}
    return tuple(
        _difference(
            reconcile.Kind.GPU_GONE, claim.gpu, claim.handle,
            f'handle {claim.handle} ({claim.profile}) is bound on GPU '
            f'{claim.gpu}, which this machine does not show',
            'check what happened to the GPU; delete the server if the GPU '
            'does not come back')
        for claim in claims if claim.gpu not in known)


def unusable(gpu: model.PciAddress, reason: str, remedy: str
             ) -> reconcile.Difference:
    """The difference of an unusable record, which cannot be compared."""
    return _difference(reconcile.Kind.BAD_RECORD, gpu, str(gpu), reason,
                       remedy)


def unrequested(facts: Facts) -> tuple[gpu_record.Claim, ...]:
    """Claims of bound handles for which Cyborg has no request."""
    if facts.requests is None:
        return ()
    return tuple(claim for claim in facts.claims
                 if claim.phase is gpu_record.Phase.BOUND
                 and facts.requests.of(claim.handle) is None)


def unexplained(facts: Facts) -> tuple[model.GpuInstance, ...]:
    """Instances that the GPU's record does not explain."""
    known = facts.record.owned_instances
    return tuple(instance for instance in _instances(facts.gpu)
                 if spec.of(instance) not in known)


def requested_vgpu(gpu: model.Gpu, request: reconcile.Request
                   ) -> model.Vgpu | None:
    """The live vGPU of a request on a GPU; None if it does not exist."""
    vfio = gpu.framework is model.Framework.VENDOR_VFIO
    name = str(request.function) if vfio else request.handle
    return next((vgpu for vgpu in gpu.vgpus if vgpu.name == name
                 and vgpu.type_id == request.type_id), None)


def _layout(facts: Facts) -> Iterator[reconcile.Difference]:
    if facts.record.change is not None:
        yield _difference(
            reconcile.Kind.LAYOUT_CHANGE, facts.gpu.address,
            str(facts.gpu.address),
            f'a change of layout did not finish: {facts.record.change}',
            'run "cyborg-gpu layout restore", which undoes it')


def _of_claim(facts: Facts, claim: gpu_record.Claim
              ) -> Iterator[reconcile.Difference]:
    kind, address = reconcile.Kind, facts.gpu.address
    handle = f'handle {claim.handle} ({claim.profile})'
    if not claim.leads:
        return
    if claim.phase is not gpu_record.Phase.BOUND:
        yield _difference(
            kind.UNFINISHED, address, claim.handle,
            f'{handle} was {claim.phase.value} and still has a part of the '
            'GPU', 'each report of the agent tries again; a virtual machine '
            'that still uses it must end first', True)
        return
    requests = facts.requests
    if requests is not None and requests.of(claim.handle) is None:
        yield _no_request(facts, requests, claim, handle)
        return
    if claim.is_group:
        return
    there = {vgpu.name: vgpu for vgpu in facts.gpu.vgpus}
    vgpu = there.get(claim.vgpu_name)
    lost, free = _instance(facts, claim)
    again = requests is not None and (not lost or free)
    if vgpu is None:
        yield _difference(
            kind.VGPU_GONE, address, claim.handle,
            f'{handle} no longer has a vGPU on {claim.function}'
            + (f', and {lost}' if lost else ''),
            _REPAIR if again else _RESTORE, again)
    elif vgpu.type_id != claim.mdev_type:
        yield _difference(
            kind.OTHER_TYPE, address, claim.handle,
            f'{handle} was bound as {claim.mdev_type}; its vGPU on '
            f'{vgpu.function} is a {vgpu.type_id}',
            'stop the server and delete it; then remove the vGPU with '
            f'"cyborg-gpu vgpu clean {vgpu.name}"')
    elif lost:
        yield _difference(
            kind.INSTANCE_GONE, address, claim.handle,
            f'{handle} has its vGPU, but {lost}',
            _REPAIR if again else _RESTORE, again)


def _no_request(facts: Facts, requests: reconcile.Requests,
                claim: gpu_record.Claim, handle: str
                ) -> reconcile.Difference:
    user = facts.users.get(claim.vgpu_name, '')
    unsettled = requests.unsettled
    reason = (f'in use: {user}' if user else
              'Cyborg is binding or unbinding requests ('
              + ', '.join(unsettled) + ')' if unsettled else '')
    return _difference(
        reconcile.Kind.NO_REQUEST, facts.gpu.address, claim.handle,
        f'{handle} is bound, but Cyborg has no accelerator request for it'
        + (f'; {reason}' if reason else ''),
        'find out what uses it: nothing in use is removed' if user else
        'wait until no request of this host is in progress; delete a request '
        'that does not end' if unsettled else
        'it is returned after [gpu] orphan_grace; ' + _REPAIR + ' now',
        not reason)


def _instance(facts: Facts, claim: gpu_record.Claim) -> tuple[str, bool]:
    """The problem of a claim's instance, and whether its place is free."""
    if claim.placement is None or not facts.gpu.visible_to_nvml:
        return '', True
    free = True
    for instance in _instances(facts.gpu):
        # A restore that died has not written the id of the instance.
        if claim.made(instance, facts.boot):
            return '', True
        if instance.placement.mask & claim.placement.mask:
            free = False
    return (f'its GPU instance at {claim.placement} is gone'
            + ('' if free else ' and another is in its place'), free)


def _instances(gpu: model.Gpu) -> tuple[model.GpuInstance, ...]:
    return gpu.mig.instances if gpu.mig else ()


def _requests(facts: Facts) -> list[reconcile.Request]:
    """Requests for vGPUs of this GPU that no record has."""
    if facts.requests is None:
        return []
    functions = {facts.gpu.address, *(vf.address for vf in facts.gpu.vfs)}
    known = {claim.handle for claim in facts.claims}
    return [request for request in facts.requests.bound
            if request.function in functions and request.handle not in known]


def _not_recorded(facts: Facts) -> Iterator[reconcile.Difference]:
    for request in _requests(facts):
        there = requested_vgpu(facts.gpu, request) is not None
        yield _difference(
            reconcile.Kind.NOT_RECORDED, facts.gpu.address, request.handle,
            f'accelerator request {request.arq} (server {request.server}) has '
            f'handle {request.handle}, of which no record has a claim'
            + ('' if there else ', and there is no such vGPU'),
            _REPAIR if there else _PASSING, there)


def _foreign_vgpus(facts: Facts) -> Iterator[reconcile.Difference]:
    known = {claim.vgpu_name for claim in facts.claims}
    known |= {str(function) for function in facts.record.fixed.types}
    found = [requested_vgpu(facts.gpu, request)
             for request in _requests(facts)]
    known |= {vgpu.name for vgpu in found if vgpu is not None}
    for vgpu in facts.gpu.vgpus:
        if vgpu.name not in known:
            yield _difference(
                reconcile.Kind.FOREIGN_VGPU, facts.gpu.address, vgpu.name,
                f'unknown vGPU {vgpu.name} ({vgpu.type_id}) on '
                f'{vgpu.function}: neither a bind nor a policy has created '
                'it; it counts as used',
                f'if it is not needed, "cyborg-gpu vgpu clean {vgpu.name}" '
                'removes it')


def _foreign_instances(facts: Facts) -> Iterator[reconcile.Difference]:
    mig = facts.gpu.mig
    if facts.in_use is None or mig is None:
        return
    for instance in unexplained(facts):
        if instance.placement in facts.in_use:
            continue
        name = spec.profile_name(mig, instance.profile_id)
        yield _difference(
            reconcile.Kind.FOREIGN_INSTANCE, facts.gpu.address,
            f'{name}@{instance.placement.start}',
            f'unknown GPU instance {instance.instance_id} ({name} at '
            f'{instance.placement}): neither a bind nor a layout has created '
            'it; it counts as used',
            'if it is not needed, "nvidia-smi mig '
            f'-i {facts.gpu.address} -dci -gi {instance.instance_id}" and '
            'then the same with -dgi remove it, and so does "cyborg-gpu '
            'layout apply"; "cyborg-gpu layout checkpoint" records it as '
            'intended')


def _of_placement(facts: Facts) -> Iterator[reconcile.Difference]:
    kind, address = reconcile.Kind, facts.gpu.address
    lost, unrecorded = unrequested(facts), _requests(facts)
    for usage in facts.usages or ():
        bound = sum(claim.profile == usage.profile and claim.leads
                    for claim in facts.claims
                    if claim.phase is gpu_record.Phase.BOUND
                    and claim not in lost)
        bound += sum(request.type_id == usage.type_id
                     for request in unrecorded)
        where = f'provider {usage.name or usage.provider} ({usage.profile})'
        text = f'{where}: {usage.used} allocated in Placement, {bound} bound'
        if usage.used > bound:
            yield _difference(kind.ALLOCATED, address, usage.provider, text,
                              _PASSING + '; "nova-manage placement audit" '
                              'finds allocations without a server')
        elif usage.used < bound:
            yield _difference(kind.NOT_ALLOCATED, address, usage.provider,
                              text, _PASSING + '; if the server is gone, '
                              '"openstack gpu orphan clean" removes what '
                              'Cyborg still has bound for it; until then '
                              'Placement may offer what is in use')
        # ``wanted`` counts only the claims in the records.
        if usage.reserved != usage.wanted and not unrecorded:
            yield _difference(
                kind.RESERVED, address, usage.provider,
                f'{where}: reserved is {usage.reserved} in Placement and '
                f'should be {usage.wanted}',
                "the agent's next report corrects it", True)


def _difference(kind: reconcile.Kind, gpu: model.PciAddress, subject: str,
                text: str, remedy: str, safe: bool = False
                ) -> reconcile.Difference:
    return reconcile.Difference(kind, gpu, subject, text, remedy, safe)
