# SPDX-License-Identifier: Apache-2.0

"""Which role a GPU in mode auto has, and which it can take. Pure.

The current role follows only from the claims on the GPU and from what exists
on it. No second record of the role exists that could differ. A GPU on which
nothing is bound is idle, and rests in a state from which it can take every
role.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import vgpu_type

_WHOLE = policies.Mode.PASSTHROUGH
PARTITIONED = (policies.Mode.MIG, policies.Mode.VGPU)
"""Roles that a GPU takes at a bind, which Cyborg announces to the agent."""


def in_force(gpu: model.Gpu, claimed: Collection[policies.Mode]
             ) -> policies.Mode | None:
    """Return the role that a GPU has; None for an idle GPU.

    Hardware state without a claim counts too: an instance that another tool
    created also keeps the GPU in its role. Only Placement shows that a server
    has the whole GPU.

    :param claimed: the roles of the claims on the GPU.
    """
    if claimed:
        return (policies.Mode.MIG if policies.Mode.MIG in claimed
                else policies.Mode.VGPU)
    if gpu.mig is not None and gpu.mig.enabled:
        return (policies.Mode.MIG if gpu.vgpus or gpu.mig.instances
                else None)
    return policies.Mode.VGPU if gpu.vgpus else None


def resting(gpu: model.Gpu, policy: policies.Policy) -> policies.Mode:
    """Return the role in whose state an idle GPU is kept.

    Cyborg does not call the driver when a server gets a whole GPU, so a GPU
    that can be assigned as a whole is kept ready for that. A GPU takes every
    other role at a bind. A GPU that has only such roles stays as it is.
    """
    if _WHOLE in policy.roles:
        return _WHOLE
    return next((role for role in policy.roles if stands(gpu, role)),
                policy.roles[0])


def governs(policy: policies.Policy, gpu: model.Gpu) -> policies.Policy:
    """Return the policy of one mode that applies to a GPU now."""
    if policy.mode is not policies.Mode.AUTO:
        return policy
    return policy.in_role(in_force(gpu, ()) or resting(gpu, policy))


def stands(gpu: model.Gpu, role: policies.Mode) -> bool:
    """Whether a GPU is in the state of a role that partitions it."""
    if not gpu.visible_to_nvml or gpu.driver != whole.NVIDIA:
        return False
    if gpu.sriov_totalvfs and not gpu.vfs:
        return False
    sliced = gpu.mig is not None and gpu.mig.enabled
    return sliced is (role is policies.Mode.MIG)


def unsupported(gpu: model.Gpu, role: policies.Mode) -> str:
    """Return why a board cannot have a role; empty if it may be able to.

    :param gpu: as read while NVML sees the GPU.
    """
    if role is policies.Mode.MIG and gpu.mig is None:
        return 'this GPU does not support MIG'
    if (role is policies.Mode.VGPU
            and not vgpu_type.of_mode(gpu, policies.Mode.VGPU)):
        return 'this GPU has no time-sliced vGPU types'
    return ''


def rules(policy: policies.Policy, role: policies.Mode, gpu: model.Gpu
          ) -> policies.Policy:
    """Return the policy of one role, with only that role's vGPU types.

    :param gpu: with the vGPU types that the GPU has in the role.
    """
    types = vgpu_type.types_of(gpu)
    return dataclasses.replace(
        policy.in_role(role),
        vgpu_types=tuple(name for name in policy.vgpu_types
                         if _may_be_of(role, name, types)),
        max_instances=tuple(item for item in policy.max_instances
                            if _may_be_of(role, item[0], types)))


def _may_be_of(role: policies.Mode, text: str,
               types: Iterable[model.VgpuType]) -> bool:
    """Whether neither the GPU nor its name shows that a vGPU type belongs to
    another role.
    """
    found = [vgpu_type.is_mig_backed(kind) for kind in types
             if kind.is_called(text)]
    named = vgpu_type.parsed(text)
    if named is not None:
        found.append(named.slices is not None)
    return all(backed is (role is policies.Mode.MIG) for backed in found)


# What a GPU is like in a role that it does not have now. Pure.
#
# NVML reports nothing about a GPU on vfio-pci. A GPU without virtual functions
# has no mdev types, and a GPU that is not in MIG mode has no profiles. But the
# driver's report to Cyborg must not change with the role. So the agent reads
# the GPU once in each of its roles, while it is idle, and keeps that in its
# record.

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
    """Return a GPU as it would be, idle, if it took a role now."""
    on_itself = known.framework is model.Framework.MDEV_PF
    vendor = known.framework is model.Framework.VENDOR_VFIO
    sliced = role is policies.Mode.MIG
    return dataclasses.replace(
        gpu, driver=whole.NVIDIA, visible_to_nvml=True,
        sriov_numvfs=len(known.functions),
        vfs=tuple(model.VirtualFunction(
            address, index, whole.NVIDIA, None,
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


def _union(lists: Iterable[tuple], last: tuple) -> tuple:
    """Return the vGPU types of all lists, each once."""
    found = {kind.type_id: kind for kinds in (last, *reversed([*lists]))
             for kind in kinds}
    return tuple(found[type_id] for type_id in sorted(found))
