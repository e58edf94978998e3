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

"""Groups of whole GPUs that NVLink connects. Pure.

On NVSwitches a group is a partition of NVIDIA's fabric manager. Without them
bridges connect GPUs directly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import fabric
from cyborg_gpu_driver.host.snapshot import model


@dataclasses.dataclass(frozen=True, order=True)
class Group:
    """GPUs that one server gets together."""

    members: tuple[model.PciAddress, ...]
    """In order. The first one stands for the group in Cyborg."""
    partition: int | None = None
    """Of the fabric manager; None where bridges connect the GPUs."""

    @property
    def leader(self) -> model.PciAddress:
        """The GPU whose device in Cyborg offers the group."""
        return self.members[0]

    @property
    def profile(self) -> str:
        """What a handle asks for, and an offer is called: ``nvlink-2``."""
        return f'nvlink-{len(self.members)}'


def to_text(members: Sequence[model.PciAddress]) -> str:
    """Addresses for an attach handle, which has room for 255 characters.

    :returns: ``0000:18:00.0 2a:00.0``: those in the domain of the first one
        come without it.
    """
    first, *others = members
    domain = str(first).partition(':')[0] + ':'
    return ' '.join((str(first), *(str(other).removeprefix(domain)
                                   for other in others)))


def from_text(text: str) -> tuple[model.PciAddress, ...]:
    """The reverse of :func:`to_text`.

    :raises InvalidPciAddress: if one is none.
    """
    first, *others = text.split(' ')
    domain = first.partition(':')[0]
    return tuple(model.PciAddress.parse(
        item if item.count(':') > 1 else f'{domain}:{item}')
        for item in (first, *others))


def of_partitions(partitions: Iterable[fabric.Partition],
                  modules: Mapping[model.PciAddress, int]
                  ) -> tuple[Group, ...]:
    """The groups that the fabric manager can connect.

    :param partitions: those that hardware has failed in are groups too: an
        offer must not go while a server may have it.
    :param modules: module id of each GPU.
    :returns: of each first GPU and size one, that with the lowest number. A
        partition with a GPU that is not in ``modules`` is left out.
    """
    board = fabric.Fabric(modules)
    found: dict[tuple[model.PciAddress, int], Group] = {}
    for partition in sorted(partitions, key=lambda item: item.partition_id):
        known = tuple(sorted({
            gpu for member in partition.members
            if (gpu := board.gpu(member)) is not None and gpu in modules}))
        if known and len(known) == len(partition.members):
            found.setdefault((known[0], len(known)),
                             Group(known, partition.partition_id))
    return tuple(sorted(found.values()))


def of_bridges(peers: Mapping[model.PciAddress, Collection[model.PciAddress]]
               ) -> tuple[Group, ...]:
    """The groups that bridges connect: all GPUs of a bridge, and each alone.

    A pair of GPUs is a group only if an NVLink leads from each to the other.
    The four GPUs of one bridge are also two pairs, by their addresses.

    :param peers: of each GPU, where its NVLinks end. GPUs that are missing
        here are in no group.
    """
    found = {Group((gpu,)) for gpu in peers}
    for gpu in peers:
        bridge = tuple(sorted({gpu, *peers[gpu]}))
        if all(one in peers and set(bridge) - {one} <= set(peers[one])
               for one in bridge):
            size = len(bridge)
            while size > 1:
                found |= {Group(bridge[start:start + size])
                          for start in range(0, len(bridge), size)}
                size = size // 2 if not size % 2 else 1
    return tuple(sorted(found))
