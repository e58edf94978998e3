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
"""Find why a compute node as a whole rejects a request. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import os_resource_classes as orc
import os_traits

from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import match as explain_match
from cyborg_gpu_driver.cloud.explain import reasons
from cyborg_gpu_driver.cloud.explain import request

_ISOLATION = 'filter_tenant_id'
_SPECS = 'aggregate_instance_extra_specs:'

Finding = reasons.Finding
Reason = reasons.Reason


def missing(wanted: request.Request, tree: facts.Tree, known: facts.Facts
            ) -> Iterator[reasons.Finding]:
    """Yield what a host lacks, beside what its accelerators lack."""
    yield from _root_traits(wanted, tree, known)
    yield from _service(tree, known)
    yield from _own(wanted.own, tree)
    yield from _aggregates(wanted, tree, known)
    yield from _devices(wanted, tree, known)


def _root_traits(wanted, tree, known):
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


def _service(tree, known):
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


def _own(group, tree):
    """What the host lacks of the flavor's processors, memory and disk."""
    if not group.resources or explain_match.options(group, tree):
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


def _resources(name, amount, holding, tree):
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


def _aggregates(wanted, tree, known):
    """What scheduler filters, which nova.conf may disable, would reject."""
    service = (known.services or {}).get(tree.root.uuid)
    if service is None or known.aggregates is None:
        return
    mine = [aggregate for aggregate in known.aggregates
            if service.host in aggregate.hosts]
    yield from _isolation(tree, mine, known)
    specs = {key.removeprefix(_SPECS): value for key, value
             in (wanted.flavor.extra_specs if wanted.flavor else {}).items()
             if key.startswith(_SPECS)}
    for key, value in sorted(specs.items()):
        if not any(_matches(value, aggregate.metadata.get(key))
                   for aggregate in mine):
            yield Finding(
                Reason.AGGREGATE_SPECS, tree.name,
                f'no aggregate of {tree.name} has {key}={value}, which '
                'AggregateInstanceExtraSpecsFilter requires',
                f'add {service.host} to such an aggregate, or remove '
                f'{_SPECS}{key} from the flavor', blocks=False)


def _isolation(tree, mine, known):
    owners = {owner.strip() for aggregate in mine
              for key, value in aggregate.metadata.items()
              if key.startswith(_ISOLATION) for owner in value.split(',')}
    reserved = any(known.project == value.strip()
                   for aggregate in known.aggregates
                   for key, values in aggregate.metadata.items()
                   if key.startswith(_ISOLATION)
                   for value in values.split(','))
    if known.project is None or known.project in owners:
        return
    if owners:
        text = (f'{tree.name} is in an aggregate of other projects '
                f'({", ".join(sorted(owners))})')
    elif reserved:
        text = (f'project {known.project} has its own aggregates, and '
                f'{tree.name} is in none of them')
    else:
        return
    yield Finding(
        Reason.PROJECT_ISOLATED, tree.name,
        text + '; AggregateMultiTenancyIsolation and [scheduler] '
        'limit_tenants_to_placement_aggregate enforce this',
        f'change {_ISOLATION} of the aggregate', blocks=False)


def _matches(value, present):
    """Whether metadata meets an extra spec; one with an operator always does.
    """
    if present is None:
        return False
    return ' ' in value or value in [item.strip()
                                     for item in present.split(',')]


def _devices(wanted, tree, known):
    if not wanted.granular or known.devices is None:
        return
    mine = [device for device in known.devices if device.host == tree.name]
    if not mine and any(node.of_cyborg for node in tree.below):
        yield Finding(
            Reason.CYBORG_NO_DEVICES, tree.name,
            f'Cyborg has no device on host {tree.name}, although Placement '
            'has its accelerators; a bind would reach no agent',
            '[DEFAULT] host of cyborg.conf must be the hypervisor_hostname '
            f'{tree.name}; run "cyborg-gpu check" there')
    elif not mine:
        yield Finding(
            Reason.NOT_REPORTED, tree.name,
            f'neither Cyborg nor Placement has accelerators on {tree.name}',
            'start cyborg-agent there with cyborg_gpu_driver in [agent] '
            'enabled_drivers; see "cyborg-gpu check" and "cyborg-gpu gpu '
            'list"')
    for device in mine:
        if not device.enabled:
            yield Finding(
                Reason.DEVICE_DISABLED, device.uuid,
                f'device {device.uuid} ({device.model}) is disabled in '
                'Cyborg, so the inventory of its providers is reserved',
                'if the GPU may get servers again: openstack gpu uncordon '
                f'{device.host} {device.gpu}', blocks=False)
