# SPDX-License-Identifier: Apache-2.0

"""What a GPU offers under a policy: pure, from the snapshot alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition import vgpu_type
from cyborg_gpu_driver.partition.offer import mig as offer_mig
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.partition.offer import vgpu as offer_vgpu
from cyborg_gpu_driver.partition.offer import whole as offer_whole

Held = offer.Held
Offer = offer.Offer
Situation = offer.Situation
UNKNOWN = Situation()
"""The situation of a GPU that has no record."""
_WHOLE = policies.Mode.PASSTHROUGH


def offers(gpu: model.Gpu, policy: policies.Policy,
           held: Sequence[Held] = (), must_be_bound: bool = False,
           situation: Situation = UNKNOWN,
           groups: Sequence[offer_whole.State] = ()) -> tuple[Offer, ...]:
    """Return what ``gpu`` offers under the policy that governs it.

    An offer that the policy asks for and the GPU cannot give is included,
    with its :attr:`Offer.problem`, so that an operator sees why.

    :param held: which vGPUs lie on which of its GPU instances, as far as
        known; each vGPU once.
    :param must_be_bound: whether a server needs a whole GPU bound to vfio-pci
        now; otherwise this shows what the GPU could offer.
    :param situation: of a GPU in mode auto.
    :param groups: mode nvlink: the groups that the GPU is in.
    """
    if policy.mode is policies.Mode.AUTO:
        return tuple(_elastic(gpu, policy, situation, held, must_be_bound))
    if policy.mode is policies.Mode.NVLINK:
        return tuple(offer_whole.group_offers(gpu, policy, groups,
                                         must_be_bound))
    if policy.mode is policies.Mode.PASSTHROUGH:
        return tuple(offer_whole.offers(gpu, policy, must_be_bound))
    if fixed.is_left(gpu, policy):
        policy = dataclasses.replace(policy, profiles=(), vgpu_types=tuple(
            name for name, _number in policy.fixed_vgpus))
    if policy.mode is policies.Mode.VGPU:
        return tuple(offer_vgpu.offers(gpu, policy))
    if policy.mode is policies.Mode.MIG:
        return tuple(offer_mig.offers(gpu, policy, held))
    return ()


def possible_offers(gpu: model.Gpu) -> tuple[Offer, ...]:
    """Return what ``gpu`` could offer in any mode, to choose a policy."""
    found = list(offers(gpu, policies.Policy(
        '', policies.Mode.PASSTHROUGH)))
    # One type at a time: all types together might need more virtual
    # functions than the GPU has.
    for entry in vgpu_type.of_mode(gpu, policies.Mode.VGPU):
        found += offers(gpu, policies.Policy(
            '', policies.Mode.VGPU, vgpu_types=(entry.mdev_type_id,)))
    if gpu.mig is not None:
        found += offers(gpu, policies.Policy('', policies.Mode.MIG))
        types = vgpu_type.of_mode(gpu, policies.Mode.MIG)
        for profile in gpu.mig.profiles:
            filling = vgpu_type.filling(types, profile)
            for entry in vgpu_type.using(types, profile):
                if entry not in filling:
                    found += offers(gpu, policies.Policy(
                        '', policies.Mode.MIG,
                        vgpu_types=(entry.mdev_type_id,)))
    return tuple(found)


def check_policy(gpu: model.Gpu, policy: policies.Policy,
                 by_role: roles.FactsByRole | None = None) -> list[str]:
    """Describe what a policy asks for and this GPU lacks or has too few of.


    :returns: sentences that name the policy, the option and correct values;
        empty if there is nothing to report. A policy may govern boards with
        other names, so the caller warns and does not refuse the policy.
    """
    if policy.mode is policies.Mode.AUTO:
        return list(_check_roles(gpu, policy, by_role or {}))
    where = f'policy {policy.name}, GPU {gpu.address}: '
    found = []
    if policy.mode is policies.Mode.MIG and gpu.mig is not None:
        found += [where + 'profiles: ' + offer_mig.unknown_profile(
                      gpu.mig, name)
                  for name in policy.profiles
                  if gpu.mig.profile_by_name(name) is None]
        found += [where + 'profiles: ' + text for text
                  in offer_mig.short_of_functions(gpu, policy)]
        if policy.scheduler and gpu.vgpu_types and not any(
                (kind.per_instance or 0) > 1 for kind in gpu.vgpu_types):
            found.append(
                f'{where}vgpu_scheduler: has no effect, because no vGPU type '
                'of this GPU shares a GPU instance with others')
    if policy.time_slice and any(
            scheduler and not scheduler.takes_slice for scheduler in (
                gpu.scheduler, *(instance.scheduler for instance in (
                    gpu.mig.instances if gpu.mig else ())))):
        found.append(f'{where}vgpu_time_slice_us: has no effect, because '
                     'drivers from 595 on set the time slice themselves')
    if (policy.mode in (policies.Mode.MIG, policies.Mode.VGPU)
            and vgpu_type.types_of(gpu)):
        types = vgpu_type.of_mode(gpu, policy.mode)
        found += [where + f'{option}: ' + vgpu_type.unknown(types, text)
                  for option, texts in (
                      ('vgpu_types', policy.vgpu_types),
                      ('fixed_vgpus', dict(policy.fixed_vgpus)),
                      ('max_instances', dict(policy.max_instances)))
                  for text in texts
                  if not any(entry.is_called(text) for entry in types)]
    return found


def _check_roles(gpu: model.Gpu, policy: policies.Policy,
                 by_role: roles.FactsByRole) -> Iterator[str]:
    """Yield what is wrong with each role of a policy in mode auto."""
    for role in policy.roles:
        known = by_role.get(role.value)
        if known is None or not roles.holds(known, gpu):
            continue
        if known.problem:
            yield (f'policy {policy.name}, GPU {gpu.address}: roles: '
                   f'{role.value} is not offered: {known.problem}')
            continue
        picture = roles.gpu_in_role(gpu, role, known)
        yield from check_policy(picture, roles.rules(policy, role, picture))


# What a GPU in mode auto offers: all its roles, until one is taken.

def _elastic(gpu: model.Gpu, policy: policies.Policy, situation: Situation,
             held: Sequence[Held], must_be_bound: bool) -> Iterator[Offer]:
    """Yield the offers of every role.

    Nothing can be created in a role that the GPU cannot take now. The offers
    of each role, their functions and their totals are the same whatever role
    the GPU has.
    """
    force = roles.in_force(gpu, situation.claimed)
    for role in policy.roles:
        taken = '' if force in (None, role) else (
            f'the GPU is in role {force.value}' if force else '')
        if role is _WHOLE:
            carved = readiness.carved_up(gpu) if gpu.physfn is None else ''
            made = offers(gpu, policy.in_role(role), (), must_be_bound)
            if carved:
                # It is whole again once it is idle.
                made = tuple(dataclasses.replace(item, problem='', busy=carved)
                             for item in made)
        else:
            made = _in_role(gpu, policy, role, situation, held)
        for item in made:
            yield dataclasses.replace(
                item, creatable=0, busy=taken) if taken else item


def _in_role(gpu: model.Gpu, policy: policies.Policy, role: policies.Mode,
             situation: Situation, held: Sequence[Held]) -> tuple[Offer, ...]:
    """Return the offers of a role that partitions the GPU."""
    if roles.stands(gpu, role):
        return offers(gpu, roles.rules(policy, role, gpu), held)
    known = situation.by_role.get(role.value)
    if known is None or not roles.holds(known, gpu):
        problem = ('the GPU has not been read in this role yet; the driver '
                   'does so as soon as the GPU is idle')
    elif known.problem:
        problem = known.problem
    else:
        picture = roles.gpu_in_role(gpu, role, known)
        return offers(picture, roles.rules(policy, role, picture))
    return (offer.nothing(gpu, policy.in_role(role), role.value, problem),)


def settled(found: Collection[Offer], is_taken: bool,
            is_partitioning: bool) -> tuple[Offer, ...]:
    """Return a GPU's offers, adjusted to what Placement and binds know.

    :param is_taken: whether a server has the GPU as a whole, or had it and
        the GPU has not been reset yet.
    :param is_partitioning: whether a bind may be giving it another role now.
    """
    if len({item.mode for item in found}) < 2:
        return tuple(found)
    return tuple(
        dataclasses.replace(item, creatable=0)
        if (is_partitioning if item.mode is _WHOLE else is_taken) else item
        for item in found)
