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

"""NVML's calls about modes that outlive a tenant: ECC, confidential computing.

nvml.h: nvmlDeviceSetEccMode needs root, is persistent and takes effect after
the next restart; the pending mode is the mode after that restart. Here a
reset has the same effect, because it starts the GPU again.
"""

from __future__ import annotations

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.library import vgpu as library_vgpu

Refused = refusal.Refused


@abi.symbol('nvmlDeviceGetEccMode')
def ecc_mode(library, handle, current, pending):
    modes = library.gpu(handle).state.ecc_modes
    for reference, mode in zip((current, pending), modes, strict=True):
        abi.put(reference, int(mode))


@abi.symbol('nvmlDeviceGetDefaultEccMode')
def default_ecc_mode(library, handle, default):
    library.gpu(handle)
    abi.put(default, pynvml.NVML_FEATURE_ENABLED)


@abi.symbol('nvmlDeviceSetEccMode', writes=True, privileged=True)
def set_ecc_mode(library, handle, mode):
    gpu = library.gpu(handle)
    value = abi.number(mode)
    if value not in (pynvml.NVML_FEATURE_DISABLED,
                     pynvml.NVML_FEATURE_ENABLED):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    gpu.state.ecc_modes[1] = bool(value)


@abi.symbol('nvmlSystemGetConfComputeState')
def confidential_computing(library, state):
    """The state of confidential computing, which exists since Hopper.

    No public source says what NVML returns for an older board. The call may
    return NOT_SUPPORTED (nvml.h).
    """
    if not any(gpu.model.architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER
               for gpu in library.visible()):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    mode = library.machine.state.confidential_computing
    found = abi.target(state)
    found.environment = (pynvml.NVML_CC_SYSTEM_ENVIRONMENT_PROD if mode
                         else pynvml.NVML_CC_SYSTEM_ENVIRONMENT_UNAVAILABLE)
    found.ccFeature = int(mode == 'on')
    found.devToolsMode = int(mode == 'devtools')


# NVML's calls about the scheduler of time-sliced vGPUs.
#
# The ranges and defaults are those of the vGPU guide (changing scheduling
# behavior for time-sliced vGPUs).
#
# A GPU instance that several vGPUs share has its own scheduler. nvml.h says of
# nvmlGpuInstanceSetVgpuSchedulerState: for Blackwell GB20x or newer; only
# while no virtual machine runs within the GPU instance; the setting is lost
# with the GPU instance and when the driver is unloaded.

_POLICIES = (pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT,
             pynvml.NVML_VGPU_SCHEDULER_POLICY_EQUAL_SHARE,
             pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE)
_ARR = (pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT,
        pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE,
        pynvml.NVML_VGPU_SCHEDULER_ARR_ENABLE)
_SLICES = (1_000_000, 30_000_000)
_SLICE = 2_000_000
"""The default time slice, in nanoseconds like all time slices."""
_AVERAGES = (1, 60)
_AVERAGE = 33
_FREQUENCIES = (63, 960)
_ENGINES = (pynvml.NVML_VGPU_SCHEDULER_ENGINE_TYPE_GRAPHICS, 2, 3)
"""NVML_VGPU_SCHEDULER_ENGINE_TYPE_*; pynvml 13.580 lacks the encoders."""


@abi.symbol('nvmlDeviceGetVgpuSchedulerCapabilities')
def capabilities(library, handle, info):
    library_vgpu.vgpu_host(library, handle)
    info = abi.target(info)
    for position, policy in enumerate(_POLICIES):
        info.supportedSchedulers[position] = policy
    info.minTimeslice, info.maxTimeslice = _SLICES
    info.isArrModeSupported = 1
    info.minFrequencyForARR, info.maxFrequencyForARR = _FREQUENCIES
    info.minAvgFactorForARR, info.maxAvgFactorForARR = _AVERAGES


def _scheduled(library, handle):
    """The GPU of a handle, which must have time-sliced vGPUs.

    :raises Refused: NOT_SUPPORTED in MIG mode, or if the driver creates no
        vGPUs on the GPU.
    """
    gpu = library_vgpu.vgpu_host(library, handle)
    if gpu.state.mig:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu


