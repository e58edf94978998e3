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

"""How many more servers the GPUs of a cloud have room for. Pure.

Placement knows how many instances of each profile can be created now, for
each profile alone. How many of a GPU's other profiles remain after that, the
driver reports only once the instance exists. So the number is exact for a
request for one resource class. For a request for several classes, a GPU of
which one profile was taken counts as lost for its other profiles, so the
number is a lower bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.cloud import providers
from cyborg_gpu_driver.cloud.profiles import resources


@dataclasses.dataclass(frozen=True)
class Room:
    """The number of servers, created one after the other, with room now.

    vCPUs, memory and disks are not considered.

    :ivar exact: False if there may be room for more.
    """

    servers: int
    exact: bool


def by_host(groups: Sequence[resources.Group],
            found: Iterable[providers.Provider]) -> Mapping[str, Room]:
    """Return the room on each host for servers with a device profile.

    :param found: providers of hosts on which Nova would start such a server.
    """
    hosts: dict[str, list[providers.Provider]] = {}
    for provider in found:
        hosts.setdefault(provider.host, []).append(provider)
    return {host: room(groups, hosts[host]) for host in sorted(hosts)}


def together(rooms: Iterable[Room]) -> Room:
    """Return the total room of several hosts."""
    rooms = list(rooms)
    return Room(sum(room.servers for room in rooms),
                all(room.exact for room in rooms))


def room(groups: Sequence[resources.Group],
         found: Sequence[providers.Provider]) -> Room:
    """Return the room on one host.

    :param found: providers of the host's GPUs.
    """
    exact = len(set(groups)) == 1
    wanted = [resources.classes(group) for group in groups]
    # Cyborg accepts such device profiles, but Placement never has candidates.
    if not groups or any(len(one) != 1 or min(one.values()) < 1
                         for one in wanted):
        return Room(0, True)
    left = {one.uuid: one.free for one in found}
    servers = 0
    while _take(groups, found, left):
        servers += 1
    return Room(servers, exact)


def _take(groups, found, left):
    """Take the resources of one server out of ``left``, if they suffice.

    Groups with large amounts come first, and each takes the provider with the
    least sufficient capacity, so that as few GPUs as possible are lost for
    other profiles.
    """
    for group in sorted(groups, key=lambda one: -_amount(one)[1]):
        chosen = min(
            (one for one in found if _fits(group, one, left[one.uuid])),
            key=lambda one: left[one.uuid], default=None)
        if chosen is None:
            return False
        left[chosen.uuid] -= _amount(group)[1]
        for other in found:
            if other.gpu == chosen.gpu and other.uuid != chosen.uuid:
                left[other.uuid] = 0
    return True


def _amount(group):
    """The resource class and amount of a group that has one class."""
    (amount,) = resources.classes(group).items()
    return amount


def _fits(group, one, left):
    resource_class, count = _amount(group)
    return (one.resource_class == resource_class and left >= count
            and resources.traits(group, 'required') <= one.traits
            and not resources.traits(group, 'forbidden') & one.traits)
