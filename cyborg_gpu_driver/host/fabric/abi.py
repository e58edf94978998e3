# SPDX-License-Identifier: Apache-2.0

"""Structures and numbers of libnvfm, NVIDIA's fabric manager API.

From nv_fm_types.h and nv_fm_agent.h of the package nvidia-fabricmanager-devel
(driver 535 to 580), which the chapter "Fabric Manager SDK" of the fabric
manager's user guide describes:
https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = 'libnvfm.so.1'

MAX_GPUS = 16
MAX_SWITCHES = 12
MAX_PARTITIONS = 64
MAX_PORTS = 64
TEXT = 256
PORT = 6666
"""FM_CMD_PORT_NUMBER."""

ADDRESS_INET = 1
ADDRESS_UNIX = 2
"""Values of enum nvFmApiAddrTypes."""

SUCCESS = 0
SYMBOLS = {
    0: 'SUCCESS', -1: 'BADPARAM', -2: 'GENERIC_ERROR', -3: 'NOT_SUPPORTED',
    -4: 'UNINITIALIZED', -5: 'TIMEOUT', -6: 'VERSION_MISMATCH',
    -7: 'IN_USE', -8: 'NOT_CONFIGURED', -9: 'CONNECTION_NOT_VALID',
    -10: 'NVLINK_ERROR', -11: 'RESOURCE_BAD', -12: 'RESOURCE_IN_USE',
    -13: 'RESOURCE_NOT_IN_USE', -14: 'RESOURCE_EXHAUSTED',
    -15: 'RESOURCE_NOT_READY', -16: 'PARTITION_EXISTS',
    -17: 'PARTITION_ID_IN_USE', -18: 'PARTITION_ID_NOT_IN_USE',
    -19: 'PARTITION_NAME_IN_USE', -20: 'PARTITION_NAME_NOT_IN_USE',
    -21: 'PARTITION_ID_NAME_MISMATCH', -22: 'NOT_READY',
    -23: 'RESOURCE_USED_IN_THIS_PARTITION',
    -24: 'RESOURCE_USED_IN_ANOTHER_PARTITION',
    -25: 'PARTITION_MISWIRED_TRUNKS', -26: 'PARTITION_INSUFFICIENT_TRUNKS',
    -27: 'PARTITION_MISSING_SWITCHES',
    -28: 'PARTITION_NETWORK_CONFIG_ERROR',
    -29: 'PARTITION_ROUTE_PROGRAMMING_ERROR'}
"""Names of fmReturn_t without ``FM_ST_``."""

_UINT = ctypes.c_uint
_Uuid = ctypes.c_char * 80
_BusId = ctypes.c_char * 32


class ConnectParams(ctypes.Structure):
    """fmConnectParams_v1 of nv_fm_types.h, of older drivers."""

    _fields_ = [('version', _UINT), ('address', ctypes.c_char * TEXT),
                ('timeout_ms', _UINT), ('is_unix_socket', _UINT)]
    number = 1


class ConnectParams2(ctypes.Structure):
    """fmConnectParams_v2, of newer drivers; no source says from which on."""

    _fields_ = [*ConnectParams._fields_, ('address_type', ctypes.c_int)]
    number = 2


class PciDevice(ctypes.Structure):
    """fmPciDevice_t: a virtual function."""

    _fields_ = [('domain', _UINT), ('bus', _UINT), ('device', _UINT),
                ('function', _UINT)]


class GpuInfo(ctypes.Structure):
    """fmFabricPartitionGpuInfo_t."""

    _fields_ = [('physical_id', _UINT), ('uuid', _Uuid), ('bus_id', _BusId),
                ('links_available', _UINT), ('links_max', _UINT),
                ('line_rate', _UINT)]


class PartitionInfo(ctypes.Structure):
    """fmFabricPartitionInfo_t."""

    _fields_ = [('partition_id', _UINT), ('is_active', _UINT),
                ('gpu_count', _UINT), ('gpus', GpuInfo * MAX_GPUS)]


class PartitionList(ctypes.Structure):
    """fmFabricPartitionList_v2, whose version number is nevertheless 1."""

    _fields_ = [('version', _UINT), ('count', _UINT), ('max_count', _UINT),
                ('partitions', PartitionInfo * MAX_PARTITIONS)]
    number = 1


class ActivatedList(ctypes.Structure):
    """fmActivatedFabricPartitionList_v1."""

    _fields_ = [('version', _UINT), ('count', _UINT),
                ('partition_ids', _UINT * MAX_PARTITIONS)]
    number = 1


class FailedDevice(ctypes.Structure):
    """fmNvlinkFailedDeviceInfo_t."""

    _fields_ = [('uuid', _Uuid), ('bus_id', _BusId), ('port_count', _UINT),
                ('ports', _UINT * MAX_PORTS)]


class FailedDevices(ctypes.Structure):
    """fmNvlinkFailedDevices_v1."""

    _fields_ = [('version', _UINT), ('gpu_count', _UINT),
                ('switch_count', _UINT), ('gpus', FailedDevice * MAX_GPUS),
                ('switches', FailedDevice * MAX_SWITCHES)]
    number = 1


class UnsupportedPartition(ctypes.Structure):
    """fmUnsupportedFabricPartitionInfo_t."""

    _fields_ = [('partition_id', _UINT), ('gpu_count', _UINT),
                ('physical_ids', _UINT * MAX_GPUS)]


class UnsupportedList(ctypes.Structure):
    """fmUnsupportedFabricPartitionList_v1."""

    _fields_ = [('version', _UINT), ('count', _UINT),
                ('partitions', UnsupportedPartition * MAX_PARTITIONS)]
    number = 1


_HANDLE = ctypes.c_void_p
_POINTER = ctypes.c_void_p
FUNCTIONS = {
    'fmLibInit': (),
    'fmConnect': (_POINTER, _POINTER),
    'fmGetSupportedFabricPartitions': (_HANDLE, _POINTER),
    'fmActivateFabricPartition': (_HANDLE, _UINT),
    'fmActivateFabricPartitionWithVFs': (_HANDLE, _UINT, _POINTER, _UINT),
    'fmDeactivateFabricPartition': (_HANDLE, _UINT),
    'fmSetActivatedFabricPartitions': (_HANDLE, _POINTER),
    'fmGetNvlinkFailedDevices': (_HANDLE, _POINTER),
    'fmGetUnsupportedFabricPartitions': (_HANDLE, _POINTER),
}
"""Types of each function's arguments. All of them return fmReturn_t."""


def stamped(kind: Any) -> Any:
    """Create a structure with its version (MAKE_FM_PARAM_VERSION)."""
    return kind(version=ctypes.sizeof(kind) | kind.number << 24)
