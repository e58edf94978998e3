# SPDX-License-Identifier: Apache-2.0

"""What a GPU in MIG mode offers: MIG-backed vGPUs. Pure.

If a type fills its GPU instance, the offer has the name of the instance's
profile. If an instance holds several vGPUs of a type, the offer has the
type's own name. The instances of all offers compete for the same units, and
an instance holds vGPUs of one framebuffer size only: this library does not
turn on the mixed-size mode of GPU instances
(nvmlGpuInstanceSetVgpuHeterogeneousMode, from driver 575 on).

The counts of what is in use must add up. An offer of whole instances counts
every instance of its profile as in use, including one that carries shared
vGPUs, because that instance is not available to it. An offer of a shared type
counts its own vGPUs. Every offer's ``creatable`` is at most its total minus
what it has in use, and that includes what is bound through the offer. So a
provider's ``reserved`` (total minus bound minus creatable) is never negative,
and what Placement has left is exactly what is creatable.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_type
from cyborg_gpu_driver.partition.offer import offer


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The profile and vGPU type of one offer."""

    profile: model.GpuInstanceProfile
    backing: model.VgpuType | None
    """None if no type of the GPU uses the profile."""
    shared: bool
    """Whether an instance holds several vGPUs."""

    @property
    def sharing(self) -> model.VgpuType | None:
        """The type of which an instance holds several vGPUs, if it does."""
        return self.backing if self.shared else None

    @property
    def name(self) -> str:
        return self.sharing.name if self.sharing else self.profile.name

    @property
    def per_instance(self) -> int:
        return (self.sharing and self.sharing.per_instance) or 1


def offers(gpu: model.Gpu, policy: policies.Policy,
           held: Sequence[offer.Held]) -> Iterator[offer.Offer]:
    """Yield one offer for each profile and each shared type that is enabled.

    :param held: which vGPUs of this driver lie on which instance. An
        instance that is not among them belongs to another tool; no room on it
        is offered. The place of one that is missing is not offered either.
    """
    if gpu.mig is None:
        problem = ('this GPU does not support MIG' if gpu.visible_to_nvml else
                   f'NVML does not list this GPU (driver {gpu.driver})')
        for name in policy.profiles or (policy.mode.value,):
            yield offer.nothing(gpu, policy, name, problem)
        return
    types = vgpu_type.of_mode(gpu, policy.mode)
    kinds = _kinds(gpu.mig, types, policy)
    room = _Room(gpu, gpu.mig, types, held)
    for kind, most, own in _handles(gpu, gpu.mig, policy, kinds):
        total = len(own) if gpu.vfs else most
        in_use = room.in_use(kind)
        yield offer.Offer(
            gpu=gpu.address, policy=policy.name, mode=policy.mode,
            profile=kind.name, total=total, in_use=in_use,
            creatable=max(0, min(room.creatable(kind, own),
                                 total - in_use)),
            gi_profile_id=kind.profile.profile_id,
            vgpu_type_id=(kind.backing.mdev_type_id
                          if kind.backing else None),
            parents=own, framework=gpu.framework,
            per_instance=kind.per_instance,
            framebuffer_mib=(kind.backing.framebuffer_mib
                             if kind.backing else 0),
            isolated=policy.isolated,
            problem=_problem(gpu, gpu.mig, kind, policy)
            or ('' if total else offer.no_function_left(policy)))
    yield from _unknown(gpu, gpu.mig, policy, types)


def short_of_functions(gpu: model.Gpu, policy: policies.Policy
                       ) -> list[str]:
    """Describe the offers with fewer attach handles than the GPU could carry.

    An example is an A100 of 40 GB whose driver has A100X-1-10C for 1g.10gb
    (g_nv_name_released.h in NVIDIA's open kernel modules lists it). Users
    see 16 virtual functions on that board; NVIDIA publishes no number.

    :returns: a sentence for each such offer.
    """
    if gpu.mig is None:
        return []
    types = vgpu_type.of_mode(gpu, policy.mode)
    return [f'{kind.name} has {len(own)} of {most} attach handles, because '
            'each handle that can be bound at the same time needs a virtual '
            f'function, and this GPU has {len(gpu.vfs)}; name fewer profiles '
            'to get all handles'
            for kind, most, own in _handles(
                gpu, gpu.mig, policy, _kinds(gpu.mig, types, policy))
            if 0 < len(own) < most]


def unknown_profile(mig: model.Mig, name: str) -> str:
    """Return a sentence that names the profiles that the GPU has instead."""
    return (f'this GPU has no profile {name}; it has '
            + (', '.join(profile.name for profile in mig.profiles)
               or 'none'))


def _unknown(gpu: model.Gpu, mig: model.Mig, policy: policies.Policy,
             types: Sequence[model.VgpuType]) -> Iterator[offer.Offer]:
    """Yield an offer for each name in the policy that the GPU lacks.

    If the policy names profiles, a type only says how one of them is
    backed, provided that the GPU has the type.
    """
    for name in dict.fromkeys(policy.profiles):
        if mig.profile_by_name(name) is None:
            yield offer.nothing(gpu, policy, name,
                                unknown_profile(mig, name))
    for text in () if policy.profiles else dict.fromkeys(policy.vgpu_types):
        if not any(entry.is_called(text) for entry in types):
            yield offer.nothing(gpu, policy, text,
                                vgpu_type.unknown(types, text))


