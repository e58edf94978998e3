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

"""``cyborg-gpu gpu map``."""

from __future__ import annotations

import os

from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.partition import gpu_map
from cyborg_gpu_driver.partition import picture

_COLOURS = {'bound': '36', 'created': '33', 'free': '32',
            'passthrough': '32', 'blocked': '2', 'off': '2', 'unread': '31'}
"""Parameters of the escape sequence SGR (ECMA-48, 8.3.117)."""


class MapGpu(table.Lister):
    """Draw the layouts of all GPUs of this host side by side.

    A box is a GPU instance with its profile and the attach handle that has
    it, or a unit of memory that is free or in which nothing can be created
    now. GPUs without MIG are one box. Other formats and --long list the
    boxes, with the handles in full.
    """

    def take_action(self, parsed_args):
        view = self.app.view
        view.explain()
        self._tiles = [_tile(view, gpu) for gpu in view.host.gpus]
        return _NAMES, [row for tile in self._tiles for row in _rows(tile)]

    def produce_output(self, parsed_args, column_names, data):
        if (parsed_args.formatter != 'table' or parsed_args.long
                or parsed_args.columns):
            return super().produce_output(parsed_args, column_names, data)
        stdout = self.app.stdout
        pens = picture.pens_for(getattr(stdout, 'encoding', None))
        # Any value of NO_COLOR disables colors: https://no-color.org
        coloured = stdout.isatty() and not os.environ.get('NO_COLOR')
        for line in gpu_map.lines(
                self._tiles, pens,
                table.line_width(parsed_args.max_width, stdout),
                _coloured if coloured else _plain):
            stdout.write(line + '\n')
        return 0


_NAMES = ('index', 'address', 'model', 'mode', 'roles', 'start', 'size',
          'state', 'profile', 'id', 'handles', 'health')


def _tile(view, gpu):
    return gpu_map.tile(
        gpu, choice.index(view.host, gpu), view.mode(gpu),
        gpu_map.claimed((entry.handle, entry.function, entry.placement)
                        for entry in view.entries(gpu)),
        view.roles(gpu))


def _rows(tile):
    for box in tile.boxes:
        place = box.placement
        yield (columns.Optional(tile.index), str(tile.gpu.address),
               columns.Optional(tile.gpu.model),
               columns.Optional(tile.mode and tile.mode.value),
               columns.Names(role.value for role in tile.roles),
               columns.Optional(place and place.start),
               columns.Optional(place and place.size), box.state.value,
               columns.Optional(box.name), columns.Optional(box.instance_id),
               columns.Names(box.handles), condition.state(tile.gpu))


def _coloured(text, state):
    return f'\x1b[{_COLOURS[state]}m{text}\x1b[0m'


def _plain(text, state):
    return text
