# SPDX-License-Identifier: Apache-2.0

"""Groups of whole GPUs that NVLink connects. Pure.

With NVSwitches a group is a partition of NVIDIA's fabric manager. Without
them, bridges connect GPUs directly.
"""

from __future__ import annotations

import dataclasses
import itertools
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
    to others in part, as on a DGX-1 or a board with a broken link, form the
    largest groups that there are, and smaller ones.

    :param peers: of each GPU, where its NVLinks end. GPUs that are missing
        here are in no group.
    """
    linked = {gpu: {gpu, *(peer for peer in ends
                           if gpu in peers.get(peer, ()))}
              for gpu, ends in peers.items()}
    found = {Group((gpu,)) for gpu in peers}
    rest = []
    for gpu in sorted(peers):
        if not _is_closed(linked, {gpu, *peers[gpu]}):
            # While a GPU at the end of a link is missing, its groups are not
            # known, and smaller ones would come and go.
            rest += [gpu] if peers.keys() >= {*peers[gpu]} else []
            continue
        bridge = tuple(sorted(linked[gpu]))
        size = len(bridge)
        while size > 1:
            found |= {Group(bridge[start:start + size])
                      for start in range(0, len(bridge), size)}
            size = size // 2 if not size % 2 else 1
    size = max((len(linked[gpu]) for gpu in rest), default=1)
    while size > 1:
        groups = _apart(rest, linked, size)
        found |= groups
        if size == 2:
            break
        # Below the largest size, only halves of it, and pairs.
        size = max(size // 2, 2) if groups else size - 1
    return tuple(sorted(found))


def _is_closed(linked: Mapping[model.PciAddress, Collection[model.PciAddress]],
               bridge: Collection[model.PciAddress]) -> bool:
    """Whether GPUs are linked to each other, and to no other GPU."""
    return all(linked.get(one) == bridge for one in bridge)


def _apart(gpus: Sequence[model.PciAddress],
           linked: Mapping[model.PciAddress, Collection[model.PciAddress]],
           size: int) -> set[Group]:
    """Return groups of a size that have no GPU in common, by address."""
    found: set[Group] = set()
    taken: set[model.PciAddress] = set()
    for members in itertools.combinations(gpus, size):
        if taken.isdisjoint(members) and all(
                other in linked[one] for one in members
                for other in members):
            found.add(Group(members))
            taken.update(members)
    return found
