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


"""Layout files of MIG: mig-parted's own format, read and written.

    version: v1
    mig-configs:
      all-balanced:
        - devices: all
          device-filter: ["0x20B010DE"]
          mig-enabled: true
          mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}

Text in, values out: reading the file is the caller's. The names of profiles
mean something only on one GPU (:meth:`Entry.for_gpu`), as the same name is
another profile on another board.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.change import search as change_search
from cyborg_gpu_driver.partition.change import target
from cyborg_gpu_driver.partition.layout import devices as layout_devices
from cyborg_gpu_driver.partition.layout import schema as layout_schema
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml


@dataclasses.dataclass(frozen=True)
class Section:
    """One item of an entry: some GPUs, and what they are to be."""

    devices: layout_devices.Devices
    mig_enabled: bool
    mig_devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """MIG devices by name; with ``mig_enabled`` none clears the GPU."""

    @classmethod
    def parse(cls, item: dict[str, Any], place: schema.Place) -> Section:
        """Read one item that has passed its schema.

        :raises LayoutError: if its parts do not go together.
        """
        enabled = item['mig-enabled']
        if enabled and 'mig-devices' not in item:
            raise place.error("key 'mig-devices' is missing", 'give {} '
                              'for a GPU in MIG mode without instances')
        counts = item.get('mig-devices', {})
        if not enabled and counts:
            raise place.error('mig-devices without MIG mode',
                              'set mig-enabled: true, or leave them out')
        if counts and not any(counts.values()):
            raise place.below('mig-devices').error(
                'all counts are 0', 'give {} for none at all')
        return cls(layout_devices.Devices.parse(item, place), enabled,
                   dict(counts))

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a file."""
        result = {**self.devices.to_dict(), 'mig-enabled': self.mig_enabled}
        if self.mig_enabled:
            result['mig-devices'] = dict(self.mig_devices)
        return result


