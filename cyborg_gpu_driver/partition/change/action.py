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

"""The steps that change a GPU: one vocabulary for all planners.

A step is a value. It can be printed before it is executed, and is written to
the GPU's record during the execution. The executor is
:mod:`cyborg_gpu_driver.program.steps.executor`.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec


class Action(enum.Enum):
    """The kind of a step. The values are for programs."""

    BIND_NVIDIA = 'bind-nvidia'
    DISABLE_FUNCTIONS = 'disable-virtual-functions'
    """``sriov-manage -d``."""
    ENABLE_MIG = 'enable-mig'
    """nvmlDeviceSetMigMode(1)."""
    DISABLE_MIG = 'disable-mig'
    """nvmlDeviceSetMigMode(0)."""
    ENABLE_FUNCTIONS = 'enable-virtual-functions'
    """``sriov-manage -e``."""
    MIXED_ON = 'enable-mixed-sizes'
    MIXED_OFF = 'disable-mixed-sizes'
    SCHEDULER = 'set-scheduler'
    DESTROY_VGPU = 'destroy-vgpu'
    DESTROY_COMPUTE = 'destroy-compute-instance'
    DESTROY_INSTANCE = 'destroy-instance'
    CREATE_INSTANCE = 'create-instance'
    """nvmlDeviceCreateGpuInstanceWithPlacement."""
    CREATE_COMPUTE = 'create-compute-instance'
    CREATE_VGPU = 'create-vgpu'
    ACTIVATE_PARTITION = 'activate-nvswitch-partition'
    """fmActivateFabricPartitionWithVFs for a vGPU, or
    fmActivateFabricPartition for whole GPUs."""
    DEACTIVATE_PARTITION = 'deactivate-nvswitch-partition'
    BIND_VFIO = 'bind-vfio'


_WORDS = {
    Action.BIND_NVIDIA: 'bind it to nvidia',
    Action.DISABLE_FUNCTIONS: 'disable virtual functions',
    Action.ENABLE_MIG: 'turn MIG mode on',
    Action.DISABLE_MIG: 'turn MIG mode off',
    Action.ENABLE_FUNCTIONS: 'enable virtual functions',
    Action.MIXED_ON: 'turn mixed-size mode on',
    Action.MIXED_OFF: 'turn mixed-size mode off',
    Action.SCHEDULER: 'set the vGPU scheduler',
    Action.DESTROY_VGPU: 'destroy vGPU',
    Action.DESTROY_COMPUTE: 'destroy compute instance',
    Action.DESTROY_INSTANCE: 'destroy instance',
    Action.CREATE_INSTANCE: 'create instance',
    Action.CREATE_COMPUTE: 'create compute instance',
    Action.CREATE_VGPU: 'create vGPU',
    Action.ACTIVATE_PARTITION: 'activate NVSwitch partition',
    Action.DEACTIVATE_PARTITION: 'deactivate NVSwitch partition',
    Action.BIND_VFIO: 'bind it to vfio-pci',
}
"""Descriptions of the actions for people."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One step. It names a GPU instance by its placement, never by its id,
    because an instance that an earlier step creates has no id yet.
    """

    action: Action
    profile: model.GpuInstanceProfile | None = None
    """None if the step concerns no GPU instance, or if NVML lists no such
    profile."""
    placement: model.Placement | None = None
    """Of the GPU instance; None if the step concerns none."""
    slices: int | None = None
    """Of the compute instance; None if the step concerns none."""
    start: int | None = None
    """Position of the compute instance in its GPU instance, in compute
    slices; with None the driver chooses it."""
    vgpu: spec.VgpuSpec | None = None
    """None if the step concerns no vGPU."""
    fabric_partition: int | None = None
    """NVSwitch partition of the vGPU, or without a vGPU of whole GPUs; None
    if the step concerns none."""
    scheduler: tuple[model.SchedulerPolicy, int | None] | None = None
    """Policy and time slice in ns, for ``SCHEDULER``, and for a
    ``CREATE_INSTANCE`` whose vGPUs share the instance. A time slice of None
    means any."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without values that do not apply."""
        values = {
            'action': self.action.value,
            'profile': self.profile and self.profile.name,
            'start': self.placement and self.placement.start,
            'size': self.placement and self.placement.size,
            'compute_slices': self.slices, 'compute_start': self.start,
            'vgpu': self.vgpu and self.vgpu.type_id,
            'function': self.vgpu and str(self.vgpu.function)}
        return {key: value for key, value in values.items()
                if value is not None}

    def __str__(self) -> str:
        words = [_WORDS[self.action]]
        if self.action is Action.SCHEDULER and self.placement is not None:
            words.append('of')
        if self.slices is not None:
            words.append(f'{self.slices}c')
            if self.start is not None:
                words.append(f'at slice {self.start}')
            words.append('in')
        if self.placement is not None:
            name = self.profile.name if self.profile else 'unknown profile'
            words.append(f'{name} at {self.placement}')
        if self.fabric_partition is not None:
            words.append(str(self.fabric_partition))
            if self.vgpu is not None:
                words.append('of')
        if self.vgpu is not None:
            words.append(str(self.vgpu))
        return ' '.join(words)
