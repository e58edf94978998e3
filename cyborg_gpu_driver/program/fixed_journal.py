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

"""The fixed vGPUs that this library has made, in a file of their own.

A virtual function that is named here was given its type by us, and may be
cleared by us. It keeps its type through reboots, because Nova knows it by
its address.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import fields
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import locks

_KIND = 'cyborg-gpu fixed vGPUs'
_VERSION = 1
_TYPE = re.compile('nvidia-[1-9][0-9]*', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Record:
    """What is ours on one GPU."""

    types: Mapping[model.PciAddress, str] = dataclasses.field(
        default_factory=dict)
    """Virtual function to the type that it was given, ``nvidia-1145``."""
    instances: frozenset[spec.MigInstanceSpec] = frozenset()
    """The GPU instances created for them."""

    @property
    def is_empty(self) -> bool:
        return not self.types and not self.instances


class FixedJournal:
    """The records of this machine.

    :param state_path: ``[gpu] state_path``.
    """

    def __init__(self, state_path: str):
        self._state_path = state_path
        self._path = os.path.join(state_path, 'fixed.json')

    def get(self, gpu: model.PciAddress) -> Record:
        """The record of a GPU, an empty one if there is none.

        :raises JournalError: if the file cannot be read, or is damaged.
        """
        return self._load().get(gpu, Record())

    def put(self, gpu: model.PciAddress, record: Record) -> None:
        """Write the record of a GPU.

        :raises JournalError: if it cannot be put on the disk.
        """
        with locks.fixed(self._state_path):
            known = self._load()
            if known.pop(gpu, Record()) == record:
                return
            if not record.is_empty:
                known[gpu] = record
            durable.write(self._path, _KIND, _VERSION, [
                _content(address, item)
                for address, item in sorted(known.items())])

    def _load(self):
        content = durable.read(self._path, _KIND, _VERSION) or []
        try:
            return dict(map(_parsed, content))
        except (KeyError, TypeError, ValueError, AttributeError,
                exception.InvalidValue) as error:
            raise exception.JournalError(
                path=self._path, reason=f'is damaged: {error!r}') from error


def _content(gpu: model.PciAddress, record: Record) -> dict[str, Any]:
    return {
        'gpu': str(gpu),
        'types': {str(function): type_id for function, type_id
                  in sorted(record.types.items())},
        'instances': [
            {'profile_id': item.profile_id, 'start': item.placement.start,
             'size': item.placement.size}
            for item in sorted(record.instances)]}


def _parsed(content):
    types = {model.PciAddress.parse(function): type_id for function, type_id
             in content['types'].items()}
    for type_id in types.values():
        if not _TYPE.fullmatch(type_id):
            raise ValueError(f'{type_id!r} is not a vGPU type')
    return model.PciAddress.parse(content['gpu']), Record(types, frozenset(
        spec.MigInstanceSpec(
            model.Placement(fields.number(item['start']),
                            fields.number(item['size'])),
            fields.number(item['profile_id']))
        for item in content['instances']))
