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

The rules are those of src/nvidia/src/kernel/virtualization/kernel_vgpu_mgr.c
in NVIDIA's open kernel modules 595.45.04; each function names its source.
"""

from __future__ import annotations

import errno
import itertools

import pynvml

from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module

_SLOT_MIB = 1024
_WISH = 'vgpu-placement-id'


def size(model: spec.Model, kind: spec.VgpuType) -> int:
    """The number of slots that a vGPU of a type takes.

    A GPU of 96 GiB holds at most 32 vGPUs, so one of 2 GiB takes three slots
    (_kvgpumgrGetplacementSize).
    """
    slots = kind.framebuffer_mib // _SLOT_MIB
    return 3 if (model.placement_region, slots) == (96, 2) else slots


def supported(model: spec.Model, kind: spec.VgpuType) -> tuple[int, ...]:
    """All placement ids that a vGPU of a type can have, ascending."""
    if model.placement_region is None or kind.profile_id is not None:
        return ()
    if model.architecture >= pynvml.NVML_DEVICE_ARCH_BLACKWELL:
        # _kvgpumgrSetHeterogeneousResources_GB100
        return tuple(model.placement_region * number // kind.max_instances
                     for number in range(kind.max_instances))
    return tuple(start for start in _halved(model, kind)
                 if not _is_denied(model, kind, start))


def _halved(model, kind):
    """The placement ids before Blackwell.

    The region is halved until a part holds two vGPUs of the type, at its
    ends. If their largest number is not a power of two, the next lower one
    counts, and the parts hold one each: at the beginning of a left half and
    at the end of a right half (_kvgpumgrSetHeterogeneousResources).
    """
    most = kind.max_instances
    power = 1 << most.bit_length() - 1
    pairs = most == power > 1
    edges = [0, model.placement_region]
    while len(edges) <= (power // 2 if pairs else power):
        edges = sorted([*edges, *((low + high) // 2 for low, high
                                  in itertools.pairwise(edges))])
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        if pairs or not number % 2:
            yield low
        if pairs or number % 2:
            yield high - size(model, kind)


def _is_denied(model, kind, start):
    """Whether a vGPU of 1 GiB would overlap its neighbour's framebuffer.

    On GPUs that have more than 1 GiB for each of its vGPUs, the driver takes
    nothing from them for itself (_kvgpumgrIsPlacementValid).
    """
    slots = size(model, kind)
    if slots > 1 or kind.max_instances * slots == model.placement_region:
        return False
    if model.architecture >= pynvml.NVML_DEVICE_ARCH_ADA:
        return start % 6 in (2, 3)
    return start % 24 == 8


def free(gpu: gpu_module.Gpu, kind: spec.VgpuType,
         but: state_module.Vgpu | None = None) -> list[int]:
    """The placement ids of a type that no vGPU overlaps now.

    :param but: a vGPU that is ignored.
    """
    model = gpu.model
    slots = size(model, kind)
    taken = [(vgpu.placement, size(model, _kind(gpu, vgpu)))
             for vgpu in gpu.state.vgpus if vgpu is not but]
    return [start for start in supported(model, kind)
            if all(start + slots <= other or other + length <= start
                   for other, length in taken)]


def settle(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> None:
    """Place a vGPU at the requested placement, or at the driver's choice.

    The driver chooses the lowest free placement if the requested one is not
    free, or if none is requested.
    """
    places = free(gpu, _kind(gpu, vgpu), vgpu)
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
    kind = _kind(gpu, vgpu)
    if (not gpu.state.heterogeneous
            or wish not in supported(gpu.model, kind)):
        raise OSError(errno.EINVAL, f'{_WISH} is not valid', vgpu.function)
    if wish not in free(gpu, kind, vgpu):
        raise OSError(errno.EBUSY, f'{_WISH} is taken', vgpu.function)
    vgpu.placement = wish


def _kind(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> spec.VgpuType:
    kind = gpu.model.vgpu_type(vgpu.type_id)
    assert kind is not None  # A vGPU has a type of its board.
    return kind


def _wish(vgpu):
    """The requested placement; None without one, -1 if it is not a number."""
    params = dict(param.strip().split('=')
                  for param in vgpu.params.split(',') if param)
    wish = params.get(_WISH)
    if wish is None:
        return None
    return int(wish) if wish.isdecimal() else -1
