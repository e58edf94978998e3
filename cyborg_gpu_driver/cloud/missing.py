# SPDX-License-Identifier: Apache-2.0

"""Find what a request lacks: in the cloud, on a host, at a provider. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from collections.abc import Sequence

import os_resource_classes as orc
import os_traits

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import guest
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.report.content import names

_KIND = re.compile(r'CUSTOM_GPU_[A-Z]+_')
"""Prefix of the driver's traits of one kind: model, NUMA node, memory."""
_HEALTH = 'see "cyborg-gpu doctor" on {host}'

Finding = request.Finding
Reason = request.Reason

_FAULTS = (
    ('no valid host', Reason.NO_VALID_HOST, '', 'see below what is missing'),
    ('failed to bind accelerator requests'
     r'(?=.*(service token|\b403\b|forbidden))', Reason.SERVICE_TOKEN, '',
     'set [service_user] send_service_user_token = true in nova.conf of '
     'nova-conductor and nova-compute, with a user that has the role service'),
    ('failure getting accelerator', Reason.NO_NETWORK,
     ' Nova 34.0 reports this if the server was created without any network, '
     'and if a bind fails or takes longer than [compute] arq_binding_timeout',
     'give a network, or --network none; otherwise find the bind in the logs '
     'of cyborg-conductor, and of cyborg-agent on the host'),
    ('failed to bind accelerator requests', Reason.BIND_FAILED, '',
     'check that cyborg-agent runs on the host, find the bind in its log and '
     'in the log of cyborg-conductor, and run "cyborg-gpu doctor" on the '
     'host'),
    ('.', Reason.SERVER_FAULT, '',
     'see the log of nova-compute on the host'))
"""By a pattern of the text: the reason, what to add, and the remedy."""


def of_request(wanted: request.Request, known: facts.Facts
            ) -> Iterator[request.Finding]:
    """Yield what excludes the request from every host, and hints."""
    if known.server is not None:
        yield from fault(known.server, known)
    yield from wanted.findings
    yield from _guest(wanted, known)
    yield from _classes(wanted, known)
    yield from _requested_traits(wanted, known)
    if known.answer.refusal:
        yield Finding(
            Reason.REFUSED, 'Placement',
            f'Placement refuses the request: {known.answer.refusal}',
            "correct what Placement's message or the text above names")


def fault(server: facts.Server, known: facts.Facts
          ) -> Iterator[request.Finding]:
    """Explain a server's failure. All are hints: the attempt is over."""
    text = ' '.join(server.fault.split())
    named = f'server {server.name}: {text}'
    hosts = {device.hostname for device in known.devices or ()}
    if (server.host and known.devices is not None
            and server.host not in hosts and text):
        yield Finding(
            Reason.HOST_MISMATCH, server.name,
            f'server {server.name} was scheduled to host {server.host}, but '
            f'Cyborg knows only {", ".join(sorted(hosts)) or "no host"}',
            '[DEFAULT] host of cyborg.conf must be the hypervisor_hostname '
            'of Nova; run "cyborg-gpu doctor" on that host', blocks=False)
    for pattern, reason, more, remedy in _FAULTS:
        if re.search(pattern, text, re.I):
            yield Finding(reason, server.name, named + more, remedy,
                          blocks=False)
            return


def _guest(wanted: request.Request, known: facts.Facts) -> Iterator[Finding]:
    """Tell of a flavor whose guest would not see all of its whole GPUs."""
    if wanted.flavor is None:
        return
    gpus, bar = guest.whole_gpus(wanted.granular, (
        node for tree in known.trees for node in tree.below))
    ram = wanted.flavor.ram * guest.MIB
    needed = guest.flavor_specs(gpus, bar, ram)
    has = wanted.flavor.extra_specs
    bits = has.get(guest.BITS, '')
    if needed and has.get(guest.MODE) != 'passthrough' and not (
            bits.isdecimal() and int(bits) >= int(needed[guest.BITS])):
        yield Finding(
            Reason.GUEST_ADDRESSES, wanted.flavor.name,
            f'a guest of flavor {wanted.flavor.name} may not see all of its '
            f"{gpus} GPUs: with QEMU's default of 40 address bits it has "
            f'room for {min(gpus, guest.default_room(bar, ram))}, unless the '
            'image has hw_maxphysaddr_mode',
            'openstack flavor set ' + ' '.join(
                f'--property {key}={value}' for key, value in needed.items())
            + f' {wanted.flavor.name}; the image needs hw_machine_type=q35 '
            'and hw_firmware_type=uefi', blocks=False)


