# SPDX-License-Identifier: Apache-2.0

"""The simulated fabric manager, and the library that replaces libnvfm."""

from __future__ import annotations

import ctypes
import struct
import sys

import pynvml

from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module

# The partitions that a baseboard has.
#
# From "GPU Partitions" in the fabric manager's user guide, for one baseboard.

_EIGHT = ((1, 2, 3, 4, 5, 6, 7, 8),)
_FOURS = ((1, 2, 3, 4), (5, 6, 7, 8))
_ONES = tuple((number,) for number in range(1, 9))
_NEIGHBOURS = ((1, 2), (3, 4), (5, 6), (7, 8))
_HOPPER_PAIRS = ((1, 3), (2, 4), (5, 7), (6, 8))
# Partitions of two baseboards are left out, and so are their ids.
_AMPERE_IDS = (1, 7, 8, *range(11, 15), *range(19, 27))
_LINE_RATES = {pynvml.NVML_DEVICE_ARCH_AMPERE: 25781}
_LATER_RATE = 26562
"""MB/s of an NVLink: 25.781 GB/s of the third generation, 26.562 of the
fourth, as "nvidia-smi nvlink -s" prints them."""


def table(architecture: int) -> dict[int, tuple[int, ...]]:
    """The physical ids of the GPUs of each partition of a baseboard."""
    if architecture == pynvml.NVML_DEVICE_ARCH_AMPERE:
        numbers, pairs = _AMPERE_IDS, _NEIGHBOURS
    elif architecture == pynvml.NVML_DEVICE_ARCH_HOPPER:
        numbers, pairs = tuple(range(15)), _HOPPER_PAIRS
    else:
        numbers, pairs = tuple(range(1, 16)), _NEIGHBOURS
    return dict(zip(numbers, (*_EIGHT, *_FOURS, *pairs, *_ONES), strict=True))


# The actions of nv-fabricmanager, with the machine held.
#
# From the fabric manager's user guide: "Fabric Manager SDK", "Partition Life
# Cycle Errors", "Resiliency" and "Interoperability with MIG". If the guide
# does not name the code of a refusal, the code is the one whose text fits.

BARE_METAL, SHARED, VGPU = range(3)
BADPARAM = -1
GENERIC_ERROR = -2
NOT_SUPPORTED = -3
UNINITIALIZED = -4
IN_USE = -7
NOT_CONFIGURED = -8


