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


"""Read-only NVML calls, each recorded with its answer.

The answers are recorded as NVML returns them, with the code and symbol of
every error, so that they can be compared with those of the simulator.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import session as nvml

READ_ONLY = frozenset({
    'nvmlComputeInstanceGetInfo_v2',
    'nvmlDeviceGetActiveVgpus',
    'nvmlDeviceGetArchitecture',
    'nvmlDeviceGetAttributes_v2',
    'nvmlDeviceGetBAR1MemoryInfo',
    'nvmlDeviceGetBoardPartNumber',
    'nvmlDeviceGetBrand',
    'nvmlDeviceGetBusType',
    'nvmlDeviceGetComputeInstanceId',
    'nvmlDeviceGetComputeMode',
    'nvmlDeviceGetComputeRunningProcesses_v3',
    'nvmlDeviceGetCount',
    'nvmlDeviceGetCreatableVgpus',
    'nvmlDeviceGetCudaComputeCapability',
    'nvmlDeviceGetCurrPcieLinkGeneration',
    'nvmlDeviceGetCurrPcieLinkWidth',
    'nvmlDeviceGetDefaultEccMode',
    'nvmlDeviceGetDisplayActive',
    'nvmlDeviceGetDisplayMode',
    'nvmlDeviceGetEccMode',
    'nvmlDeviceGetEnforcedPowerLimit',
    'nvmlDeviceGetGpuFabricInfoV',
    'nvmlDeviceGetGpuInstanceId',
    'nvmlDeviceGetGpuInstancePossiblePlacements',
    'nvmlDeviceGetGpuInstanceProfileInfo',
    'nvmlDeviceGetGpuInstanceProfileInfoById',
    'nvmlDeviceGetGpuInstanceRemainingCapacity',
    'nvmlDeviceGetGpuInstances',
    'nvmlDeviceGetGspFirmwareMode',
    'nvmlDeviceGetGspFirmwareVersion',
    'nvmlDeviceGetHandleByIndex',
    'nvmlDeviceGetHostVgpuMode',
    'nvmlDeviceGetInforomImageVersion',
    'nvmlDeviceGetMaxMigDeviceCount',
    'nvmlDeviceGetMaxPcieLinkGeneration',
    'nvmlDeviceGetMaxPcieLinkWidth',
    'nvmlDeviceGetMemoryAffinity',
    'nvmlDeviceGetMemoryBusWidth',
    'nvmlDeviceGetMemoryInfo',
    'nvmlDeviceGetMigDeviceHandleByIndex',
    'nvmlDeviceGetMigMode',
    'nvmlDeviceGetMinorNumber',
    'nvmlDeviceGetName',
    'nvmlDeviceGetNumGpuCores',
    'nvmlDeviceGetNumaNodeId',
    'nvmlDeviceGetNvLinkCapability',
    'nvmlDeviceGetNvLinkRemoteDeviceType',
    'nvmlDeviceGetNvLinkRemotePciInfo',
    'nvmlDeviceGetNvLinkState',
    'nvmlDeviceGetNvLinkVersion',
    'nvmlDeviceGetP2PStatus',
    'nvmlDeviceGetPciInfo_v3',
    'nvmlDeviceGetPerformanceState',
    'nvmlDeviceGetPersistenceMode',
    'nvmlDeviceGetPowerManagementDefaultLimit',
    'nvmlDeviceGetPowerManagementLimit',
    'nvmlDeviceGetPowerManagementLimitConstraints',
    'nvmlDeviceGetPowerUsage',
    'nvmlDeviceGetRemappedRows',
    'nvmlDeviceGetRetiredPagesPendingStatus',
    'nvmlDeviceGetRowRemapperHistogram',
    'nvmlDeviceGetSerial',
    'nvmlDeviceGetSupportedVgpus',
    'nvmlDeviceGetTemperature',
    'nvmlDeviceGetTopologyCommonAncestor',
    'nvmlDeviceGetTotalEccErrors',
    'nvmlDeviceGetUUID',
    'nvmlDeviceGetUtilizationRates',
    'nvmlDeviceGetVbiosVersion',
    'nvmlDeviceGetVgpuCapabilities',
    'nvmlDeviceGetVgpuHeterogeneousMode',
    'nvmlDeviceGetVgpuSchedulerCapabilities',
    'nvmlDeviceGetVgpuSchedulerState',
    'nvmlDeviceGetVgpuTypeCreatablePlacements',
    'nvmlDeviceGetVgpuTypeSupportedPlacements',
    'nvmlDeviceGetVirtualizationMode',
    'nvmlDeviceIsMigDeviceHandle',
    'nvmlGetExcludedDeviceCount',
    'nvmlGetVgpuDriverCapabilities',
    'nvmlGpuInstanceGetComputeInstancePossiblePlacements',
    'nvmlGpuInstanceGetComputeInstanceProfileInfo',
    'nvmlGpuInstanceGetComputeInstanceRemainingCapacity',
    'nvmlGpuInstanceGetComputeInstances',
    'nvmlGpuInstanceGetInfo',
    'nvmlSystemGetConfComputeCapabilities',
    'nvmlSystemGetConfComputeGpusReadyState',
    'nvmlSystemGetConfComputeSettings',
    'nvmlSystemGetConfComputeState',
    'nvmlSystemGetCudaDriverVersion',
    'nvmlSystemGetCudaDriverVersion_v2',
    'nvmlSystemGetDriverBranch',
    'nvmlSystemGetDriverVersion',
    'nvmlSystemGetNVMLVersion',
    'nvmlVgpuInstanceGetFbUsage',
    'nvmlVgpuInstanceGetGpuInstanceId',
    'nvmlVgpuInstanceGetGpuPciId',
    'nvmlVgpuInstanceGetMdevUUID',
    'nvmlVgpuInstanceGetPlacementId',
    'nvmlVgpuInstanceGetType',
    'nvmlVgpuTypeGetCapabilities',
    'nvmlVgpuTypeGetClass',
    'nvmlVgpuTypeGetDeviceID',
    'nvmlVgpuTypeGetFbReservation',
    'nvmlVgpuTypeGetFrameRateLimit',
    'nvmlVgpuTypeGetFramebufferSize',
    'nvmlVgpuTypeGetGpuInstanceProfileId',
    'nvmlVgpuTypeGetGspHeapSize',
    'nvmlVgpuTypeGetLicense',
    'nvmlVgpuTypeGetMaxInstances',
    'nvmlVgpuTypeGetMaxInstancesPerGpuInstance',
    'nvmlVgpuTypeGetMaxInstancesPerVm',
    'nvmlVgpuTypeGetName',
    'nvmlVgpuTypeGetNumDisplayHeads',
})
"""The calls that are allowed. None of them changes anything."""

INIT = 'nvmlInit'
"""The call of a record that says why NVML cannot be opened."""

_ROOM = 64
"""The least number of elements in an array that NVML fills. NVML does not
take the array's size, and writes as many elements as exist."""


