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


"""Of which GPUs an item of a layout file speaks: devices, device-filter."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import layout_yaml

KEYS = ('devices',)
OPTIONAL_KEYS = ('device-filter',)

_ALL = 'all'
_FILTER = re.compile(r'0[xX][0-9a-fA-F]{8}', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Devices:
    """A choice of GPUs, by index and by what board they are."""

    indices: tuple[int, ...] | None = None
    """Positions among the host's GPUs by PCI address; None for all."""
    boards: tuple[str, ...] = ()
    """``0x20B010DE``: device id and vendor id; empty for every board."""

    @classmethod
    def parse(cls, item: dict[str, Any], where: layout_yaml.Where
              ) -> Devices:
        """Read ``devices`` and ``device-filter`` of an item.

        :raises LayoutError: if either is malformed.
        """
        return cls(_indices(item['devices'], where),
                   _boards(item.get('device-filter'), where))

    def to_dict(self) -> dict[str, Any]:
        """As they stand in a file."""
        result: dict[str, Any] = {}
        if len(self.boards) == 1:
            result['device-filter'] = self.boards[0]
        elif self.boards:
            result['device-filter'] = layout_yaml.Flow(self.boards)
        result['devices'] = (_ALL if self.indices is None
                             else layout_yaml.Flow(self.indices))
        return result

    def include(self, index: int, gpu: model.Gpu) -> bool:
        """Whether the GPU at position ``index`` is one of them."""
        return ((self.indices is None or index in self.indices)
                and (not self.boards or board(gpu).lower() in
                     (text.lower() for text in self.boards)))

    def overlap(self, other: Devices) -> bool:
        """Whether a GPU is sure to be in both, if it is there at all."""
        ours = {text.lower() for text in self.boards}
        theirs = {text.lower() for text in other.boards}
        if ours != theirs and not ours & theirs:
            return False
        if self.indices is None or other.indices is None:
            return () not in (self.indices, other.indices)
        return not set(self.indices).isdisjoint(other.indices)

    def __str__(self) -> str:
        chosen = (_ALL if self.indices is None
                  else f'[{", ".join(map(str, self.indices))}]')
        boards = f' of {", ".join(self.boards)}' if self.boards else ''
        return f'devices {chosen}{boards}'


def board(gpu: model.Gpu) -> str:
    """What board a GPU is, as filters name it: ``0x20B010DE``."""
    return f'0x{gpu.device_id.upper()}{gpu.vendor_id.upper()}'


def _indices(value, where):
    if value == _ALL:
        return None
    if not isinstance(value, list) or not all(
            isinstance(index, int) and not isinstance(index, bool)
            and index >= 0 for index in value):
        raise where.error(
            f'devices: {value!r} is not a choice of GPUs',
            'expected all, or a list of indices such as [0, 1]')
    if len(set(value)) < len(value):
        raise where.error(f'devices: {value!r} names a GPU twice',
                          'give each index once')
    return tuple(value)


def _boards(value, where):
    if value is None or value == '':
        return ()
    listed = [value] if isinstance(value, (str, int)) else value
    if not isinstance(listed, list) or not listed:
        raise where.error(f'device-filter: {value!r} is not a filter',
                          _expected_filter())
    for text in listed:
        if not isinstance(text, str) or not _FILTER.fullmatch(text):
            shown = f'0x{text:08X}' if isinstance(text, int) else repr(text)
            raise where.error(
                f'device-filter: {shown} is not a quoted board id',
                _expected_filter())
    lowered = [text.lower() for text in listed]
    if len(set(lowered)) < len(lowered):
        raise where.error('device-filter names a board twice',
                          'give each id once')
    return tuple(listed)


def _expected_filter():
    return ('expected one or a list of "0xDDDDVVVV", PCI device id and '
            'vendor id in quotes, such as "0x233010DE"')


def check_overlaps(chosen: Sequence[Devices], where: layout_yaml.Where
                   ) -> None:
    """Refuse two items of one entry that are sure to choose one GPU.

    :raises LayoutError: naming both.
    """
    for number, devices in enumerate(chosen):
        for other in range(number):
            if devices.overlap(chosen[other]):
                raise where.item(number).error(
                    f'speaks of the same GPUs as item {other}',
                    'choose each GPU in one item only')
