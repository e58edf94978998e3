# SPDX-License-Identifier: Apache-2.0


"""Layout files of MIG: mig-parted's own format, read and written.

    version: v1
    mig-configs:
      all-balanced:
        - devices: all
          device-filter: ["0x20B010DE"]
          mig-enabled: true
          mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}

Takes text and returns values; the caller reads the file. A profile name has a
meaning only on one GPU (:meth:`Entry.for_gpu`), because the same name is
another profile on another board.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml


@dataclasses.dataclass(frozen=True)
class Devices:
    """A selection of GPUs, by index and by board."""

    indices: tuple[int, ...] | None = None
    """Positions among the host's GPUs by PCI address; None for all."""
    boards: tuple[str, ...] = ()
    """``0x20B010DE``: device id and vendor id; empty for every board."""

    @classmethod
    def parse(cls, item: dict[str, Any], place: schema.Place) -> Devices:
        """Read ``devices`` and ``device-filter`` of an item.

        :param item: an item that has passed its schema.
        :raises DocumentError: if a board appears twice.
        """
        found = item.get('device-filter') or ()
        boards = (found,) if isinstance(found, str) else tuple(found)
        if len({board.lower() for board in boards}) < len(boards):
            raise place.below('device-filter').error(
                'a board appears twice', 'keep one')
        return cls(None if item['devices'] == layout_yaml.ALL
                   else tuple(item['devices']), boards)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys as they appear in a file."""
        result: dict[str, Any] = {}
        if len(self.boards) == 1:
            result['device-filter'] = self.boards[0]
        elif self.boards:
            result['device-filter'] = layout_yaml.Flow(self.boards)
        result['devices'] = (layout_yaml.ALL if self.indices is None
                             else layout_yaml.Flow(self.indices))
        return result

    def include(self, index: int, gpu: model.Gpu) -> bool:
        """Whether the selection includes the GPU at position ``index``."""
        return ((self.indices is None or index in self.indices)
                and (not self.boards or board(gpu).lower() in
                     (text.lower() for text in self.boards)))

    def __str__(self) -> str:
        chosen = (layout_yaml.ALL if self.indices is None
                  else f'[{", ".join(map(str, self.indices))}]')
        boards = f' of {", ".join(self.boards)}' if self.boards else ''
        return f'devices {chosen}{boards}'


def board(gpu: model.Gpu) -> str:
    """Return a GPU's board as filters name it: ``0x20B010DE``."""
    return f'0x{gpu.device_id.upper()}{gpu.vendor_id.upper()}'