def _classes(wanted: request.Request, known: facts.Facts) -> Iterator[Finding]:
    offered = known.offered
    for name in sorted({name for group in wanted.granular
                        for name in group.resources}):
        if name in offered or not known.whole and name in known.classes:
            continue
        others = {other for other, nodes in offered.items()
                  if any(node.of_cyborg for node in nodes)}
        yield Finding(
            Reason.CLASS_NOWHERE, name,
            f'no provider of the cloud has {name}'
            + ('' if name in known.classes else
               ', and Placement does not know it')
            + (request.similar(name, others)
               or f'; there are {", ".join(sorted(others)) or "none"}'),
            'request an existing class ("openstack gpu profile list"), or '
            'offer it with the policy of a host')


def _requested_traits(wanted: request.Request, known: facts.Facts
                      ) -> Iterator[Finding]:
    for group in wanted.groups:
        for trait in sorted(group.required | group.forbidden):
            yield from _trait(trait, group, known)


def _trait(trait: str, group: request.Group, known: facts.Facts
           ) -> Iterator[Finding]:
    holders = [node for tree in known.trees for node in tree.nodes
               if not group.suffix or set(group.resources) & set(
                   node.inventories)]
    present = frozenset().union(*(node.traits for node in holders))
    if trait in known.unknown_traits:
        yield Finding(
            Reason.TRAIT_UNKNOWN, trait,
            f'Placement does not know trait {trait} and rejects the request '
            f'of {group.title}{request.similar(trait, present)}',
            'use the spelling of "openstack trait list"'
            if trait in group.required else
            f'openstack trait create {trait}: Placement must know a forbidden '
            'trait too')
    elif (trait in group.required and holders and known.whole
          and trait not in present):
        yield Finding(
            Reason.TRAIT_NOWHERE, trait,
            f'none of the providers that {group.title} can use has trait '
            f'{trait}'
            + request.similar(trait, present),
            'remove the trait from the request, or request an existing one')


def of_host(wanted: request.Request, tree: facts.Tree, known: facts.Facts
            ) -> Iterator[request.Finding]:
    """Yield what a host lacks, beside what its accelerators lack."""
    yield from _root_traits(wanted, tree, known)
    yield from _service(tree, known)
    if tree.root.uuid not in known.answer.options:
        yield from _own(wanted.own, tree)
    yield from _devices(wanted, tree, known)


def _root_traits(wanted: request.Request, tree: facts.Tree, known: facts.Facts
                 ) -> Iterator[Finding]:
    for trait in sorted(wanted.root_required - tree.root.traits):
        if trait == os_traits.COMPUTE_ACCELERATORS:
            yield Finding(
                Reason.NO_ACCELERATORS_TRAIT, tree.name,
                f'{tree.name} has no trait {trait}: its virt driver does not '
                'support accelerators, or nova-compute has not been restarted '
                'since',
                'use the libvirt driver and start nova-compute; a bare-metal '
                'node never takes such a server')
        else:
            yield Finding(
                Reason.ROOT_TRAIT, tree.name,
                f'{tree.name} has no trait {trait}',
                'choose another host, or remove the trait from the flavor')
    for trait in sorted(wanted.root_forbidden & tree.root.traits):
        service = (known.services or {}).get(tree.root.uuid)
        reason = service.reason if service else ''
        yield Finding(
            Reason.HOST_DISABLED, tree.name,
            f'{tree.name} is disabled ({trait})'
            + (f': {reason}' if reason else ''),
            'openstack compute service set --enable '
            f'{service.host if service else tree.name} nova-compute')


