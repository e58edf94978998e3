# SPDX-License-Identifier: Apache-2.0

"""The request that Nova would send to Placement, and reasons to refuse it.

This module does no I/O. It follows Nova 34: ``ResourceRequest`` of
``nova/scheduler/utils.py``, the filters of
``nova/scheduler/request_filter.py`` that apply in every cloud, and
``get_device_request_groups`` of ``nova/accelerator/cyborg.py``. It does not
know what an image, a port or nova.conf adds.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import os_resource_classes as orc
import os_traits

from cyborg_gpu_driver.cloud import facts

PROFILE_KEY = 'accel:device_profile'
_KEY = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)')
_TRANSLATED = (
    'hw:mem_encryption', 'hw:pmem', 'hw:tpm', 'os:secure_boot',
    'hw:pci_numa_affinity_policy', 'hw:cpu_thread_policy',
    'hw:ephemeral_encryption', 'hw:sound_model', 'hw:virtio_packed_ring',
    'pci_passthrough:alias')
"""Extra specs that Nova expands into a request, and this module does not."""
_ADDRESSES = {
    'emulate': os_traits.COMPUTE_ADDRESS_SPACE_EMULATED,
    'passthrough': os_traits.COMPUTE_ADDRESS_SPACE_PASSTHROUGH}
"""The trait that Nova requires for each ``hw:maxphysaddr_mode``."""
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', re.I)


class Reason(enum.Enum):
    """Why a server gets no accelerator; the names are in the JSON output."""

    # The request itself.
    PROFILE_UNKNOWN = 'Cyborg has no such device profile'
    PROFILE_BY_UUID = 'the flavor names a device profile by its UUID'
    NO_PROFILE = 'the flavor names no device profile'
    GROUP_EMPTY = 'a group of the device profile requests nothing'
    CLASS_IGNORED = 'Nova does not know a resource class'
    GROUP_MIXED = 'a group requests several resource classes from one provider'
    GROUP_POLICY = 'several groups of a flavor need a group_policy'
    CLASS_NOWHERE = 'no provider of the cloud has a resource class'
    TRAIT_UNKNOWN = 'Placement does not know a trait'
    TRAIT_NOWHERE = 'no provider of a resource class has the trait'
    GUEST_ADDRESSES = 'the guest may not see all of its GPUs'
    # A host.
    HOST_DISABLED = 'the compute service is disabled'
    SERVICE_DOWN = 'nova-compute is down'
    NO_COMPUTE = 'Nova has no compute node for this provider'
    NO_ACCELERATORS_TRAIT = ("the compute node's virt driver does not "
                             'support accelerators')
    ROOT_TRAIT = 'the compute node lacks a trait'
    HOST_RESOURCES = 'the compute node has too little free capacity'
    HOST_TRAIT = 'the host lacks a trait that the flavor requires'
    ZONE = 'the host is in another availability zone'
    CLASS_ELSEWHERE = 'only other hosts have a resource class'
    NOT_REPORTED = 'no agent reports accelerators of the host'
    GROUPS_TOGETHER = 'each group fits, but not all of them together'
    COUNT_SPLIT = 'enough in total, but not on one GPU'
    # A provider: a profile on a GPU.
    TRAIT_MISSING = 'a required trait is missing'
    TRAIT_FORBIDDEN = 'the provider has a forbidden trait'
    TOO_MANY = 'no provider has that many, even when empty'
    UNIT = 'the inventory does not allow the amount'
    USED = 'servers use all of it'
    RESERVED_SIBLING = 'servers with other profiles hold the GPU'
    RESERVED_FRAGMENTED = 'the free space has no room for another'
    RESERVED_UNHEALTHY = 'the GPU is unhealthy'
    RESERVED_WITHDRAWN = 'the GPU does not offer it any more'
    RESERVED_CORDONED = 'the GPU is cordoned'
    GPU_ISOLATED = 'the GPU has servers, and accepts one project only'
    RESERVED_UNUSED = 'reserved although no server uses the GPU'
    # Placement gives it, and the bind fails.
    STALE_PROVIDER = 'Cyborg does not know the provider'
    CYBORG_NO_DEVICES = 'Cyborg has no device on the host'
    HANDLES_TAKEN = 'accelerator requests use the attach handles'
    # Hints.
    DEVICE_DISABLED = 'a device is disabled in Cyborg'
    SAME_GPU = 'groups may land on one GPU and exclude each other there'
    BIND_FAILED = 'Cyborg could not bind'
    HOST_MISMATCH = 'Nova and Cyborg name the host differently'
    SERVICE_TOKEN = 'Nova sends Cyborg no service token'
    NO_NETWORK = 'the server was created without a network'
    NO_VALID_HOST = 'no host accepted the server'
    SERVER_FAULT = 'the server failed for another reason'
    REFUSED = 'Placement refuses the request'


PASSES = frozenset({
    Reason.USED, Reason.RESERVED_SIBLING, Reason.RESERVED_FRAGMENTED,
    Reason.RESERVED_UNUSED, Reason.RESERVED_CORDONED, Reason.HOST_RESOURCES,
    Reason.GROUPS_TOGETHER, Reason.SERVICE_DOWN, Reason.HOST_DISABLED})
"""What may pass by itself, or at a word of the operator's."""
AT_BIND = frozenset({
    Reason.STALE_PROVIDER, Reason.CYBORG_NO_DEVICES, Reason.HANDLES_TAKEN})
