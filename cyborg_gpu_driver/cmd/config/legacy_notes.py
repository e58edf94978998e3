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

"""Differences from the former behavior, in sentences for the operator.

The old names are those of Cyborg 17
(cyborg/accelerator/drivers/gpu/nvidia/sysinfo.py) and Nova 34
(nova/virt/libvirt/driver.py).
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

from cyborg_gpu_driver.cmd.config import legacy_policies
from cyborg_gpu_driver.conf import legacy
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report.content import names


def notes(before: legacy.Legacy, plan: legacy_policies.Plan,
          host: model.Host, hostname: str) -> tuple[str, ...]:
    """Return one line for each difference, in the order of the work.

    :param hostname: the name of the compute node; the names of the resource
        providers begin with it.
    """
    return tuple(dict.fromkeys((
        *plan.notes, *_settings(before), *_servers(plan), *_classes(plan),
        *_providers(plan, hostname), *_functions(before, plan, host),
        *_totals(plan), *_whole(before, plan, host),
        *_problems(plan, host))))


def _settings(before) -> Iterator[str]:
    if before.has_policies:
        yield ('The files already have [gpu] policies: replace them with the '
               'new ones, or list both in one [gpu] policies.')
    for name in before.foreign_types:
        yield (f'{name} is not an NVIDIA type. Leave it in [devices] of '
               'nova.conf.')
    if before.of(legacy.Service.CYBORG):
        yield ('[agent] enabled_drivers: replace nvidia_gpu_driver with '
               'cyborg_gpu_driver. The two must not run together.')
        yield ('Remove [gpu_devices] enabled_vgpu_types and the groups '
               '[vgpu_*]. This driver does not read them.')
    for item in before.of(legacy.Service.NOVA):
        yield (f'{item.path}: remove {item.type_id} from [devices] '
               f'enabled_mdev_types, remove [{item.group}], and restart '
               'nova-compute. Nova must not create vGPUs itself.')


def _servers(plan) -> Iterator[str]:
    yield ('Delete the servers that have vGPUs of the old driver first, or '
           'rebuild them with a new flavor afterwards. Nothing moves their '
           'allocations.')
    for change in plan.changes:
        count = len(change.gpu.all_mdevs)
        if count:
            yield f'{change.gpu.address}: it has {count} vGPU(s) now.'


def _classes(plan) -> Iterator[str]:
    for change in plan.changes:
        made = offers.offers(change.gpu, change.policy)
        for naming, entry in _named_types(change):
            offer = _offer_of(made, entry)
            if offer is None:
                continue
            old, new = naming.enabled.resource_class, names.resource_class(
                offer)
            if naming.enabled.service is legacy.Service.NOVA:
                yield (f'Flavors: resources:{old}=1 ({entry.name}) -> a '
                       f'device profile with resources:{new}=1, named by '
                       'accel:device_profile.')
                continue
            trait = names.custom(names.VENDOR, change.gpu.device_id,
                                 entry.name)
            yield (f'Device profiles: resources:{old}=1 with '
                   f'trait:{trait} -> resources:{new}=1; the trait may '
                   'stay.')


def _providers(plan, hostname) -> Iterator[str]:
    for change in plan.changes:
        made = offers.offers(change.gpu, change.policy)
        new = ', '.join(names.provider_name(hostname, offer)
                        for offer in made if not offer.problem)
        olds = collections.defaultdict(list)
        for naming in change.namings:
            for address in naming.places:
                olds[naming.enabled.service].append(address)
            if not naming.places:
                olds[naming.enabled.service].append(change.gpu.address)
        for service, places in olds.items():
            more = (f' and {len(places) - 1} more' if len(places) > 1
                    else '')
            yield (f'Resource providers of {change.gpu.address}: '
                   f'{_old_provider(service, hostname, places[0])}{more} '
                   f'-> {new or "none yet, see below"}.')


def _old_provider(service, hostname, address):
    if service is legacy.Service.CYBORG:
        return f'{hostname}_{address}'
    # The name that libvirt gives the device.
    plain = str(address).replace(':', '_').replace('.', '_')
    return f'{hostname}_pci_{plain}'


def _functions(before, plan, host) -> Iterator[str]:
    """Yield what changes for GPUs and virtual functions.

    Cyborg's in-tree driver reported each unnamed function as a whole GPU.
    """
    named = {address for item in before.of(legacy.Service.CYBORG)
             for address in item.addresses}
    if named and not before.filters_functions:
        for gpu in host.gpus:
            count = sum(function.address not in named
                        for function in gpu.vfs)
            if count:
                yield (f'{gpu.address}: {count} of its {len(gpu.vfs)} '
                       'virtual functions are no longer reported as GPUs '
                       'for passthrough (PGPU).')
    governed = {change.gpu.address for change in plan.changes}
    for gpu in host.gpus if named else ():
        if gpu.address in governed - named:
            yield (f'{gpu.address}: it is no longer reported as a GPU for '
                   'passthrough (PGPU).')
    for change in plan.changes:
        own = {function.address for function in change.gpu.vfs}
        named = own.intersection(
            address for naming in change.namings
            for address in naming.places)
        if named:
            yield (f'{change.gpu.address}: the files name {len(named)} of '
                   f'its {len(own)} virtual functions; this driver uses '
                   'all of them.')


def _totals(plan) -> Iterator[str]:
    """Yield the limits that now apply to each GPU.

    Nova's libvirt driver applies a limit to all GPUs of a host together.
    """
    governed = collections.Counter(
        naming.enabled for change in plan.changes
        for naming in change.namings
        if naming.enabled.max_instances is not None)
    for enabled, count in governed.items():
        if count > 1:
            yield (f'{enabled.where} max_instances = '
                   f'{enabled.max_instances} limited {count} GPUs together '
                   'and now limits each of them.')


def _whole(before, plan, host) -> Iterator[str]:
    """Yield the GPUs that are offered for passthrough now.

    With [devices] alone, Nova never assigned a whole GPU.
    """
    if before.of(legacy.Service.CYBORG):
        return
    for gpu, offer in _left(plan, host):
        if offer.problem:
            continue
        yield (f'{gpu.address}: it is offered for passthrough now. To '
               'prevent that, name it in [gpu] ignored_devices.')


def _problems(plan, host) -> Iterator[str]:
    for change in plan.changes:
        for offer in offers.offers(change.gpu, change.policy):
            if offer.problem:
                yield (f'{change.gpu.address}: {offer.profile} is not '
                       f'offered: {offer.problem}.')
        yield from _hidden(change)
    for gpu, offer in _left(plan, host):
        if offer.problem:
            yield (f'{gpu.address}: not offered for passthrough: '
                   f'{offer.problem}.')


def _hidden(change) -> Iterator[str]:
    """Yield the types whose GPU instance profile an earlier type uses."""
    if change.policy.mode is not policy.Mode.MIG:
        return
    asked = {offer.vgpu_type_id for offer in
             offers.offers(change.gpu, change.policy)}
    for entry in change.types:
        if entry.type_id not in asked:
            yield (f'{change.gpu.address}: {entry.name} is not offered: '
                   'another type named before it uses the same GPU '
                   'instance profile.')


def _left(plan, host):
    """Yield the GPUs of the last policy with their offers."""
    governed = {change.gpu.address for change in plan.changes}
    for gpu in host.gpus:
        if gpu.address not in governed:
            for offer in offers.offers(gpu, plan.policies[-1]):
                yield gpu, offer


def _named_types(change):
    for naming in change.namings:
        for entry in change.types:
            if entry.type_id == naming.enabled.type_id:
                yield naming, entry


def _offer_of(made, entry):
    """Return the offer of a type; None if the GPU does not offer it."""
    return next((offer for offer in made
                 if offer.vgpu_type_id == entry.type_id), None)
