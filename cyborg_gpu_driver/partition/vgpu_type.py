# SPDX-License-Identifier: Apache-2.0

"""The vGPU types of a GPU, where they fit, and on which virtual function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import names
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import vgpu_name

# The vGPU types of a GPU: the facts of NVML and sysfs combined.


def is_mig_backed(entry: model.VgpuType) -> bool:
    """Whether it needs a GPU instance; by name if NVML does not say."""
    if entry.gi_profile_id is not None:
        return True
    named = parsed(entry.name)
    return named is not None and named.slices is not None


@functools.lru_cache(1024)
def parsed(text: str) -> names.VgpuTypeName | None:
    """Return the parts of a type's name; None for a name of unknown form."""
    try:
        return names.VgpuTypeName.parse(text)
    except exception.InvalidValue:
        return None


def by_id(gpu: model.Gpu) -> dict[str, model.VgpuType]:
    """Return every type of a GPU by its mdev type, in order of the numbers.

    NVML knows the maximum and the instance profile. sysfs provides the types
    that NVML does not list.
    """
    found: dict[str, model.VgpuType] = {}
    for offered in (gpu.mdev_types, *(vf.mdev_types for vf in gpu.vfs)):
        for entry in offered:
            # A host can have 64 VFs with 100 types each.
            if entry.type_id not in found:
                found[entry.type_id] = model.VgpuType(
                    vgpu_name.type_number(entry.type_id), entry.name, '',
                    entry.framebuffer_mib or 0, entry.max_instances)
    found.update((known.mdev_type_id, known) for known in gpu.vgpu_types)
    return dict(sorted(found.items(), key=lambda item: item[1].type_id))


def types_of(gpu: model.Gpu) -> tuple[model.VgpuType, ...]:
    """Return every type of a GPU, in order of the numbers."""
    return tuple(by_id(gpu).values())


def name(types: Mapping[str, model.VgpuType], type_id: str) -> str:
    """Return a type's name, for people.

    :returns: ``type_id`` itself if the GPU has no such type.
    """
    return types[type_id].name if type_id in types else type_id


def of_mode(gpu: model.Gpu, mode: policy.Mode) -> tuple[model.VgpuType, ...]:
    """Return the types of a GPU that can be created in a mode."""
    wants_mig = mode is policy.Mode.MIG
    return tuple(entry for entry in types_of(gpu)
                 if is_mig_backed(entry) is wants_mig)


def unknown(types: Iterable[model.VgpuType], text: str) -> str:
    """Return a sentence that names the types that the GPU has instead."""
    return (f'this GPU has no vGPU type {text}; it has '
            + (', '.join(f'{entry.name} ({entry.mdev_type_id})'
                         for entry in types) or 'none'))


def most(entry: model.VgpuType, rules: policy.Policy) -> int | None:
    """Return how many of a type one GPU takes, if any source says."""
    told = (entry.max_instances, rules.at_most(entry.name, entry.mdev_type_id))
    return min(filter(None, told), default=None)


def using(types: Iterable[model.VgpuType], profile: model.GpuInstanceProfile
          ) -> tuple[model.VgpuType, ...]:
    """Return the types whose vGPUs lie on instances of ``profile``."""
    return tuple(entry for entry in types if _uses(entry, profile))


def filling(types: Iterable[model.VgpuType], profile: model.GpuInstanceProfile
            ) -> tuple[model.VgpuType, ...]:
    """Return those of :func:`using` that take a whole instance.

    A type that fits an instance only once does, and so does the largest.
    """
    there = using(types, profile)
    largest = max((entry.framebuffer_mib for entry in there), default=0)
    return tuple(entry for entry in there if entry.per_instance in (None, 1)
                 or entry.framebuffer_mib == largest)


def backing(types: Iterable[model.VgpuType], profile: model.GpuInstanceProfile,
            preferred: Sequence[str] = ()) -> model.VgpuType | None:
    """Return the type that a handle for ``profile`` asks for.

    Several types may fill an instance of a profile, with other framebuffer
    sizes or other series. The first that ``preferred`` names is chosen.
    Otherwise it is the one with the largest framebuffer, and among equals
    the first in the order of :data:`names.SERIES`.

    :param preferred: names (A100-1-5C) or mdev types (nvidia-474).
    :returns: None if no type uses the profile.
    """
    fitting = filling(types, profile)
    for text in preferred:
        for entry in fitting:
            if entry.is_called(text):
                return entry
    return min(fitting, key=_preference, default=None)


def _uses(entry: model.VgpuType, profile: model.GpuInstanceProfile) -> bool:
    if entry.gi_profile_id is not None or not is_mig_backed(entry):
        return entry.gi_profile_id == profile.profile_id
    # NVML does not say: a type as large as the instance, named alike.
    try:
        wanted = names.ProfileName.parse(profile.name)
    except exception.InvalidValue:
        return False
    suffix = ''.join(sorted(wanted.attributes)).upper()
    suffix = suffix.replace('-', 'NO').replace('+', '').replace('.', '')
    named = parsed(entry.name)
    return named is not None and (
        (named.slices, named.framebuffer_gb, named.suffix)
        == (wanted.slices, wanted.memory_gb, suffix))


