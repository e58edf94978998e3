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


"""The facts of a record about one board, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MIB = 1 << 20
_NO_PROFILE = 0xFFFFFFFF
"""The result of nvmlVgpuTypeGetGpuInstanceProfileId for a time-sliced type
(nvml.h)."""
_PROFILE_FIELDS = {
    'sliceCount': 'slices', 'memorySizeMB': 'memory_mib',
    'instanceCount': 'max', 'multiprocessorCount': 'multiprocessors',
    'copyEngineCount': 'copy_engines', 'decoderCount': 'decoders',
    'encoderCount': 'encoders', 'jpegCount': 'jpeg', 'ofaCount': 'ofa',
    'isP2pSupported': 'p2p'}
_PROFILE_INFO = 'nvmlDeviceGetGpuInstanceProfileInfo'
_PLACEMENTS = 'nvmlDeviceGetGpuInstancePossiblePlacements'
_CAPACITY = 'nvmlDeviceGetGpuInstanceRemainingCapacity'
_TYPE_CALLS = {
    'nvmlVgpuTypeGetName': 'name', 'nvmlVgpuTypeGetClass': 'class',
    'nvmlVgpuTypeGetFramebufferSize': 'framebuffer_mib',
    'nvmlVgpuTypeGetGpuInstanceProfileId': 'profile'}


_MODES = {'mode ECC': 'nvmlDeviceGetEccMode',
          'mode ECC default': 'nvmlDeviceGetDefaultEccMode',
          'mode persistence': 'nvmlDeviceGetPersistenceMode',
          'mode fabric': 'nvmlDeviceGetGpuFabricInfoV'}
"""Calls that show whether a board has a mode. The setting of the mode is not
compared, because it belongs to the machine."""


class Board:
    """One GPU of a record.

    :param records: from :func:`nvml_facts.collect` or from a file.
    :param name: the GPU's name in the record, such as ``gpu:0``.
    """

    def __init__(self, records: Iterable[dict[str, Any]], name: str):
        self.name = name
        self._records = {
            (record['call'], tuple(record['args'])): record
            for record in records}

    @property
    def mig(self) -> bool:
        """Whether MIG mode is on."""
        modes = self._result('nvmlDeviceGetMigMode', self.name)
        return bool(modes and modes[0])

    @property
    def device_id(self) -> str | None:
        """The PCI device id as four lower-case hexadecimal digits."""
        info = self._result('nvmlDeviceGetPciInfo_v3', self.name)
        return info and f'{info["pciDeviceId"] >> 16:04x}'

    def facts(self) -> dict[str, Any]:
        """Return each fact under a readable name; None if it is unknown.

        Facts that depend on the machine or on the current use of the board
        are left out.
        """
        facts = {
            'product': self._result('nvmlDeviceGetName', self.name),
            'device id': self.device_id,
            'architecture': self._result('nvmlDeviceGetArchitecture',
                                         self.name),
            'compute capability': self._result(
                'nvmlDeviceGetCudaComputeCapability', self.name),
            'memory_mib': self._memory(),
            'row remapping': self._answer('nvmlDeviceGetRemappedRows',
                                          self.name),
            'MIG': self._answer('nvmlDeviceGetMigMode', self.name),
        }
        for name, call in _MODES.items():
            answer = self._answer(call, self.name)
            if answer is not None:
                facts[name] = answer
        facts.update(self._profiles())
        facts.update(self._types())
        return facts

    def _profiles(self):
        enums = sorted({
            arguments[1] for call, arguments in self._records
            if call == _PROFILE_INFO and arguments[0] == self.name})
        for enum in enums:
            key = f'GPU instance profile {enum}'
            first, second = (
                self._records.get((_PROFILE_INFO, (self.name, enum, version)))
                for version in (1, 2))
            record = second or first
            info = record.get('result')
            if info is None:
                yield key, record['error']['symbol']
                continue
            yield f'{key} id', info['id']
            yield f'{key} name', info.get('name')
            for field, name in _PROFILE_FIELDS.items():
                yield f'{key} {name}', info.get(field)
            yield from self._of_profile(key, info['id'])

    def _of_profile(self, key, profile_id):
        places = self._result(_PLACEMENTS, self.name, profile_id)
        yield f'{key} placements', self._refusal(
            _PLACEMENTS, self.name, profile_id) or [
                f'{place["start"]}:{place["size"]}' for place in sorted(
                    places or [], key=lambda place: place['start'])]
        # The capacity depends on what is on the GPU; an error does not.
        yield f'{key} remaining capacity', self._answer(
            _CAPACITY, self.name, profile_id)

    def _types(self):
        supported = self._result('nvmlDeviceGetSupportedVgpus', self.name)
        if supported is None:
            return
        for type_id in supported:
            key = f'vGPU type {type_id}'
            for call, name in _TYPE_CALLS.items():
                value = self._result(call, type_id)
                if name == 'framebuffer_mib' and value is not None:
                    value //= _MIB
                if name == 'profile' and value == _NO_PROFILE:
                    value = None
                if name == 'name' and value is not None:
                    value = value.split()[-1]
                yield f'{key} {name}', value
            yield f'{key} max', self._result(
                'nvmlVgpuTypeGetMaxInstances', self.name, type_id)

    def _memory(self):
        memory = self._result('nvmlDeviceGetMemoryInfo', self.name)
        return memory and memory['total'] // _MIB

    def _record(self, call, arguments):
        return self._records.get((call, arguments), {})

    def _result(self, call, *arguments):
        return self._record(call, arguments).get('result')

    def _refusal(self, call, *arguments):
        """Return the symbol of the call's error; None if it did not fail."""
        return self._record(call, arguments).get('error', {}).get('symbol')

    def _answer(self, call, *arguments):
        if not self._record(call, arguments):
            return None
        return self._refusal(call, *arguments) or 'SUCCESS'


def boards(records: list[dict[str, Any]]) -> list[Board]:
    """Return the GPUs of a record that NVML could open."""
    return [Board(records, f'gpu:{record["args"][0]}') for record in records
            if record['call'] == 'nvmlDeviceGetHandleByIndex'
            and 'result' in record]