class Manager:
    """The fabric manager of a machine and the NVSwitches behind it."""

    def __init__(self, machine):
        self._machine = machine

    @property
    def state(self):
        return self._machine.state.fabric

    @property
    def _architecture(self):
        return next(gpu.model.architecture for gpu in self._machine.gpus
                    if gpu.on_switches)

    @property
    def is_ampere(self) -> bool:
        """Whether the fabric manager trains NVLinks."""
        return self._architecture == pynvml.NVML_DEVICE_ARCH_AMPERE

    def gpu(self, physical_id: int) -> gpu_module.Gpu | None:
        """The GPU with a physical id, which is its module id."""
        host = self._machine.host
        return next((gpu for gpu in self._machine.gpus
                     if gpu.on_switches
                     and host.module(gpu.address) == physical_id), None)

    def gpus(self, number: int) -> list[gpu_module.Gpu]:
        """The GPUs of a partition."""
        if number not in self.partitions():
            raise faults.Refused(BADPARAM)
        return [gpu for gpu in map(self.gpu, self.partitions()[number])
                if gpu is not None]

    def partitions(self) -> dict[int, tuple[int, ...]]:
        """The partitions of which the host has all GPUs."""
        there = {self._machine.host.module(gpu.address)
                 for gpu in self._machine.gpus if gpu.on_switches}
        return {number: gpus for number, gpus
                in table(self._architecture).items()
                if there.issuperset(gpus)}

    # Start of the fabric manager

    def start(self, restart: bool) -> None:
        """Start the fabric manager; ``restart`` is the option ``--restart``.

        A start without the option initializes the NVSwitches: no partition
        is active.
        """
        fabric = self.state
        self._machine.state.fabric_manager = True
        fabric.starts += 1
        fabric.mode = fabric.configured
        fabric.restarted = restart and fabric.mode != BARE_METAL
        fabric.waiting = fabric.restarted
        if fabric.waiting:
            return
        for number in list(fabric.active):
            self._cut_off(number, 'fabric manager started under a guest')
        fabric.active.clear()
        if (fabric.mode == SHARED and self._architecture
                >= pynvml.NVML_DEVICE_ARCH_BLACKWELL):
            # From NVLink 5 on, GPUs have to be reset after this start
            # (NVIDIA/gpu-driver-container#909).
            for gpu in self._machine.gpus:
                gpu.state.stale = gpu.on_switches
        fabric.excluded = [
            gpu.address for gpu in self._machine.gpus
            if self.is_ampere and gpu.on_switches and (
                gpu.state.lost or gpu.state.mig
                or gpu.state.driver != gpu_module.NVIDIA)]

    # API of the fabric manager

    def activate_functions(self, number: int, functions: list[str]) -> None:
        """Activate a partition with one virtual function of each GPU.

        NVIDIA/kubevirt-gpu-device-plugin#133 found on hardware that the
        fabric manager takes no more of them than the partition has GPUs.
        """
        self.need(VGPU)
        gpus = self.gpus(number)
        carriers = [next((gpu for gpu in gpus
                          if function in gpu.vfs()), None)
                    for function in functions]
        if (None in carriers or len(carriers) != len(gpus)
                or len(set(carriers)) != len(carriers)):
            raise faults.Refused(BADPARAM)
        self.activate(number, functions)

    def deactivate(self, number: int) -> None:
        self.need(SHARED, VGPU)
        if self.is_excluded(number):
            raise faults.Refused(BADPARAM)
        if str(number) not in self.state.active:
            raise faults.Refused(UNINITIALIZED)
        self._cut_off(number, 'fabric partition deactivated under a guest')
        del self.state.active[str(number)]

    def restore(self, numbers: list[int]) -> None:
        """Accept the list of active partitions after a restart."""
        fabric = self.state
        if fabric.mode == BARE_METAL or not fabric.waiting:
            raise faults.Refused(NOT_SUPPORTED)
        taken = [gpu for number in numbers for gpu in self.gpus(number)]
        if len(taken) != len(set(taken)):
            raise faults.Refused(BADPARAM)
        for number in list(fabric.active):
            if int(number) not in numbers:
                self._cut_off(number, 'fabric partition left out of the list '
                              'under a guest')
        fabric.active = {str(number): fabric.active.get(str(number), [])
                         for number in numbers}
        fabric.waiting = False

    def activate(self, number: int, functions: list[str]) -> None:
        gpus = self.gpus(number)
        if self.is_excluded(number):
            raise faults.Refused(BADPARAM)
        if any(set(self.gpus(int(other))) & set(gpus)
               for other in self.state.active):
            raise faults.Refused(IN_USE)
        if (self.is_ampere and len(gpus) > 1
                and any(gpu.state.mig for gpu in gpus)):
            raise faults.Refused(GENERIC_ERROR)
        for gpu in gpus:
            if gpu.state.stale:
                gpu.harm('not reset after the fabric manager has started')
        self.state.active[str(number)] = functions

    def need(self, *modes: int) -> None:
        """Check the mode, and that the fabric manager does not wait."""
        if self.state.mode not in modes:
            raise faults.Refused(NOT_SUPPORTED)
        if self.state.waiting:
            raise faults.Refused(NOT_CONFIGURED)

    def is_excluded(self, number: int) -> bool:
        """Whether a partition has a GPU that cannot be used."""
        return any(gpu.address in self.state.excluded
                   for gpu in self.gpus(number))

    def _cut_off(self, number, mistake):
        """Shut down the NVLinks of a partition, which breaks its guests."""
        functions = self.state.active[str(number)]
        for gpu in self.gpus(int(number)):
            if gpu.state.guest or any(
                    vgpu.guest for vgpu in gpu.state.vgpus
                    if vgpu.function in functions):
                gpu.harm(mistake)


# A C library that replaces libnvfm.
#
# Each function is a C function pointer, so that arguments pass through the C
# calling convention as with the real library. Structures are read and written
# as bytes, with the layout of nv_fm_types.h of nvidia-fabricmanager-devel.

_VERSION_MISMATCH = -6
_CONNECTION_NOT_VALID = -9