@dataclasses.dataclass(frozen=True)
class Entry:
    """One named layout: what each GPU of a host is to be."""

    source: str
    """The file that it is from, for complaints."""
    name: str
    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, name: str, items: list[dict[str, Any]],
              place: schema.Place) -> Entry:
        """Read one entry.

        :param items: that have passed ``layout_schema.ITEMS``.
        :param place: of the items.
        :raises LayoutError: if they do not go together.
        """
        sections = tuple(Section.parse(item, place.below(number))
                         for number, item in enumerate(items))
        layout_devices.check_overlaps(
            [section.devices for section in sections], place)
        return cls(place.source, name, sections)

    def for_gpu(self, index: int, gpu: model.Gpu) -> target.Wanted | None:
        """What is wanted of one GPU, in its own profiles.

        :param index: its position among the host's GPUs.
        :returns: None if the entry does not speak of it. A GPU without MIG
            stays as it is where MIG mode is asked of all, as mig-parted has
            it (cmd/nvidia-mig-parted/apply/mode.go, MatchesAllDevices).
        :raises LayoutError: if this GPU lacks a profile, can never hold
            them all, or is spoken of twice.
        """
        found = [section for section in self.sections
                 if section.devices.include(index, gpu)]
        if not found:
            return None
        where = layout_schema.place(
            self.source, f'entry {self.name}, GPU {index}')
        if len(found) > 1:
            raise where.error(
                'matched twice: ' + ' and '.join(
                    str(section.devices) for section in found),
                'select each GPU in only one item')
        if (found[0].mig_enabled and found[0].devices.indices is None
                and gpu.mig is None and not condition.obstacle(gpu)):
            return target.Wanted(False, without_mig=True)
        try:
            wanted = target.wanted(
                gpu, found[0].mig_enabled, found[0].mig_devices)
        except exception.InvalidValue as error:
            raise where.error('mig-devices', str(error)) from error
        if (gpu.mig is not None and wanted.enabled
                and not change_search.fits_empty(gpu, wanted)):
            raise where.error(
                f'{wanted} do not fit on one {gpu.model or gpu.device_id}',
                'at most ' + target.listed(change_search.largest(
                    gpu.mig, wanted)) + ' of them do')
        return wanted

    def for_host(self, gpus: Sequence[model.Gpu]
                 ) -> dict[int, target.Wanted]:
        """What is wanted of each GPU that the entry speaks of, by index.

        :param gpus: the host's, by address, as a snapshot holds them.
        :raises LayoutError: as :meth:`for_gpu`, for an index that is not
            there, and if MIG mode is asked of GPUs none of which has MIG.
        """
        return self.for_chosen(gpus, self.chosen(gpus))

    def for_chosen(self, gpus: Sequence[model.Gpu], indices: Iterable[int]
                   ) -> dict[int, target.Wanted]:
        """What is wanted of some of them.

        :param gpus: as for :meth:`for_host`.
        :param indices: some of those that :meth:`chosen` gave.
        :raises LayoutError: as :meth:`for_host`.
        """
        found = ((index, self.for_gpu(index, gpus[index]))
                 for index in indices)
        wanted = {index: value for index, value in found
                  if value is not None}
        if wanted and all(value.without_mig for value in wanted.values()):
            raise layout_schema.place(
                self.source, f'entry {self.name}').error(
                'mig-enabled: true, but none of the selected GPUs supports '
                'MIG',
                'select GPUs that do')
        return wanted

    def chosen(self, gpus: Sequence[model.Gpu]) -> tuple[int, ...]:
        """Indices of the GPUs that the entry speaks of, ascending.

        :param gpus: as for :meth:`for_host`.
        :raises LayoutError: for an index that is not there.
        """
        self._check_indices(len(gpus))
        return tuple(index for index, gpu in enumerate(gpus)
                     if any(section.devices.include(index, gpu)
                            for section in self.sections))

    def _check_indices(self, count: int) -> None:
        missing = sorted({
            index for section in self.sections
            for index in section.devices.indices or () if index >= count})
        if missing:
            raise layout_schema.place(
                self.source, f'entry {self.name}').error(
                f'there is no GPU {", ".join(map(str, missing))}',
                f'this host has 0 to {count - 1}' if count
                else 'this host has no GPU')


@dataclasses.dataclass(frozen=True)
class LayoutFile:
    """A mig-parted file: named layouts, in the file's order."""

    entries: tuple[Entry, ...]
    source: str = 'layout'
    """The file's name, for error messages."""

    @classmethod
    def parse(cls, text: str, source: str) -> LayoutFile:
        """Read a file's text.

        :param source: the file's name, for error messages.
        :raises LayoutError: naming file, entry and item.
        """
        place = layout_schema.place(source)
        content = layout_yaml.plain(text, place)
        layout_schema.check(content, layout_schema.LAYOUT_FILE, place)
        place = place.below(layout_schema.ROOT)
        return cls(tuple(
            Entry.parse(name, items, place.below(name))
            for name, items in content[layout_schema.ROOT].items()), source)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the entries."""
        return tuple(entry.name for entry in self.entries)

    def entry(self, name: str | None = None) -> Entry:
        """The entry of that name; without a name, the only entry.

        :raises LayoutError: listing the entries of the file.
        """
        for entry in self.entries:
            if entry.name == name or (
                    name is None and len(self.entries) == 1):
                return entry
        raise layout_schema.place(self.source, layout_schema.ROOT).error(
            'the file has several entries; choose one' if name is None
            else f'no entry {name!r}', 'there are ' + ', '.join(self.names))

    def to_dict(self) -> dict[str, Any]:
        """The whole file as plain values."""
        return {'version': layout_schema.VERSION, layout_schema.ROOT: {
            entry.name: [section.to_dict() for section in entry.sections]
            for entry in self.entries}}

    def dump(self) -> str:
        """The file's text; :meth:`parse` reads the same from it."""
        return layout_yaml.dump(self.to_dict())
