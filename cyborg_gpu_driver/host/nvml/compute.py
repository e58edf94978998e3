# SPDX-License-Identifier: Apache-2.0

"""Compute instances: the parts of a GPU instance.

They are read and changed through a
:class:`~cyborg_gpu_driver.host.nvml.session.NvmlSession`. Placements are in
compute slices of the GPU instance (nvmlComputeInstancePlacement_t).
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model


@dataclasses.dataclass(frozen=True, order=True)
class Profile:
    """A compute instance profile of one GPU instance profile."""

    slices: int
    profile_id: int
    max_instances: int


class ComputeReader:
    """Reads and changes the compute instances of one machine.

    The compute instance profiles of a GPU instance profile are read once per
    session and GPU.
    """

    def __init__(self, nvml: nvml_module.NvmlSession):
        self.nvml = nvml
        self._profiles: dict[tuple[model.PciAddress, int],
                             tuple[Profile, ...]] = {}
        self._generation = 0

    @gate.series
    def instances(self, address: model.PciAddress,
                  instance: model.GpuInstance, handle: Any
                  ) -> tuple[model.ComputeInstance, ...]:
        """Return the live compute instances of a GPU instance, by start.

        :raises NvmlError: INVALID_ARGUMENT if the GPU instance is gone.
        """
        found = []
        profiles = self._profiles_of(address, instance.profile_id, handle)
        for profile in profiles:
            found.extend(self._of_profile(handle, profile))
            if sum(item.size for item in found) >= profiles[0].slices:
                # The GPU instance is full; the largest profile spans it.
                break
        return tuple(sorted(found))

    @gate.series
    def create(self, address: model.PciAddress, profile_id: int,
               instance_id: int, start: int | None, slices: int
               ) -> model.ComputeInstance:
        """Create a compute instance and read it back.

        :param start: compute slice of the GPU instance at which it begins;
            None leaves the choice to the driver.
        :raises NvmlError: INSUFFICIENT_RESOURCES if a slice is taken.
        :raises InvalidValue: if the GPU instance has no profile with this
            number of slices.
        """
        handle = self._handle(address, instance_id)
        profiles = self._profiles_of(address, profile_id, handle)
        for profile in profiles:
            if profile.slices == slices:
                break
        else:
            raise exception.InvalidValue(
                what='compute slices', value=slices,
                expected='this GPU instance has compute instances of '
                + ', '.join(str(known.slices) for known in profiles))
        if start is None:
            return self._info(self.nvml.call(
                'nvmlGpuInstanceCreateComputeInstance', handle,
                profile.profile_id))
        asked = pynvml.c_nvmlComputeInstancePlacement_t(start, slices)
        return self._info(self.nvml.call(
            'nvmlGpuInstanceCreateComputeInstanceWithPlacement', handle,
            profile.profile_id, ctypes.byref(asked)))

    @gate.series
    def destroy(self, address: model.PciAddress, instance_id: int,
                compute_id: int) -> None:
        """Destroy a compute instance.

        :raises NvmlError: NOT_FOUND; IN_USE if a process runs on it.
        """
        self.nvml.call('nvmlComputeInstanceDestroy', self.nvml.call(
            'nvmlGpuInstanceGetComputeInstanceById',
            self._handle(address, instance_id), compute_id))

    def _handle(self, address: model.PciAddress, instance_id: int) -> Any:
        return self.nvml.gpu_instance(self.nvml.device(address), instance_id)

    def _profiles_of(self, address: model.PciAddress, profile_id: int,
                     handle: Any) -> tuple[Profile, ...]:
        """Profiles, the largest first: often only the largest is in use.

        Of several profiles with the same number of slices, the first that
        NVML lists counts. The others are the same with media engines.
        """
        if self._generation != self.nvml.generation:
            self._generation = self.nvml.generation
            self._profiles = {}
        key = (address, profile_id)
        if key not in self._profiles:
            by_slices: dict[int, Profile] = {}
            for info in self.nvml.compute_profiles(handle):
                by_slices.setdefault(info.sliceCount, Profile(
                    info.sliceCount, info.id, info.instanceCount))
            self._profiles[key] = tuple(sorted(by_slices.values(),
                                               reverse=True))
        return self._profiles[key]

    def _of_profile(self, handle: Any, profile: Profile
                    ) -> list[model.ComputeInstance]:
        return [self._info(found) for found in self.nvml.handles(
            'nvmlGpuInstanceGetComputeInstances', handle, profile.profile_id,
            pynvml.c_nvmlComputeInstance_t, profile.max_instances)]

    def _info(self, handle: Any) -> model.ComputeInstance:
        info = self.nvml.call('nvmlComputeInstanceGetInfo', handle)
        return model.ComputeInstance(
            start=info.placement.start, size=info.placement.size,
            compute_id=info.id)
