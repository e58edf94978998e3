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


"""Layout files of vGPUs: vgpu-device-manager's own format.

    version: v1
    vgpu-configs:
      default:
        - devices: all
          vgpu-devices: {A100-40C: 1}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import layout_devices
from cyborg_gpu_driver.partition import layout_document
from cyborg_gpu_driver.partition import layout_yaml
from cyborg_gpu_driver.partition import names
from cyborg_gpu_driver.partition import vgpu_types

ROOT = 'vgpu-configs'

_EXAMPLE = 'A100-40C: 1'


@dataclasses.dataclass(frozen=True)
class Section:
    """One item of an entry: some GPUs, and the vGPUs they are to have."""

    devices: layout_devices.Devices
    vgpu_devices: Mapping[str, int]
    """vGPUs by type name."""

    @classmethod
    def parse(cls, item: Any, where: layout_yaml.Where) -> Section:
        """Read one item.

        :raises LayoutError: saying what would be right.
        """
        where.mapping(item, (*layout_devices.KEYS, 'vgpu-devices'),
                      layout_devices.OPTIONAL_KEYS)
        counts = layout_yaml.counts(item['vgpu-devices'], where, _EXAMPLE)
        for name in counts:
            try:
                names.VgpuTypeName.parse(name)
            except exception.InvalidValue as error:
                raise where.error('vgpu-devices', str(error)) from error
        return cls(layout_devices.Devices.parse(item, where), dict(counts))

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {**self.devices.to_dict(),
                'vgpu-devices': dict(self.vgpu_devices)}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One named layout: what vGPUs each GPU of a host is to have."""

    source: str
    name: str
    sections: tuple[Section, ...]

    def for_gpu(self, index: int, gpu: model.Gpu
                ) -> dict[vgpu_types.Type, int] | None:
        """How many vGPUs of which type one GPU is to have.

        :param index: its position among the host's GPUs.
        :returns: None if the entry does not speak of it.
        :raises LayoutError: if this GPU has no such type or never so many,
            or is spoken of twice.
        """
        found = [section for section in self.sections
                 if section.devices.include(index, gpu)]
        if not found:
            return None
        where = layout_yaml.Where(
            self.source, f'entry {self.name}, GPU {index}')
        # Different cards share a PCI device id (A2 and A16): items for both
        # match, and only the types tell which is meant.
        known = {item.name for item in vgpu_types.types_of(gpu)}
        suiting = [section for section in found
                   if known.issuperset(section.vgpu_devices)]
        if len(suiting) > 1:
            raise where.error(
                'spoken of twice: ' + ' and '.join(
                    str(section.devices) for section in suiting),
                'choose each GPU in one item only')
        found = suiting or found
        return {_type(gpu, name, count, where): count
                for name, count in found[0].vgpu_devices.items() if count}


class LayoutFile(layout_document.LayoutDocument):
    """A vgpu-device-manager file: named layouts of vGPUs."""

    ROOT = ROOT

    @classmethod
    def read_entry(cls, source: str, name: str, items: list) -> Entry:
        where = layout_yaml.Where(source, f'entry {name}')
        return Entry(source, name, tuple(
            Section.parse(item, where.item(number))
            for number, item in enumerate(items)))


def _type(gpu, name, count, where):
    types = vgpu_types.types_of(gpu)
    found = next((item for item in types if item.name == name), None)
    if found is None:
        raise where.error(
            f'vgpu-devices: no type {name!r} on '
            f'{gpu.model or gpu.device_id} at {gpu.address}',
            'it has ' + (', '.join(item.name for item in types) or 'none'))
    if found.max_instances is not None and count > found.max_instances:
        raise where.error(
            f'vgpu-devices: {count} of {name} do not fit on one GPU',
            f'at most {found.max_instances} do')
    return found
