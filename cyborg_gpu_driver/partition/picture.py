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

"""A GPU's slice grid, drawn for a terminal of 80 columns.

Pure: takes a snapshot and returns lines, none with trailing spaces.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import textwrap
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.mig import geometry
from cyborg_gpu_driver.partition.vgpu import types as vgpu_types

WIDTH = 80
"""The maximum length of a line."""

_GRID_WIDTH = 64
_MARGIN = '  '
_LABEL = 10


@dataclasses.dataclass(frozen=True)
class Pens:
    """The characters to draw with."""

    line: str
    wall: str
    top: tuple[str, str, str]
    bottom: tuple[str, str, str]
    free: str
    blocked: str
    full_box: str
    empty_box: str
    cut: str
    times: str


UNICODE = Pens('─', '│', ('┌', '┬', '┐'), ('└', '┴', '┘'), '·', '░', '■', '□',
               '…', '×')
ASCII = Pens('-', '|', ('+', '+', '+'), ('+', '+', '+'), '.', 'x', '#', '-',
             '~', 'x')


@dataclasses.dataclass(frozen=True)
class Cell:
    """A box of the grid: an instance, or one free unit."""

    units: int
    text: tuple[str, ...] = ()
    """The instance's name and its owner; empty for a free unit."""
    kind: str = ''
    """For the caller that paints the cells, see :func:`frame`."""
    mark: str = ''
    """Replaces the usual mark of a free unit."""


def pens_for(encoding: str | None) -> Pens:
    """Return box-drawing pens if a terminal of that encoding can show them."""
    try:
        ''.join(''.join(part) for part in
                dataclasses.astuple(UNICODE)).encode(encoding or 'ascii')
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def lines(gpu: model.Gpu,
          owners: Mapping[model.Placement, str] | None = None,
          pens: Pens = UNICODE, layout: spec.MigLayout | None = None
          ) -> tuple[str, ...]:
    """Return the GPU as lines of text: its grid or its time-sliced vGPUs.

    :param owners: the owner of the instance at a placement, as far as known;
        other instances are shown with their id.
    :param layout: drawn instead of the live instances.
    :returns: empty for a GPU that has neither a grid nor vGPUs.
    """
    layout = layout or spec.layout_of(gpu)
    if (gpu.mig is not None and layout.enabled
            and has_units(gpu.mig, layout.instances)):
        drawn = _mig(gpu.mig, layout.instances, owners or {}, pens)
    elif gpu.mig is not None and not gpu.vgpus:
        drawn = ['MIG mode is on, but NVML lists no placements'
                 if layout.enabled else 'MIG mode is off']
    else:
        drawn = _time_sliced(gpu, pens)
    return tuple((_MARGIN + line).rstrip() for line in drawn)


def has_units(mig: model.Mig, instances: Collection[object]) -> bool:
    """Whether a GPU in MIG mode has units to draw.

    A driver may list no placements, but have instances.
    """
    return bool(instances or geometry.Geometry(mig.profiles).units)


def _mig(mig: model.Mig, instances: Sequence[spec.MigInstanceSpec],
         owners: Mapping[model.Placement, str], pens: Pens) -> list[str]:
    grid = geometry.Geometry(mig.profiles)
    occupancy = grid.occupancy_of(instances)
    units = max([grid.units, *(item.placement.start + item.placement.size
                               for item in instances)])
    drawn, hidden = _laid_out(instances)
    owners = {**{item.placement: f'id {item.instance_id}'
                 for item in mig.instances}, **owners}
    cells = _cells(mig, drawn, units, owners)
    return [
        *_grid(cells, units, pens),
        *(f'{_label("also")}{spec.profile_name(mig, item.profile_id)} '
          f'at {item.placement}'
          for item in hidden),
        _compute(mig, instances, pens), _memory(occupancy, units, pens),
        *_fitting(grid, occupancy, pens)]


def _laid_out(instances: Sequence[spec.MigInstanceSpec]
              ) -> tuple[list[spec.MigInstanceSpec],
                         list[spec.MigInstanceSpec]]:
    """Return the instances to draw side by side, and the rest (never any)."""
    drawn, hidden, end = [], [], 0
    for instance in sorted(instances):
        if instance.placement.start < end or not instance.placement.size:
            hidden.append(instance)
            continue
        drawn.append(instance)
        end = instance.placement.start + instance.placement.size
    return drawn, hidden


def _cells(mig: model.Mig, instances: Iterable[spec.MigInstanceSpec],
           units: int, owners: Mapping[model.Placement, str]) -> list[Cell]:
    cells, unit = [], 0
    for instance in instances:
        place = instance.placement
        cells += [Cell(1)] * (place.start - unit)
        owner = ''.join(letter if letter.isprintable() else '?'
                        for letter in owners.get(place, ''))
        cells.append(Cell(place.size, (
            spec.profile_name(mig, instance.profile_id), owner)))
        unit = place.start + place.size
    return cells + [Cell(1)] * (units - unit)


