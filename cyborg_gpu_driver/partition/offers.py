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

"""What a GPU offers under a policy: pure, from the snapshot alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import functions
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import vgpu_types

WHOLE = 'whole'
"""The profile of a GPU that is given away as one."""

_VENDOR_VFIO = ('vendor VFIO: this kernel and driver make vGPUs without '
                'mdev, so no MDEV handle can be bound here')
_NO_FUNCTIONS = ('no virtual functions: enable them with sriov-manage -e '
                 '{gpu.address}')


@dataclasses.dataclass(frozen=True)
class Held:
    """A vGPU that is known to lie on a GPU instance.

    The driver tells that of no mdev, so for those it comes from the journal
    of what was bound.
    """

    placement: model.Placement
    """Of the GPU instance."""
    type_id: str
    """The vGPU's type, ``nvidia-474``."""


@dataclasses.dataclass(frozen=True)
class Offer:
    """One thing that can be asked of one GPU, and how much of it there is.

    ``total`` and ``parents`` follow from what the GPU and the policy are,
    never from what is in use, because Cyborg cannot take back a handle.
    ``in_use`` counts everything live, whoever made it.
    """

    gpu: model.PciAddress
    policy: str
    """The policy's name; empty in :func:`possible_offers`."""
    mode: policies.Mode
    profile: str
    """``whole``, a GPU instance profile (1g.10gb) or a vGPU type (T4-2B)."""
    total: int
    in_use: int = 0
    creatable: int = 0
    """How many more could be made now, if nothing else is."""
    gi_profile_id: int | None = None
    vgpu_type_id: str | None = None
    """The mdev type, ``nvidia-474``."""
    parents: tuple[model.PciAddress, ...] = ()
    """Functions that the handles name: the GPU itself, or ``total`` VFs."""
    framework: model.Framework = model.Framework.NONE
    """How one is made; NONE for a whole GPU."""
    per_instance: int = 1
    """How many of it one GPU instance holds, where it needs one."""
    framebuffer_mib: int = 0
    """Of its vGPU type; a GPU instance holds vGPUs of one size only."""
    problem: str = ''
    """Why this cannot be offered now; empty if it can."""


def offers(gpu: model.Gpu, policy: policies.Policy,
           held: Sequence[Held] = (), vfio_handles: bool = False
           ) -> tuple[Offer, ...]:
    """What ``gpu`` offers under the policy that governs it.

    Whatever the policy asks for and the GPU cannot give is there too, with
    its :attr:`Offer.problem`, so that an operator sees why.

    :param held: which vGPUs lie on which of its GPU instances, as far as
        that is known.
    :param vfio_handles: ``[gpu] nova_vfio_handles``: whether handles can be
        bound to virtual functions of vendor VFIO.
    """
    return tuple(_OFFERS[policy.mode](gpu, policy))


def possible_offers(gpu: model.Gpu) -> tuple[Offer, ...]:
    """What ``gpu`` could offer in any mode, to choose a policy by."""
    found = list(offers(gpu, policies.Policy(
        '', policies.Mode.PASSTHROUGH)))
    types = vgpu_types.time_sliced(vgpu_types.types_of(gpu))
    if types:
        found += offers(gpu, policies.Policy(
            '', policies.Mode.VGPU,
            vgpu_types=tuple(entry.type_id for entry in types)))
    if gpu.mig is not None:
        found += offers(gpu, policies.Policy('', policies.Mode.MIG))
    return tuple(found)


def check_policy(gpu: model.Gpu, policy: policies.Policy) -> list[str]:
    """What a policy asks for that this GPU does not know.

    :returns: sentences naming the policy, the option and the valid names;
        empty if all is well. A policy may govern boards with other names,
        so this is worth a warning, not a refusal.
    """
    where = f'policy {policy.name}, GPU {gpu.address}: '
    found = []
    if policy.mode is policies.Mode.MIG and gpu.mig is not None:
        found += [where + 'profiles: ' + _unknown_profile(gpu, name)
                  for name in policy.profiles
                  if gpu.mig.profile_by_name(name) is None]
    types = vgpu_types.types_of(gpu)
    if types and policy.mode in (policies.Mode.MIG, policies.Mode.VGPU):
        wants_mig = policy.mode is policies.Mode.MIG
        types = [entry for entry in types
                 if entry.is_mig_backed is wants_mig]
        found += [where + 'vgpu_types: ' + _unknown_type(types, text)
                  for text in policy.vgpu_types
                  if not any(entry.is_called(text) for entry in types)]
    return found


