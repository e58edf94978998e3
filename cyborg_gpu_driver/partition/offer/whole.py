# SPDX-License-Identifier: Apache-2.0

"""What a GPU offers in modes passthrough and nvlink. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition.offer import offer


def offers(gpu: model.Gpu, policy: policies.Policy,
           must_be_bound: bool = False) -> Iterator[offer.Offer]:
    """Yield the offer of the whole GPU; a carved-up GPU has a problem.

    If libvirt cannot take the GPU, or processes of this machine use it, the
    GPU is offered, but none can be created now. That state ends at some
    time, and the handle must remain.

    :param must_be_bound: whether a server needs it bound to vfio-pci now;
        otherwise this shows what the GPU could offer.
    """
    problem = readiness.carved_up(gpu)
    busy = '' if problem else busy_with(gpu, must_be_bound)
    if not problem and gpu.nvlink_open and not policy.nvlink_not_isolated:
        busy = (f'{gpu.nvlink_open}, so its NVLinks may reach the GPUs of '
                'other servers: use mode nvlink with FABRIC_MODE=1, or set '
                'nvlink_not_isolated in the policy')
    yield offer.Offer(
        gpu=gpu.address, policy=policy.name, mode=policy.mode,
        profile=offer.PASSTHROUGH, total=1,
        creatable=0 if problem or busy else 1,
        parents=(gpu.address,), problem=problem, busy=busy)


def busy_with(gpu: model.Gpu, must_be_bound: bool = False,
              together: Collection[model.PciAddress] = ()) -> str:
    """Return why a whole GPU cannot be used for the moment; or ``''``.

    :param together: GPUs that the same server gets.
    """
    if gpu.processes:
        return f'{gpu.processes} process(es) of this machine use it'
    group = unassignable(gpu, together)
    if group:
        return group
    if not must_be_bound or whole.is_vfio(gpu.driver):
        return ''
    return (f'bound to {gpu.driver}; it will be offered when it is bound to '
            'vfio-pci' if gpu.driver else 'not bound to vfio-pci yet')


def unassignable(gpu: model.Gpu,
                 together: Collection[model.PciAddress] = ()) -> str:
    """Return why its IOMMU group keeps a GPU from guests; or ``''``.

    :param together: GPUs that the same server gets.
    """
    return whole.obstacle(
        str(gpu.address), gpu.iommu_group, gpu.neighbours,
        follow=not whole.is_vfio(gpu.driver), together=[*map(str, together)])


# Groups of GPUs that NVLink connects. Their first GPU offers them.
#
# Groups that have a GPU in common exclude each other. So the room in a group
# depends on all of its GPUs: a group is available only while none of them has
# a claim.

@dataclasses.dataclass(frozen=True)
class Member:
    """A GPU of a group."""

    gpu: model.Gpu | None
    """None if the machine does not show the GPU."""
    governed: bool = True
    """Whether the policy of the group governs it."""
    claim: str = ''
    """What has the GPU, or may have it; empty if nothing has."""


@dataclasses.dataclass(frozen=True)
class State:
    """A group, with what is known of each of its GPUs."""

    group: nvlink.Group
    members: tuple[Member, ...]


def group_offers(gpu: model.Gpu, policy: policies.Policy,
                 states: Iterable[State], must_be_bound: bool = False
                 ) -> Iterator[offer.Offer]:
    """Yield one offer for each group that ``gpu`` leads and the policy names.

    :param states: the groups that the GPU is in.
    """
    states = tuple(states)
    sizes = policy.nvlink_sizes
    if not states:
        yield offer.nothing(
            gpu, policy, policy.mode.value, 'it is not known which GPUs '
            'NVLink connects to it: ' + (
                'it was bound to vfio-pci before NVML could tell; leave it '
                'bound to nvidia, and the agent binds it'
                if whole.is_vfio(gpu.driver) and gpu.bound_from is None
                else 'the next report of the agent finds out, or '
                '"cyborg-gpu doctor" says why not'))
    there = {len(state.group.members) for state in states}
    for size in sizes if states else ():
        if size not in there:
            yield offer.nothing(
                gpu, policy, f'nvlink-{size}', f'NVLink connects the GPU to '
                f'no group of {size}; nvlink_sizes can be '
                + ', '.join(map(str, sorted(there))))
    for state in states:
        group = state.group
        if group.leader != gpu.address or (
                sizes and len(group.members) not in sizes):
            continue
        problem = _group_problem(gpu, state)
        busy = '' if problem else _group_busy(state, must_be_bound)
        taken = any(member.claim for member in state.members)
        yield offer.Offer(
            gpu=gpu.address, policy=policy.name, mode=policy.mode,
            profile=group.profile, total=1, in_use=int(taken),
            creatable=0 if problem or busy or taken else 1,
            vgpu_type_id=group.profile, parents=(gpu.address,),
            members=group.members, board=gpu.model or '',
            problem=problem, busy=busy)


def _group_problem(gpu: model.Gpu, state: State) -> str:
    if gpu.model is None:
        return 'NVML has not returned the model of the GPU yet'
    for address, member in zip(state.group.members, state.members,
                               strict=True):
        if member.gpu is None:
            return f'GPU {address} of the group is missing'
        if not member.governed:
            return f'another policy governs GPU {address} of the group'
        if member.gpu.device_id != gpu.device_id:
            return f'GPU {address} of the group is of another model'
        problem = readiness.carved_up(member.gpu)
        if problem:
            return f'GPU {address} of the group is {problem}'
    return ''


def _group_busy(state: State, must_be_bound: bool) -> str:
    """Return why no server can have the group now, each reason once."""
    reasons: dict[str, list[str]] = {}
    for member in state.members:
        if member.gpu is not None and not member.claim:
            reasons.setdefault(busy_with(
                member.gpu, must_be_bound, [*state.group.members]),
                []).append(str(member.gpu.address))
    if len(reasons) == 1 and len(*reasons.values()) == len(state.members):
        return next(iter(reasons))
    return '; '.join(f'GPU {", ".join(gpus)}: {reason}'
                     for reason, gpus in reasons.items() if reason)