@abi.symbol('nvmlDeviceGetVgpuSchedulerState')
def state(library, handle, info):
    _fill(abi.target(info), _scheduled(library, handle).state.scheduler)


def _fill(info, scheduler):
    """Write the scheduler's state of a GPU or of a GPU instance."""
    info.schedulerPolicy = scheduler.policy
    info.arrMode = scheduler.arr
    data = info.schedulerParams
    if scheduler.policy == pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT:
        # This policy has no time slices, so all their values are 0.
        data.vgpuSchedDataWithARR.avgFactor = 0
        data.vgpuSchedDataWithARR.timeslice = 0
    elif scheduler.arr == pynvml.NVML_VGPU_SCHEDULER_ARR_DISABLE:
        data.vgpuSchedData.timeslice = scheduler.time_slice or _SLICE
    else:
        data.vgpuSchedDataWithARR.avgFactor = scheduler.average or _AVERAGE
        data.vgpuSchedDataWithARR.timeslice = (
            1_000_000_000 // scheduler.frequency if scheduler.frequency
            else _SLICE)


@abi.symbol('nvmlDeviceSetVgpuSchedulerState', writes=True,
            privileged=True)
def set_state(library, handle, info):
    gpu = _scheduled(library, handle)
    wanted = _wanted(abi.target(info))
    if (gpu.state.heterogeneous and wanted.policy
            == pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE):
        # vGPUs of different sizes have no fixed shares.
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if any(vgpu.guest for vgpu in gpu.state.vgpus):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    gpu.state.scheduler = wanted


def _wanted(info):
    """The setting that the caller requests.

    The two forms of the parameters are a union: if a caller sets a time slice
    without disabling adaptive round robin, the value is read as an averaging
    factor.

    :raises Refused: INVALID_ARGUMENT if a value is out of range.
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
    """Return ``value`` if it is within the bounds, or 0 for the default."""
    if value and not bounds[0] <= value <= bounds[1]:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return value


def _shared(library, handle, info, version):
    """The GPU and the GPU instance of a handle, and the structure.

    :raises Refused: NOT_SUPPORTED if no vGPU type shares such a GPU
        instance, or for an engine without a software scheduler: nvml.h
        says that a GPU instance may have a subset of the engines.
    """
    gpu, number, instance = library.instance(handle)
    info = abi.target(info)
    if info.version != version:
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    if info.engineId not in _ENGINES:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    if (info.engineId != pynvml.NVML_VGPU_SCHEDULER_ENGINE_TYPE_GRAPHICS
            or gpu.framework == spec.NO_FRAMEWORK
            or not any(kind.profile_id == instance.profile_id
                       and (kind.per_instance or 0) > 1
                       for kind in gpu.model.vgpu_types)):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu, number, instance, info


@abi.symbol('nvmlGpuInstanceGetVgpuSchedulerState')
def instance_state(library, handle, info):
    _gpu, _number, instance, info = _shared(
        library, handle, info, pynvml.nvmlVgpuSchedulerStateInfo_v1)
    _fill(info, instance.scheduler)


@abi.symbol('nvmlGpuInstanceGetVgpuSchedulerLog')
def instance_log(library, handle, info):
    """The scheduler's log, which is always empty on a simulated machine."""
    _gpu, _number, instance, info = _shared(
        library, handle, info, pynvml.nvmlVgpuSchedulerLogInfo_v1)
    _fill(info, instance.scheduler)
    info.entriesCount = 0


@abi.symbol('nvmlGpuInstanceSetVgpuSchedulerState', writes=True,
            privileged=True)
def set_instance_state(library, handle, info):
    gpu, number, instance, info = _shared(
        library, handle, info, pynvml.nvmlVgpuSchedulerState_v1)
    wanted = _wanted(info)
    if any(vgpu.guest for vgpu in gpu.state.vgpus
           if vgpu.instance == number):
        raise Refused(pynvml.NVML_ERROR_IN_USE)
    instance.scheduler = wanted
