# SPDX-License-Identifier: Apache-2.0

"""NVML's calls that find a device, describe it, and set its modes."""

from __future__ import annotations

import re

import pynvml

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import spec

Refused = faults.Refused
_MIB = 1 << 20
_RESERVED_MIB = 600
_VBIOS = {pynvml.NVML_DEVICE_ARCH_VOLTA: '88.00.98.00.01',
          pynvml.NVML_DEVICE_ARCH_TURING: '90.04.96.00.02',
          pynvml.NVML_DEVICE_ARCH_AMPERE: '92.00.45.00.06',
          pynvml.NVML_DEVICE_ARCH_ADA: '95.02.66.00.02',
          pynvml.NVML_DEVICE_ARCH_HOPPER: '96.00.A5.00.1A',
          pynvml.NVML_DEVICE_ARCH_BLACKWELL: '98.02.52.00.01'}
"""In the format of real versions, by architecture. That of Hopper was seen on
an H200, driver 580.159.04."""
_VBIOS_OF = {'h100-80': '96.00.DA.00.0C'}
"""Of one model: seen on an H100, driver 580.159.04."""
_BUS_ID = re.compile('(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):'
                     '([0-9a-fA-F]{1,2})(?:[.]([0-7]))?')


def asked_for(library, name, argument):
    """The GPU that a GetHandleBy call requests; None if there is none."""
    if 'ByIndex' in name:
        position = abi.number(argument)
        gpus = library.visible()
        return gpus[position] if 0 <= position < len(gpus) else None
    address = sysfs_address(abi.text(argument))
    return next((gpu for gpu in library.visible()
                 if gpu.address == address), None)


def sysfs_address(bus_id):
    """Convert a bus id to an address of sysfs; None if it is not a bus id."""
    match = _BUS_ID.fullmatch(bus_id)
    if match is None:
        return None
    domain, bus, device, function = (int(part or '0', 16)
                                     for part in match.groups())
    return f'{domain:04x}:{bus:02x}:{device:02x}.{function}'


@abi.symbol('nvmlDeviceGetHandleByIndex_v2')
def handle_by_index(library, index, handle):
    gpu = asked_for(library, 'ByIndex', index)
    if gpu is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    abi.put_handle(handle, library.handle_of(gpu))


@abi.symbol('nvmlDeviceGetHandleByPciBusId_v2')
def handle_by_bus_id(library, bus_id, handle):
    if sysfs_address(abi.text(bus_id)) is None:
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    gpu = asked_for(library, 'ByPciBusId', bus_id)
    if gpu is None:
        raise Refused(pynvml.NVML_ERROR_NOT_FOUND)
    abi.put_handle(handle, library.handle_of(gpu))


def _profile(gpu, ids):
    return gpu.mig().by_id(gpu.state.instances[ids[0]].profile_id)


@abi.symbol('nvmlDeviceGetPciInfo_v3')
def pci_info(library, handle, info):
    gpu = library.gpu(handle)
    info = abi.target(info)
    model = gpu.model
    fill_bus_id(info, gpu.address)
    info.pciDeviceId = int(model.device + spec.NVIDIA, 16)
    info.pciSubSystemId = int(model.subsystem_device + spec.NVIDIA, 16)


def fill_bus_id(info, address):
    """Write an address into nvmlPciInfo_t: eight digits, upper case."""
    domain, bus, rest = address.upper().split(':')
    info.domain, info.bus = int(domain, 16), int(bus, 16)
    info.device = int(rest.split('.')[0], 16)
    info.busId = f'{domain.zfill(8)}:{bus}:{rest}'.encode()
    info.busIdLegacy = f'{domain}:{bus}:{rest}'.encode()


def _memory_mib(gpu, ids):
    return gpu.model.memory_mib if ids is None else (
        _profile(gpu, ids).memory_mib)


@abi.symbol('nvmlDeviceGetMemoryInfo', 'nvmlDeviceGetMemoryInfo_v2')
def memory_info(library, handle, info):
    """Version 2 tells the driver's own memory from what is in use."""
    total = _memory_mib(*library.device(handle)) * _MIB
    info = abi.target(info)
    reserved = min(_RESERVED_MIB * _MIB, total)
    info.total, info.free, info.used = total, total - reserved, reserved
    if isinstance(info, pynvml.c_nvmlMemory_v2_t):
        abi.versioned(info, pynvml.nvmlMemory_v2)
        info.reserved, info.used = reserved, 0


@abi.symbol('nvmlDeviceSetPersistenceMode', writes=True,
            privileged=True)
def set_persistence_mode(library, handle, mode):
    # This does not reach nvidia-persistenced; only nvidia-smi does.
    library.gpu(handle).state.persistence = abi.switch(mode)


@abi.symbol('nvmlDeviceSetEccMode', writes=True, privileged=True)
def set_ecc_mode(library, handle, mode):
    """nvml.h: the mode takes effect after the next restart.

    Here a reset has the same effect, because it starts the GPU again.
    """
    library.gpu(handle).state.ecc_modes[1] = abi.switch(mode)


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


def gpu_of(library, handle):
    """The GPU of a handle, as the subject of a table of symbols."""
    return library.gpu(handle)


def device_of(library, handle):
    """The GPU of a handle and the ids of a MIG device, as a subject."""
    return library.device(handle)


def _name(device):
    gpu, ids = device
    return gpu.model.product + (
        '' if ids is None else f' MIG {_profile(gpu, ids).name}')


def _uuid(device):
    gpu, ids = device
    return gpu.spec.uuid if ids is None else (
        gpu.state.instances[ids[0]].compute[ids[1]].uuid)


abi.texts(device_of, {'nvmlDeviceGetName': _name, 'nvmlDeviceGetUUID': _uuid})
abi.texts(gpu_of, {
    'nvmlDeviceGetSerial': lambda gpu: gpu.spec.serial,
    'nvmlDeviceGetVbiosVersion': lambda gpu: _VBIOS_OF.get(
        gpu.model.name, _VBIOS[gpu.model.architecture])})
abi.numbers(device_of, {
    'nvmlDeviceGetArchitecture': lambda device: device[0].model.architecture,
    'nvmlDeviceGetCudaComputeCapability':
        lambda device: device[0].model.compute_capability})
abi.numbers(gpu_of, {
    # nvml.h: 0 for a GPU that is not on a baseboard.
    'nvmlDeviceGetModuleId':
        lambda gpu: gpu.machine.host.module(gpu.address),
    'nvmlDeviceGetPersistenceMode':
        lambda gpu: gpu.state.persistence or gpu.state.daemon,
    'nvmlDeviceGetEccMode': lambda gpu: gpu.state.ecc_modes})