@dataclasses.dataclass(frozen=True)
class Section:
    """One item of an entry: a selection of GPUs and their wanted state."""

    devices: Devices
    mig_enabled: bool
    mig_devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """MIG devices by name; empty with ``mig_enabled`` clears the GPU."""

    @classmethod
    def parse(cls, item: dict[str, Any], place: schema.Place) -> Section:
        """Read one item that has passed its schema.

        :raises DocumentError: if its parts contradict each other.
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
        return cls(Devices.parse(item, place), enabled,
                   dict(counts))

    def to_dict(self) -> dict[str, Any]:
        """Return the section as it appears in a file."""
        result = {**self.devices.to_dict(), 'mig-enabled': self.mig_enabled}
        if self.mig_enabled:
            result['mig-devices'] = dict(self.mig_devices)
        return result


def sections(contents: Mapping[int, tuple[bool, tuple[tuple[str, int], ...]]],
             count: int) -> tuple[Section, ...]:
    """Return a section for all GPUs with the same content.

    :param contents: MIG mode and MIG devices of each GPU, by index.
    :param count: how many GPUs there are.
    """
    alike = collections.defaultdict(list)
    for index, content in contents.items():
        alike[content].append(index)
    return tuple(Section(
        Devices(None if len(indices) == count else tuple(indices)), enabled,
        dict(devices)) for (enabled, devices), indices in alike.items())


@dataclasses.dataclass(frozen=True)
class Entry:
    """One named layout: the wanted state of each GPU of a host."""

    source: str
    """The file of the entry, for error messages."""
    name: str
    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, name: str, items: list[dict[str, Any]],
              place: schema.Place) -> Entry:
        """Read one entry.

        :param items: items that have passed ``layout_yaml.ITEMS``.
        :raises DocumentError: if the items contradict each other.
        """
        return cls(place.source, name, tuple(
            Section.parse(item, place.below(number))
            for number, item in enumerate(items)))

    def for_gpu(self, index: int, gpu: model.Gpu) -> target.Wanted | None:
        """Return what is wanted of one GPU, in its own profiles.

        :param index: its position among the host's GPUs.
        :returns: None if the entry does not select it. If the entry turns on
            MIG mode for all GPUs, a GPU without MIG stays as it is, as with
            mig-parted (cmd/nvidia-mig-parted/apply/mode.go,
            MatchesAllDevices).
        :raises DocumentError: if this GPU lacks a profile, can never hold
            them all, or is selected twice, or if its placements are unknown.
        """
        found = [section for section in self.sections
                 if section.devices.include(index, gpu)]
        if not found:
            return None
        where = layout_yaml.place_in(
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
        if wanted.devices:
            check_placements(gpu, where)
        if (gpu.mig is not None and wanted.enabled
                and not plan.fits_empty(gpu.mig, wanted)):
            raise where.error(
                f'{wanted} do not fit on one {gpu.model or gpu.device_id}',
                'at most ' + target.listed(plan.largest(
                    gpu.mig, wanted)) + ' fit')
        return wanted

    def for_host(self, gpus: Sequence[model.Gpu]
                 ) -> dict[int, target.Wanted]:
        """Return what is wanted of each GPU that the entry selects, by index.

        :param gpus: the host's GPUs, by address, as a snapshot holds them.
        :raises DocumentError: as :meth:`for_gpu`, for an index that does not
            exist, and if MIG mode is wanted but no selected GPU supports it.
        """
        return self.for_chosen(gpus, self.chosen(gpus))

    def for_chosen(self, gpus: Sequence[model.Gpu], indices: Iterable[int]
                   ) -> dict[int, target.Wanted]:
        """Return what is wanted of some of the selected GPUs, by index."""
        found = ((index, self.for_gpu(index, gpus[index]))
                 for index in indices)
        wanted = {index: value for index, value in found
                  if value is not None}
        if wanted and all(value.without_mig for value in wanted.values()):
            raise layout_yaml.place_in(
                self.source, f'entry {self.name}').error(
                'mig-enabled: true, but none of the selected GPUs supports '
                'MIG',
                'select GPUs that do')
        return wanted

    def chosen(self, gpus: Sequence[model.Gpu]) -> tuple[int, ...]:
        """Return the indices of the GPUs that the entry selects, ascending.

        :raises DocumentError: for an index that does not exist.
        """
        missing = sorted({
            index for section in self.sections
            for index in section.devices.indices or () if index >= len(gpus)})
        if missing:
            raise layout_yaml.place_in(
                self.source, f'entry {self.name}').error(
                f'there is no GPU {", ".join(map(str, missing))}',
                f'this host has 0 to {len(gpus) - 1}' if gpus
                else 'this host has no GPU')
        return tuple(index for index, gpu in enumerate(gpus)
                     if any(section.devices.include(index, gpu)
                            for section in self.sections))


@dataclasses.dataclass(frozen=True)
class LayoutFile:
    """A mig-parted file: named layouts, in the file's order."""

    entries: tuple[Entry, ...]
    source: str = 'layout'
    """The file's name, for error messages."""
    unreadable: Mapping[str, exception.DocumentError] = dataclasses.field(
        default_factory=dict, compare=False)
    """Entries that cannot be read, by name, and why. mig-parted may read
    them. They matter only to whoever asks for them."""

    @classmethod
    def parse(cls, text: str, source: str) -> LayoutFile:
        """Read a file's text.

        :param source: the file's name, for error messages.
        :raises DocumentError: if it is no layout file.
        """
        place = layout_yaml.place_in(source)
        content = layout_yaml.plain(text, place)
        layout_yaml.check(content, layout_yaml.LAYOUT_FILE, place)
        place = place.below(layout_yaml.ROOT)
        entries, unreadable = [], {}
        for name, items in content[layout_yaml.ROOT].items():
            try:
                layout_yaml.check(items, layout_yaml.ITEMS,
                                  place.below(name))
                entries.append(Entry.parse(name, items, place.below(name)))
            except exception.DocumentError as error:
                unreadable[name] = error
        return cls(tuple(entries), source, unreadable)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the entries, also of those that cannot be read."""
        return (*(entry.name for entry in self.entries), *self.unreadable)

    def entry(self, name: str | None = None) -> Entry:
        """Return the entry of that name; without a name, the only entry.

        :raises DocumentError: why it cannot be read, or listing the entries of
            the file.
        """
        if name is None and len(self.names) == 1:
            (name,) = self.names
        if name is not None and name in self.unreadable:
            raise self.unreadable[name]
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise layout_yaml.place_in(self.source, layout_yaml.ROOT).error(
            'the file has several entries; choose one' if name is None
            else f'no entry {name!r}', 'there are ' + ', '.join(self.names))

    def to_dict(self) -> dict[str, Any]:
        """Return the whole file as plain values."""
        return {'version': layout_yaml.VERSION, layout_yaml.ROOT: {
            entry.name: [section.to_dict() for section in entry.sections]
            for entry in self.entries}}

    def dump(self) -> str:
        """Return the file's text; :meth:`parse` reads the same from it."""
        return layout_yaml.dump(self.to_dict())


def check_placements(gpu: model.Gpu, where: schema.Place) -> None:
    """Check that NVML says where the GPU instances of a GPU can be.

    While MIG mode is off, it says so only to root.

    :raises DocumentError: if it does not.
    """
    profiles = gpu.mig.profiles if gpu.mig else ()
    if profiles and not any(profile.placements for profile in profiles):
        raise where.error(
            'NVML does not show the placements of its GPU instances',
            'run this as root, or turn MIG mode on')
