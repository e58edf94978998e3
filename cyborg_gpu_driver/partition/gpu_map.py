# SPDX-License-Identifier: Apache-2.0

"""The GPUs of a host side by side: what is in use, by whom, and what is free.

Pure: takes snapshots and handles, and returns boxes and lines.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import operator
import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_type


@dataclasses.dataclass(frozen=True)
class Pens:
    """The characters to draw with."""

    line: str
    wall: str
    top: tuple[str, str, str]
    bottom: tuple[str, str, str]
    free: str
    blocked: str
    cut: str


UNICODE = Pens('─', '│', ('┌', '┬', '┐'), ('└', '┴', '┘'), '·', '░', '…')
ASCII = Pens('-', '|', ('+', '+', '+'), ('+', '+', '+'), '.', 'x', '~')


@dataclasses.dataclass(frozen=True)
class Cell:
    """A box of the grid: an instance, or one free unit."""

    units: int
    text: tuple[str, ...] = ()
    """The instance's name and its owner; empty for a free unit."""
    kind: str = ''
    """The value of its state."""
    mark: str = ''
    """Fills a free unit."""


def pens_for(encoding: str | None) -> Pens:
    """Return box-drawing pens if a terminal of that encoding can show them."""
    try:
        ''.join(''.join(part) for part in
                dataclasses.astuple(UNICODE)).encode(encoding or 'ascii')
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def _frame(cells: Sequence[Cell], pitch: int, pens: Pens, paint: Paint
           ) -> list[str]:
    """Return cells side by side: the numbers of the units, then the boxes.

    :param pitch: characters of a unit, including one wall.
    """
    edge = [pens.line * (cell.units * pitch - 1) for cell in cells]
    texts = [_cell_text(cell, cell.units * pitch - 1, pens)
             for cell in cells]
    rows = [
        pens.wall + pens.wall.join(
            paint((text[row] if row < len(text) else '').center(len(line)),
                  cell.kind)
            for cell, text, line in zip(cells, texts, edge, strict=True))
        + pens.wall for row in range(max(map(len, texts)))]
    units = sum(cell.units for cell in cells)
    return [''.join(' ' + str(unit).center(pitch - 1)
                    for unit in range(units)),
            pens.top[1].join(edge).join(pens.top[::2]), *rows,
            pens.bottom[1].join(edge).join(pens.bottom[::2])]


def _cell_text(cell: Cell, width: int, pens: Pens) -> list[str]:
    if not cell.text:
        return [cell.mark] * 2
    name, owner = cell.text
    parts = [name]
    if len(name) > width:
        # 1g.10gb+me in a single unit: the attribute gets its own line.
        parts = re.findall(r'[^+-]+|[+-].*', name)
    return [part if len(part) <= width else part[:width - 1] + pens.cut
            for part in (*parts, owner)]


TILE = 38
"""Width of one GPU in characters: two GPUs and the gap fit 80 columns."""
_GAP = 4
_LEAST_PITCH = 3
_ESCAPE = re.compile('\x1b\\[[0-9;]*m')
_BOUND_MARK = '*'

Paint = Callable[[str, str], str]
"""Returns a text in the colour of a state, given the state's value. The
visible length must be the same."""
Claims = Sequence[tuple[str, model.PciAddress, model.Placement | None]]
"""Attach handles of one GPU, each with its function and GPU instance."""


class State(enum.Enum):
    """What a box of the map represents."""

    BOUND = 'bound'
    """An instance or vGPU that an attach handle of Cyborg uses."""
    CREATED = 'created'
    """An instance or vGPU that no attach handle uses."""
    FREE = 'free'
    """Empty, and something can be created there now."""
    BLOCKED = 'blocked'
    """Empty, and nothing can be created there now."""
    PASSTHROUGH = 'passthrough'
    """A GPU without partitions, in passthrough mode."""
    OFF = 'off'
    """A GPU without partitions that no policy offers."""
    UNREAD = 'unread'
    """A GPU that could not be read completely."""


@dataclasses.dataclass(frozen=True)
class Box:
    """An instance, a vGPU, a range of units, or a GPU as a whole."""

    state: State
    name: str | None = None
    """Profile of the instance, or type of the vGPU."""
    placement: model.Placement | None = None
    """Units of the grid; None without a grid."""
    instance_id: int | None = None
    handles: tuple[str, ...] = ()
    """Attach handles that use it."""


