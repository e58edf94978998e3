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

"""NVML's calls about health, power and running processes."""

from __future__ import annotations

import pynvml

from cyborg_gpu_driver.simulator.abi import memory
from cyborg_gpu_driver.simulator.abi import symbols
from cyborg_gpu_driver.simulator.driver import refusal

Refused = refusal.Refused
_CELSIUS = {
    pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: 92,
    pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: 89,
}
"""The thresholds of an A100, and here of all boards but Hopper's."""
_CELSIUS_OF_HOPPER = {
    pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: 95,
    pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: 89,
    pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: 95,
    pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: 87,
}
"""Seen on an H100 and an H200, driver 580.159.04."""
_IDLE_SHARE = 6
"""An idle board draws about its power limit divided by this number."""
_NO_INSTANCE = 0xffffffff


@symbols.symbol('nvmlDeviceGetTemperature')
def temperature(library, handle, sensor, value):
    memory.put(value, library.gpu(handle).state.celsius)


@symbols.symbol('nvmlDeviceGetTemperatureV')
def temperature_v(library, handle, value):
    memory.target(value).temperature = library.gpu(handle).state.celsius


@symbols.symbol('nvmlDeviceGetTemperatureThreshold')
def temperature_threshold(library, handle, threshold, value):
    gpu = library.gpu(handle)
    number = memory.number(threshold)
    if not 0 <= number < pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    celsius = _CELSIUS_OF_HOPPER if (
        gpu.model.architecture == pynvml.NVML_DEVICE_ARCH_HOPPER) else _CELSIUS
    if number not in celsius:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    memory.put(value, celsius[number])


@symbols.symbol('nvmlDeviceGetCurrentClocksEventReasons')
def clocks_event_reasons(library, handle, reasons):
    hot = library.gpu(handle).state.celsius >= _CELSIUS[
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN]
    memory.put(reasons, pynvml.nvmlClocksEventReasonHwThermalSlowdown
               if hot else pynvml.nvmlClocksEventReasonGpuIdle)


@symbols.symbol('nvmlDeviceGetPowerUsage')
def power_usage(library, handle, milliwatts):
    limit = library.gpu(handle).model.power_limit_watts
    memory.put(milliwatts, limit * 1000 // _IDLE_SHARE)


@symbols.symbol('nvmlDeviceGetPowerManagementLimit',
                'nvmlDeviceGetEnforcedPowerLimit')
def power_limit(library, handle, milliwatts):
    memory.put(milliwatts,
               library.gpu(handle).model.power_limit_watts * 1000)


@symbols.symbol('nvmlDeviceGetTotalEccErrors')
def ecc_errors(library, handle, kind, counter, count):
    gpu = library.gpu(handle)
    # nvml.h: "Requires ECC Mode to be enabled."
    if not gpu.state.ecc_modes[0]:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    # Remapped rows count the errors of the board's whole life.
    counters = (gpu.state.ecc
                if memory.number(counter) == pynvml.NVML_VOLATILE_ECC
                else gpu.state.remapped)
    memory.put(count, counters[
        0 if memory.number(kind) ==
        pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else 1])


@symbols.symbol('nvmlDeviceGetRemappedRows')
def remapped_rows(library, handle, corrected, uncorrected, pending, failed):
    gpu = library.gpu(handle)
    # nvml.h: not supported "on MIG-enabled GPUs with active instances".
    if not gpu.model.row_remapping or (gpu.state.mig and gpu.state.instances):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    for reference, value in zip((corrected, uncorrected, pending, failed),
                                gpu.state.remapped):
        memory.put(reference, value)


@symbols.symbol('nvmlDeviceGetRetiredPagesPendingStatus')
def retired_pages_pending(library, handle, pending):
    gpu = library.gpu(handle)
    if gpu.model.row_remapping:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    memory.put(pending, gpu.state.remapped[2])


@symbols.symbol('nvmlDeviceGetComputeRunningProcesses_v2',
                'nvmlDeviceGetComputeRunningProcesses_v3')
def compute_processes(library, handle, count, infos):
    gpu, ids = library.device(handle)
    library.check_usage(gpu, ids)
    values = []
    for process in gpu.state.processes:
        if ids is not None and ids != (process.instance, process.compute):
            continue
        values.append(pynvml.c_nvmlProcessInfo_v3_t(
            pid=process.pid, usedGpuMemory=1 << 28,
            gpuInstanceId=_or_none(process.instance),
            computeInstanceId=_or_none(process.compute)))
    memory.put_list(infos, count, pynvml.c_nvmlProcessInfo_v3_t, values)


def _or_none(number):
    return _NO_INSTANCE if number is None else number


@symbols.symbol('nvmlDeviceGetGraphicsRunningProcesses_v2',
                'nvmlDeviceGetGraphicsRunningProcesses_v3',
                'nvmlDeviceGetMPSComputeRunningProcesses_v3')
def other_processes(library, handle, count, infos):
    library.check_usage(*library.device(handle))
    memory.put(count, 0)
