# SPDX-License-Identifier: Apache-2.0

"""What a GPU in mode auto offers: all its roles, until one is taken. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition.offer import offer

_WHOLE = policies.Mode.PASSTHROUGH
_Make = Callable[[model.Gpu, policies.Policy, Sequence[offer.Held]],
                 Sequence[offer.Offer]]


@dataclasses.dataclass(frozen=True)
class Situation:
    """The parts of an elastic GPU's record that its offers depend on."""

    claimed: frozenset[policies.Mode] = frozenset()
    """The roles of the claims on it."""
    by_role: roles.FactsByRole = dataclasses.field(default_factory=dict)


def offers(gpu: model.Gpu, policy: policies.Policy, situation: Situation,
           held: Sequence[offer.Held], make: _Make) -> Iterator[offer.Offer]:
    """Yield the offers of every role.

    Nothing can be created in a role that the GPU cannot take now. The offers
    of each role, their functions and their totals are the same whatever role
    the GPU has.

    :param make: returns what a GPU offers under a policy of one mode.
    """
    force = roles.in_force(gpu, situation.claimed)
    for role in policy.roles:
        taken = '' if force in (None, role) else (
            f'the GPU is in role {force.value}' if force else '')
        made = (_whole(gpu, policy, make) if role is _WHOLE else
                _partitioned(gpu, policy, role, situation, held, make))
        for item in made:
            yield dataclasses.replace(
                item, creatable=0, busy=taken) if taken else item


def owner_of(function: model.PciAddress,
             known: Collection[tuple[model.PciAddress, roles.FactsByRole]]
             ) -> model.PciAddress | None:
    """Return the GPU that has a function in one of its roles, if not now.

    :param known: GPUs with their facts by role.
    """
    return next((address for address, by_role in known
                 if function in roles.functions(by_role)), None)


def _whole(gpu: model.Gpu, policy: policies.Policy, make: _Make
           ) -> Iterator[offer.Offer]:
    """Yield the whole GPU; if it is carved up, it is busy for now."""
    carved = readiness.carved_up(gpu)
    for item in make(gpu, policy.in_role(_WHOLE), ()):
        if carved and gpu.physfn is None:
            item = dataclasses.replace(item, problem='', busy=carved)
        yield item


def _partitioned(gpu: model.Gpu, policy: policies.Policy, role: policies.Mode,
                 situation: Situation, held: Sequence[offer.Held], make: _Make
                 ) -> Iterator[offer.Offer]:
    if roles.stands(gpu, role):
        yield from make(gpu, roles.rules(policy, role, gpu), held)
        return
    known = situation.by_role.get(role.value)
    if known is None or not roles.holds(known, gpu):
        yield offer.nothing(
            gpu, policy.in_role(role), role.value,
            'the GPU has not been read in this role yet; the driver does so '
            'as soon as the GPU is idle')
    elif known.problem:
        yield offer.nothing(gpu, policy.in_role(role), role.value,
                            known.problem)
    else:
        picture = roles.gpu_in_role(gpu, role, known)
        yield from make(picture, roles.rules(policy, role, picture), ())


def settled(found: Collection[offer.Offer], is_taken: bool,
            is_partitioning: bool) -> tuple[offer.Offer, ...]:
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
