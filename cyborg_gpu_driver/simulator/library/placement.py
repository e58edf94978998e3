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

"""NVML's calls about the placement of vGPUs of mixed sizes."""

from __future__ import annotations

import ctypes

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator.driver import mig
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.library import vgpu as library_vgpu

Refused = refusal.Refused
_V2_SINCE = 565
"""The first driver that knows version 2 of the list."""


class _ListV1(ctypes.Structure):
    """nvmlVgpuPlacementList_v1_t of nvml.h.

    The caller's memory is read with the layout of C, not with the layout of
    pynvml: releases of pynvml differ in the order of the fields.
    """

    _fields_ = [('version', ctypes.c_uint),
                ('size', ctypes.c_uint),
                ('count', ctypes.c_uint),
                ('ids', ctypes.POINTER(ctypes.c_uint))]


class _ListV2(ctypes.Structure):
    """nvmlVgpuPlacementList_v2_t."""

    _fields_ = [*_ListV1._fields_, ('mode', ctypes.c_uint)]


def _placement_list(library, argument):
    """The caller's list, in the structure of its version.

    :raises Refused: ARGUMENT_VERSION_MISMATCH for a version that the driver
        does not know.
    """
    argument = abi.target(argument)
    version = argument.version
    if version == pynvml.VgpuPlacementList_v1:
        return _ListV1.from_buffer(argument)
    release = int(library.machine.host.driver_version.split('.')[0])
    if version == pynvml.VgpuPlacementList_v2 and release >= _V2_SINCE:
        return _ListV2.from_buffer(argument)
    raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


def _time_sliced(library, handle, type_id):
    """A GPU and a vGPU type that has placements on the GPU.

    :raises Refused: NOT_SUPPORTED if the type has none.
    """
    gpu = library_vgpu.vgpu_host(library, handle)
    kind = gpu.model.vgpu_type(
        library_vgpu.vgpu_type(library, type_id).type_id)
    if (kind is None or gpu.vgpu_on_pf
            or not mig.supported(gpu.model, kind)):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu, kind


def _fill(wanted, gpu, kind, ids):
    """Fill the caller's list with placement ids.

    Version 1 has no length of the array: the array must have the length that
    nvmlVgpuTypeGetMaxInstances returns.

    :raises Refused: INSUFFICIENT_SIZE if the array is too short; the needed
        count is filled in.
    """
    room = wanted.count if isinstance(wanted, _ListV2) else (
        kind.max_instances)
    wanted.count = len(ids)
    wanted.size = mig.size(gpu.model, kind)
    if ids:
        abi.array(wanted.ids, ctypes.c_uint, len(ids), room)[:] = ids


@abi.symbol('nvmlDeviceGetVgpuTypeSupportedPlacements')
def supported(library, handle, type_id, argument):
    gpu, kind = _time_sliced(library, handle, type_id)
    wanted = _placement_list(library, argument)
    mode = getattr(wanted, 'mode', pynvml.NVML_VGPU_PGPU_HETEROGENEOUS_MODE)
    if mode == pynvml.NVML_VGPU_PGPU_HOMOGENEOUS_MODE:
        # This is a separate capability (NVML_DEVICE_VGPU_CAP_HOMOGENEOUS_
        # PLACEMENTS), which GPUs have since Ada. The simulator has none.
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if mode != pynvml.NVML_VGPU_PGPU_HETEROGENEOUS_MODE:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    _fill(wanted, gpu, kind, mig.supported(gpu.model, kind))


@abi.symbol('nvmlDeviceGetVgpuTypeCreatablePlacements')
def creatable(library, handle, type_id, argument):
    gpu, kind = _time_sliced(library, handle, type_id)
    wanted = _placement_list(library, argument)
    if not gpu.state.heterogeneous:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    _fill(wanted, gpu, kind, mig.free(gpu, kind))
