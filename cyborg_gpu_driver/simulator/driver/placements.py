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

"""The placement of vGPUs of mixed sizes (vGPU guide, mixed-size mode).

The GPU's framebuffer is a region of slots of one GiB. A vGPU takes as many
slots as its framebuffer has GiB. It can start only at some of the slots; the
number of the first slot is its placement id.
"""

from __future__ import annotations

import errno

from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module

_SLOT_MIB = 1024
_WISH = 'vgpu-placement-id'


def starts(region: int, size: int) -> tuple[int, ...]:
    """The placement ids of a size in a region.

    The parts of the region are halved as long as a part holds the size. If
    the size fills a part, it may lie in any part. A smaller size lies at the
    outer ends of each pair of parts, so that the rest of the pair is
    contiguous. This gives the guide's tables for regions of 16, 24, 40 and
    80.
    """
    if size > region:
        return ()
    parts = 1
    while 2 * parts * size <= region:
        parts *= 2
    if parts == 1:
        return (0,)
    found = []
    for pair in range(parts // 2):
        found.append(2 * pair * region // parts)
        found.append(2 * (pair + 1) * region // parts - size)
    return tuple(found)


def size(kind: spec.VgpuType) -> int:
    """The number of slots that a vGPU of a type takes."""
    return kind.framebuffer_mib // _SLOT_MIB


def supported(model: spec.Model, kind: spec.VgpuType) -> tuple[int, ...]:
    """All placement ids that a vGPU of a type can have, ascending."""
    if model.placement_region is None or kind.profile_id is not None:
        return ()
    return starts(model.placement_region, size(kind))


def free(gpu: gpu_module.Gpu, kind: spec.VgpuType,
         but: state_module.Vgpu | None = None) -> list[int]:
    """The placement ids of a type that no vGPU overlaps now.

    :param but: a vGPU that is ignored.
    """
    taken = [(vgpu.placement, size(gpu.model.vgpu_type(vgpu.type_id)))
             for vgpu in gpu.state.vgpus if vgpu is not but]
    return [start for start in supported(gpu.model, kind)
            if all(start + size(kind) <= other or other + length <= start
                   for other, length in taken)]


def settle(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> None:
    """Place a vGPU at the requested placement, or at the driver's choice.

    The driver chooses the lowest free placement if the requested one is not
    free, or if none is requested.
    """
    places = free(gpu, gpu.model.vgpu_type(vgpu.type_id), vgpu)
    wish = _wish(vgpu)
    vgpu.placement = wish if wish in places else places[0]


def check(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> None:
    """Place a vGPU permanently, when its virtual machine starts.

    :raises OSError: EINVAL if its type cannot have the requested placement,
        or mixed-size mode is off; EBUSY if another vGPU overlaps.
    """
    wish = _wish(vgpu)
    if wish is None:
        return
    kind = gpu.model.vgpu_type(vgpu.type_id)
    if (not gpu.state.heterogeneous
            or wish not in supported(gpu.model, kind)):
        raise OSError(errno.EINVAL, f'{_WISH} is not valid', vgpu.function)
    if wish not in free(gpu, kind, vgpu):
        raise OSError(errno.EBUSY, f'{_WISH} is taken', vgpu.function)
    vgpu.placement = wish


def _wish(vgpu):
    """The requested placement; None without one, -1 if it is not a number."""
    params = dict(param.strip().split('=')
                  for param in vgpu.params.split(',') if param)
    wish = params.get(_WISH)
    if wish is None:
        return None
    return int(wish) if wish.isdecimal() else -1
