# SPDX-License-Identifier: Apache-2.0

"""The GPUs of a cloud as the planner of moves sees them.

Placement knows how many instances of each profile a GPU has, and how many
more can be created, but not their placements on the GPU. The placements are
inferred from the numbers (:mod:`cyborg_gpu_driver.nova.weighing.grid`). If no
grid explains the numbers of a GPU, the planner uses only its free inventory.

The requests to Placement and Cyborg are those for the list of hosts, and one
more to Cyborg for all accelerator requests. Nova returns a thousand servers
for each request.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import hosts as cloud_hosts
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.nova.weighing import grid
from cyborg_gpu_driver.partition import moves

CONSENT = 'gpu_movable'
"""Metadata key by which an owner lets operators shelve and unshelve a server.
"""
_YES = 'true'
_ACTIVE, _SHELVED = 'ACTIVE', 'SHELVED'
_BOUND = 'Bound'
_ATTRIBUTE = re.compile(r'(?<=gb)\.', re.ASCII)
"""The dot that stands for a plus in the label of a profile."""
Groups = dict[str, tuple[resources.Group, ...]]


class Place(NamedTuple):
    """A GPU of a cloud.

    :ivar host: the compute node as in the names of its providers.
    :ivar gpu: PCI address.
    """

    host: str
    gpu: str


def consents(server: Any) -> bool:
    """Whether the owner of a server lets operators move it."""
    return str((server.metadata or {}).get(CONSENT, '')).lower() == _YES


def group(groups: Sequence[resources.Group], name: str) -> resources.Group:
    """Return the only group of a device profile.

    :raises InvalidValue: unless the profile asks for exactly one accelerator.
    """
    if _is_single(groups):
        return groups[0]
    raise exception.InvalidValue(
        what='profile', value=name,
        expected='expected one that requests exactly one accelerator')


def _is_single(groups):
    return len(groups) == 1 and [
        *resources.classes(groups[0]).values()] == [1]


class Fleet:
    """All GPUs of hosts on which Nova starts servers with accelerators.

    Cordoned GPUs are left out: a move makes no room there.

    :param servers: openstacksdk's, by UUID.
    :param anyone: whether servers whose owner does not consent may move, too.
    """

    def __init__(self, hosts: Iterable[cloud_hosts.Host],
                 requests: Iterable[Mapping[str, Any]],
                 servers: Mapping[str, Any],
                 profiles: Mapping[str, Sequence[resources.Group]],
                 anyone: bool = False):
        self._offers = {
            Place(host.name, gpu.address): gpu.offers
            for host in hosts if host.usable for gpu in host.gpus
            if not gpu.cordons}
        self._servers = servers
        self._profiles = profiles
        self._anyone = anyone
        self._wants: dict[resources.Group, moves.Want | None] = {}
        self.gpus = self._gpus(requests)

    def want(self, asked: resources.Group) -> moves.Want | None:
        """Return what a server with such a group needs.

        :returns: None if no GPU of the fleet can ever provide it.
        """
        if asked not in self._wants:
            self._wants[asked] = self._want(asked)
        return self._wants[asked]

    def _want(self, asked):
        ((resource_class, _),) = resources.classes(asked).items()
        of_class = {place: offer for place, offers in self._offers.items()
                    for offer in offers
                    if offer.resource_class == resource_class}
        suits = frozenset(
            place for place, offer in of_class.items()
            if offer.suits(*resources.traits(asked)))
        labels = {of_class[place].label for place in suits}
        if len(labels) != 1:
            return None
        return moves.Want(_profile(*labels), None if len(suits) == len(
            of_class) else suits)

    def _gpus(self, requests) -> tuple[moves.Gpu, ...]:
        requests = [one for one in requests
                    if one['instance_uuid'] is not None]
        count = collections.Counter(
            one['instance_uuid'] for one in requests)
        bound = collections.defaultdict(list)
        for one in requests:
            if one['state'] == _BOUND:
                bound[one['device_rp_uuid']].append(one)
        found = []
        for place, offers in self._offers.items():
            ordered = sorted(offers, key=lambda offer: _profile(offer.label))
            holders = tuple(
                self._holder(one, offer, count[one['instance_uuid']] == 1)
                for offer in ordered for one in bound[offer.uuid])
            gpu = _gpu(place, ordered, holders)
            if gpu is not None:
                found.append(gpu)
        return tuple(found)

    def _holder(self, request, offer, alone):
        known = self._servers.get(request['instance_uuid'])
        groups = self._profiles.get(request['device_profile_name'], ())
        want = moves.Want(_profile(offer.label))
        mobility = moves.Mobility.FIXED
        if known is not None and alone and known.task_state is None:
            if known.status == _SHELVED:
                mobility = moves.Mobility.IDLE
            elif (known.status == _ACTIVE and _is_single(groups)
                  and (self._anyone or consents(known))):
                exact = self.want(groups[0])
                if exact is not None and exact.profile == want.profile:
                    want, mobility = exact, moves.Mobility.MOVABLE
        return moves.Holder(request['instance_uuid'], want, mobility)


def _profile(label):
    """Return the profile ``1g.10gb+me`` for the label ``1g.10gb.me``."""
    return _ATTRIBUTE.sub('+', label, count=1)


def _gpu(place: Place, offers: Sequence[facts.Node],
         holders: tuple[moves.Holder, ...]) -> moves.Gpu | None:
    names = tuple(_profile(offer.label) for offer in offers)
    if names == (moves.WHOLE,) and offers[0].total == 1:
        if offers[0].free:
            return moves.whole(name=place)
        return moves.whole(holders[0], place) if holders else None
    rows = grid.rows(names, tuple(offer.used for offer in offers),
                     tuple(offer.free for offer in offers))
    if rows:
        return moves.Gpu(place, rows, holders)
    free = [name for name, offer in zip(names, offers, strict=True)
            if offer.free]
    return moves.only_free(free, place) if free else None


class Snapshot:
    """The state of a cloud at one time."""

    def __init__(self, cloud: connection.Cloud,
                 names: Collection[str] = (), anyone: bool = False,
                 complain: Callable[[str], None] = lambda text: None,
                 progress: Callable[[int, int], None]
                 = lambda done, total: None):
        """Read the cloud."""
        self.hosts = _hosts(cloud, names, complain, progress)
        self.profiles: Groups = {
            item.name: item.groups for item in state.device_profiles(cloud)}
        requests = cyborg.requests(cloud)
        self.servers = {item.id: item for item
                        in cloud.sdk.compute.servers(all_projects=True)}
        self.fleet = Fleet(self.hosts, requests, self.servers,
                           self.profiles, anyone)

    def asked(self, profile: str | None = None,
              device_profile: str | None = None
              ) -> dict[str, resources.Group]:
        """Return the resource groups for which to plan, by profile name.

        :param profile: of a GPU; None for all, or for the device profile.
        :raises InvalidValue: if there is no such profile, or the device
            profile asks for several accelerators.
        """
        if device_profile is not None:
            if device_profile not in self.profiles:
                raise exception.InvalidValue(
                    what='device profile', value=device_profile,
                    expected=f'expected one of {", ".join(self.profiles)}')
            return {device_profile: group(self.profiles[device_profile],
                                          device_profile)}
        labels = {
            offer.label: resources.group(offer.resource_class)
            for host in self.hosts for offer in host.providers
            if offer.resource_class is not None}
        if profile is None:
            return {label: labels[label] for label in sorted(labels)}
        if profile in labels:
            return {profile: labels[profile]}
        raise exception.InvalidValue(
            what='profile', value=profile,
            expected=f'expected one of {", ".join(sorted(labels)) or "none"}')


def _hosts(cloud, names, complain, progress):
    only = next(iter(names)) if len(set(names)) == 1 else None
    found = cloud_hosts.read(cloud, only, complain, progress)
    there = {host.name for host in found}
    for name in names:
        if name not in there:
            raise exception.InvalidValue(
                what='host', value=name,
                expected='expected a compute node with GPUs that the driver '
                'reports; see "openstack gpu list"')
    return tuple(host for host in found if not names or host.name in names)
