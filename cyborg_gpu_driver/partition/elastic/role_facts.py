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

"""What a GPU is like in a role that it does not have now. Pure.

NVML reports nothing about a GPU on vfio-pci. A GPU without virtual functions
has no mdev types, and a GPU that is not in MIG mode has no profiles. But the
driver's report to Cyborg must not change with the role. So the agent reads the
GPU once in each of its roles, while it is idle, and keeps that in its record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy as policies


@dataclasses.dataclass(frozen=True)
class RoleFacts:
    """A GPU as it was read in one role, while it was idle."""

    device_id: str
    """PCI device id of the board."""
    problem: str = ''
    """Why the GPU cannot have the role; the other facts are then empty."""
    is_doubtful: bool = False
    """Whether a later reading may differ."""
    functions: tuple[model.PciAddress, ...] = ()
    """Its virtual functions, by their index."""
    framework: model.Framework = model.Framework.NONE
    mdev_types: tuple[model.MdevType, ...] = ()
    """Of each virtual function, or of the GPU itself if it makes mdevs
    itself."""
    vgpu_types: tuple[model.VgpuType, ...] = ()
    mixed_sizes: bool | None = None
    has_mig: bool = False
    profiles: tuple[model.GpuInstanceProfile, ...] = ()


FactsByRole = Mapping[str, RoleFacts]
"""By the role's name."""


def of(gpu: model.Gpu) -> RoleFacts:
    """Return the facts of a GPU that has just been read in its role."""
    types = next((function.mdev_types for function in gpu.vfs
                  if function.mdev_types), gpu.mdev_types)
    return RoleFacts(
        device_id=gpu.device_id,
        functions=tuple(function.address for function in sorted(
            gpu.vfs, key=lambda function: function.index)),
        framework=gpu.framework,
        mdev_types=tuple(dataclasses.replace(kind, available=None)
                         for kind in types),
        vgpu_types=tuple(dataclasses.replace(kind, free_placements=None)
                         for kind in gpu.vgpu_types),
        mixed_sizes=gpu.mixed_sizes, has_mig=gpu.mig is not None,
        profiles=gpu.mig.profiles if gpu.mig else ())


def holds(known: RoleFacts | None, gpu: model.Gpu) -> bool:
    """Whether the facts belong to a board of the model that is there now."""
    return known is not None and known.device_id == gpu.device_id


def gpu_in_role(gpu: model.Gpu, role: policies.Mode, known: RoleFacts
            ) -> model.Gpu:
    """Return a GPU as it would be, idle, if it took a role now.

    :param known: the GPU's facts in that role.
    """
    on_itself = known.framework is model.Framework.MDEV_PF
    vendor = known.framework is model.Framework.VENDOR_VFIO
    sliced = role is policies.Mode.MIG
    return dataclasses.replace(
        gpu, driver=drivers.NVIDIA, visible_to_nvml=True,
        sriov_numvfs=len(known.functions),
        vfs=tuple(model.VirtualFunction(
            address, index, drivers.NVIDIA, None,
            mdev_types=() if on_itself else known.mdev_types,
            current_vgpu_type=0 if vendor else None)
            for index, address in enumerate(known.functions)),
        mig=(model.Mig(sliced, sliced, known.profiles) if known.has_mig
             else None),
        framework=known.framework,
        mdev_types=known.mdev_types if on_itself else (), mdevs=(),
        vgpu_types=known.vgpu_types, mixed_sizes=known.mixed_sizes,
        processes=0)


def complete(gpu: model.Gpu, by_role: FactsByRole) -> model.Gpu:
    """Return a GPU with all that is known of it in any role, for its traits.

    Where a role's facts include a value, that value is used, so that it does
    not change with the role.
    """
    of_board = [known for known in by_role.values() if holds(known, gpu)]
    if not of_board:
        return gpu
    profiles = next((known.profiles for known in of_board
                     if known.profiles), ())
    mig = gpu.mig
    if profiles and mig is None:
        mig = model.Mig(False, False, profiles)
    elif profiles and mig is not None:
        mig = dataclasses.replace(mig, profiles=profiles)
    return dataclasses.replace(
        gpu, mig=mig,
        vgpu_types=_union((known.vgpu_types for known in of_board),
                          gpu.vgpu_types),
        mdev_types=_union((known.mdev_types for known in of_board),
                          gpu.mdev_types))


def functions(by_role: FactsByRole) -> Collection[model.PciAddress]:
    """Return the virtual functions that a GPU has in any of its roles."""
    return {address for known in by_role.values()
            for address in known.functions}


def _union(lists: Iterable[tuple], last: tuple) -> tuple:
    """Return the vGPU types of all lists, each once."""
    found = {kind.type_id: kind for kinds in (last, *reversed([*lists]))
             for kind in kinds}
    return tuple(found[type_id] for type_id in sorted(found))
