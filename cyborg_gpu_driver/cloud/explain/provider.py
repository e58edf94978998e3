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
"""Find everything for which a provider does not meet a group. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import reasons
from cyborg_gpu_driver.cloud.explain import request
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.report.content import traits

_KIND = re.compile(r'CUSTOM_GPU_[A-Z]+_')
"""Prefix of the driver's traits of one kind: model, NUMA node, memory."""
_HEALTH = 'see "cyborg-gpu health show" and "cyborg-gpu doctor" on {host}'

Finding = reasons.Finding
Reason = reasons.Reason


def missing(group: request.Group, node: facts.Node, tree: facts.Tree,
            known: facts.Facts) -> Iterator[reasons.Finding]:
    """Yield why a provider does not meet a group, or why its bind would fail.

    :param node: a provider that has a resource class of the group.
    :param tree: the compute node of the provider.
    """
    yield from _traits(group, node)
    for name, amount in sorted(group.resources.items()):
        inventory = node.inventories.get(name)
        if inventory is None:
            yield Finding(
                Reason.GROUP_MIXED, node.title,
                f'{group.title} requests {group.wish} from one provider, and '
                f'this one has no {name}',
                'put each resource class in its own group of the device '
                'profile')
        elif not inventory.fits(amount):
            yield from _amount(name, amount, inventory, node)
            yield from _full(name, amount, inventory, node, tree, known)
    yield from _isolated(node, tree, known)
    yield from _cyborg(group, node, tree, known)


def _traits(group, node):
    for trait in sorted(group.required - node.traits):
        has = _instead(trait, node.traits)
        yield Finding(
            Reason.TRAIT_MISSING, trait,
            f'{trait} is required'
            + (f', but the provider has {has}' if has else ''),
            'remove the trait from the request, or request an existing one')
    for trait in sorted(group.forbidden & node.traits):
        if trait.startswith(health.TRAIT):
            remedy = _HEALTH.format(host=node.place.host if node.place
                                    else 'the host')
        else:
            remedy = 'remove the trait from the request'
        yield Finding(Reason.TRAIT_FORBIDDEN, trait,
                      f'the provider has {trait}, which is forbidden', remedy)


def _instead(trait, present):
    """The provider's traits most like a missing trait; empty if none is."""
    kind = _KIND.match(trait)
    alike = [other for other in sorted(present)
             if kind and other.startswith(kind[0])]
    return ', '.join(alike or difflib.get_close_matches(
        trait, sorted(present), 1))


def _amount(name, amount, inventory, node):
    most = min(int(inventory.total * inventory.ratio), inventory.max_unit)
    if amount > most:
        yield Finding(
            Reason.TOO_MANY, node.title,
            f'{amount} {name} are requested from one GPU, which has at most '
            f'{most}',
            f'request {amount} groups of 1 in the device profile; they can be '
            'on several GPUs')
    elif not inventory.allows(amount):
        yield Finding(
            Reason.UNIT, node.title,
            f'{amount} {name} cannot be requested: the inventory allows '
            f'{inventory.min_unit} or more, in steps of {inventory.step_size}',
            'request another amount, or find out who changed the inventory: '
            f'openstack resource provider inventory list {node.uuid}')


def _full(name, amount, inventory, node, tree, known):
    if (inventory.used + amount <= inventory.capacity
            or amount > int(inventory.total * inventory.ratio)):
        return
    if inventory.used + amount > int(inventory.total * inventory.ratio):
        yield Finding(
            Reason.USED, node.title,
            f'{inventory.used} of {inventory.total} {name} are used, by '
            + known.people(node.holders),
            'wait until a server is deleted, or add GPUs')
    if inventory.reserved > 0:
        yield from _reserved(name, inventory, node, tree, known)


