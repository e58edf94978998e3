# SPDX-License-Identifier: Apache-2.0


"""Which GPUs an item of a layout file selects: devices, device-filter."""

from __future__ import annotations

import dataclasses
from typing import Any

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.host.snapshot import model
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
