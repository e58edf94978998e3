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

"""Mixed sizes, placements and the scheduler of vGPUs, through NVML.

Names of structures and constants are those of nvml.h. NVML calls
heterogeneous what NVIDIA's vGPU guide calls mixed-size mode.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import library as nvml_library
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model

_POLICIES = {
    pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT:
        model.SchedulerPolicy.BEST_EFFORT,
    pynvml.NVML_VGPU_SCHEDULER_POLICY_EQUAL_SHARE:
        model.SchedulerPolicy.EQUAL_SHARE,
    pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE:
        model.SchedulerPolicy.FIXED_SHARE,
}
_NUMBERS = {policy: number for number, policy in _POLICIES.items()}


class PlacementList(ctypes.Structure):
    """nvmlVgpuPlacementList_v1_t, which version 2 begins with.

    pynvml 13.580 has two fields of version 1 in the wrong order, so that
    its count is none: look at what it answers through ``from_buffer``.
    """

    _fields_ = [('version', ctypes.c_uint),
                ('placement_size', ctypes.c_uint),
                ('count', ctypes.c_uint),
                ('placement_ids', ctypes.POINTER(ctypes.c_uint))]

    def ids(self) -> tuple[int, ...]:
        """The placement ids, ascending."""
        return tuple(sorted(self.placement_ids[:self.count]))


def can_mix_sizes(nvml: nvml_module.NvmlSession, device: Any) -> bool:
    """Whether the GPU can carry vGPUs of several framebuffer sizes.

    Does not change while the driver is loaded.

    :raises NvmlError: if that cannot be read.
    """
    try:
        return bool(nvml.call(
            'nvmlDeviceGetVgpuCapabilities', device,
            pynvml.NVML_DEVICE_VGPU_CAP_HETEROGENEOUS_TIMESLICE_SIZES))
    except exception.NvmlError as error:
        # INVALID_ARGUMENT: the driver is older than the capability.
        if error.symbol in (*nvml_library.ABSENT, 'INVALID_ARGUMENT'):
            return False
        raise


def mixes_sizes(nvml: nvml_module.NvmlSession, device: Any) -> bool | None:
    """Whether mixed-size mode is on, of a GPU that has it.

    :returns: None where it does not apply, as in MIG mode.
    :raises NvmlError: if that cannot be read.
    """
    try:
        return bool(nvml.call('nvmlDeviceGetVgpuHeterogeneousMode', device))
    except exception.NvmlError as error:
        if error.symbol in nvml_library.ABSENT:
            return None
        raise


def set_mixed_sizes(nvml: nvml_module.NvmlSession, device: Any,
                    enable: bool) -> None:
    """Turn mixed-size mode on or off, until reboot, reset or sriov-manage.

    :raises NvmlError: IN_USE if the GPU has a vGPU; NOT_SUPPORTED in MIG
        mode; NO_PERMISSION.
    """
    nvml.call('nvmlDeviceSetVgpuHeterogeneousMode', device, int(enable))


def supported_placements(nvml: nvml_module.NvmlSession, device: Any,
                         type_id: int) -> tuple[int | None, tuple[int, ...]]:
    """Placement size of a type, and all ids it may have in mixed sizes.

    :returns: (None, ()) where the driver does not tell.
    :raises NvmlError: if they cannot be read.
    """
    found = _placements(nvml, 'nvmlDeviceGetVgpuTypeSupportedPlacements',
                        device, type_id,
                        pynvml.NVML_VGPU_PGPU_HETEROGENEOUS_MODE)
    if found is None:
        return None, ()
    return found.placement_size, found.ids()


def free_placements(nvml: nvml_module.NvmlSession, device: Any,
                    type_id: int) -> tuple[int, ...]:
    """Placement ids at which a vGPU of a type can be made now.

    :returns: none outside of mixed-size mode.
    :raises NvmlError: if they cannot be read.
    """
    found = _placements(nvml, 'nvmlDeviceGetVgpuTypeCreatablePlacements',
                        device, type_id)
    return () if found is None else found.ids()


def scheduler_capabilities(nvml: nvml_module.NvmlSession, device: Any
                           ) -> model.Scheduler | None:
    """What schedulers the GPU has, without which is in force.

    Does not change while the driver is loaded.

    :returns: None where vGPUs are not scheduled by the driver.
    :raises NvmlError: if that cannot be read.
    """
    try:
        found = nvml.call('nvmlDeviceGetVgpuSchedulerCapabilities', device)
    except exception.NvmlError as error:
        if error.symbol in nvml_library.ABSENT:
            return None
        raise
    return model.Scheduler(
        policy=None, supported=tuple(
            _POLICIES[number] for number in found.supportedSchedulers
            if number in _POLICIES),
        min_time_slice=found.minTimeslice, max_time_slice=found.maxTimeslice)


def scheduler_state(nvml: nvml_module.NvmlSession, device: Any,
                    capabilities: model.Scheduler) -> model.Scheduler | None:
    """``capabilities`` with the policy that is in force.

    :raises NvmlError: if that cannot be read.
    """
    try:
        state = nvml.call('nvmlDeviceGetVgpuSchedulerState', device)
    except exception.NvmlError as error:
        if error.symbol in nvml_library.ABSENT:
            return None
        raise
    adaptive = state.arrMode == pynvml.NVML_VGPU_SCHEDULER_ARR_ENABLE
    time_slice = (None if adaptive
                  else state.schedulerParams.vgpuSchedData.timeslice)
    return model.Scheduler(
        policy=_POLICIES.get(state.schedulerPolicy),
        # 0 when there is no active scheduling (nvmlVgpuSchedulerParams_t).
        time_slice=time_slice or None, adaptive=adaptive,
        supported=capabilities.supported,
        min_time_slice=capabilities.min_time_slice,
        max_time_slice=capabilities.max_time_slice)


def set_scheduler(nvml: nvml_module.NvmlSession, device: Any,
                  policy: model.SchedulerPolicy,
                  time_slice: int | None) -> None:
    """Set how time-sliced vGPUs share the GPU, until the driver unloads.

    :param time_slice: nanoseconds; None leaves it to the driver, whose
        default is what it takes for 0 (nvmlVgpuSchedulerSetParams_t).
    :raises NvmlError: IN_USE, on older drivers NOT_SUPPORTED, while a
        virtual machine runs; INVALID_ARGUMENT for a time slice out of
        range; NO_PERMISSION; RESET_REQUIRED where only a reboot helps.
    """
    wanted = pynvml.c_nvmlVgpuSchedulerSetState_t()
    wanted.schedulerPolicy = _NUMBERS[policy]
    wanted.enableARRMode = pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT
    if time_slice is not None:
        wanted.schedulerParams.vgpuSchedData.timeslice = time_slice
        if nvml.call('nvmlDeviceGetVgpuSchedulerCapabilities',
                     device).isArrModeSupported:
            # Adaptive round robin takes no time slice: it sets its own.
            wanted.enableARRMode = pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE
    nvml.call('nvmlDeviceSetVgpuSchedulerState', device, wanted)


def _placements(nvml: nvml_module.NvmlSession, name: str, device: Any,
                type_id: int, *mode: int) -> PlacementList | None:
    """The list of placements; None where the driver has none to give.

    Version 2 says how long the array is; drivers before 565 know only
    version 1, which relies on nvmlVgpuTypeGetMaxInstances.
    """
    try:
        try:
            found = nvml.call(name, device, type_id, *mode, 2)
        except exception.NvmlError as error:
            if error.symbol != 'ARGUMENT_VERSION_MISMATCH':
                raise
            found = nvml.call(name, device, type_id, *mode, 1)
    except exception.NvmlError as error:
        if error.symbol in nvml_library.ABSENT:
            return None
        raise
    return PlacementList.from_buffer(found)