def _service(tree: facts.Tree, known: facts.Facts) -> Iterator[Finding]:
    if known.services is None:
        return
    service = known.services.get(tree.root.uuid)
    if service is None:
        yield Finding(
            Reason.NO_COMPUTE, tree.name,
            f'Nova has no compute node for provider {tree.name} '
            f'({tree.root.uuid})',
            'start nova-compute there, and run nova-manage cell_v2 '
            'discover_hosts; otherwise the provider is stale')
        return
    if (not service.enabled
            and os_traits.COMPUTE_STATUS_DISABLED not in tree.root.traits):
        yield Finding(
            Reason.HOST_DISABLED, tree.name,
            f'nova-compute on {service.host} is disabled'
            + (f': {service.reason}' if service.reason else ''),
            'openstack compute service set --enable '
            f'{service.host} nova-compute')
    if not service.up:
        yield Finding(
            Reason.SERVICE_DOWN, tree.name,
            f'nova-compute on {service.host} is down',
            f'start nova-compute on {service.host}')
    zone = known.server.zone if known.server else None
    if zone and service.zone != zone:
        yield Finding(
            Reason.ZONE, tree.name,
            f'{tree.name} is in availability zone {service.zone}, but {zone} '
            'is requested', 'request another zone, or none')


def _own(group: request.Group, tree: facts.Tree) -> Iterator[Finding]:
    """What the host lacks of the flavor's processors, memory and disk."""
    if not group.resources or request.takers(group, tree):
        return
    complete = True
    for name, amount in sorted(group.resources.items()):
        holding = [node for node in tree.nodes if name in node.inventories]
        if not any(node.inventories[name].fits(amount) for node in holding):
            complete = False
            yield _resources(name, amount, holding, tree)
    if complete:
        traits = [*sorted(group.required),
                  *(f'!{trait}' for trait in sorted(group.forbidden))]
        yield Finding(
            Reason.HOST_TRAIT, tree.name,
            f'the provider of {group.wish} on {tree.name} lacks the traits '
            f'{", ".join(traits)}',
            'remove the trait: keys from the flavor; traits of a GPU belong '
            'in the device profile')


def _resources(name: str, amount: int, holding: Sequence[facts.Node],
               tree: facts.Tree) -> Finding:
    if not holding:
        return Finding(
            Reason.HOST_RESOURCES, tree.name,
            f'{tree.name} has no {name}', 'choose another flavor')
    inventory = max((node.inventories[name] for node in holding),
                    key=lambda item: item.free)
    unit = {orc.MEMORY_MB: ' MiB', orc.DISK_GB: ' GiB'}.get(name, '')
    text = (f'{name}: {amount}{unit} requested, {inventory.free}{unit} free '
            f'(total {inventory.total}, reserved {inventory.reserved}, '
            f'allocation ratio {inventory.ratio:g}, used {inventory.used})')
    if not inventory.allows(amount):
        text += (f'; a server can have {inventory.min_unit} to '
                 f'{inventory.max_unit}')
    return Finding(
        Reason.HOST_RESOURCES, tree.name, text,
        'use a smaller flavor, or wait until servers are deleted')


def _devices(wanted: request.Request, tree: facts.Tree, known: facts.Facts
             ) -> Iterator[Finding]:
    if not wanted.granular or known.devices is None:
        return
    mine = [device for device in known.devices if device.hostname == tree.name]
    if not mine and any(node.of_cyborg for node in tree.below):
        yield Finding(
            Reason.CYBORG_NO_DEVICES, tree.name,
            f'Cyborg has no device on host {tree.name}, although Placement '
            'has its accelerators; a bind would reach no agent',
            '[DEFAULT] host of cyborg.conf must be the hypervisor_hostname '
            f'{tree.name}; run "cyborg-gpu doctor" there')
    elif not mine:
        yield Finding(
            Reason.NOT_REPORTED, tree.name,
            f'neither Cyborg nor Placement has accelerators on {tree.name}',
            'start cyborg-agent there with cyborg_gpu_driver in [agent] '
            'enabled_drivers; see "cyborg-gpu doctor" and "cyborg-gpu gpu '
            'list"')
    for device in mine:
        if not device.enabled:
            yield Finding(
                Reason.DEVICE_DISABLED, device.uuid,
                f'device {device.uuid} ({device.model}) is disabled in '
                'Cyborg, so the inventory of its providers is reserved',
                'if the GPU may get servers again: openstack gpu uncordon '
                f'{device.hostname} {device.gpu}', blocks=False)


def of_provider(group: request.Group, node: facts.Node, tree: facts.Tree,
                known: facts.Facts) -> Iterator[request.Finding]:
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