class Opaque(ctypes.Structure):
    """The target of handles of GPU and compute instances (nvml.h)."""


INSTANCE = ctypes.POINTER(Opaque)


class Placement(ctypes.Structure):
    """nvmlGpuInstancePlacement_t and nvmlComputeInstancePlacement_t."""

    _fields_ = [('start', ctypes.c_uint), ('size', ctypes.c_uint)]


@dataclasses.dataclass(frozen=True)
class Named:
    """An NVML handle with its name in records."""

    name: str
    """Such as ``gpu:0``, ``gpu:0/gi:3``, ``gpu:0/gi:3/ci:0`` or
    ``gpu:0/mig:1``."""
    handle: Any


@dataclasses.dataclass(frozen=True)
class Out:
    """An argument that NVML writes to; not part of a record's arguments."""

    value: Any


class Recorder:
    """Makes calls and keeps their answers in :attr:`records`.

    A record is ``{'call': name, 'args': [...]}`` with either ``'result'``
    or ``'error': {'code': ..., 'symbol': ...}``.
    """

    def __init__(self, session: nvml.NvmlSession):
        self.records: list[dict[str, Any]] = []
        self._session = session

    def call(self, name: str, *arguments: Any,
             read: Callable[[Any], Any] | None = None) -> Any:
        """Make one call.

        :param name: the name of the function in pynvml.
        :param arguments: plain values, :class:`Named` and :class:`Out`.
        :param read: converts the answer to the value that is recorded and
            returned; for calls that answer through an :class:`Out`.
        :returns: the answer; None if the call failed.
        :raises InvalidValue: if the call is not allowed.
        """
        if name not in READ_ONLY:
            raise exception.InvalidValue(
                what='NVML call', value=name,
                expected='expected one that changes nothing, of those in '
                         'support.hardware.calls.READ_ONLY')
        record = {'call': name, 'args': [
            argument.name if isinstance(argument, Named) else argument
            for argument in arguments if not isinstance(argument, Out)]}
        self.records.append(record)
        try:
            answer = self._session.call(name, *map(_raw, arguments))
            if read is not None:
                answer = read(answer)
            record['result'] = plain(answer)
        except exception.NvmlError as error:
            if error.call == INIT:
                record.update(call=INIT, args=[])
            record['error'] = {'code': error.code, 'symbol': error.symbol}
            return None
        except Exception as error:
            # Another version of pynvml may take other arguments. That is a
            # finding too, and no reason to stop.
            record['error'] = {'code': None, 'symbol': type(error).__name__,
                               'message': str(error)}
            return None
        return answer

    def placements(self, name: str, *arguments: Any) -> None:
        """Make a call that fills an array of placements."""
        count = ctypes.c_uint(0)
        size = self.call(name, *arguments, Out(None),
                         Out(ctypes.byref(count)), read=lambda _: count.value)
        if not size:
            return
        # Remove the record of the call that only returned the length.
        self.records.pop()
        items = (Placement * max(size, _ROOM))()
        self.call(name, *arguments, Out(items), Out(ctypes.byref(count)),
                  read=lambda _: list(items[:count.value]))

    def instances(self, name: str, *arguments: Any) -> list[Any]:
        """Make a call that fills an array of instance handles."""
        items, count = (INSTANCE * _ROOM)(), ctypes.c_uint(0)
        return self.call(name, *arguments, Out(items),
                         Out(ctypes.byref(count)),
                         read=lambda _: list(items[:count.value])) or []


def plain(value: Any) -> Any:
    """Return a value of pynvml as a value for JSON.

    A structure becomes a mapping of its fields. A handle becomes the word
    "handle", because its value is an address in this process.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode('utf-8', 'replace')
    if isinstance(value, ctypes._Pointer):
        return 'handle' if value else None
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return {field[0]: plain(getattr(value, field[0]))
                for field in value._fields_}
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(item) for item in value]
    if hasattr(value, '__dict__'):
        return {key: plain(item) for key, item in vars(value).items()}
    return repr(value)


def _raw(argument):
    if isinstance(argument, Named):
        return argument.handle
    return argument.value if isinstance(argument, Out) else argument
