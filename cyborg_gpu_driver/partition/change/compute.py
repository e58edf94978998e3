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


"""What happens to the compute instances in a GPU instance that is kept."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.change import target


@dataclasses.dataclass(frozen=True)
class ComputeChange:
    """The compute instances to destroy first, and those to create then."""

    destroy: tuple[model.ComputeInstance, ...] = ()
    create: tuple[int, ...] = ()
    """Slices of each, the largest first."""


def change(instance: model.GpuInstance, wanted: target.WantedInstance
           ) -> ComputeChange:
    """Return the change that destroys the fewest compute instances."""
    room = wanted.profile.slices
    for count in range(len(instance.compute), -1, -1):
        for keep in itertools.combinations(instance.compute, count):
            missing = collections.Counter(wanted.compute)
            missing.subtract(item.size for item in keep)
            if any(value < 0 for value in missing.values()):
                continue
            create = tuple(sorted(missing.elements(), reverse=True))
            if _fits(room, _mask(keep), create):
                return ComputeChange(tuple(
                    item for item in instance.compute if item not in keep),
                    create)
    # Nothing is known to fit, e.g. 4 and 3 of 7 slices: let the GPU decide.
    return ComputeChange(instance.compute, wanted.compute)


def cost(instance: model.GpuInstance, wanted: target.WantedInstance,
         in_use: bool) -> tuple[int, int] | None:
    """Return how many compute instances are destroyed and created.

    An instance in use keeps its compute instances. If it has none, its user
    manages them: the guest of a MIG-backed vGPU creates its own.

    :returns: None if an instance in use is not as wanted.
    """
    if in_use:
        sizes = sorted((item.size for item in instance.compute),
                       reverse=True)
        fitting = not sizes or tuple(sizes) == wanted.compute
        return (0, 0) if fitting else None
    needed = change(instance, wanted)
    return len(needed.destroy), len(needed.create)


def _mask(compute: Collection[model.ComputeInstance]) -> int:
    mask = 0
    for item in compute:
        mask |= ((1 << item.size) - 1) << item.start
    return mask


def _fits(room: int, taken: int, sizes: Sequence[int]) -> bool:
    """Whether free slices can hold the sizes.

    Compute instances of one size are placed end to end from the first slice.
    If a GPU allows more starts than that, the only loss is a compute
    instance that could have been kept.
    """
    if not sizes:
        return True
    bits = (1 << sizes[0]) - 1
    return any(
        _fits(room, taken | bits << start, sizes[1:])
        for start in range(0, room - sizes[0] + 1, sizes[0])
        if not taken & bits << start)
