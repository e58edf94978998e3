# SPDX-License-Identifier: Apache-2.0

"""Mixed sizes, placements and the scheduler of vGPUs, through NVML.

Names of structures and constants are those of nvml.h. NVML calls
heterogeneous what NVIDIA's vGPU guide calls mixed-size mode.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
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
_ALWAYS_ADAPTIVE = 595
"""The first driver on which adaptive round robin is always on, so that it
takes no time slice (NVML API Reference, changes between v590 and v595, on
nvmlDeviceSetVgpuSchedulerState_v2; pynvml 13.615 on
NVML_VGPU_SCHEDULER_ARR_DISABLE). The calls before v2, which this library
makes for all drivers, are deprecated from then on."""


class PlacementList(ctypes.Structure):
    """nvmlVgpuPlacementList_v1_t, with which version 2 begins.

    pynvml 13.580 has two fields of version 1 in the wrong order, so its
    count is wrong. Read what it returns through ``from_buffer``.
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

    The answer does not change while the driver is loaded.
    """
    try:
        return bool(nvml.optional(
            'nvmlDeviceGetVgpuCapabilities', device,
            pynvml.NVML_DEVICE_VGPU_CAP_HETEROGENEOUS_TIMESLICE_SIZES))
    except exception.NvmlError as error:
        # The driver is older than the capability.
        if error.symbol == 'INVALID_ARGUMENT':
            return False
        raise


def mixes_sizes(nvml: nvml_module.NvmlSession, device: Any) -> bool | None:
    """Whether mixed-size mode is on, for a GPU that supports it.

    :returns: None if it does not apply, for example in MIG mode.
    """
    mode = nvml.optional('nvmlDeviceGetVgpuHeterogeneousMode', device)
    return None if mode is None else bool(mode)


def set_mixed_sizes(nvml: nvml_module.NvmlSession, device: Any,
                    enable: bool) -> None:
    """Turn mixed-size mode on or off, until a reboot, reset or sriov-manage.

    :raises NvmlError: IN_USE if the GPU has a vGPU; NOT_SUPPORTED in MIG
        mode; NO_PERMISSION.
    """
    nvml.call('nvmlDeviceSetVgpuHeterogeneousMode', device, int(enable))


def supported_placements(nvml: nvml_module.NvmlSession, device: Any,
                         type_id: int) -> tuple[int | None, tuple[int, ...]]:
    """Return a type's placement size and its ids in mixed-size mode.

    :returns: (None, ()) if the driver does not report them.
    """
    found = _placements(nvml, 'nvmlDeviceGetVgpuTypeSupportedPlacements',
                        device, type_id,
                        pynvml.NVML_VGPU_PGPU_HETEROGENEOUS_MODE)
    if found is None:
        return None, ()
    return found.placement_size, found.ids()


def free_placements(nvml: nvml_module.NvmlSession, device: Any,
                    type_id: int) -> tuple[int, ...]:
    """Return the placement ids at which a vGPU of a type can be created now.

    :returns: no ids outside of mixed-size mode.
    """
    found = _placements(nvml, 'nvmlDeviceGetVgpuTypeCreatablePlacements',
                        device, type_id)
    return () if found is None else found.ids()


def scheduler_capabilities(nvml: nvml_module.NvmlSession, device: Any
                           ) -> model.Scheduler | None:
    """Return the schedulers that the GPU has, without the policy in force.

    They do not change while the driver is loaded.
    """
    found = nvml.optional('nvmlDeviceGetVgpuSchedulerCapabilities', device)
    if not found:
        return None
    return model.Scheduler(
        policy=None, supported=tuple(
            _POLICIES[number] for number in found.supportedSchedulers
            if number in _POLICIES),
        min_time_slice=found.minTimeslice, max_time_slice=found.maxTimeslice,
        takes_slice=_takes_slice(nvml))


def _takes_slice(nvml: nvml_module.NvmlSession) -> bool:
    branch = nvml.driver_version().partition('.')[0]
    return not branch.isdigit() or int(branch) < _ALWAYS_ADAPTIVE


def scheduler_state(nvml: nvml_module.NvmlSession, device: Any,
                    capabilities: model.Scheduler) -> model.Scheduler | None:
    """Return ``capabilities`` with the policy that is in force."""
    state = nvml.optional('nvmlDeviceGetVgpuSchedulerState', device)
    return state and _scheduler(state, capabilities)


def instance_scheduler_state(nvml: nvml_module.NvmlSession, instance: Any,
                             capabilities: model.Scheduler
                             ) -> model.Scheduler | None:
    """Like :func:`scheduler_state`, for vGPUs that share a GPU instance.

    :param instance: the handle of the GPU instance.
    :returns: None if the driver does not schedule vGPUs per GPU instance,
        which it does from Blackwell GB20x on (nvml.h).
    """
    asked = pynvml.c_nvmlVgpuSchedulerStateInfo_v1_t()
    asked.version = pynvml.nvmlVgpuSchedulerStateInfo_v1
    asked.engineId = pynvml.NVML_VGPU_SCHEDULER_ENGINE_TYPE_GRAPHICS
    state = nvml.optional('nvmlGpuInstanceGetVgpuSchedulerState', instance,
                          asked)
    return state and _scheduler(state, capabilities)


def _scheduler(state: Any, capabilities: model.Scheduler) -> model.Scheduler:
    """Return the scheduler that NVML's structure describes."""
    adaptive = state.arrMode == pynvml.NVML_VGPU_SCHEDULER_ARR_ENABLE
    time_slice = (None if adaptive
                  else state.schedulerParams.vgpuSchedData.timeslice)
    return model.Scheduler(
        policy=_POLICIES.get(state.schedulerPolicy),
        # 0 when there is no active scheduling (nvmlVgpuSchedulerParams_t).
        time_slice=time_slice or None, adaptive=adaptive,
        supported=capabilities.supported,
        min_time_slice=capabilities.min_time_slice,
        max_time_slice=capabilities.max_time_slice,
        takes_slice=capabilities.takes_slice)


