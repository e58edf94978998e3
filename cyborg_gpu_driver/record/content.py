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

"""The content of the file of one GPU's record.

A field that only a later release knows is ignored, and written again. Of a
damaged file each part is kept that can be decoded. If cordons or the health
may be lost, the GPU is cordoned until an operator lifts that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record

KIND = 'cyborg-gpu GPU'
VERSION = 1
_CLOSING = frozenset({'cordons', 'health'})
"""Parts that say why a GPU gets no new server."""


@dataclasses.dataclass(frozen=True)
class Salvaged:
    """What a damaged file still tells."""

    record: gpu_record.GpuRecord
    lost: tuple[str, ...]
    """The parts that may be lost."""
    content: Any
    """The content, with the fields of a later release; None if it has an
    error somewhere."""

    def __str__(self) -> str:
        text = f'These parts of it are lost: {", ".join(self.lost)}.'
        if self.record.claims_lost:
            text += (' Its binds are rebuilt from the hardware and Cyborg; '
                     'compare the GPU with its intended layout.')
        if cordon.of(self.record.cordons, cordon.Source.RECORD):
            text += (' The GPU gets no new server until an operator lifts '
                     'its cordon with "cyborg-gpu gpu uncordon".')
        return text


def read(path: str, address: model.PciAddress
         ) -> tuple[gpu_record.GpuRecord, Any] | None:
    """The record of a GPU and the file's content; None without a file.

    :raises JournalUnreadable: if this process cannot read the file.
    :raises JournalError: if the record is damaged.
    """
    content = durable.read(path, KIND, VERSION)
    if content is None:
        return None
    try:
        values, problems = codec.parts(gpu_record.GpuRecord, content)
        for name, problem in problems.items():
            raise ValueError(f'{name}: {problem}')
        record = gpu_record.GpuRecord(**values)
        if not record.is_of(address):
            raise ValueError('it belongs to another GPU')
    except ValueError as error:
        raise exception.JournalError(
            path=path, reason=f'is damaged: {error}') from error
    return record, content


def write(path: str, record: gpu_record.GpuRecord, before: Any) -> Any:
    """Write a record, with the fields of a later release in ``before``.

    :returns: the content of the file.
    :raises JournalError: if the file cannot be written.
    """
    content = codec.carried(gpu_record.GpuRecord, before,
                            codec.encode(record))
    durable.write(path, KIND, VERSION, content)
    return content


def salvage(path: str, address: model.PciAddress) -> Salvaged:
    """Keep what a file that :func:`read` refuses still tells.

    :raises JournalUnreadable: if this process cannot read the file.
    """
    content, is_sound = durable.salvage(path, KIND)
    values: dict[str, Any] = {}
    lost = {field.name for field in dataclasses.fields(gpu_record.GpuRecord)}
    with contextlib.suppress(ValueError):
        found, problems = codec.parts(gpu_record.GpuRecord, content)
        if not gpu_record.GpuRecord(**found).is_of(address):
            content = None
        elif is_sound:
            values, lost = found, set(problems)
        else:
            # Any value may be wrong. Keep what only closes the GPU.
            values = {name: found[name] for name in _CLOSING & found.keys()}
    record = gpu_record.GpuRecord(**values)
    if not lost.isdisjoint({'claims', 'reported'}):
        # Without the last report, Cyborg's handles are not known either.
        record = dataclasses.replace(record, claims_lost=True)
    if not lost.isdisjoint(_CLOSING):
        record = dataclasses.replace(record, cordons=cordon.added(
            record.cordons, cordon.Cordon(
                cordon.Source.RECORD, time.time(),
                reason='other cordons and errors of it may be lost')))
    return Salvaged(record, tuple(sorted(lost)), content if is_sound else None)