def _preference(entry: model.VgpuType) -> tuple[int, int, int]:
    named = parsed(entry.name)
    series = (names.SERIES.index(named.series) if named
              else len(names.SERIES))
    return -entry.framebuffer_mib, series, entry.type_id


# Where the next vGPU goes on a GPU of mixed sizes: pure.
#
# A placement id is the start of a vGPU in the GPU's framebuffer, in slots. A
# type has a few possible ones (vGPU user guide, mixed-size mode). A type
# corresponds to a GPU instance profile of MIG, so the same geometry counts the
# remaining room.

def choose(types: Iterable[model.VgpuType], wanted: model.VgpuType,
           taken: Iterable[model.Placement] = ()) -> int | None:
    """Return the placement id that leaves the most room for later requests.

    The room for the largest type counts first: a small vGPU fits in many
    places, a large one in few. If placements are equal, the lowest id wins.

    :param types: the types that may be requested, with or without
        ``wanted``; their free places come from their ``free_placements``.
    :param taken: other places that are reserved, start and size in slots.
    :returns: None if there is no place for it.
    """
    taken = tuple(taken)
    mine = _profile(wanted, taken)
    grid = geometry.Geometry(sorted(
        {mine, *(_profile(entry, taken) for entry in types)},
        key=lambda profile: (-profile.slices, profile.placements)))
    place = max(mine.placements, default=None, key=lambda place: (
        [grid.creatable(geometry.EMPTY.add(mine, place), profile)
         for profile in grid.profiles], -place.start))
    return None if place is None else place.start


def _profile(entry: model.VgpuType, taken: Iterable[model.Placement]
             ) -> model.GpuInstanceProfile:
    """Return a type as a profile on a grid of slots, with its free places.

    Types of one size are equal, whatever their series.
    """
    size = entry.placement_size or 0
    places = tuple(
        place for place in (model.Placement(start, size)
                            for start in entry.free_placements or ())
        if not any(place.mask & other.mask for other in taken))
    return model.GpuInstanceProfile(
        profile_id=size, name=str(size), slices=size,
        memory_mib=entry.framebuffer_mib, max_instances=len(places),
        placements=places)


# Which handle names which virtual function.
#
# Cyborg keeps a handle forever, so the answer depends on the GPU and the
# policy alone, never on what is in use.
#
# The driver creates a vGPU on the function that its handle names, because Nova
# looks for it there. Nova 34 asks libvirt for the node device
# ``mdev_<uuid>_<address of the handle's function>``, and creates an mdev of
# the same UUID on that function if there is none (nova/virt/libvirt/driver.py,
# ``_allocate_cyborg_mdevs``). Without mdev the guest gets the function itself.
# So handles that can be bound at the same time must name different functions.

@dataclasses.dataclass(frozen=True)
class Demand:
    """The functions that one offer needs."""

    total: int
    """The most vGPUs of the offer that the GPU can have."""
    group: Hashable = None
    """Demands of different groups are never on the GPU at the same time."""


def assign(vfs: Iterable[model.VirtualFunction], demands: Sequence[Demand]
           ) -> tuple[tuple[model.PciAddress, ...], ...]:
    """Return the functions of each demand, in the order of ``demands``.

    No two demands of a group share a function. If a group has too few, its
    smallest demands are served first, and the last ones get the rest. Groups
    share functions with each other only if there are too few for all.
    """
    addresses = [function.address for function in
                 sorted(vfs, key=lambda function: function.index)]
    groups: dict[Hashable, list[int]] = {}
    for number, demand in enumerate(demands):
        groups.setdefault(demand.group, []).append(number)
    given: dict[int, tuple[model.PciAddress, ...]] = {}
    first = 0
    # A demand alone in its group needs the fewest functions, so it comes
    # last: then the others more likely get functions of their own.
    for members in sorted(groups.values(), key=lambda group: len(group) < 2):
        totals = _limited(demands, members, len(addresses))
        start = first
        if start + sum(totals.values()) > len(addresses):
            start = 0
        else:
            first += sum(totals.values())
        for number in members:
            given[number] = tuple(addresses[start:start + totals[number]])
            start += totals[number]
    return tuple(given[number] for number in range(len(demands)))


def _limited(demands: Sequence[Demand], members: Sequence[int], left: int
             ) -> dict[int, int]:
    """Return how many functions each demand of a group gets."""
    totals = {}
    for number in sorted(members, key=lambda number: demands[number].total):
        totals[number] = min(demands[number].total, left)
        left -= totals[number]
    return totals


def empty(gpu: model.Gpu, own: Collection[model.PciAddress],
          type_id: str | None = None) -> tuple[model.VirtualFunction, ...]:
    """Return the functions of an offer that can take a vGPU, one each.

    A function that could not be read takes none. The driver counts what is
    on it: the lists of the other functions have only what fits beside it.

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
