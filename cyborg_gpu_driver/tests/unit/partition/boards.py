# SPDX-License-Identifier: Apache-2.0

"""Boards as NVML describes them, for tests.

The figures are those that ``nvidia-smi mig -lgip`` and ``-lgipp`` print on
real boards and that NVIDIA's MIG user guide gives.
"""

import dataclasses

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry


def profile(profile_id, name, memory_mib, maximum, starts, size,
            multiprocessors, engines=()):
    """A profile that has as many slices as its name says.

    :param engines: decoders, encoders, JPEG engines and OFAs.
    """
    slices = int(name.split('g.')[0])
    return model.GpuInstanceProfile(
        profile_id=profile_id, name=name, slices=slices,
        memory_mib=memory_mib, max_instances=maximum,
        placements=tuple(model.Placement(start, size) for start in starts),
        multiprocessors=multiprocessors,
        engines=model.Engines(*engines))


def _eight_units(names, memory, multiprocessors, decoders, jpeg):
    """The profiles of 8 units and 7 slices; all such boards have these ids.

    :param memory: MiB of 1g, 1g of double memory, 2g, 3g and 4g, 7g.
    """
    one, double, two, half, whole = memory
    rows = (
        (19, one, 7, range(7), 1, 0),
        (20, one, 1, range(7), 1, 1),
        (15, double, 4, (0, 2, 4, 6), 2, 0),
        (14, two, 3, (0, 2, 4), 2, 0),
        (9, half, 2, (0, 4), 4, 0),
        (5, half, 1, (0,), 4, 0),
        (0, whole, 1, (0,), 8, 1),
    )
    return tuple(
        profile(profile_id, name, memory_mib, maximum, starts, size,
                processors, (decode, 0, pictures, flow))
        for (profile_id, memory_mib, maximum, starts, size, flow), name,
        processors, decode, pictures in zip(
            rows, names, multiprocessors, decoders, jpeg, strict=True))


_A100_ENGINES = ((0, 1, 1, 1, 2, 2, 5), (0, 1, 0, 0, 0, 0, 1))
_H100_ENGINES = ((1, 1, 1, 2, 3, 4, 7),) * 2
_A100_SMS = (14, 14, 14, 28, 42, 56, 98)
_H100_SMS = (16, 16, 26, 32, 60, 64, 132)

A100_40 = _eight_units(
    ('1g.5gb', '1g.5gb+me', '1g.10gb', '2g.10gb', '3g.20gb', '4g.20gb',
     '7g.40gb'),
    (4864, 9856, 9856, 19968, 40192), _A100_SMS, *_A100_ENGINES)
A100_80 = _eight_units(
    ('1g.10gb', '1g.10gb+me', '1g.20gb', '2g.20gb', '3g.40gb', '4g.40gb',
     '7g.80gb'),
    (9856, 19968, 19968, 40192, 80384), _A100_SMS, *_A100_ENGINES)
H100_80 = _eight_units(
    ('1g.10gb', '1g.10gb+me', '1g.20gb', '2g.20gb', '3g.40gb', '4g.40gb',
     '7g.80gb'),
    (9984, 20096, 20096, 40448, 81152), _H100_SMS, *_H100_ENGINES)
H200_141 = _eight_units(
    ('1g.18gb', '1g.18gb+me', '1g.35gb', '2g.35gb', '3g.71gb', '4g.71gb',
     '7g.141gb'),
    (16384, 33280, 33280, 71424, 143360), _H100_SMS, *_H100_ENGINES)

A30 = (
    profile(14, '1g.6gb', 5952, 4, range(4), 1, 14),
    profile(21, '1g.6gb+me', 5952, 1, range(4), 1, 14, (1, 0, 1, 1)),
    profile(5, '2g.12gb', 11968, 2, (0, 2), 2, 28, (2, 0, 0, 0)),
    profile(6, '2g.12gb+me', 11968, 1, (0, 2), 2, 28, (2, 0, 1, 1)),
    profile(0, '4g.24gb', 24000, 1, (0,), 4, 56, (4, 0, 1, 1)),
)

