# SPDX-License-Identifier: Apache-2.0

"""NVML's calls that monitoring makes: load, health, processes, NVLink.

The functions refuse calls as nvml.h says; each one names the place.
"""

from __future__ import annotations

import uuid

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator.library import device as library_device

Refused = faults.Refused


@abi.symbol('nvmlDeviceGetUtilizationRates')
def utilization(library, handle, rates):
    # nvml.h: "On MIG-enabled GPUs, querying device utilization rates is not
    # currently supported."
    gpu = library.gpu(handle)
    if gpu.state.mig:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    rates = abi.target(rates)
    rates.gpu, rates.memory = gpu.state.meters.gpu, gpu.state.meters.memory


@abi.symbol('nvmlDeviceGetFieldValues')
def field_values(library, handle, count, values):
    gpu = library.gpu(handle)
    for field in abi.array(values, pynvml.c_nvmlFieldValue_t,
                           abi.number(count)):
        if field.fieldId != pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
            field.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            continue
        field.nvmlReturn = pynvml.NVML_SUCCESS
        field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        field.value.uiVal = gpu.state.recovery


# NVML's calls about NVLink and how GPUs reach each other.

def _link(library, handle, link):
    """A GPU and the address at its link's other end, None if unconnected."""
    gpu = library.gpu(handle)
    number = abi.number(link)
    if not gpu.model.nvlinks:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if number >= gpu.model.nvlinks:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    peers = gpu.spec.nvlink_peers
    return gpu, peers[number] if number < len(peers) else None


@abi.symbol('nvmlDeviceGetNvLinkState')
def link_state(library, handle, link, active):
    gpu, peer = _link(library, handle, link)
    abi.put(active, int(
        peer is not None
        and abi.number(link) not in gpu.state.meters.links_down))


@abi.symbol('nvmlDeviceGetNvLinkRemotePciInfo_v2')
def remote_pci_info(library, handle, link, info):
    gpu, peer = _link(library, handle, link)
    if peer is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    info = abi.target(info)
    library_device.fill_bus_id(info, peer)
    info.pciDeviceId = gpu.machine.host.pci_id(peer)


@abi.symbol('nvmlDeviceGetNvLinkRemoteDeviceType')
def remote_device_type(library, handle, link, kind):
    gpu, peer = _link(library, handle, link)
    if peer is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    abi.put(kind, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            if gpu.machine.host.gpu(peer) is None
            else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)


@abi.symbol('nvmlDeviceGetGpuFabricInfoV')
def fabric_info(library, handle, info):
    """State of the GPU's registration with the fabric manager.

    nvml.h: for Hopper and later. The fabric manager's user guide shows
    Completed and Success while the fabric manager runs, and In Progress
    before. Cluster and clique are zeros if the NVLinks do not lead to other
    machines.
    """
    gpu = library.gpu(handle)
    if gpu.model.architecture < pynvml.NVML_DEVICE_ARCH_HOPPER:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    info = abi.versioned(info, pynvml.nvmlGpuFabricInfo_v2,
                         pynvml.nvmlGpuFabricInfo_v3)
    info.status = pynvml.NVML_SUCCESS
    info.state = _fabric_state(gpu)
    if (info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
            and gpu.machine.host.clique is not None):
        cluster, _, clique = gpu.machine.host.clique.partition('.')
        info.clusterUuid[:] = uuid.UUID(cluster).bytes
        info.cliqueId = int(clique)
    if info.version == pynvml.nvmlGpuFabricInfo_v3:
        info.healthSummary = (
            pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
            if info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
            else pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED)


def _fabric_state(gpu):
    if not gpu.on_switches:
        return pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    if not gpu.machine.state.fabric_manager:
        return pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS
    return pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


# NVML's calls about health, power and running processes.

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


@abi.symbol('nvmlDeviceGetTemperature')
def temperature(library, handle, sensor, value):
    abi.put(value, library.gpu(handle).state.celsius)


@abi.symbol('nvmlDeviceGetTemperatureThreshold')
def temperature_threshold(library, handle, threshold, value):
    gpu = library.gpu(handle)
    number = abi.number(threshold)
    if not 0 <= number < pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    celsius = _CELSIUS_OF_HOPPER if (
        gpu.model.architecture == pynvml.NVML_DEVICE_ARCH_HOPPER) else _CELSIUS
    if number not in celsius:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    abi.put(value, celsius[number])


@abi.symbol('nvmlDeviceGetTotalEccErrors')
def ecc_errors(library, handle, kind, counter, count):
    gpu = library.gpu(handle)
    # nvml.h: "Requires ECC Mode to be enabled."
    if not gpu.state.ecc_modes[0]:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    # Remapped rows count the errors of the board's whole life.
    counters = (gpu.state.ecc
                if abi.number(counter) == pynvml.NVML_VOLATILE_ECC
                else gpu.state.remapped)
    abi.put(count, counters[
        0 if abi.number(kind) ==
        pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else 1])


@abi.symbol('nvmlDeviceGetComputeRunningProcesses_v3')
def compute_processes(library, handle, count, infos):
    gpu, ids = library.device(handle)
    values = []
    for process in gpu.state.processes:
        if ids is not None and ids != (process.instance, process.compute):
            continue
        values.append(pynvml.c_nvmlProcessInfo_v3_t(
            pid=process.pid, usedGpuMemory=1 << 28,
            gpuInstanceId=abi.or_none(process.instance),
            computeInstanceId=abi.or_none(process.compute)))
    abi.put_list(infos, count, pynvml.c_nvmlProcessInfo_v3_t, values)


@abi.symbol('nvmlDeviceGetGraphicsRunningProcesses_v3',
            'nvmlDeviceGetMPSComputeRunningProcesses_v3')
def other_processes(library, handle, count, infos):
    library.device(handle)
    abi.put(count, 0)


def _event_reasons(gpu):
    hot = gpu.state.celsius >= _CELSIUS[
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN]
    return (pynvml.nvmlClocksEventReasonHwThermalSlowdown if hot
            else pynvml.nvmlClocksEventReasonGpuIdle)


def _remapped_rows(gpu):
    # nvml.h: not supported "on MIG-enabled GPUs with active instances".
    if not gpu.model.row_remapping or (gpu.state.mig and gpu.state.instances):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu.state.remapped


def _retired_pages_pending(gpu):
    if gpu.model.row_remapping:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return gpu.state.remapped[2]


abi.numbers(library_device.gpu_of, {
    'nvmlDeviceGetCurrentClocksEventReasons': _event_reasons,
    'nvmlDeviceGetPowerUsage':
        lambda gpu: gpu.model.power_limit_watts * 1000 // _IDLE_SHARE,
    'nvmlDeviceGetEnforcedPowerLimit':
        lambda gpu: gpu.model.power_limit_watts * 1000,
    'nvmlDeviceGetRemappedRows': _remapped_rows,
    'nvmlDeviceGetRetiredPagesPendingStatus': _retired_pages_pending})
