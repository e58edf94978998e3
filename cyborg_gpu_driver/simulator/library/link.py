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

"""NVML's calls about NVLink and how GPUs reach each other."""

from __future__ import annotations

import uuid

import pynvml

from cyborg_gpu_driver.simulator.abi import memory
from cyborg_gpu_driver.simulator.abi import symbols
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.library import device as library_device

Refused = refusal.Refused


def _link(library, handle, link):
    """A GPU and the address at its link's other end, None if unconnected."""
    gpu = library.gpu(handle)
    number = memory.number(link)
    if not gpu.model.nvlinks:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if number >= gpu.model.nvlinks:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    peers = gpu.spec.nvlink_peers
    return gpu, peers[number] if number < len(peers) else None


@symbols.symbol('nvmlDeviceGetNvLinkState')
def link_state(library, handle, link, active):
    gpu, peer = _link(library, handle, link)
    memory.put(active, int(
        peer is not None
        and memory.number(link) not in gpu.state.meters.links_down))


@symbols.symbol('nvmlDeviceGetNvLinkRemotePciInfo_v2',
                'nvmlDeviceGetNvLinkRemotePciInfo')
def remote_pci_info(library, handle, link, info):
    gpu, peer = _link(library, handle, link)
    if peer is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    info = memory.target(info)
    library_device.fill_bus_id(info, peer)
    info.pciDeviceId = gpu.machine.host.pci_id(peer)


@symbols.symbol('nvmlDeviceGetNvLinkRemoteDeviceType')
def remote_device_type(library, handle, link, kind):
    gpu, peer = _link(library, handle, link)
    if peer is None:
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    memory.put(kind, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
               if gpu.machine.host.gpu(peer) is None
               else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)


@symbols.symbol('nvmlDeviceGetModuleId')
def module_id(library, handle, number):
    """The module id; 0 for a GPU that is not on a baseboard (nvml.h)."""
    gpu = library.gpu(handle)
    memory.put(number, gpu.machine.host.module(gpu.address))


@symbols.symbol('nvmlDeviceGetP2PStatus')
def p2p_status(library, handle, other_handle, index, status):
    gpu, other = library.gpu(handle), library.gpu(other_handle)
    one, two = set(gpu.spec.nvlink_peers), set(other.spec.nvlink_peers)
    linked = (other.address in one
              or any(gpu.machine.host.gpu(peer) is None
                     for peer in one & two))
    memory.put(status, pynvml.NVML_P2P_STATUS_OK
               if linked and not gpu.state.mig and not other.state.mig
               else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)


@symbols.symbol('nvmlDeviceGetTopologyCommonAncestor')
def common_ancestor(library, handle, other_handle, level):
    gpu, other = library.gpu(handle), library.gpu(other_handle)
    if gpu is other:
        # Seen on an H100 and an H200, driver 580.159.04.
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if gpu.spec.numa_node == other.spec.numa_node:
        value = pynvml.NVML_TOPOLOGY_NODE
    else:
        value = pynvml.NVML_TOPOLOGY_SYSTEM
    memory.put(level, value)


@symbols.symbol('nvmlDeviceGetGpuFabricInfoV')
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
    info = memory.target(info)
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
