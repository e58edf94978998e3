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

"""The driver's rules for vGPUs: what can be made where, and making it."""

from __future__ import annotations

from cyborg_gpu_driver.simulator import gpu as gpu_module
from cyborg_gpu_driver.simulator import refusal
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module


def available(gpu: gpu_module.Gpu, kind: spec.VgpuType,
              function: str) -> int:
    """How many vGPUs of a type a function can still carry."""
    if (gpu.framework == spec.NO_FRAMEWORK or gpu.state.lost
            or function not in gpu.vgpu_functions()):
        return 0
    if not gpu.vgpu_on_pf and gpu.vgpus_on(function):
        return 0
    room = _room(gpu, kind)
    return room if gpu.vgpu_on_pf else min(room, 1)


def creatable(gpu: gpu_module.Gpu) -> list[spec.VgpuType]:
    """Types of which one more can be made somewhere on the GPU."""
    return [kind for kind in gpu.model.vgpu_types
            if any(available(gpu, kind, function)
                   for function in gpu.vgpu_functions())]


def _room(gpu, kind):
    same = sum(vgpu.type_id == kind.type_id for vgpu in gpu.state.vgpus)
    if kind.profile_id is not None:
        # Out of MIG mode there are no instances.
        return min(kind.max_instances - same,
                   sum(_instance_room(gpu, kind, instance_id)
                       for instance_id in gpu.state.instances))
    if gpu.state.mig:
        return 0
    others = [gpu.model.vgpu_type(vgpu.type_id) for vgpu in gpu.state.vgpus]
    if gpu.state.heterogeneous:
        left = gpu.model.memory_mib - sum(
            other.framebuffer_mib for other in others)
        return min(kind.max_instances - same, left // kind.framebuffer_mib)
    # One size at a time: a GPU whose vGPUs lie on itself takes only more of
    # the very type; virtual functions take what has the same framebuffer.
    if any(other != kind if gpu.vgpu_on_pf
           else other.framebuffer_mib != kind.framebuffer_mib
           for other in others):
        return 0
    return max(0, kind.max_instances - len(others))


def _instance_room(gpu, kind, instance_id):
    """How many vGPUs of a type a GPU instance can still hold.

    It holds vGPUs of one framebuffer size. A process in it keeps vGPUs out.
    """
    if (gpu.state.instances[instance_id].profile_id != kind.profile_id
            or any(process.instance == instance_id
                   for process in gpu.state.processes)):
        return 0
    held = [gpu.model.vgpu_type(vgpu.type_id) for vgpu in gpu.state.vgpus
            if vgpu.instance == instance_id]
    if any(other.framebuffer_mib != kind.framebuffer_mib for other in held):
        return 0
    return max(0, kind.per_instance - len(held))


def create(gpu: gpu_module.Gpu, kind: spec.VgpuType, function: str,
           uuid: str | None) -> state_module.Vgpu:
    """Make a vGPU on a function.

    A MIG-backed one takes the lowest instance of its profile with room,
    which need not be the one that was created last.

    :raises Unavailable: if it cannot be made there now.
    """
    if available(gpu, kind, function) < 1:
        raise refusal.Unavailable()
    instance = None
    if kind.profile_id is not None:
        instance = min(
            instance_id for instance_id in gpu.state.instances
            if _instance_room(gpu, kind, instance_id))
    taken = {vgpu.placement for vgpu in gpu.state.vgpus
             if vgpu.instance == instance}
    vgpu = state_module.Vgpu(
        vgpu_id=3251634000 + gpu.machine.state.number(),
        type_id=kind.type_id, function=function, uuid=uuid,
        instance=instance,
        placement=next(number for number in range(len(taken) + 1)
                       if number not in taken))
    gpu.state.vgpus.append(vgpu)
    return vgpu
