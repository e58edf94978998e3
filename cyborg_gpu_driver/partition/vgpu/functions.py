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

"""Which handle names which virtual function.

Cyborg keeps a handle forever, so the answer depends on the GPU and the policy
alone, never on what is in use.

The driver creates a vGPU on the function that its handle names, because Nova
looks for it there. Nova 34 asks libvirt for the node device
``mdev_<uuid>_<address of the handle's function>``, and creates an mdev of the
same UUID on that function if there is none
(nova/virt/libvirt/driver.py, ``_allocate_cyborg_mdevs``). Without mdev the
guest gets the function itself. So handles that can be bound at the same time
must name different functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model


@dataclasses.dataclass(frozen=True)
class Claim:
    """The functions that one offer needs."""

    total: int
    """The most vGPUs of the offer that the GPU can have."""
    group: Hashable = None
    """Claims of different groups are never on the GPU at the same time."""


def assign(vfs: Iterable[model.VirtualFunction], claims: Sequence[Claim]
           ) -> tuple[tuple[model.PciAddress, ...], ...]:
    """Return the functions of each claim, in the order of ``claims``.

    No two claims of a group share a function. If a group has too few, its
    smallest claims are served first, and the last ones get the rest. Groups
    share functions with each other only if there are too few for all.
    """
    addresses = [function.address for function in
                 sorted(vfs, key=lambda function: function.index)]
    groups: dict[Hashable, list[int]] = {}
    for number, claim in enumerate(claims):
        groups.setdefault(claim.group, []).append(number)
    given: dict[int, tuple[model.PciAddress, ...]] = {}
    first = 0
    # A claim alone in its group needs the fewest functions, so it comes
    # last: then the others more likely get functions of their own.
    for members in sorted(groups.values(), key=lambda group: len(group) < 2):
        totals = _limited(claims, members, len(addresses))
        start = first
        if start + sum(totals.values()) > len(addresses):
            start = 0
        else:
            first += sum(totals.values())
        for number in members:
            given[number] = tuple(addresses[start:start + totals[number]])
            start += totals[number]
    return tuple(given[number] for number in range(len(claims)))


def _limited(claims: Sequence[Claim], members: Sequence[int], left: int
             ) -> dict[int, int]:
    """Return how many functions each claim of a group gets."""
    totals = {}
    for number in sorted(members, key=lambda number: claims[number].total):
        totals[number] = min(claims[number].total, left)
        left -= totals[number]
    return totals


def empty(gpu: model.Gpu, own: Collection[model.PciAddress],
          type_id: str | None = None) -> tuple[model.VirtualFunction, ...]:
    """Return the functions of an offer that can take a vGPU, one each.

    A function that could not be read takes none. The driver counts what is
    on it: the lists of the other functions have only what fits beside it.

    :param own: the functions that the offer's handles name.
    :param type_id: the type of the vGPU, ``nvidia-474``. A function that
        was read and does not accept this type now is left out.
    """
    return tuple(function for function in gpu.vfs
                 if function.address in own and not function.problem
                 and not function.mdevs and not function.current_vgpu_type
                 and _takes(gpu, function, type_id))


def _takes(gpu: model.Gpu, function: model.VirtualFunction,
           type_id: str | None) -> bool:
    if gpu.framework is model.Framework.VENDOR_VFIO:
        if function.current_vgpu_type is None:
            return False
        types = function.creatable_types
        return (type_id is None or types is None
                or type_id in (f'nvidia-{number}' for number in types))
    if type_id is None:
        return True
    return any(entry.type_id == type_id and entry.available != 0
               for entry in function.mdev_types)
