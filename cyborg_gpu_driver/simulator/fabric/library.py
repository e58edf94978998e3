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

"""A C library that replaces libnvfm.

Each function is a C function pointer, so that arguments pass through the C
calling convention as with the real library. Structures are read and written
as bytes, with the layout of nv_fm_types.h of nvidia-fabricmanager-devel.
"""

from __future__ import annotations

import ctypes
import struct
import sys

from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.fabric import manager as manager_module
from cyborg_gpu_driver.simulator.fabric import partitions

_BADPARAM = manager_module.BADPARAM
_GENERIC_ERROR = manager_module.GENERIC_ERROR
_UNINITIALIZED = manager_module.UNINITIALIZED
_IN_USE = manager_module.IN_USE
_VERSION_MISMATCH = -6
_CONNECTION_NOT_VALID = -9

_CONNECT = {1: '=I256sII', 2: '=I256sIIi'}
_FIRST_WITH_2 = 570
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
    'fmLibInit': (), 'fmLibShutdown': (), 'fmConnect': (_P, _P),
    'fmDisconnect': (_P,), 'fmGetSupportedFabricPartitions': (_P, _P),
    'fmActivateFabricPartition': (_P, _U),
    'fmActivateFabricPartitionWithVFs': (_P, _U, _P, _U),
    'fmDeactivateFabricPartition': (_P, _U),
    'fmSetActivatedFabricPartitions': (_P, _P),
    'fmGetNvlinkFailedDevices': (_P, _P),
    'fmGetUnsupportedFabricPartitions': (_P, _P)}


class Library:
    """libnvfm as one process sees it."""

    def __init__(self, machine):
        self._machine = machine
        self._manager = manager_module.Manager(machine)
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
                return _GENERIC_ERROR
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
                getattr(self, f'_{name}')(*arguments)
            except refusal.Refused as refused:
                return refused.code
            return fault.code if fault else 0

    def _fmLibInit(self):
        if self._initialized:
            raise refusal.Refused(_IN_USE)
        self._initialized = True

    def _fmLibShutdown(self):
        self._need_library()
        self._initialized = False
        self._handles.clear()

    def _fmConnect(self, parameters, handle):
        self._need_library()
        version = 2 if int(self._machine.host.driver_version.split('.')[0]
                           ) >= _FIRST_WITH_2 else 1
        layout = _CONNECT[version]
        size = struct.calcsize(layout)
        _need_version(parameters, size, version)
        if not handle:
            raise refusal.Refused(_BADPARAM)
        _, address, _, is_socket, *kind = struct.unpack(
            layout, ctypes.string_at(parameters, size))
        if kind:
            is_socket = {1: 0, 2: 1}.get(kind[0], -1)
        state = self._machine.state
        text = address.split(b'\0')[0].decode()
        if is_socket not in (0, 1) or not text:
            raise refusal.Refused(_BADPARAM)
        if not is_socket and ':' not in text:
            text += _ANY_PORT
        if not state.fabric_manager or text != (
                state.fabric.socket or f'127.0.0.1{_ANY_PORT}'):
            raise refusal.Refused(_CONNECTION_NOT_VALID)
        value = 0x7f0000001000 + 0x100 * state.number()
        self._handles[value] = state.fabric.starts
        ctypes.memmove(handle, struct.pack('=Q', value), 8)

    def _fmDisconnect(self, handle):
        self._need_library()
        if self._handles.pop(handle, None) is None:
            raise refusal.Refused(_BADPARAM)

    def _fmGetSupportedFabricPartitions(self, handle, found):
        self._need_connection(handle)
        _need_version(found, _LIST_SIZE, 1)
        supported = self._manager.supported()
        data = struct.pack(_LIST, _version(_LIST_SIZE, 1), len(supported),
                           len(supported))
        _put(found, _LIST_SIZE, data + b''.join(map(self._partition,
                                                    supported)))

    def _partition(self, item):
        active = str(item.number) in self._machine.state.fabric.active
        gpus = b''.join(self._gpu(one, len(item.gpus)) for one in item.gpus)
        return (struct.pack(_PARTITION, item.number, active, len(item.gpus))
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
            partitions.line_rate(gpu.model.architecture))

    def _fmActivateFabricPartition(self, handle, number):
        self._need_connection(handle)
        self._manager.activate(number)

    def _fmActivateFabricPartitionWithVFs(self, handle, number, functions,
                                          count):
        self._need_connection(handle)
        if not functions or not 0 < count <= _MAX_GPUS:
            raise refusal.Refused(_BADPARAM)
        data = ctypes.string_at(functions, count * struct.calcsize(_DEVICE))
        self._manager.activate_functions(number, [
            f'{domain:04x}:{bus:02x}:{device:02x}.{function:x}'
            for domain, bus, device, function
            in struct.iter_unpack(_DEVICE, data)])

    def _fmDeactivateFabricPartition(self, handle, number):
        self._need_connection(handle)
        self._manager.deactivate(number)

    def _fmSetActivatedFabricPartitions(self, handle, listed):
        self._need_connection(handle)
        _need_version(listed, _ACTIVATED_SIZE, 1)
        _, count, *numbers = struct.unpack(
            f'=II{_MAX_PARTITIONS}I',
            ctypes.string_at(listed, _ACTIVATED_SIZE))
        if count > _MAX_PARTITIONS:
            raise refusal.Refused(_BADPARAM)
        self._manager.restore(numbers[:count])

    def _fmGetNvlinkFailedDevices(self, handle, found):
        self._need_connection(handle)
        _need_version(found, _FAILED_SIZE, 1)
        self._manager.failed()
        _put(found, _FAILED_SIZE,
             struct.pack('=III', _version(_FAILED_SIZE, 1), 0, 0))

    def _fmGetUnsupportedFabricPartitions(self, handle, found):
        self._need_connection(handle)
        _need_version(found, _UNSUPPORTED_SIZE, 1)
        items = self._manager.unsupported()
        data = struct.pack('=II', _version(_UNSUPPORTED_SIZE, 1), len(items))
        for item in items:
            data += struct.pack(
                f'=II{_MAX_GPUS}I', item.number, len(item.gpus), *item.gpus,
                *[0] * (_MAX_GPUS - len(item.gpus)))
        _put(found, _UNSUPPORTED_SIZE, data)

    def _need_library(self):
        if not self._initialized:
            raise refusal.Refused(_UNINITIALIZED)

    def _need_connection(self, handle):
        self._need_library()
        if handle not in self._handles:
            raise refusal.Refused(_BADPARAM)
        state = self._machine.state
        if (not state.fabric_manager
                or self._handles[handle] != state.fabric.starts):
            raise refusal.Refused(_CONNECTION_NOT_VALID)


def _version(size, number):
    return size | number << 24


def _need_version(structure, size, number):
    if not structure:
        raise refusal.Refused(_BADPARAM)
    (version,) = struct.unpack('=I', ctypes.string_at(structure, 4))
    if version != _version(size, number):
        raise refusal.Refused(_VERSION_MISMATCH)


def _put(target, size, data):
    ctypes.memmove(target, data.ljust(size, b'\0'), size)