@dataclasses.dataclass(frozen=True)
class Tile:
    """One GPU of the map.

    :param index: the GPU's number on this host; None if it has none.
    :param mode: the GPU's mode under the policies, or in mode auto its
        current role; None if it has none now.
    :param roles: in mode auto: the roles that it can take.
    """

    gpu: model.Gpu
    index: int | None
    mode: policy.Mode | None
    boxes: tuple[Box, ...]
    roles: tuple[policy.Mode, ...] = ()


def tile(gpu: model.Gpu, index: int | None, mode: policy.Mode | None,
         claims: Claims, roles: tuple[policy.Mode, ...] = ()) -> Tile:
    """Return the map's picture of a GPU."""
    return Tile(gpu, index, mode, tuple(_boxes(gpu, mode, claims)), roles)


def _boxes(gpu: model.Gpu, mode: policy.Mode | None, claims: Claims
           ) -> Iterator[Box]:
    mig = _gridded(gpu)
    if mig is not None:
        yield from _grid_boxes(mig, claims)
    elif condition.is_failed(gpu):
        yield Box(State.UNREAD)
    elif gpu.vgpus:
        types = vgpu_type.by_id(gpu)
        for vgpu in gpu.vgpus:
            handles = tuple(
                handle for handle, function, placement in claims
                if (handle == vgpu.uuid if vgpu.uuid is not None
                    else function == vgpu.function and placement is None))
            yield Box(State.BOUND if handles else State.CREATED,
                      vgpu_type.name(types, vgpu.type_id), handles=handles)
    elif mode is policy.Mode.OFF or mode is None:
        yield Box(State.OFF)
    elif mode in policy.WHOLE:
        yield Box(State.PASSTHROUGH)
    else:
        # A GPU in MIG mode would have a grid.
        yield Box(State.FREE if mode in (policy.Mode.VGPU, policy.Mode.AUTO)
                  else State.BLOCKED)


def _gridded(gpu: model.Gpu) -> model.Mig | None:
    """Return the MIG state of a GPU that has a grid of units now."""
    mig = gpu.mig
    # A driver may list no placements, but have instances.
    return mig if mig and mig.enabled and (
        mig.instances or geometry.Geometry(mig.profiles).units) else None


def _grid_boxes(mig: model.Mig, claims: Claims) -> list[Box]:
    """Return the instances and ranges of free units, by their first unit."""
    grid = geometry.Geometry(mig.profiles)
    occupancy = grid.occupancy_of(mig.instances)
    reachable = 0
    for profile in grid.profiles:
        for place in grid.free_placements(occupancy, profile):
            reachable |= place.mask
    boxes = []
    for item in mig.instances:
        handles = tuple(handle for handle, _, placement in claims
                        if placement == item.placement)
        boxes.append(Box(
            State.BOUND if handles else State.CREATED,
            spec.profile_name(mig, item.profile_id),
            item.placement, item.instance_id, handles))
    empty = [unit for unit in range(grid.units)
             if not occupancy.mask >> unit & 1]
    # Adjacent units have the same difference to their index in the list.
    for (state, _), group in itertools.groupby(
            enumerate(empty), lambda item: (
                State.FREE if reachable >> item[1] & 1 else State.BLOCKED,
                item[1] - item[0])):
        units = [unit for _, unit in group]
        boxes.append(Box(state, placement=model.Placement(
            units[0], len(units))))
    return sorted(boxes, key=operator.attrgetter('placement'))


