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

"""Parts of records that no file has yet."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import gpu as gpu_record

_EMPTY = gpu_record.GpuRecord()


@dataclasses.dataclass(frozen=True)
class _Part:
    """The new value of a field."""

    value: Any
    was_read: bool
    """Whether the record could be read when the field changed."""


class Parts:
    """What is to be written to one record.

    :param parts: by field.
    """

    def __init__(self, parts: Mapping[str, _Part]):
        self._parts = parts

    def on(self, record: gpu_record.GpuRecord) -> gpu_record.GpuRecord:
        """The record with these parts.

        A part that was changed while the record could not be read does not
        replace what the record has: the two are joined.
        """
        return dataclasses.replace(record, **{
            name: part.value if part.was_read
            else _joined(name, getattr(record, name), part.value)
            for name, part in self._parts.items()})

    def __iter__(self) -> Iterator[tuple[str, _Part]]:
        return iter(self._parts.items())


class Pending:
    """The parts of all records that could not be written. Thread-safe."""

    def __init__(self) -> None:
        self._parts: dict[model.PciAddress, dict[str, _Part]] = {}
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, address: model.PciAddress) -> bool:
        return address in self._parts

    def addresses(self) -> tuple[model.PciAddress, ...]:
        """The GPUs whose records have parts in memory."""
        with self._mutex:
            return tuple(self._parts)

    def of(self, address: model.PciAddress) -> Parts:
        """A copy of the parts of a GPU's record."""
        with self._mutex:
            return Parts(dict(self._parts.get(address, {})))

    def keep(self, address: model.PciAddress, before: gpu_record.GpuRecord,
             after: gpu_record.GpuRecord, was_read: bool) -> None:
        """Keep the fields that differ.

        :param was_read: whether the record could be read.
        """
        changed = {
            field.name: getattr(after, field.name)
            for field in dataclasses.fields(after)
            if getattr(after, field.name) != getattr(before, field.name)}
        if not changed:
            return
        with self._mutex:
            parts = self._parts.setdefault(address, {})
            for name, value in changed.items():
                # A value that was made from one in memory includes it.
                earlier = parts.get(name)
                parts[name] = _Part(value, was_read or (
                    earlier is not None and earlier.was_read))

    def forget(self, address: model.PciAddress, written: Parts) -> None:
        """Drop parts that were written, unless they are newer now.

        Another thread may have kept newer ones.
        """
        with self._mutex:
            left = self._parts.get(address, {})
            for name, part in written:
                if left.get(name) is part:
                    del left[name]
            if not left:
                self._parts.pop(address, None)


def _joined(name: str, there: Any, kept: Any) -> Any:
    """A field of a record, with what was kept while it could not be read.

    What the next report observes again gives way to the record.
    """
    if name == 'health' and there and kept:
        return there.joined(kept)
    if name == 'errors':
        # Not the sum: both may have counted a condition that lasts.
        return max(there, kept)
    if name == 'cordons':
        return functools.reduce(cordon.added, (
            item for item in kept if cordon.of(there, item.source) is None),
            there)
    return kept if there == getattr(_EMPTY, name) else there