def _isolated(node, tree, known):
    holders = set(node.holders).union(*(
        other.holders for other in tree.neighbours(node)))
    if traits.ISOLATED in node.traits and holders:
        yield Finding(
            Reason.GPU_ISOLATED, node.title,
            'the GPU accepts servers of one project only, and has '
            + known.people(holders),
            'if they belong to another project, wait until they are deleted, '
            'or change isolation in the policy', blocks=False)


def _reserved(name, inventory, node, tree, known):
    """Why the driver reserves the inventory."""
    what = f'{inventory.reserved} of {inventory.total} {name} are reserved'
    host = tree.name
    cordons = known.cordons(node, host)
    if cordons:
        yield Finding(
            Reason.RESERVED_CORDONED, node.title,
            f'{what}: {cordon.text(cordons)}',
            uncordon_with(cordons, host, node.place.gpu))
        return
    if node.conditions:
        yield Finding(
            Reason.RESERVED_UNHEALTHY, node.title,
            f'{what}: the GPU is unhealthy ({", ".join(node.conditions)})',
            f'see "cyborg-gpu health show" on {host}')
        return
    siblings = [other for other in tree.neighbours(node) if other.holders]
    if siblings:
        yield Finding(
            Reason.RESERVED_SIBLING, node.title, f'{what} for ' + '; '.join(
                f'{known.people(other.holders)} (using {other.place.label})'
                for other in siblings) + ' on the same GPU',
            'wait until these servers are deleted, or request a profile that '
            'fits next to theirs: openstack gpu capacity')
    elif node.holders:
        if inventory.used >= inventory.total:
            # The GPU is used as a whole. It is reserved so that its next
            # tenant waits until it has been cleaned.
            return
        yield Finding(
            Reason.RESERVED_FRAGMENTED, node.title,
            f'{what}: next to {known.people(node.holders)} the GPU has no '
            'room for another',
            'wait until a server is deleted; if something else uses a part of '
            'the GPU, ' + _HEALTH.format(host=host))
    else:
        yield Finding(
            Reason.RESERVED_UNUSED, node.title,
            f'{what}, although no server uses the GPU: it is being cleaned or '
            'changed, in use by the host itself, or occupied by an orphan',
            _HEALTH.format(host=host))


def uncordon_with(cordons: cordon.Cordons, host: str, gpu: str) -> str:
    """Return how to lift the cordons of a GPU, for display."""
    commands = []
    if cordon.of(cordons, cordon.Source.CYBORG):
        commands.append(f'openstack gpu uncordon {host} {gpu}')
    if cordon.without(cordons, {cordon.Source.CYBORG}):
        commands.append(f'cyborg-gpu gpu uncordon {gpu} on {host}')
    return 'if the GPU may get servers again: ' + ', and '.join(commands)


def _cyborg(group, node, tree, known):
    if not node.of_cyborg or known.deployables is None:
        return
    if node.uuid not in known.deployables:
        yield Finding(
            Reason.STALE_PROVIDER, node.title,
            'Cyborg has no deployable for this provider: if a server is '
            'scheduled to it, the bind fails',
            f'check that cyborg-agent runs on {tree.name} and reports; if '
            'nothing changes, the provider is stale: openstack gpu orphan '
            'list')
        return
    yield from _handles(group, node, known)


def _handles(group, node, known):
    """Attach handles that accelerator requests hold, unknown to Placement."""
    handles = known.deployables[node.uuid]
    holding = [arq for arq in known.arqs or ()
               if arq.provider == node.uuid and arq.holds]
    wanted = sum(group.resources.values())
    free = min((node.inventories[name].free for name in group.resources
                if name in node.inventories), default=0)
    if free >= wanted > handles - len(holding):
        stray = sorted(f'{arq.uuid} ({arq.state})' for arq in holding
                       if arq.server not in node.holders)
        yield Finding(
            Reason.HANDLES_TAKEN, node.title,
            f'{len(holding)} of {handles} attach handles are in use, which '
            'is more than Placement has allocated: '
            + (', '.join(stray) or 'by servers without an allocation'),
            'run openstack gpu orphan list, then openstack gpu orphan clean')
