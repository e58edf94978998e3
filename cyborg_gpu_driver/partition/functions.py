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

Cyborg keeps a handle for ever, so the answer depends on the GPU and the
policy alone, never on what is in use. Two handles may name one function
where there are too few; the bind then takes another that is empty.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence

from cyborg_gpu_driver.host import model


@dataclasses.dataclass(frozen=True)
class Claim:
    """The functions that one offer needs."""

    total: int
    """At most the number of functions there are."""
    excludes_others: bool = False
    """Whether nothing of another offer is ever there at the same time."""


def limited(gpu: model.Gpu, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """The claims, cut down to what can have functions of their own.

    With vendor VFIO a server is given the very function that its handle
    names. So claims that are there together must not share one: the
    smallest are served first, and the last get what is left. An mdev goes
    by its UUID wherever it is, and only needs some function.
    """
    if gpu.framework is not model.Framework.VENDOR_VFIO:
        return tuple(claims)
    left, found = len(gpu.vfs), list(claims)
    for number in sorted(range(len(found)),
                         key=lambda number: found[number].total):
        if not found[number].excludes_others:
            total = min(found[number].total, left)
            found[number] = dataclasses.replace(found[number], total=total)
            left -= total
    return tuple(found)


def assign(vfs: Iterable[model.VirtualFunction], claims: Sequence[Claim]
           ) -> tuple[tuple[model.PciAddress, ...], ...]:
    """The functions of each claim, in the order of ``claims``.

    All are distinct while there are enough. Where there are not, first the
    claims that exclude all others share functions with them, which never
    meets; then the rest go round again.
    """
    addresses = [function.address for function in
                 sorted(vfs, key=lambda function: function.index)]
    count = len(addresses)
    given: dict[int, tuple[model.PciAddress, ...]] = {}
    first = 0
    for number in sorted(range(len(claims)),
                         key=lambda number: claims[number].excludes_others):
        claim = claims[number]
        if claim.excludes_others and first + claim.total > count:
            start = 0
        else:
            start = first
            first += claim.total
        given[number] = tuple(
            addresses[(start + offset) % count]
            for offset in range(claim.total if count else 0))
    return tuple(given[number] for number in range(len(claims)))


def capped(gpu: model.Gpu, total: int) -> int:
    """Each vGPU needs a function of its own, where there are any yet."""
    return min(total, len(gpu.vfs)) if gpu.vfs else total


def empty(gpu: model.Gpu, type_id: str | None = None
          ) -> tuple[model.VirtualFunction, ...]:
    """The functions that can take a vGPU; one holds one at most.

    :param type_id: the type that it is to be, ``nvidia-474``; a function
        that was read and does not take it now is left out.
    """
    return tuple(function for function in gpu.vfs
                 if not function.mdevs and not function.current_vgpu_type
                 and _takes(gpu, function, type_id))


def _takes(gpu, function, type_id):
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
