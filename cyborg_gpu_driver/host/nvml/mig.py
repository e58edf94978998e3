# SPDX-License-Identifier: Apache-2.0

"""GPU instances and compute instances through a session with NVML."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import pynvml

from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model

INSTANCE_LIMIT = 64
"""Room in a list of instances. nvmlDeviceGetGpuInstances writes all instances
without checking the size of the array. No GPU has more instances than its grid
has units, and the largest known grid has twelve units."""


class MigCalls:
    """The MIG calls of a session; a base class of NvmlSession."""

    call: Callable[..., Any]
    belongs: Callable[[Any, Any], None]
    uuid: Callable[[Any], str]

    def mig_mode(self, device: Any) -> tuple[bool, bool]:
        """Return the current and the pending MIG mode.

        :raises NvmlError: maybe NOT_SUPPORTED if MIG mode is off. An H100
            and an H200 with driver 580.159.04 then have none.
        """
        current, pending = self.call('nvmlDeviceGetMigMode', device)
        return bool(current), bool(pending)

    def set_mig_mode(self, device: Any, enable: bool) -> str:
        """Set the MIG mode; the change may be pending until a reset.

        :returns: the activation status ``SUCCESS``, ``RESET_REQUIRED`` or
            ``IN_USE``; read :meth:`mig_mode` again in any case.
        """
        activation = self.call('nvmlDeviceSetMigMode', device, int(enable))
        return gate.symbol(activation)

    def gpu_instances(self, device: Any, profile_id: int,
                      limit: int = INSTANCE_LIMIT
                      ) -> tuple[model.GpuInstance, ...]:
        """Return the live GPU instances of a profile.

        Makes one call, and one per instance.
        """
        return tuple(sorted(
            self._instance(handle)
            for handle in self._instance_handles(device, profile_id, limit)))

    def live_handles(self, device: Any,
                     profiles: Iterable[model.GpuInstanceProfile]
                     ) -> tuple[tuple[model.GpuInstance, Any], ...]:
        """Return the live GPU instances, each with its handle.

        Makes one call per profile and one per instance. Skips a profile if
        the instances found before overlap all its placements.

        :raises NvmlError: if an instance cannot be read, or is destroyed
            meanwhile.
        """
        found: list[tuple[model.GpuInstance, Any]] = []
        taken = 0
        for profile in profiles:
            if profile.placements and all(taken & placement.mask
                                          for placement in profile.placements):
                continue
            for handle in self._instance_handles(
                    device, profile.profile_id, profile.max_instances):
                instance = self._instance(handle)
                found.append((instance, handle))
                taken |= instance.placement.mask
        return tuple(sorted(found, key=lambda item: item[0]))

    def create_gpu_instance(self, device: Any, profile_id: int,
                            placement: model.Placement | None = None
                            ) -> model.GpuInstance:
        """Create a GPU instance and read it back (two calls).

        :raises NvmlError: INSUFFICIENT_RESOURCES if a unit is taken,
            INVALID_ARGUMENT for a placement that the profile does not have.
        """
        if placement is None:
            handle = self.call('nvmlDeviceCreateGpuInstance', device,
                               profile_id)
        else:
            asked = pynvml.c_nvmlGpuInstancePlacement_t(
                placement.start, placement.size)
            handle = self.call('nvmlDeviceCreateGpuInstanceWithPlacement',
                               device, profile_id, ctypes.byref(asked))
        return self._instance(handle)

    def gpu_instance(self, device: Any, instance_id: int) -> Any:
        """Handle of a GPU instance (one call).

        :raises NvmlError: NOT_FOUND; NOT_SUPPORTED if MIG mode is off.
        """
        return self.call('nvmlDeviceGetGpuInstanceById', device, instance_id)

    def destroy_gpu_instance(self, device: Any, instance_id: int) -> None:
        """Destroy a GPU instance (two calls).

        :raises NvmlError: NOT_FOUND; NOT_SUPPORTED if MIG mode is off;
            IN_USE if it has compute instances, processes or a vGPU.
        """
        self.call('nvmlGpuInstanceDestroy',
                  self.gpu_instance(device, instance_id))

    def compute_instances(self, device: Any, instance_id: int
                          ) -> tuple[Any, ...]:
        """Handles of the compute instances of a GPU instance."""
        instance = self.gpu_instance(device, instance_id)
        found = []
        for info in self.compute_profiles(instance):
            found.extend(self.handles(
                'nvmlGpuInstanceGetComputeInstances', instance, info.id,
                pynvml.c_nvmlComputeInstance_t, info.instanceCount))
        return tuple(found)

    def compute_profiles(self, instance: Any) -> Iterator[Any]:
        """Yield the information on each compute instance profile."""
        return (info for _, info in gate.indexed(
            lambda index: self.call(
                'nvmlGpuInstanceGetComputeInstanceProfileInfo', instance,
                index, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                1)))

    def destroy_compute_instances(self, device: Any,
                                  instance_id: int) -> None:
        """Destroy every compute instance of a GPU instance."""
        for handle in self.compute_instances(device, instance_id):
            self.call('nvmlComputeInstanceDestroy', handle)

    def mig_uuids(self, device: Any, instance_id: int) -> tuple[str, ...]:
        """UUIDs of a GPU instance's MIG devices, one per compute instance."""
        return tuple(sorted(
            self._mig_uuid(handle)
            for handle in self.compute_instances(device, instance_id)))

    def _mig_uuid(self, handle: Any) -> str:
        device = self.call('nvmlComputeInstanceGetInfo', handle).device
        self.belongs(device, handle)
        return self.uuid(device)

    def _instance_handles(self, device: Any, profile_id: int, limit: int
                          ) -> list[Any]:
        return self.handles('nvmlDeviceGetGpuInstances', device, profile_id,
                            pynvml.c_nvmlGpuInstance_t, limit)

    def handles(self, name: str, owner: Any, profile_id: int, kind: Any,
                limit: int = INSTANCE_LIMIT) -> list[Any]:
        """Handles of the live instances of a profile (one call)."""
        found = (kind * max(limit, INSTANCE_LIMIT))()
        count = ctypes.c_uint(0)
        self.call(name, owner, profile_id, found, ctypes.byref(count))
        handles = [found[index] for index in range(count.value)]
        for handle in handles:
            self.belongs(handle, owner)
        return handles

    def _instance(self, handle: Any) -> model.GpuInstance:
        info = self.call('nvmlGpuInstanceGetInfo', handle)
        return model.GpuInstance(
            placement=model.Placement(info.placement.start,
                                      info.placement.size),
            profile_id=info.profileId, instance_id=info.id)


def pointer(handle: Any) -> int:
    """Return the address that a handle points to, which identifies it."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
