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

"""NVML's calls that monitoring makes: load, clocks, counters.

The functions refuse calls as nvml.h says; each one names the place. nvml.h
says little about which GPU has which fields ("Field Identifiers"). If it says
nothing, GPUs before Hopper have only the fields that are older than Hopper.
"""

from __future__ import annotations

import time

import pynvml

from cyborg_gpu_driver.simulator.abi import memory
from cyborg_gpu_driver.simulator.abi import symbols
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.library import vgpu as library_vgpu

Refused = refusal.Refused
_MIB = 1 << 20
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


@symbols.symbol('nvmlDeviceGetUtilizationRates')
def utilization(library, handle, rates):
    # nvml.h: "On MIG-enabled GPUs, querying device utilization rates is not
    # currently supported."
    gpu = library.gpu(handle)
    if gpu.state.mig:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    rates = memory.target(rates)
    rates.gpu, rates.memory = gpu.state.meters.gpu, gpu.state.meters.memory


@symbols.symbol('nvmlDeviceGetClockInfo')
def clock_info(library, handle, kind, value):
    gpu = library.gpu(handle)
    clocks = _MHZ if gpu.state.meters.gpu else _IDLE_MHZ
    number = memory.number(kind)
    if number not in clocks:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    memory.put(value, clocks[number])


@symbols.symbol('nvmlDeviceGetFieldValues')
def field_values(library, handle, count, values):
    gpu = library.gpu(handle)
    for field in memory.array(values, pynvml.c_nvmlFieldValue_t,
                              memory.number(count)):
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


_UNSIGNED_INT = frozenset({
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_MEMORY_TEMP, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    pynvml.NVML_FI_DEV_REMAPPED_COR, pynvml.NVML_FI_DEV_REMAPPED_UNC,
    pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    pynvml.NVML_FI_DEV_NVLINK_GET_STATE,
    pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT})


def _field(gpu, number, scope):
    """The value of a field.

    :raises Refused: with the code for the field's ``nvmlReturn``.
    """
    for part in (_board_field, _memory_field, _link_field):
        found = part(gpu, number, scope)
        if found is not None:
            return found
    raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _board_field(gpu, number, _scope):
    meters = gpu.state.meters
    hopper = gpu.model.architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER
    return {
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: gpu.state.recovery,
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: meters.millijoules,
        pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: meters.replays,
        pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES:
            meters.sent if hopper else None,
        pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES:
            meters.received if hopper else None,
    }.get(number)


def _memory_field(gpu, number, _scope):
    state = gpu.state
    if number == pynvml.NVML_FI_DEV_MEMORY_TEMP:
        return (state.celsius if any(name in gpu.model.product
                                     for name in _WITH_HBM) else None)
    # nvml.h of nvmlDeviceGetTotalEccErrors: "Requires ECC Mode to be
    # enabled."
    if state.ecc_modes[0]:
        for index, field in enumerate((
                pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
                pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)):
            if number == field:
                return state.ecc[index]
    # nvml.h of nvmlDeviceGetRemappedRows: not supported on MIG-enabled GPUs
    # with active instances.
    if gpu.model.row_remapping and not (state.mig and state.instances):
        for index, field in enumerate((
                pynvml.NVML_FI_DEV_REMAPPED_COR,
                pynvml.NVML_FI_DEV_REMAPPED_UNC,
                pynvml.NVML_FI_DEV_REMAPPED_PENDING,
                pynvml.NVML_FI_DEV_REMAPPED_FAILURE)):
            if number == field:
                return state.remapped[index]
    return None


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


@symbols.symbol('nvmlDeviceGetVgpuUtilization')
def vgpu_utilization(library, handle, since, kind, count, samples):
    """Return one current sample for each vGPU on which a guest runs."""
    gpu = library_vgpu.vgpu_host(library, handle)
    now = time.time_ns() // 1000
    running = [vgpu for vgpu in gpu.state.vgpus if vgpu.guest]
    found = []
    for vgpu in running:
        sample = pynvml.c_nvmlVgpuInstanceUtilizationSample_t()
        sample.vgpuInstance, sample.timeStamp = vgpu.vgpu_id, now
        for name, percent in zip(('smUtil', 'memUtil', 'encUtil', 'decUtil'),
                                 vgpu.percents, strict=True):
            getattr(sample, name).uiVal = percent
        found.append(sample)
    if found and memory.number(since) >= now:
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    memory.put(kind, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    memory.put_list(samples, count,
                    pynvml.c_nvmlVgpuInstanceUtilizationSample_t, found)


@symbols.symbol('nvmlVgpuInstanceGetFbUsage')
def framebuffer_usage(library, vgpu_id, used):
    _, vgpu = library_vgpu.active_vgpu(library, vgpu_id)
    memory.put(used, vgpu.used_mib * _MIB)


@symbols.symbol('nvmlVgpuInstanceGetVmID')
def vm_id(library, vgpu_id, buffer, size, kind):
    """nvml.h: the id's format varies by platform; ``kind`` says which it is.
    """
    _, vgpu = library_vgpu.active_vgpu(library, vgpu_id)
    memory.put_text(buffer, memory.number(size), vgpu.vm)
    memory.put(kind, pynvml.NVML_VGPU_VM_ID_DOMAIN_ID if vgpu.vm.isdecimal()
               else pynvml.NVML_VGPU_VM_ID_UUID)
