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

"""The live part of a GPU's MIG state, in as few NVML calls as can be."""

from __future__ import annotations

import dataclasses
from typing import Any

from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model


def instances(nvml: nvml_module.NvmlSession, device: Any,
              profiles: tuple[model.GpuInstanceProfile, ...]
              ) -> tuple[model.GpuInstance, ...]:
    """Live GPU instances: one call a profile and one an instance.

    A profile is not asked for when every placement that it has is taken by
    instances found before.

    :raises NvmlError: if one cannot be read, or goes away meanwhile.
    """
    found: list[model.GpuInstance] = []
    taken = 0
    for profile in profiles:
        if profile.placements and all(taken & placement.mask
                                      for placement in profile.placements):
            continue
        for instance in nvml.gpu_instances(device, profile.profile_id,
                                           profile.max_instances):
            found.append(instance)
            taken |= instance.placement.mask
    return tuple(sorted(found))


def with_uuids(nvml: nvml_module.NvmlSession, device: Any,
               live: tuple[model.GpuInstance, ...]
               ) -> tuple[model.GpuInstance, ...]:
    """The same instances with the UUIDs of their MIG devices.

    Some twenty calls an instance.

    :raises NvmlError: if one cannot be read.
    """
    return tuple(dataclasses.replace(
        instance, mig_uuids=nvml.mig_uuids(device, instance.instance_id))
        for instance in live)