def _passthrough(gpu: model.Gpu, policy: policies.Policy
                 ) -> Iterator[Offer]:
    problem = ''
    if not gpu.in_pci_sysfs:
        problem = 'not on the PCI bus of this machine (WSL 2)'
    elif gpu.physfn is not None:
        problem = f'a virtual function of {gpu.physfn}'
    elif gpu.mig is not None and gpu.mig.enabled:
        problem = 'carved up: MIG mode is on'
    elif gpu.all_mdevs:
        problem = f'carved up: {len(gpu.all_mdevs)} mdev(s) on it'
    elif gpu.vfs or gpu.sriov_numvfs:
        problem = (f'carved up: {len(gpu.vfs) or gpu.sriov_numvfs} virtual '
                   'function(s) enabled')
    yield Offer(
        gpu=gpu.address, policy=policy.name, mode=policy.mode,
        profile=WHOLE, total=1, creatable=0 if problem else 1,
        parents=(gpu.address,), problem=problem)


def _mig(gpu: model.Gpu, policy: policies.Policy) -> Iterator[Offer]:
    if gpu.mig is None:
        problem = ('this GPU has no MIG' if gpu.visible_to_nvml else
                   f'NVML does not see this GPU (driver {gpu.driver})')
        for name in policy.profiles or (policy.mode.value,):
            yield _nothing(gpu, policy, name, problem)
        return
    types = vgpu_types.types_of(gpu)
    enabled = _enabled_profiles(gpu.mig, types, policy)
    grid = geometry.Geometry(gpu.mig.profiles)
    occupancy = grid.occupancy_of(gpu.mig.instances)
    claims = [functions.Claim(
        _capped(profile.max_instances, gpu),
        excludes_others=_excludes(grid, profile, enabled))
        for profile in enabled]
    parents = functions.assign(gpu.vfs, claims)
    for profile, claim, own in zip(enabled, claims, parents, strict=True):
        backing = vgpu_types.backing(types, profile, policy.vgpu_types)
        in_use = occupancy.counts[profile.profile_id]
        yield Offer(
            gpu=gpu.address, policy=policy.name, mode=policy.mode,
            profile=profile.name, total=claim.total, in_use=in_use,
            creatable=max(0, min(grid.creatable(occupancy, profile),
                                 claim.total - in_use, _room(gpu))),
            gi_profile_id=profile.profile_id,
            vgpu_type_id=backing.type_id if backing else None,
            parents=own, problem=_mig_problem(gpu, profile, backing))
    for name in dict.fromkeys(policy.profiles):
        if gpu.mig.profile_by_name(name) is None:
            yield _nothing(gpu, policy, name, _unknown_profile(gpu, name))


def _enabled_profiles(mig, types, policy
                      ) -> tuple[model.GpuInstanceProfile, ...]:
    """In NVML's order, which the operator's list does not change."""
    if policy.profiles:
        return tuple(profile for profile in mig.profiles
                     if profile.name in policy.profiles)
    if not any(entry.is_mig_backed for entry in types):
        return mig.profiles
    return tuple(profile for profile in mig.profiles
                 if vgpu_types.backing(types, profile) is not None)


def _excludes(grid, profile, others):
    """Whether no instance of another profile ever lies beside one."""
    return not any(
        grid.free_placements(geometry.EMPTY.add(profile, placement), other)
        for placement in profile.placements
        for other in others if other.profile_id != profile.profile_id)


def _mig_problem(gpu, profile, backing):
    if not gpu.mig.enabled:
        return ('MIG mode is off' if not gpu.mig.pending else
                'MIG mode is off until the GPU is reset')
    if gpu.framework is model.Framework.VENDOR_VFIO:
        return _VENDOR_VFIO
    if not gpu.vfs:
        return _NO_FUNCTIONS.format(gpu=gpu)
    if gpu.framework is not model.Framework.MDEV_VF:
        return 'the virtual functions have no mdev types'
    if backing is None:
        return f'no vGPU type of this GPU uses {profile.name}'
    return ''