_CONNECT = {1: '=I256sII', 2: '=I256sIIi'}
_DEVICE = '=4I'
_GPU = '=I80s32sIII'
_PARTITION = '=III'
_LIST = '=III'
_MAX_GPUS, _MAX_SWITCHES, _MAX_PARTITIONS = 16, 12, 64
_LIST_SIZE = 12 + _MAX_PARTITIONS * (12 + _MAX_GPUS * struct.calcsize(_GPU))
_ACTIVATED_SIZE = 8 + 4 * _MAX_PARTITIONS
_FAILED_SIZE = 12 + (_MAX_GPUS + _MAX_SWITCHES) * (80 + 32 + 4 + 4 * 64)
_UNSUPPORTED_SIZE = 8 + _MAX_PARTITIONS * (8 + 4 * _MAX_GPUS)
_ANY_PORT = ':6666'

_P, _U = ctypes.c_void_p, ctypes.c_uint
_TYPES = {
    'fmLibInit': (), 'fmConnect': (_P, _P),
    'fmGetSupportedFabricPartitions': (_P, _P),
    'fmActivateFabricPartition': (_P, _U),
    'fmActivateFabricPartitionWithVFs': (_P, _U, _P, _U),
    'fmDeactivateFabricPartition': (_P, _U),
    'fmSetActivatedFabricPartitions': (_P, _P),
    'fmGetNvlinkFailedDevices': (_P, _P),
    'fmGetUnsupportedFabricPartitions': (_P, _P)}
_WITHOUT_CONNECTION = frozenset({'fmLibInit', 'fmConnect'})
"""All other functions begin with the handle of a connection."""