def _grid(cells: Sequence[Cell], units: int, pens: Pens) -> list[str]:
    pitch = max(2, _GRID_WIDTH // units)
    if 1 + units * pitch > WIDTH - _LABEL - len(_MARGIN):
        return _listed(cells)
    numbers, *framed = frame(cells, pitch, pens)
    return [f'{_label("unit")}{numbers}', *(
        _label('') + line for line in framed)]


def frame(cells: Sequence[Cell], pitch: int, pens: Pens,
          paint: Callable[[str, Cell], str] = lambda text, _: text
          ) -> list[str]:
    """Return cells side by side: the numbers of the units, then the boxes.

    :param pitch: characters of a unit, including one wall.
    :param paint: returns the replacement for a line of a cell's text, which
        must have the same visible length.
    """
    edge = [pens.line * (cell.units * pitch - 1) for cell in cells]
    texts = [_cell_text(cell, cell.units * pitch - 1, pens)
             for cell in cells]
    rows = [
        pens.wall + pens.wall.join(
            paint((text[row] if row < len(text) else '').center(len(line)),
                  cell)
            for cell, text, line in zip(cells, texts, edge, strict=True))
        + pens.wall for row in range(max(map(len, texts)))]
    units = sum(cell.units for cell in cells)
    return [''.join(' ' + str(unit).center(pitch - 1)
                    for unit in range(units)),
            pens.top[1].join(edge).join(pens.top[::2]), *rows,
            pens.bottom[1].join(edge).join(pens.bottom[::2])]


def _listed(cells: Iterable[Cell]) -> list[str]:
    """Return rows that replace a grid too fine to draw."""
    rows, unit = [], 0
    for cell in cells:
        if cell.text:
            rows.append(f'{_label(f"unit {unit}")}{": ".join(cell.text)}')
        unit += cell.units
    return rows


def _cell_text(cell: Cell, width: int, pens: Pens) -> list[str]:
    if not cell.text:
        return [cell.mark or pens.free] * 2
    name, owner = cell.text
    parts = [name]
    if len(name) > width:
        # 1g.10gb+me in a single unit: the attribute gets its own line.
        parts = re.findall(r'[^+-]+|[+-].*', name)
    return [part if len(part) <= width else part[:width - 1] + pens.cut
            for part in (*parts, owner)]


def _compute(mig: model.Mig, instances: Iterable[spec.MigInstanceSpec],
             pens: Pens) -> str:
    total = max(profile.slices for profile in mig.profiles)
    used = sum(profile.slices for profile in map(
        mig.profile_by_id, (item.profile_id for item in instances))
        if profile is not None)
    return (f'{_label("compute")}{_bar(used, total, pens)}  '
            f'{used} of {total} slices')


def _memory(occupancy: geometry.Occupancy, units: int, pens: Pens) -> str:
    used = occupancy.mask
    bar = ''.join(pens.full_box if used >> unit & 1 else pens.empty_box
                  for unit in range(units))
    return (f'{_label("memory")}{bar[:WIDTH // 2]}  '
            f'{used.bit_count()} of {units} units')


def _fitting(grid: geometry.Geometry, occupancy: geometry.Occupancy, pens: Pens
             ) -> list[str]:
    creatable = {profile.name: grid.creatable(occupancy, profile)
                 for profile in grid.profiles}
    words = [f'{count} {pens.times} {name}'.replace(' ', '\0')
             for name, count in creatable.items() if count]
    text = ' or '.join(words) or 'nothing'
    return [line.replace('\0', ' ') for line in textwrap.wrap(
        text, WIDTH - len(_MARGIN), initial_indent=_label('fits now'),
        subsequent_indent=_label(''), break_on_hyphens=False)]


def _time_sliced(gpu: model.Gpu, pens: Pens) -> list[str]:
    types = vgpu_types.by_id(gpu)
    rows = []
    for type_id, count in sorted(collections.Counter(
            vgpu.type_id for vgpu in gpu.vgpus).items()):
        name = vgpu_types.name(types, type_id)
        total = (types[type_id].max_instances if type_id in types else None)
        rows.append(
            f'{name}  {_bar(count, total, pens)}  {count} of {total}'
            if total else f'{name}  {count}')
    return rows


def _bar(used: int, total: int, pens: Pens) -> str:
    bar = pens.full_box * used + pens.empty_box * (total - used)
    return bar[:WIDTH // 2]


def _label(text: str) -> str:
    return text.ljust(_LABEL)
