# SPDX-License-Identifier: Apache-2.0

"""NVML's calls that monitoring makes: load, health, processes, NVLink.

The functions refuse calls as nvml.h says; each one names the place. nvml.h
says little about which GPU has which fields ("Field Identifiers"). If it says
nothing, GPUs before Hopper have only the fields that are older than Hopper.
"""

from __future__ import annotations

import uuid

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator.library import device as library_device

Refused = faults.Refused
_WITH_HBM = ('A100', 'A30', 'B200', 'B300', 'H100', 'H200', 'V100')
"""Products whose memory has its own temperature: HBM (data sheets)."""
_MHZ = {pynvml.NVML_CLOCK_SM: 1410, pynvml.NVML_CLOCK_MEM: 1593}
"""Clocks of a busy A100 80GB (its product brief)."""
_IDLE_MHZ = {pynvml.NVML_CLOCK_SM: 210, pynvml.NVML_CLOCK_MEM: 1593}
_SUMS_OF_LINKS = {
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 0,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: 0,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 0,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: 1}
"""1 if a field counts recoveries, else 0."""
_OF_A_LINK = {
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: 0,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: 1,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: 0}


@abi.symbol('nvmlDeviceGetUtilizationRates')
def utilization(library, handle, rates):
    # nvml.h: "On MIG-enabled GPUs, querying device utilization rates is not
    # currently supported."
    gpu = library.gpu(handle)
    if gpu.state.mig:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    rates = abi.target(rates)
    rates.gpu, rates.memory = gpu.state.meters.gpu, gpu.state.meters.memory


@abi.symbol('nvmlDeviceGetClockInfo')
def clock_info(library, handle, kind, value):
    gpu = library.gpu(handle)
    clocks = _MHZ if gpu.state.meters.gpu else _IDLE_MHZ
    number = abi.number(kind)
    if number not in clocks:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    abi.put(value, clocks[number])


@abi.symbol('nvmlDeviceGetFieldValues')
def field_values(library, handle, count, values):
    gpu = library.gpu(handle)
    for field in abi.array(values, pynvml.c_nvmlFieldValue_t,
                           abi.number(count)):
        try:
            found = _field(gpu, field.fieldId, field.scopeId)
        except Refused as refused:
            field.nvmlReturn = refused.code
            continue
        field.nvmlReturn = pynvml.NVML_SUCCESS
        if field.fieldId in _UNSIGNED_INT:
            field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            field.value.uiVal = found
        else:
            field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            field.value.ullVal = found


_ECC = (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)
_REMAPPED = (pynvml.NVML_FI_DEV_REMAPPED_COR,
             pynvml.NVML_FI_DEV_REMAPPED_UNC,
             pynvml.NVML_FI_DEV_REMAPPED_PENDING,
             pynvml.NVML_FI_DEV_REMAPPED_FAILURE)
_UNSIGNED_INT = frozenset({
    *_REMAPPED, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_MEMORY_TEMP, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    pynvml.NVML_FI_DEV_NVLINK_GET_STATE,
    pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT})


def _field(gpu, number, scope):
    """The value of a field."""
    state, meters = gpu.state, gpu.state.meters
    fields = {
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: state.recovery,
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: meters.millijoules,
        pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: meters.replays}
    if gpu.model.architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER:
        fields[pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES] = meters.sent
        fields[pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES] = meters.received
    if any(name in gpu.model.product for name in _WITH_HBM):
        fields[pynvml.NVML_FI_DEV_MEMORY_TEMP] = state.celsius
    # nvml.h of nvmlDeviceGetTotalEccErrors: "Requires ECC Mode to be
    # enabled."
    if state.ecc_modes[0]:
        fields |= dict(zip(_ECC, state.ecc, strict=True))
    if number in _REMAPPED:
        fields |= dict(zip(_REMAPPED, _remapped_rows(gpu), strict=True))
    found = fields.get(number)
    if found is None:
        found = _link_field(gpu, number, scope)
    if found is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return found


def _link_field(gpu, number, scope):
    """A field about NVLinks; for one link, scopeId is its number (nvml.h)."""
    architecture, errors = gpu.model.architecture, gpu.state.meters.link_errors
    if not gpu.model.nvlinks:
        return None
    if number == pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT:
        return gpu.model.nvlinks
    if architecture < pynvml.NVML_DEVICE_ARCH_HOPPER:
        return _times(_SUMS_OF_LINKS, number, errors)
    if number == pynvml.NVML_FI_DEV_NVLINK_GET_STATE:
        _check_link(gpu, scope)
        return int(scope < len(gpu.spec.nvlink_peers)
                   and scope not in gpu.state.meters.links_down)
    # nvml.h: "This is unsupported for Blackwell+. Please use
    # NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_*."
    counters = _OF_A_LINK
    if architecture >= pynvml.NVML_DEVICE_ARCH_BLACKWELL:
        counters = {
            pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: 1}
    if number in counters:
        _check_link(gpu, scope)
    return _times(counters, number, 0 if scope else errors)


def _check_link(gpu, number):
    if number >= gpu.model.nvlinks:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)


def _times(factors, number, count):
    return factors[number] * count if number in factors else None


# GPM: how busy GPU instances are, from two samples.
#
# nvml.h: all of it is "for Hopper or newer".

_GPM = (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, pynvml.NVML_GPM_METRIC_SM_UTIL,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL)


@abi.symbol('nvmlGpmSampleAlloc')
def gpm_alloc(library, reference):
    abi.put_handle(reference, library.samples.make(None))


@abi.symbol('nvmlGpmSampleFree')
def gpm_free(library, sample):
    library.samples.free(sample)


@abi.symbol('nvmlGpmMigSampleGet')
def gpm_mig_sample(library, handle, instance_id, sample):
    gpu = library.gpu(handle)
    if (gpu.model.architecture < pynvml.NVML_DEVICE_ARCH_HOPPER
            or not gpu.state.mig):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    instance = gpu.state.instances.get(abi.number(instance_id))
    if instance is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    library.samples.set(sample, ((gpu.address, instance.serial),
                                 tuple(instance.percents)))


@abi.symbol('nvmlGpmMetricsGet')
def gpm_metrics(library, wanted):
    wanted = abi.versioned(wanted, pynvml.NVML_GPM_METRICS_GET_VERSION)
    older, newer = map(library.samples.get, (wanted.sample1, wanted.sample2))
    if older is None or newer is None or older[0] != newer[0]:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    percents = dict(zip(_GPM, newer[1], strict=True))
    for item in wanted.metrics[:wanted.numMetrics]:
        item.nvmlReturn = pynvml.NVML_SUCCESS
        item.value = float(percents.get(item.metricId, 0))


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
