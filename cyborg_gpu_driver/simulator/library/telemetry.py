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
import uuid

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.library import device as library_device
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


@abi.symbol('nvmlDeviceGetVgpuUtilization')
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
    if found and abi.number(since) >= now:
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    abi.put(kind, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    abi.put_list(samples, count,
                 pynvml.c_nvmlVgpuInstanceUtilizationSample_t, found)


@abi.symbol('nvmlVgpuInstanceGetFbUsage')
def framebuffer_usage(library, vgpu_id, used):
    _, vgpu = library_vgpu.active_vgpu(library, vgpu_id)
    abi.put(used, vgpu.used_mib * _MIB)


@abi.symbol('nvmlVgpuInstanceGetVmID')
def vm_id(library, vgpu_id, buffer, size, kind):
    """nvml.h: the id's format varies by platform; ``kind`` says which it is.
    """
    _, vgpu = library_vgpu.active_vgpu(library, vgpu_id)
    abi.put_text(buffer, abi.number(size), vgpu.vm)
    abi.put(kind, pynvml.NVML_VGPU_VM_ID_DOMAIN_ID if vgpu.vm.isdecimal()
            else pynvml.NVML_VGPU_VM_ID_UUID)


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


@abi.symbol('nvmlDeviceGetNvLinkRemotePciInfo_v2',
            'nvmlDeviceGetNvLinkRemotePciInfo')
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


@abi.symbol('nvmlDeviceGetModuleId')
def module_id(library, handle, number):
    """The module id; 0 for a GPU that is not on a baseboard (nvml.h)."""
    gpu = library.gpu(handle)
    abi.put(number, gpu.machine.host.module(gpu.address))


@abi.symbol('nvmlDeviceGetP2PStatus')
def p2p_status(library, handle, other_handle, index, status):
    gpu, other = library.gpu(handle), library.gpu(other_handle)
    one, two = set(gpu.spec.nvlink_peers), set(other.spec.nvlink_peers)
    linked = (other.address in one
              or any(gpu.machine.host.gpu(peer) is None
                     for peer in one & two))
    abi.put(status, pynvml.NVML_P2P_STATUS_OK
            if linked and not gpu.state.mig and not other.state.mig
            else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)


@abi.symbol('nvmlDeviceGetTopologyCommonAncestor')
def common_ancestor(library, handle, other_handle, level):
    gpu, other = library.gpu(handle), library.gpu(other_handle)
    if gpu is other:
        # Seen on an H100 and an H200, driver 580.159.04.
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if gpu.spec.numa_node == other.spec.numa_node:
        value = pynvml.NVML_TOPOLOGY_NODE
    else:
        value = pynvml.NVML_TOPOLOGY_SYSTEM
    abi.put(level, value)


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
    info = abi.target(info)
    if info.version not in (pynvml.nvmlGpuFabricInfo_v2,
                            pynvml.nvmlGpuFabricInfo_v3):
        raise Refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
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