"""What the scheduler does not see: the server is given a host, and fails."""
BESIDE_PLACEMENT = frozenset({
    Reason.HOST_DISABLED, Reason.SERVICE_DOWN, Reason.NO_COMPUTE,
    Reason.ZONE, Reason.CYBORG_NO_DEVICES})
"""What keeps a host from a server though Placement has candidates of it."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that stands in the way, or may.

    :ivar subject: the flavor, profile, class, trait, host or provider.
    :ivar blocks: False for a hint: it depends on what no API shows.
    """

    reason: Reason
    subject: str
    text: str
    remedy: str
    blocks: bool = True

    def document(self) -> dict[str, Any]:
        """As programs read it."""
        return {'code': self.reason.name, 'subject': self.subject,
                'what': self.text, 'remedy': self.remedy,
                'blocks': self.blocks}


def distance(findings: Iterable[Finding]) -> int:
    """How far what has these findings is from being taken; 0 if it is."""
    return sum(1 if finding.reason in PASSES else 3
               for finding in findings if finding.blocks)


def similar(name: str, known: Iterable[str]) -> str:
    """A question that names what may have been meant; empty if nothing."""
    found = difflib.get_close_matches(name, sorted(known), 3)
    return f'; did you mean {" or ".join(found)}?' if found else ''


@dataclasses.dataclass(frozen=True)
class Group:
    """What one provider must have, or a whole tree if the suffix is empty."""

    suffix: str
    resources: Mapping[str, int] = dataclasses.field(default_factory=dict)
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """Name for display: ``group 0``; ``host`` for the flavor's own group.
        """
        number = self.suffix.removeprefix('device_profile_')
        return f'group {number}' if number else 'host'

    @property
    def wish(self) -> str:
        """The resources for display: ``2 PGPU``."""
        return ', '.join(f'{amount} {name}' for name, amount
                         in sorted(self.resources.items()))