def _vgpu(gpu: model.Gpu, policy: policies.Policy) -> Iterator[Offer]:
    if not policy.vgpu_types:
        yield _nothing(gpu, policy, policy.mode.value,
                       f'policy {policy.name} names no vgpu_types')
        return
    types = vgpu_types.time_sliced(vgpu_types.types_of(gpu))
    enabled = [entry for entry in types
               if any(map(entry.is_called, policy.vgpu_types))]
    on_gpu = gpu.framework is model.Framework.MDEV_PF
    totals = [entry.max_instances or 0 if on_gpu
              else _capped(entry.max_instances or 0, gpu)
              for entry in enabled]
    parents = functions.assign(gpu.vfs, [
        functions.Claim(total, excludes_others=True) for total in totals])
    for entry, total, own in zip(enabled, totals, parents, strict=True):
        in_use = sum(mdev.type_id == entry.type_id
                     for mdev in gpu.all_mdevs)
        available = (_available_on_gpu if on_gpu
                     else _available_on_functions)(gpu, entry)
        yield Offer(
            gpu=gpu.address, policy=policy.name, mode=policy.mode,
            profile=entry.name, total=total, in_use=in_use,
            creatable=max(0, min(total - in_use, available)),
            vgpu_type_id=entry.type_id,
            parents=(gpu.address,) if on_gpu else own,
            problem=_vgpu_problem(gpu, entry))
    for text in dict.fromkeys(policy.vgpu_types):
        if not any(entry.is_called(text) for entry in enabled):
            yield _nothing(gpu, policy, text, _unknown_type(types, text))


def _vgpu_problem(gpu, entry):
    if gpu.mig is not None and gpu.mig.enabled:
        return 'MIG mode is on: time-sliced vGPUs need it off'
    if gpu.framework is model.Framework.VENDOR_VFIO:
        return _VENDOR_VFIO
    if gpu.framework is model.Framework.NONE:
        if gpu.sriov_totalvfs and not gpu.vfs:
            return _NO_FUNCTIONS.format(gpu=gpu)
        return 'the kernel driver of this GPU makes no vGPUs'
    if not entry.max_instances:
        return f'neither NVML nor sysfs says how many {entry.name} fit'
    return ''


def _available_on_gpu(gpu, entry):
    """What the kernel says of the GPU; no limit where it was not read.

    Types exclude each other. That is known here too, because what was
    read may be older than the mdevs.
    """
    if _other_types(gpu, entry):
        return 0
    known = next((mdev_type.available for mdev_type in gpu.mdev_types
                  if mdev_type.type_id == entry.type_id), None)
    return entry.max_instances or 0 if known is None else known


def _available_on_functions(gpu, entry):
    """How many empty VFs could take one; a VF holds one vGPU at most."""
    if _other_types(gpu, entry):
        return 0
    return sum(
        mdev_type.available is None or mdev_type.available > 0
        for function in gpu.vfs if not function.mdevs
        for mdev_type in function.mdev_types
        if mdev_type.type_id == entry.type_id)


def _other_types(gpu, entry):
    return any(mdev.type_id != entry.type_id for mdev in gpu.all_mdevs)


def _off(_gpu: model.Gpu, _policy: policies.Policy) -> Iterator[Offer]:
    return iter(())


_OFFERS = {
    policies.Mode.PASSTHROUGH: _passthrough,
    policies.Mode.MIG: _mig,
    policies.Mode.VGPU: _vgpu,
    policies.Mode.OFF: _off,
}


def _capped(total: int, gpu: model.Gpu) -> int:
    """Each handle needs a VF of its own, where there are any yet."""
    return min(total, len(gpu.vfs)) if gpu.vfs else total


def _room(gpu):
    """Mdevs that the VFs can still take; no limit before there are VFs."""
    if not gpu.vfs:
        return math.inf
    return sum(not function.mdevs for function in gpu.vfs)


def _nothing(gpu, policy, profile, problem):
    return Offer(gpu=gpu.address, policy=policy.name, mode=policy.mode,
                 profile=profile, total=0, problem=problem)


def _unknown_profile(gpu, name):
    return (f'this GPU has no profile {name}; it has '
            + (', '.join(profile.name for profile in gpu.mig.profiles)
               or 'none'))


def _unknown_type(types: Sequence[vgpu_types.Type], text: str) -> str:
    return (f'this GPU has no vGPU type {text}; it has '
            + (', '.join(f'{entry.name} ({entry.type_id})'
                         for entry in types) or 'none'))