_QUARTERS = (0, 3, 6, 9)
_HALVES = (0, 6)
RTX_PRO_6000 = (
    profile(14, '1g.24gb', 24192, 4, _QUARTERS, 3, 46, (1, 1, 1, 0)),
    profile(21, '1g.24gb+me', 24192, 1, _QUARTERS, 3, 46, (1, 1, 1, 1)),
    profile(47, '1g.24gb+gfx', 24192, 4, _QUARTERS, 3, 46, (1, 1, 1, 0)),
    profile(65, '1g.24gb+me.all', 24192, 1, _QUARTERS, 3, 46,
            (4, 4, 4, 1)),
    profile(67, '1g.24gb-me', 24192, 4, _QUARTERS, 3, 46),
    profile(5, '2g.48gb', 48512, 2, _HALVES, 6, 94, (2, 2, 2, 0)),
    profile(35, '2g.48gb+gfx', 48512, 2, _HALVES, 6, 94, (2, 2, 2, 0)),
    profile(64, '2g.48gb+me.all', 48512, 1, _HALVES, 6, 94, (4, 4, 4, 1)),
    profile(66, '2g.48gb-me', 48512, 2, _HALVES, 6, 94),
    profile(0, '4g.96gb', 97280, 1, (0,), 12, 188, (4, 4, 4, 1)),
    profile(32, '4g.96gb+gfx', 97280, 1, (0,), 12, 188, (4, 4, 4, 1)),
)

ALL = {
    'A100-40': A100_40, 'A100-80': A100_80, 'H100-80': H100_80,
    'H200-141': H200_141, 'A30': A30, 'RTX PRO 6000': RTX_PRO_6000,
}
"""Profiles by board."""

BASE = {
    'A100-40': ('1g.5gb', '2g.10gb', '3g.20gb', '4g.20gb', '7g.40gb'),
    'A100-80': ('1g.10gb', '2g.20gb', '3g.40gb', '4g.40gb', '7g.80gb'),
    'H100-80': ('1g.10gb', '2g.20gb', '3g.40gb', '4g.40gb', '7g.80gb'),
    'H200-141': ('1g.18gb', '2g.35gb', '3g.71gb', '4g.71gb', '7g.141gb'),
    'A30': ('1g.6gb', '2g.12gb', '4g.24gb'),
    'RTX PRO 6000': ('1g.24gb', '2g.48gb', '4g.96gb'),
}
"""The plain profiles by board."""


def named(profiles, *names):
    """The profiles with those names, in the order of ``names``."""
    by_name = {profile.name: profile for profile in profiles}
    return tuple(by_name[name] for name in names)


def states(grid, profiles=None, occupancy=geometry.EMPTY, first=0):
    """Yield every occupancy that the rules allow, each once."""
    yield occupancy
    for profile in grid.profiles if profiles is None else profiles:
        for placement in grid.free_placements(occupancy, profile):
            if placement.start >= first:
                yield from states(
                    grid, profiles, occupancy.add(profile, placement),
                    placement.start + placement.size)


def multiset(occupancy):
    """The instances as (profile id, count) pairs, ordered by id."""
    return tuple(sorted(occupancy.counts.items()))


def packable(grid, profiles=None):
    """Every non-empty multiset of instances that fits on the GPU."""
    return set(map(multiset, states(grid, profiles))) - {()}


def gpu(profiles, live=(), enabled=True, **fields):
    """A GPU with a MIG grid.

    :param live: its GPU instances, as (profile name, start).
    """
    instances = []
    for number, (name, start) in enumerate(live, start=7):
        profile, = named(profiles, name)
        placement = next(place for place in profile.placements
                         if place.start == start)
        instances.append(model.GpuInstance(
            placement, profile.profile_id, number))
    return model.Gpu(**{
        'address': model.PciAddress(0, 7, 0, 0), 'vendor_id': '10de',
        'device_id': '20b2', 'class_code': '0302', 'driver': 'nvidia',
        'iommu_group': 41, 'visible_to_nvml': True,
        'mig': model.Mig(enabled=enabled, pending=enabled,
                         profiles=profiles, instances=tuple(instances)),
        **fields})


def without_placements(gpu):
    """The same GPU with a driver that lists no placements."""
    return dataclasses.replace(gpu, mig=dataclasses.replace(
        gpu.mig, profiles=tuple(
            dataclasses.replace(profile, placements=())
            for profile in gpu.mig.profiles)))


def vfs(count, mdev_types=(), used=()):
    """Virtual functions of the GPU that :func:`gpu` makes.

    :param used: mdev type ids of the mdevs on the first functions.
    """
    result = []
    for index in range(count):
        address = model.PciAddress(
            0, 7, (4 + index) // 8, (4 + index) % 8)
        mdevs = tuple(model.Mdev(f'mdev-{index}', address, type_id)
                      for type_id in used[index:index + 1])
        result.append(model.VirtualFunction(
            address=address, index=index, driver='nvidia',
            iommu_group=100 + index, mdev_types=tuple(mdev_types),
            mdevs=mdevs))
    return tuple(result)
