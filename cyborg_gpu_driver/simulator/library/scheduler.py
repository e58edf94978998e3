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

"""NVML's calls about the scheduler of time-sliced vGPUs.

Its ranges and defaults are those of the vGPU guide (changing scheduling
behavior for time-sliced vGPUs).
"""

from __future__ import annotations

import pynvml

from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.abi import memory
from cyborg_gpu_driver.simulator.abi import symbols
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.library import vgpu as library_vgpu

Refused = refusal.Refused
_POLICIES = (pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT,
             pynvml.NVML_VGPU_SCHEDULER_POLICY_EQUAL_SHARE,
             pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE)
_ARR = (pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT,
        pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE,
        pynvml.NVML_VGPU_SCHEDULER_ARR_ENABLE)
_SLICES = (1_000_000, 30_000_000)
_SLICE = 2_000_000
"""Where none is set; of nanoseconds, as all of them."""
_AVERAGES = (1, 60)
_AVERAGE = 33
_FREQUENCIES = (63, 960)


@symbols.symbol('nvmlDeviceGetVgpuSchedulerCapabilities')
def capabilities(library, handle, info):
    library_vgpu.vgpu_host(library, handle)
    info = memory.target(info)
    for position, policy in enumerate(_POLICIES):
        info.supportedSchedulers[position] = policy
    info.minTimeslice, info.maxTimeslice = _SLICES
    info.isArrModeSupported = 1
    info.minFrequencyForARR, info.maxFrequencyForARR = _FREQUENCIES
    info.minAvgFactorForARR, info.maxAvgFactorForARR = _AVERAGES


def _scheduled(library, handle):
    """A GPU whose vGPUs share it in time.

    :raises Refused: NOT_SUPPORTED in MIG mode, or where it has no vGPUs.
    """
    gpu = library_vgpu.vgpu_host(library, handle)
    if gpu.state.mig:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu


@symbols.symbol('nvmlDeviceGetVgpuSchedulerState')
def state(library, handle, info):
    scheduler = _scheduled(library, handle).state.scheduler
    info = memory.target(info)
    info.schedulerPolicy = scheduler.policy
    info.arrMode = scheduler.arr
    data = info.schedulerParams
    if scheduler.policy == pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT:
        # No slices are dealt out: 0 for all that there is of them.
        data.vgpuSchedDataWithARR.avgFactor = 0
        data.vgpuSchedDataWithARR.timeslice = 0
    elif scheduler.arr == pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE:
        data.vgpuSchedData.timeslice = scheduler.time_slice or _SLICE
    else:
        data.vgpuSchedDataWithARR.avgFactor = scheduler.average or _AVERAGE
        data.vgpuSchedDataWithARR.timeslice = (
            1_000_000_000 // scheduler.frequency if scheduler.frequency
            else _SLICE)


@symbols.symbol('nvmlDeviceSetVgpuSchedulerState', writes=True,
                privileged=True)
def set_state(library, handle, info):
    gpu = _scheduled(library, handle)
    wanted = _wanted(memory.target(info))
    if (gpu.state.heterogeneous and wanted.policy
            == pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE):
        # Shares of vGPUs that differ in size are not fixed.
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if any(vgpu.guest for vgpu in gpu.state.vgpus):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    gpu.state.scheduler = wanted


def _wanted(info):
    """The setting that the caller asks for.

    The two forms of its parameters are a union: who gives a time slice
    without taking adaptive round robin off gives an averaging factor.

    :raises Refused: INVALID_ARGUMENT if it is out of range.
    """
    policy, arr = info.schedulerPolicy, info.enableARRMode
    if policy not in _POLICIES or arr not in _ARR:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    if policy == pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT:
        return state_module.Scheduler()
    data = info.schedulerParams
    if arr == pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE:
        return state_module.Scheduler(
            policy, arr,
            time_slice=_within(data.vgpuSchedData.timeslice, _SLICES))
    return state_module.Scheduler(
        policy, pynvml.NVML_VGPU_SCHEDULER_ARR_ENABLE,
        average=_within(data.vgpuSchedDataWithARR.avgFactor, _AVERAGES),
        frequency=_within(data.vgpuSchedDataWithARR.frequency,
                          _FREQUENCIES))


def _within(value, bounds):
    """``value``; 0 leaves it to the driver."""
    if value and not bounds[0] <= value <= bounds[1]:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return value