def lines(tiles: Sequence[Tile], pens: Pens, width: int,
          paint: Paint = lambda text, _: text) -> list[str]:
    """Return the lines of the map; the last one explains the marks.

    :param width: characters in a line; at least one GPU is always drawn.
    """
    beside = max(1, (width + _GAP) // (TILE + _GAP))
    drawn = []
    for first in range(0, len(tiles), beside):
        row = [_drawn(item, pens, paint)
               for item in tiles[first:first + beside]]
        drawn += [(' ' * _GAP).join(map(_padded, parts)).rstrip()
                  for parts in itertools.zip_longest(*row, fillvalue='')]
        drawn.append('')
    if tiles:
        drawn.append(
            f'{_BOUND_MARK} attach handle  # instance id  {pens.free} free'
            f'  {pens.blocked} nothing can be created there now')
    return drawn


def _padded(text: str) -> str:
    return text + ' ' * (TILE - len(_ESCAPE.sub('', text)))


def _drawn(item: Tile, pens: Pens, paint: Paint) -> list[str]:
    """Return the lines of one GPU."""
    gpu = item.gpu
    number = '-' if item.index is None else item.index
    about = [item.mode.value if item.mode else '-']
    if item.roles:
        about[0] += f' ({"/".join(role.value for role in item.roles)})'
    if condition.state(gpu) != condition.OK:
        about.append(condition.state(gpu))
    cells, units = _cells(item, pens)
    pitch = (TILE - 1) // units
    if pitch < _LEAST_PITCH:
        cells, pitch = [_listed(item)], TILE - 1
    numbers, *framed = _frame(cells, pitch, pens, paint)
    name = (gpu.model or '').removeprefix('NVIDIA ')
    return [_cut(f'{number}  {gpu.address}  {name}'.rstrip(), pens),
            _cut(f'   {", ".join(about)}', pens),
            *([numbers] if len(cells) > 1 else []), *framed]


def _cells(item: Tile, pens: Pens
           ) -> tuple[list[Cell], int]:
    """Return the cells of the grid or GPU, and the number of units."""
    if _gridded(item.gpu) is None:
        return [_one_box(item)], 1
    units = max(box.placement.start + box.placement.size
                for box in item.boxes if box.placement)
    pitch = (TILE - 1) // units
    cells, end = [], 0
    for box in item.boxes:
        if box.placement is None or box.placement.start < end:
            # Instances never overlap; draw whatever can be drawn.
            continue
        end = box.placement.start + box.placement.size
        if box.name is None:
            mark = (pens.free if box.state is State.FREE
                    else pens.blocked)
            cells += [Cell(1, kind=box.state.value, mark=mark)
                      ] * box.placement.size
        else:
            cells.append(Cell(box.placement.size, (
                _short(box.name, box.placement.size * pitch - 1),
                _owner(box)), box.state.value))
    return cells, units


def _short(name: str, width: int) -> str:
    """Return a profile's name, without its memory if it is too long."""
    if len(name) <= width:
        return name
    return re.sub(r'\.[0-9]+gb', '', name)


def _owner(box: Box) -> str:
    if not box.handles:
        return '' if box.instance_id is None else f'#{box.instance_id}'
    more = f' +{len(box.handles) - 1}' if len(box.handles) > 1 else ''
    return _BOUND_MARK + ''.join(
        letter if letter.isprintable() else '?'
        for letter in box.handles[0]) + more


def _one_box(item: Tile) -> Cell:
    """Return the one box of a GPU without a grid."""
    gpu, first = item.gpu, item.boxes[0]
    if first.name is not None:
        return _listed(item)
    above = {State.PASSTHROUGH: 'passthrough', State.OFF: 'not offered',
             State.UNREAD: 'could not be read'}.get(
                 first.state, 'no vGPU' if first.state is State.FREE
                 else 'MIG mode is on, no placements'
                 if gpu.mig is not None and gpu.mig.enabled
                 else 'MIG mode is off')
    below = (f'{gpu.processes} processes have it open' if gpu.processes
             else '')
    return Cell(1, (above, below), first.state.value)


def _listed(item: Tile) -> Cell:
    """Return a cell that counts a GPU's partitions and the bound ones."""
    named = [box for box in item.boxes if box.name is not None]
    counts = collections.Counter(box.name for box in named)
    bound = sum(box.state is State.BOUND for box in named)
    return Cell(
        1, (', '.join(f'{count}x {name}'
                      for name, count in sorted(counts.items())) or '-',
            f'{_BOUND_MARK}{bound} bound' if bound else 'none bound'),
        (State.BOUND if bound else State.CREATED).value)


def _cut(text: str, pens: Pens) -> str:
    return text if len(text) <= TILE else text[:TILE - 1] + pens.cut