def set_scheduler(nvml: nvml_module.NvmlSession, device: Any,
                  policy: model.SchedulerPolicy,
                  time_slice: int | None) -> None:
    """Set how time-sliced vGPUs share the GPU, until the driver unloads.

    :param time_slice: nanoseconds; None lets the driver use its default,
        which it does for the value 0 (nvmlVgpuSchedulerSetParams_t). Not
        used on drivers from 595 on, which take none.
    :raises NvmlError: IN_USE, on older drivers NOT_SUPPORTED, while a
        virtual machine runs; INVALID_ARGUMENT for a time slice out of
        range; NO_PERMISSION; RESET_REQUIRED if only a reboot helps.
    """
    wanted = pynvml.c_nvmlVgpuSchedulerSetState_t()
    _fill(nvml, device, wanted, policy, time_slice)
    nvml.call('nvmlDeviceSetVgpuSchedulerState', device, wanted)


def set_instance_scheduler(nvml: nvml_module.NvmlSession, device: Any,
                           instance_id: int, policy: model.SchedulerPolicy,
                           time_slice: int | None) -> None:
    """Set how vGPUs share a GPU instance, until it is destroyed.

    Makes two calls, or three with a time slice.

    :raises NvmlError: IN_USE while a virtual machine runs within the GPU
        instance; NOT_SUPPORTED before Blackwell GB20x; NOT_FOUND;
        INVALID_ARGUMENT for a time slice out of range; NO_PERMISSION.
    """
    wanted = pynvml.c_nvmlVgpuSchedulerState_v1_t()
    wanted.version = pynvml.nvmlVgpuSchedulerState_v1
    wanted.engineId = pynvml.NVML_VGPU_SCHEDULER_ENGINE_TYPE_GRAPHICS
    _fill(nvml, device, wanted, policy, time_slice)
    nvml.call('nvmlGpuInstanceSetVgpuSchedulerState',
              nvml.gpu_instance(device, instance_id), wanted)


def _fill(nvml: nvml_module.NvmlSession, device: Any, wanted: Any,
          policy: model.SchedulerPolicy, time_slice: int | None) -> None:
    """Write the policy and the time slice into NVML's structure."""
    wanted.schedulerPolicy = _NUMBERS[policy]
    wanted.enableARRMode = pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT
    if time_slice is not None and _takes_slice(nvml):
        wanted.schedulerParams.vgpuSchedData.timeslice = time_slice
        if nvml.call('nvmlDeviceGetVgpuSchedulerCapabilities',
                     device).isArrModeSupported:
            # Adaptive round robin takes no time slice: it sets its own.
            wanted.enableARRMode = pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE


def _placements(nvml: nvml_module.NvmlSession, name: str, device: Any,
                type_id: int, *mode: int) -> PlacementList | None:
    """Return the list of placements; None if the driver has none.

    Version 2 contains the length of the array. Drivers before 565 know only
    version 1, which relies on nvmlVgpuTypeGetMaxInstances.
    """
    try:
        found = nvml.optional(name, device, type_id, *mode, 2)
    except exception.NvmlError as error:
        if error.symbol != 'ARGUMENT_VERSION_MISMATCH':
            raise
        found = nvml.optional(name, device, type_id, *mode, 1)
    return found and PlacementList.from_buffer(found)