@dataclasses.dataclass(frozen=True)
class Flavor:
    """A Nova flavor; RAM in MiB, and in GiB its root, ephemeral and swap disk.
    """

    name: str
    vcpus: int = 0
    ram: int = 0
    disk: int = 0
    extra_specs: Mapping[str, str] = dataclasses.field(
        default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for one server."""

    groups: tuple[Group, ...] = ()
    policy: str | None = None
    """``none`` or ``isolate``; None if Nova sends no group_policy."""
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()
    profile: str | None = None
    flavor: Flavor | None = None
    findings: tuple[Finding, ...] = ()
    ignored: tuple[str, ...] = ()
    """Extra specs that Nova considers and this module does not."""

    @property
    def own(self) -> Group:
        """The group without a suffix: the request to the host as a whole."""
        return next((group for group in self.groups if not group.suffix),
                    Group(''))

    @property
    def granular(self) -> tuple[Group, ...]:
        """The groups that each use one provider."""
        return tuple(group for group in self.groups if group.suffix)

    @property
    def totals(self) -> dict[str, int]:
        """The total amount of each resource class, as limits count it."""
        found: dict[str, int] = {}
        for group in self.groups:
            for name, amount in group.resources.items():
                found[name] = found.get(name, 0) + amount
        return found

    def query(self, root: str | None = None, limit: int = 1000
              ) -> dict[str, str]:
        """Return the parameters of ``GET /allocation_candidates``."""
        found = {'limit': str(limit)}
        if self.policy:
            found['group_policy'] = self.policy
        traits = _traits(self.root_required, self.root_forbidden)
        if traits:
            found['root_required'] = traits
        # Nova names the tree in the group without a number, which is enough.
        # Placement rejects this parameter for a group that does not exist.
        for group in [self.own] if self.own.resources else self.groups:
            if root:
                found['in_tree' + group.suffix] = root
        for group in self.groups:
            found['resources' + group.suffix] = ','.join(
                f'{name}:{amount}' for name, amount
                in sorted(group.resources.items()))
            traits = _traits(group.required, group.forbidden)
            if traits:
                found['required' + group.suffix] = traits
        return found


def make(flavor: Flavor | None, profile: str | None,
         profile_groups: Sequence[Mapping[str, str]]) -> Request:
    """Return the request for a server.

    :param flavor: None if the request is only for a device profile.
    :param profile: name of the device profile; None if the flavor names none.
    :param profile_groups: as Cyborg's API shows them.
    """
    specs = flavor.extra_specs if flavor else {}
    findings: list[Finding] = []
    groups = _flavor_groups(flavor) if flavor else []
    policy = specs.get('group_policy')
    if policy not in ('none', 'isolate'):
        policy = None
    suffixed = sum(bool(group.suffix) for group in groups)
    groups.extend(_profile_groups(profile, profile_groups, findings))
    # Like Nova, leave out empty groups.
    groups = [group for group in groups if group.resources or group.required
              or group.forbidden]
    if policy is None and sum(bool(group.suffix) for group in groups) > 1:
        if suffixed > 1:
            findings.append(_no_policy(flavor))
        else:
            policy = 'none'
    required = {os_traits.COMPUTE_ACCELERATORS} if profile else set()
    return Request(
        tuple(groups), policy, frozenset(required),
        frozenset({os_traits.COMPUTE_STATUS_DISABLED}), profile, flavor,
        tuple(findings), tuple(sorted(
            key for key in specs if key.startswith(_TRANSLATED)
            or (key, specs[key]) == ('hw:cpu_policy', 'mixed'))))


def profile_of(flavor: Flavor, known: Iterable[str]
               ) -> tuple[str | None, tuple[Finding, ...]]:
    """Return the device profile that a flavor names, and any problems with it.
    """
    known = tuple(known)
    name = flavor.extra_specs.get(PROFILE_KEY)
    if not name:
        return None, (_no_profile(flavor),)
    if name in known:
        return name, ()
    if _UUID.fullmatch(name):
        return name, (Finding(
            Reason.PROFILE_BY_UUID, flavor.name,
            f'{PROFILE_KEY} of flavor {flavor.name} is a UUID; Nova looks up '
            'device profiles by name and finds none',
            f'set {PROFILE_KEY} to the name of the device profile'),)
    return name, (unknown_profile(name, known),)


def unknown_profile(name: str, known: Iterable[str]) -> Finding:
    """Return the finding that there is no device profile of that name."""
    return Finding(
        Reason.PROFILE_UNKNOWN, name,
        f'there is no device profile {name}{similar(name, known)}',
        'create it, or use one of "openstack accelerator device profile list"')


def _no_profile(flavor):
    direct = sorted(key for key in flavor.extra_specs
                    if key.startswith('resources'))
    if direct:
        return Finding(
            Reason.NO_PROFILE, flavor.name,
            f'flavor {flavor.name} requests resources of Placement directly '
            f'({direct[0]}); Cyborg is not involved, so a server gets no GPU',
            f'request them in a device profile, and set {PROFILE_KEY} to its '
            'name')
    meant = similar(PROFILE_KEY, flavor.extra_specs).replace(
        'did you mean', 'was it misspelled as')
    return Finding(
        Reason.NO_PROFILE, flavor.name,
        f'flavor {flavor.name} has no {PROFILE_KEY}, so a server gets no '
        f'GPU{meant}', f'openstack flavor set --property '
        f'{PROFILE_KEY}=NAME {flavor.name}')


def _no_policy(flavor):
    return Finding(
        Reason.GROUP_POLICY, flavor.name,
        f'flavor {flavor.name} has several numbered groups but no '
        'group_policy, so Placement rejects the request',
        'openstack flavor set --property group_policy=none '
        f'{flavor.name}, or isolate for one GPU each')


def _flavor_groups(flavor):
    found: dict[str, dict] = {}
    for key, value in flavor.extra_specs.items():
        match = _KEY.fullmatch(key)
        if match:
            suffix = match[2] or ''
            _add(found.setdefault(suffix, _empty()), match[1], match[3],
                 value)
    own = found.setdefault('', _empty())
    mode = flavor.extra_specs.get('hw:maxphysaddr_mode')
    if mode in _ADDRESSES:
        own['required'].add(_ADDRESSES[mode])
    taken = {name for parts in found.values() for name in parts['resources']}
    wanted = {orc.MEMORY_MB: flavor.ram, orc.DISK_GB: flavor.disk}
    if flavor.extra_specs.get('hw:cpu_policy') == 'dedicated':
        spare = (flavor.extra_specs.get('hw:emulator_threads_policy')
                 == 'isolate')
        wanted[orc.PCPU] = flavor.vcpus + spare
    elif orc.PCPU not in taken:
        wanted[orc.VCPU] = flavor.vcpus
    for name, amount in wanted.items():
        if name not in taken:
            own['resources'][name] = amount
    return [_group(suffix, parts) for suffix, parts in found.items()]


def _profile_groups(profile, groups, findings):
    for index, group in enumerate(groups):
        parts = _empty()
        ignored = []
        for key, value in group.items():
            match = _KEY.fullmatch(key)
            if match and not _add(parts, match[1], match[3], value):
                ignored.append(match[3])
        made = _group(f'device_profile_{index}', parts)
        findings.extend(_ignored(profile, made, name) for name in ignored)
        if not made.resources:
            findings.append(Finding(
                Reason.GROUP_EMPTY, profile,
                f'{made.title} of device profile {profile} requests no '
                'resource that Nova knows: Nova rejects or ignores it, and a '
                'server gets no GPU',
                'recreate the device profile with resources:CLASS=1 in each '
                'group'))
        yield made


def _ignored(profile, group, name):
    return Finding(
        Reason.CLASS_IGNORED, name,
        f'{group.title} of device profile {profile}: Nova ignores {name}, '
        'because it is not a resource class with an amount',
        'use PGPU, or a CUSTOM_ class from "openstack gpu profile list"')


def _empty():
    return {'resources': {}, 'required': set(), 'forbidden': set()}


def _add(parts, kind, name, value):
    """Add an extra spec to a group; return False if Nova ignores it."""
    if kind == 'trait':
        if value in ('required', 'forbidden'):
            parts[value].add(name)
        return True
    known = name.startswith(orc.CUSTOM_NAMESPACE) or name in orc.STANDARDS
    if not known or not str(value).isdecimal():
        return False
    parts['resources'][name] = int(value)
    return True


def _group(suffix, parts):
    return Group(
        suffix, {name: amount for name, amount in parts['resources'].items()
                 if amount},
        frozenset(parts['required']), frozenset(parts['forbidden']))


def _traits(required, forbidden):
    return ','.join([*sorted(required),
                     *(f'!{trait}' for trait in sorted(forbidden))])


def takers(group: Group, tree: facts.Tree) -> frozenset[str]:
    """Return the providers of a compute node that can meet a group alone.

    Those for the group without a suffix meet it together.

    :returns: UUIDs; empty if the group cannot be met.
    """
    if group.suffix:
        return frozenset(
            node.uuid for node in tree.nodes
            if group.resources and node.suits(group.required, group.forbidden)
            and all(name in node.inventories
                    and node.inventories[name].fits(amount)
                    for name, amount in group.resources.items()))
    able = [[node for node in tree.nodes if name in node.inventories
             and node.inventories[name].fits(amount)
             and not group.forbidden & node.traits]
            for name, amount in group.resources.items()]
    nodes = [node for some in able for node in some]
    has = frozenset().union(*(node.traits for node in nodes))
    return frozenset(node.uuid for node in nodes
                     if all(able) and group.required <= has)
