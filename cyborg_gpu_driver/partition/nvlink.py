# SPDX-License-Identifier: Apache-2.0

"""Groups of whole GPUs that NVLink connects. Pure.

With NVSwitches a group is a partition of NVIDIA's fabric manager. Without
them, bridges connect GPUs directly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model


@dataclasses.dataclass(frozen=True, order=True)
class Group:
    """GPUs that one server gets together."""

    members: tuple[model.PciAddress, ...]
    """In order. The first one represents the group in Cyborg."""
    partition: int | None = None
    """Of the fabric manager; None if bridges connect the GPUs."""

    @property
    def leader(self) -> model.PciAddress:
        """The GPU whose device in Cyborg offers the group."""
        return self.members[0]

    @property
    def profile(self) -> str:
        """The name in handles and offers of the group: ``nvlink-2``."""
        return f'nvlink-{len(self.members)}'


def to_text(members: Sequence[model.PciAddress]) -> str:
    """Return addresses for an attach handle, which has 255 characters.

    :returns: ``0000:18:00.0 2a:00.0``: an address in the domain of the first
        one is written without the domain.
    """
    first, *others = members
    domain = str(first).partition(':')[0] + ':'
    return ' '.join((str(first), *(str(other).removeprefix(domain)
                                   for other in others)))


def from_text(text: str) -> tuple[model.PciAddress, ...]:
    """Return the addresses in a text of :func:`to_text`.

    :raises InvalidValue: if a part is not an address.
    """
    first, *others = text.split(' ')
    domain = first.partition(':')[0]
    return tuple(model.PciAddress.parse(
        item if item.count(':') > 1 else f'{domain}:{item}')
        for item in (first, *others))


def of_partitions(partitions: Iterable[model.FabricPartition],
                  modules: Mapping[model.PciAddress, int]
                  ) -> tuple[Group, ...]:
    """Return the groups that the fabric manager can connect.

    :param partitions: a partition with failed hardware is a group too,
        because an offer must not disappear while a server may have it.
    :param modules: module id of each GPU.
    :returns: for each first GPU and size, the group with the lowest partition
        number. A partition with a GPU that is not in ``modules`` is left out.
    """
    board = model.Fabric(modules)
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
    """Return the groups of bridges: all GPUs of a bridge, and each GPU alone.

    In a group an NVLink leads from each GPU to each other. The four GPUs of
    one bridge also form two pairs, by their addresses. GPUs that are linked
    to others in part form no groups.

    :param peers: of each GPU, where its NVLinks end. GPUs that are missing
        here are in no group.
    """
    linked = {gpu: {gpu, *(peer for peer in ends
                           if gpu in peers.get(peer, ()))}
              for gpu, ends in peers.items()}
    found = {Group((gpu,)) for gpu in peers}
    for gpu, ends in peers.items():
        bridge = {gpu, *ends}
        members = tuple(sorted(bridge))
        size = len(members)
        # While a GPU at the end of a link is missing, its groups are not
        # known, and smaller ones would come and go.
        while size > 1 and all(linked.get(one) == bridge for one in bridge):
            found |= {Group(members[start:start + size])
                      for start in range(0, len(members), size)}
            size = size // 2 if not size % 2 else 1
    return tuple(sorted(found))