class Library:
    """libnvfm as one process sees it."""

    def __init__(self, machine):
        self._machine = machine
        self._manager = Manager(machine)
        self._initialized = False
        self._handles: dict[int, int] = {}
        """The start of the fabric manager to which each handle belongs."""

    def __getattr__(self, name):
        if name not in _TYPES:
            raise AttributeError(name)

        def call(*arguments):
            try:
                return self._answer(name, arguments)
            except Exception:
                # An exception cannot pass through C.
                sys.excepthook(*sys.exc_info())
                return GENERIC_ERROR
        function = ctypes.CFUNCTYPE(ctypes.c_int, *_TYPES[name])(call)
        setattr(self, name, function)
        return function

    def _answer(self, name, arguments):
        machine = self._machine
        machine.faults.wait(name)
        with machine.operation(write=True):
            machine.calls[name] += 1
            fault = machine.faults.symbol(name, None)
            if fault and not fault.after:
                return fault.code
            try:
                if name in _WITHOUT_CONNECTION:
                    getattr(self, f'_{name}')(*arguments)
                else:
                    self._need_connection(arguments[0])
                    getattr(self, f'_{name}')(*arguments[1:])
            except faults.Refused as refused:
                return refused.code
            return fault.code if fault else 0

    def _fmLibInit(self):
        if self._initialized:
            raise faults.Refused(IN_USE)
        self._initialized = True

    def _fmConnect(self, parameters, handle):
        self._need_library()
        version = 2 if self._machine.host.driver_since(570) else 1
        layout = _CONNECT[version]
        size = struct.calcsize(layout)
        _need_version(parameters, size, version)
        if not handle:
            raise faults.Refused(BADPARAM)
        _, address, _, is_socket, *kind = struct.unpack(
            layout, ctypes.string_at(parameters, size))
        if kind:
            is_socket = {1: 0, 2: 1}.get(kind[0], -1)
        state = self._machine.state
        text = address.split(b'\0')[0].decode()
        if is_socket not in (0, 1) or not text:
            raise faults.Refused(BADPARAM)
        if not is_socket and ':' not in text:
            text += _ANY_PORT
        if not state.fabric_manager or text != (
                state.fabric.socket or f'127.0.0.1{_ANY_PORT}'):
            raise faults.Refused(_CONNECTION_NOT_VALID)
        value = 0x7f0000001000 + 0x100 * state.number()
        self._handles[value] = state.fabric.starts
        ctypes.memmove(handle, struct.pack('=Q', value), 8)

    def _fmGetSupportedFabricPartitions(self, found):
        _need_version(found, _LIST_SIZE, 1)
        usable = self._partitions(excluded=False)
        data = struct.pack(_LIST, _version(_LIST_SIZE, 1), len(usable),
                           len(usable))
        _put(found, _LIST_SIZE, data + b''.join(
            self._partition(*item) for item in usable.items()))

    def _partitions(self, excluded):
        self._manager.need(SHARED, VGPU)
        return {number: gpus for number, gpus
                in self._manager.partitions().items()
                if self._manager.is_excluded(number) == excluded}

    def _partition(self, number, physical_ids):
        active = str(number) in self._machine.state.fabric.active
        gpus = b''.join(self._gpu(one, len(physical_ids))
                        for one in physical_ids)
        return (struct.pack(_PARTITION, number, active, len(physical_ids))
                + gpus.ljust(_MAX_GPUS * struct.calcsize(_GPU), b'\0'))

    def _gpu(self, physical_id, count):
        gpu = self._manager.gpu(physical_id)
        assert gpu is not None  # A partition has only GPUs of the host.
        uuid = bus = b''
        # Both are empty on Hopper and later ("Data Structures" in the user
        # guide).
        if self._manager.is_ampere:
            uuid = gpu.spec.uuid.encode()
            bus = f'0000{gpu.address}'.upper().encode()
        links = gpu.model.nvlinks
        return struct.pack(
            _GPU, physical_id, uuid, bus, links if count > 1 else 0, links,
            _LINE_RATES.get(gpu.model.architecture, _LATER_RATE))

    def _fmActivateFabricPartition(self, number):
        self._manager.need(SHARED)
        self._manager.activate(number, [])

    def _fmActivateFabricPartitionWithVFs(self, number, functions, count):
        if not functions or not 0 < count <= _MAX_GPUS:
            raise faults.Refused(BADPARAM)
        data = ctypes.string_at(functions, count * struct.calcsize(_DEVICE))
        self._manager.activate_functions(number, [
            f'{domain:04x}:{bus:02x}:{device:02x}.{function:x}'
            for domain, bus, device, function
            in struct.iter_unpack(_DEVICE, data)])

    def _fmDeactivateFabricPartition(self, number):
        self._manager.deactivate(number)

    def _fmSetActivatedFabricPartitions(self, listed):
        _need_version(listed, _ACTIVATED_SIZE, 1)
        _, count, *numbers = struct.unpack(
            f'=II{_MAX_PARTITIONS}I',
            ctypes.string_at(listed, _ACTIVATED_SIZE))
        if count > _MAX_PARTITIONS:
            raise faults.Refused(BADPARAM)
        self._manager.restore(numbers[:count])

    def _fmGetNvlinkFailedDevices(self, found):
        _need_version(found, _FAILED_SIZE, 1)
        # "Getting a List of Devices with Failed NVLinks" in the user guide.
        if self._machine.state.fabric.restarted:
            raise faults.Refused(NOT_SUPPORTED)
        _put(found, _FAILED_SIZE,
             struct.pack('=III', _version(_FAILED_SIZE, 1), 0, 0))

    def _fmGetUnsupportedFabricPartitions(self, found):
        _need_version(found, _UNSUPPORTED_SIZE, 1)
        items = self._partitions(excluded=True)
        data = struct.pack('=II', _version(_UNSUPPORTED_SIZE, 1), len(items))
        for number, gpus in items.items():
            data += struct.pack(f'=II{_MAX_GPUS}I', number, len(gpus), *gpus,
                                *[0] * (_MAX_GPUS - len(gpus)))
        _put(found, _UNSUPPORTED_SIZE, data)

    def _need_library(self):
        if not self._initialized:
            raise faults.Refused(UNINITIALIZED)

    def _need_connection(self, handle):
        self._need_library()
        if handle not in self._handles:
            raise faults.Refused(BADPARAM)
        state = self._machine.state
        if (not state.fabric_manager
                or self._handles[handle] != state.fabric.starts):
            raise faults.Refused(_CONNECTION_NOT_VALID)


def _version(size, number):
    return size | number << 24


def _need_version(structure, size, number):
    if not structure:
        raise faults.Refused(BADPARAM)
    (version,) = struct.unpack('=I', ctypes.string_at(structure, 4))
    if version != _version(size, number):
        raise faults.Refused(_VERSION_MISMATCH)


def _put(target, size, data):
    ctypes.memmove(target, data.ljust(size, b'\0'), size)
