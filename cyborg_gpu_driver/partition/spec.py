# SPDX-License-Identifier: Apache-2.0

"""Specifications of MIG instances and vGPUs: for records, plans, layouts.

A specification says what an instance is and where it lies. It never has an
id or a UUID, because the driver assigns new ones each time it creates an
instance. The live instance (:class:`~cyborg_gpu_driver.host.snapshot.model.
GpuInstance`) comes from NVML alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import vgpu_name


@dataclasses.dataclass(frozen=True, order=True)
class MigInstanceSpec:
    """A GPU instance at a placement, with its compute instances."""

    placement: model.Placement
    profile_id: int
    """GPU instance profile id as NVML numbers it on that board."""
    compute: tuple[tuple[int, int], ...] = ()
    """(start, size) of each compute instance in compute slices, sorted."""

    @property
    def bare(self) -> MigInstanceSpec:
        """The GPU instance alone; equal whatever its compute instances are."""
        return MigInstanceSpec(self.placement, self.profile_id)

    def __str__(self) -> str:
        return f'profile {self.profile_id} at {self.placement}'


@dataclasses.dataclass(frozen=True)
class MigLayout:
    """MIG mode and GPU instances of one GPU."""

    enabled: bool
    """Current MIG mode."""
    pending: bool
    """MIG mode after the next reset."""
    instances: tuple[MigInstanceSpec, ...] = ()
    """By placement."""

    @property
    def bare(self) -> frozenset[MigInstanceSpec]:
        """The GPU instances without their compute instances."""
        return frozenset(item.bare for item in self.instances)


@dataclasses.dataclass(frozen=True, order=True)
class VgpuSpec:
    """A vGPU on a function of a GPU."""

    function: model.PciAddress
    """The GPU, or a virtual function of it."""
    type_id: Annotated[str, vgpu_name.mdev_type]
    """``nvidia-474``."""
    uuid: Annotated[str, vgpu_name.handle] | None = None
    """UUID of the mdev; None for a vGPU of NVIDIA's own VFIO driver."""
    placement_id: int | None = None
    """Placement id, on a GPU of mixed sizes; None elsewhere."""
    name: str = dataclasses.field(default='', compare=False)
    """The type's name, L40S-12Q, for people; may be empty."""

    def __str__(self) -> str:
        return f'{self.name or self.type_id} on {self.function}'


def profile(gpu: model.Gpu, profile_id: int | None
            ) -> model.GpuInstanceProfile | None:
    """Return the GPU instance profile with an id; None if there is none."""
    if gpu.mig is None or profile_id is None:
        return None
    return gpu.mig.profile_by_id(profile_id)


def profile_name(mig: model.Mig, profile_id: int) -> str:
    """Return the name of a GPU instance profile, for people.

    :returns: ``profile 99`` if NVML does not list the profile.
    """
    found = mig.profile_by_id(profile_id)
    return found.name if found else f'profile {profile_id}'


def of(instance: model.GpuInstance) -> MigInstanceSpec:
    """Return the specification of an instance, without compute instances."""
    return MigInstanceSpec(instance.placement, instance.profile_id)


def missing(mig: model.Mig, wanted: Iterable[MigInstanceSpec]
            ) -> tuple[MigInstanceSpec, ...]:
    """Return the GPU instances that do not exist, by placement.

    They are compared by placement and profile, because an instance that is
    being created has no id yet.
    """
    return tuple(sorted({item.bare for item in wanted}
                        - {of(instance) for instance in mig.instances}))


def in_full(instance: model.GpuInstance) -> MigInstanceSpec:
    """Return the specification of one whose compute instances were read."""
    return dataclasses.replace(of(instance), compute=tuple(sorted(
        (part.start, part.size) for part in instance.compute)))


def layout_of(gpu: model.Gpu) -> MigLayout:
    """Return the layout of a GPU whose compute instances have been read."""
    if gpu.mig is None:
        return MigLayout(False, False)
    return MigLayout(gpu.mig.enabled, gpu.mig.pending,
                     tuple(sorted(map(in_full, gpu.mig.instances))))