def _kinds(mig: model.Mig, types: Sequence[model.VgpuType],
           policy: policies.Policy) -> tuple[_Kind, ...]:
    """Return the kinds in NVML's order, whatever the order of the policy."""
    return tuple(kind for profile in mig.profiles
                 for kind in _kinds_of(profile, types, policy))


def _kinds_of(profile: model.GpuInstanceProfile,
              types: Sequence[model.VgpuType], policy: policies.Policy
              ) -> Iterator[_Kind]:
    named = [entry for entry in vgpu_type.using(types, profile)
             if any(map(entry.is_called, policy.vgpu_types))]
    filling = vgpu_type.filling(types, profile)
    if policy.profiles:
        whole = profile.name in policy.profiles
    elif policy.vgpu_types:
        whole = any(entry in filling for entry in named)
    else:
        whole = bool(filling) or not types
    if whole:
        yield _Kind(profile, vgpu_type.backing(
            types, profile, policy.vgpu_types), False)
    for entry in named:
        if entry not in filling:
            yield _Kind(profile, entry, True)


def _total(policy: policies.Policy, kind: _Kind) -> int:
    told = [kind.profile.max_instances * kind.per_instance,
            vgpu_type.most(kind.backing, policy) if kind.backing else None]
    return min(filter(None, told), default=0)


def _handles(gpu: model.Gpu, mig: model.Mig, policy: policies.Policy,
             kinds: tuple[_Kind, ...]
             ) -> Iterator[tuple[_Kind, int, tuple[model.PciAddress, ...]]]:
    """Yield each kind, the most that the GPU can have, and its functions."""
    demands = [vgpu_type.Demand(_total(policy, kind), group)
               for kind, group in zip(kinds, _groups(mig.profiles, kinds),
                                      strict=True)]
    for kind, demand, own in zip(
            kinds, demands, vgpu_type.assign(gpu.vfs, demands), strict=True):
        yield kind, demand.total, own


def _problem(gpu: model.Gpu, mig: model.Mig, kind: _Kind,
             policy: policies.Policy) -> str:
    if not mig.enabled:
        return ('MIG mode is off; it will be turned on when the GPU is idle'
                if not mig.pending else
                'MIG mode is off until the GPU is reset')
    if not gpu.vfs:
        return offer.NO_FUNCTIONS
    if kind.backing is None:
        return f'no vGPU type of this GPU uses {kind.profile.name}'
    return offer.unreported(gpu, policy)


class _Room:
    """The instances and vGPUs on a GPU, and the room that they leave."""

    def __init__(self, gpu: model.Gpu, mig: model.Mig,
                 types: Iterable[model.VgpuType],
                 held: Sequence[offer.Held]) -> None:
        self._gpu = gpu
        self._instances = mig.instances
        self._grid = geometry.of_grid(mig.profiles).grid
        self._occupancy = self._grid.occupancy_of(mig.instances)
        self._types = {entry.mdev_type_id: entry for entry in types}
        self._held = collections.defaultdict(list)
        for item in held:
            if item.exists:
                self._held[item.instance].append(item.type_id)
        self._taken = self._grid.occupancy_of(
            (*mig.instances, *spec.missing(
                mig, (item.instance for item in held))))

    def in_use(self, kind: _Kind) -> int:
        if kind.sharing:
            return sum(vgpu.type_id == kind.sharing.mdev_type_id
                       for vgpu in self._gpu.vgpus)
        return self._occupancy.counts[kind.profile.profile_id]

    def creatable(self, kind: _Kind, own: Sequence[model.PciAddress]) -> int:
        """Return how many more of a kind can be created."""
        fitting = kind.per_instance * self._grid.creatable(
            self._taken, kind.profile)
        if kind.sharing:
            fitting += sum(self._spare(instance, kind.sharing)
                           for instance in self._instances
                           if instance.profile_id
                           == kind.profile.profile_id)
        if not self._gpu.vfs:
            return fitting
        return min(fitting, len(vgpu_type.empty(self._gpu, own)))

    def _spare(self, instance: model.GpuInstance, entry: model.VgpuType
               ) -> int:
        """Return how many more of a type an instance of this driver takes."""
        there = self._held[spec.of(instance)]
        sizes = {self._types[type_id].framebuffer_mib
                 if type_id in self._types else None for type_id in there}
        if sizes != {entry.framebuffer_mib}:
            return 0
        told = sum(vgpu.instance_id == instance.instance_id
                   for vgpu in self._gpu.vgpus)
        return max(0, (entry.per_instance or 1) - max(len(there), told))


@functools.lru_cache(256)
def _groups(profiles: tuple[model.GpuInstanceProfile, ...],
            kinds: tuple[_Kind, ...]) -> tuple[int, ...]:
    """Return a group number per kind; different groups never coexist."""
    grid = geometry.of_grid(profiles).grid
    groups = list(range(len(kinds)))
    for one, other in itertools.combinations(range(len(kinds)), 2):
        if (groups[one] != groups[other]
                and _coexist(grid, kinds[one], kinds[other])):
            joined = groups[other]
            groups = [groups[one] if group == joined else group
                      for group in groups]
    return tuple(groups)


def _coexist(grid: geometry.Geometry, one: _Kind, other: _Kind) -> bool:
    if (one.profile is other.profile and one.sharing and other.sharing
            and one.sharing.framebuffer_mib == other.sharing.framebuffer_mib):
        return True
    return any(grid.free_placements(
        geometry.EMPTY.add(one.profile, placement), other.profile)
        for placement in one.profile.placements)
