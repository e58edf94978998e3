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

"""Converts the former options of a host to policies; changes nothing.

A policy applies to whole GPUs, whereas options of Cyborg's in-tree driver and
of Nova can name single virtual functions. So a GPU gets every type that was
named for the GPU or for one of its functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import legacy
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.vgpu import types as vgpu_types

PASSTHROUGH = policy.Mode.PASSTHROUGH.value
"""Name of the last policy, which applies to GPUs that no option named."""


@dataclasses.dataclass(frozen=True)
class Naming:
    """A type that a service named for a GPU."""

    enabled: legacy.EnabledType
    places: tuple[model.PciAddress, ...]
    """The addresses of the GPU or its functions that the service named;
    empty if it named none, which means all."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A GPU that made vGPUs, and the policy that applies to it from now on."""

    gpu: model.Gpu
    namings: tuple[Naming, ...]
    types: tuple[vgpu_types.Type, ...]
    """The types as the host knows them, each once. The name of an unknown
    type is its number."""
    policy: policy.Policy


@dataclasses.dataclass(frozen=True)
class Plan:
    """The policies, and how the import derived them."""

    policies: tuple[policy.Policy, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    """What the import left out, merged or assumed."""


def plan(before: legacy.Legacy, host: model.Host) -> Plan:
    """Return the policies that correspond to the options ``before``.

    :raises LegacyOptionError: if the options for one GPU exclude each other,
        or no option applies to this host.
    """
    locator = _Locator(before, host)
    named = locator.named()
    if not named:
        last = before.types[-1]
        raise legacy.error(
            last, ', '.join(map(str, last.addresses)) or '(unset)',
            'this host has no GPU that the files name; run the import on '
            'the host that the files are for')
    policies = {}
    changes = [_change(gpu, tuple(named[gpu.address]), policies)
               for gpu in host.gpus if gpu.address in named]
    policies = [dataclasses.replace(item, match_address=tuple(
        change.gpu.address for change in changes
        if change.policy.name == item.name)) for item in policies.values()]
    policies.append(policy.Policy(PASSTHROUGH, policy.Mode.PASSTHROUGH))
    return Plan(tuple(policies), tuple(changes), tuple(locator.notes))


def render(made: Plan) -> str:
    """Return the policies as the text of a configuration file."""
    names = ', '.join(item.name for item in made.policies)
    lines = ['# Written by cyborg-gpu config import.', '[gpu]',
             f'policies = {names}']
    for item in made.policies:
        lines += ['', *_comments(item, made.changes),
                  f'[gpu_policy:{item.name}]']
        for option in ('match_address', 'mode', 'profiles', 'vgpu_types'):
            value = getattr(item, option)
            if option == 'mode':
                lines.append(f'mode = {value.value}')
            elif value:
                lines.append(f'{option} = ' + ', '.join(map(str, value)))
        if item.max_instances:
            lines.append('max_instances = ' + ', '.join(
                f'{name}:{number}' for name, number in item.max_instances))
    return '\n'.join(lines) + '\n'


def _comments(item, changes) -> Iterator[str]:
    if item.name == PASSTHROUGH:
        yield '# Every other GPU.'
    for change in changes:
        if change.policy.name == item.name:
            types = ', '.join(
                entry.name if entry.name == entry.type_id
                else f'{entry.type_id} is {entry.name}'
                for entry in change.types)
            yield (f'# {change.gpu.address}, '
                   f'{change.gpu.model or "model unknown"}: {types}')


class _Locator:
    """Finds the GPU of the host that an address belongs to."""

    def __init__(self, before, host):
        self._before = before
        self._host = host
        self._owners = {gpu.address: gpu for gpu in host.gpus}
        self._owners.update((function.address, gpu) for gpu in host.gpus
                            for function in gpu.vfs)
        self.notes = []

    def named(self) -> dict[model.PciAddress, list[Naming]]:
        """Return the types that were named for each GPU, by its address."""
        found, taken = {}, {}
        for enabled in self._before.types:
            places = {}
            for address in enabled.addresses:
                self._check_alone(taken.setdefault(address, enabled),
                                  enabled, address)
                gpu = self._gpu(address, enabled)
                if gpu is not None:
                    places.setdefault(gpu.address, []).append(address)
            if not enabled.addresses:
                places = self._unnamed(enabled, found)
            for address, named in places.items():
                found.setdefault(address, []).append(
                    Naming(enabled, tuple(named)))
        return found

    def _unnamed(self, enabled, found):
        """Return the GPUs that have the type, except those named already."""
        able = {gpu.address for gpu in self._all(enabled)}
        self.notes += [
            f'{enabled.path}: [devices] enables {enabled.type_id} for every '
            f'GPU; {found[address][0].enabled.where} takes precedence on '
            f'{address}.' for address in sorted(able & set(found))]
        return {address: [] for address in able - set(found)}

    def _check_alone(self, first, enabled, address):
        if first is enabled:
            return
        if first.type_id != enabled.type_id:
            raise legacy.error(enabled, address, 'it has the '
                               f'type {first.type_id} in {first.where}; an '
                               'address can have only one type')
        self.notes.append(f'{address}: {enabled.type_id} is named in '
                          f'{first.where} and in {enabled.where}; the '
                          'second is ignored.')

    def _gpu(self, address, enabled):
        gpu = self._owners.get(address)
        if gpu is not None:
            return gpu
        # Before sriov-manage runs, the functions of the GPU do not exist.
        # Their addresses are on the bus of the GPU.
        near = [gpu for gpu in self._host.gpus
                if gpu.sriov_totalvfs and not gpu.vfs
                and (gpu.address.domain, gpu.address.bus)
                == (address.domain, address.bus)]
        if len(near) == 1:
            self.notes.append(
                f'{enabled.where}: {address} does not exist now; it is '
                f'assumed to be a virtual function of {near[0].address}, '
                'which has no virtual functions enabled.')
            return near[0]
        self.notes.append(f'{enabled.where}: {address} is neither a GPU of '
                          'this host nor a virtual function of one; it is '
                          'ignored.')
        return None

    def _all(self, enabled):
        """Return the GPUs that Nova uses if the options name no address."""
        able = [gpu for gpu in self._host.gpus if any(
            entry.is_called(enabled.type_id)
            for entry in vgpu_types.types_of(gpu))]
        if not able:
            raise exception.LegacyOptionError(
                path=enabled.path, group='devices',
                option='enabled_mdev_types', value=enabled.type_id,
                reason='no GPU of this host has this type; run the import '
                       'on a host that has such a GPU, with its virtual '
                       'functions enabled')
        return able


def _change(gpu, namings, policies):
    """Return the change for one GPU; add its policy to ``policies``, unless
    another GPU has the same policy.
    """
    types, sources = [], []
    for naming in namings:
        entry = _type(gpu, naming.enabled.type_id)
        if entry not in types:
            types.append(entry)
            sources.append(naming)
    sliced = [entry.is_mig_backed for entry in types]
    if len(set(sliced)) > 1:
        other = sliced.index(not sliced[0])
        raise legacy.error(
            sources[other].enabled,
            ', '.join(map(str, sources[other].places)),
            f'{types[other].name} and {types[0].name} of '
            f'{sources[0].enabled.where} are both for GPU {gpu.address}; '
            'one needs MIG mode on and the other needs it off')
    mode = policy.Mode.MIG if sliced[0] else policy.Mode.VGPU
    found = [_profile(gpu, entry, naming.enabled)
             for entry, naming in zip(types, sources, strict=True)
             ] if sliced[0] else ()
    profiles = tuple(dict.fromkeys(filter(None, found)))
    names = tuple(entry.name for entry in types)
    limits = tuple((entry.name, naming.enabled.max_instances)
                   for entry, naming in zip(types, sources, strict=True)
                   if naming.enabled.max_instances is not None)
    key = (mode, profiles, names, limits)
    if key not in policies:
        number = 1 + sum(item.mode is mode for item in policies.values())
        policies[key] = policy.Policy(
            f'{mode.value}-{number}', mode, profiles=profiles,
            vgpu_types=names, max_instances=limits)
    return Change(gpu, namings, tuple(types), policies[key])


def _type(gpu, type_id):
    return next((entry for entry in vgpu_types.types_of(gpu)
                 if entry.is_called(type_id)),
                vgpu_types.Type(type_id, type_id))


def _profile(gpu, entry, enabled):
    """Return the profile that a type fills; None if it shares instances."""
    types = vgpu_types.of_mode(gpu, policy.Mode.MIG)
    for profile in gpu.mig.profiles if gpu.mig else ():
        if entry in vgpu_types.using(types, profile):
            return (profile.name if entry in vgpu_types.filling(
                types, profile) else None)
    raise exception.LegacyOptionError(
        path=enabled.path, group=enabled.group, option='device_addresses',
        value=gpu.address,
        reason=f'NVML does not say which GPU instance profile {entry.name} '
               "uses; load NVIDIA's driver and import again")