def _traits(group: request.Group, node: facts.Node) -> Iterator[Finding]:
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


def _instead(trait: str, present: frozenset[str]) -> str:
    """The provider's traits most like a missing trait; empty if none is."""
    kind = _KIND.match(trait)
    alike = [other for other in sorted(present)
             if kind and other.startswith(kind[0])]
    return ', '.join(alike or difflib.get_close_matches(
        trait, sorted(present), 1))


def _amount(name: str, amount: int, inventory: facts.Inventory,
            node: facts.Node) -> Iterator[Finding]:
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


def _full(name: str, amount: int, inventory: facts.Inventory, node: facts.Node,
          tree: facts.Tree, known: facts.Facts) -> Iterator[Finding]:
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


def _isolated(node: facts.Node, tree: facts.Tree, known: facts.Facts
              ) -> Iterator[Finding]:
    holders = set(node.holders).union(*(
        other.holders for other in tree.neighbours(node)))
    if names.ISOLATED in node.traits and holders:
        yield Finding(
            Reason.GPU_ISOLATED, node.title,
            'the GPU accepts servers of one project only, and has '
            + known.people(holders),
            'if they belong to another project, wait until they are deleted, '
            'or change isolation in the policy', blocks=False)


def _reserved(name: str, inventory: facts.Inventory, node: facts.Node,
              tree: facts.Tree, known: facts.Facts) -> Iterator[Finding]:
    """Why the driver reserves the inventory."""
    what = f'{inventory.reserved} of {inventory.total} {name} are reserved'
    host = tree.name
    cordons = known.cordons(node, host)
    if cordons:
        yield Finding(
            Reason.RESERVED_CORDONED, node.title,
            f'{what}: {cordon.text(cordons)}',
            uncordon_with(cordons, host, node.gpu))
        return
    if node.conditions:
        yield Finding(
            Reason.RESERVED_UNHEALTHY, node.title,
            f'{what}: the GPU is unhealthy ({", ".join(node.conditions)})',
            f'see "cyborg-gpu doctor" on {host}')
        return
    if names.WITHDRAWN in node.traits:
        yield Finding(
            Reason.RESERVED_WITHDRAWN, node.title,
            f'{what}: its policy has changed, or the GPU is ignored or gone',
            'request what "openstack gpu profile list" shows')
        return
    siblings = [other for other in tree.neighbours(node) if other.holders]
    if siblings:
        yield Finding(
            Reason.RESERVED_SIBLING, node.title, f'{what} for ' + '; '.join(
                f'{known.people(other.holders)} (using {other.place.label})'
                for other in siblings if other.place) + ' on the same GPU',
            'wait until these servers are deleted, or request a profile that '
            'fits next to theirs: openstack gpu profile list')
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


def _cyborg(group: request.Group, node: facts.Node, tree: facts.Tree,
            known: facts.Facts) -> Iterator[Finding]:
    if not node.of_cyborg or known.deployables is None:
        return
    if node.uuid not in known.deployables:
        yield Finding(
            Reason.STALE_PROVIDER, node.title,
            'Cyborg has no deployable for this provider: if a server is '
            'scheduled to it, the bind fails',
            f'check that cyborg-agent runs on {tree.name} and reports; if '
            'nothing changes, the provider is stale: openstack gpu orphan '
            'clean --providers')
        return
    yield from _handles(group, node, known)


def _handles(group: request.Group, node: facts.Node, known: facts.Facts
             ) -> Iterator[Finding]:
    """Attach handles that accelerator requests hold, unknown to Placement."""
    handles = (known.deployables or {})[node.uuid]
    holding = [arq for arq in known.arqs or ()
               if arq.device_rp_uuid == node.uuid and arq.holds]
    wanted = sum(group.resources.values())
    free = min((node.inventories[name].free for name in group.resources
                if name in node.inventories), default=0)
    if free >= wanted > handles - len(holding):
        stray = sorted(f'{arq.uuid} ({arq.state})' for arq in holding
                       if arq.instance_uuid not in node.holders)
        yield Finding(
            Reason.HANDLES_TAKEN, node.title,
            f'{len(holding)} of {handles} attach handles are in use, which '
            'is more than Placement has allocated: '
            + (', '.join(stray) or 'by servers without an allocation'),
            'run openstack gpu orphan clean')
