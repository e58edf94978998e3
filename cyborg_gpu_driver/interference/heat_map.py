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

"""A picture of measured slowdowns, and its text in SVG. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from xml.sax import saxutils

FONT_SIZE = 13
_CELL_WIDTH, _CELL_HEIGHT = 76, 36
_LETTER = 7.5
"""Approximate width of a letter of the font."""
_MARGIN = 16
_HEAD = 58
"""Height of the title and of the column headings."""
_BLANK = '#eeeeee'
_DOES_NOT_FIT = '#4d4d4d'
_BLACK, _WHITE = '#000000', '#ffffff'
_LOW, _HIGH = (255, 255, 229), (178, 24, 43)
"""Colours of no slowdown and of the worst one."""
_HEAD_TEXT = ('Run time beside another application, relative to the run time '
              'alone')


@dataclasses.dataclass(frozen=True)
class Box:
    """A filled rectangle; ``title`` says what it means."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str


@dataclasses.dataclass(frozen=True)
class Text:
    """A line of text.

    :ivar x: position of its start, middle or end, as ``anchor`` says.
    :ivar y: position of its baseline.
    :ivar anchor: ``start``, ``middle`` or ``end``, as in SVG.
    :ivar title: the whole text, if ``text`` is shortened.
    """

    x: float
    y: float
    text: str
    anchor: str
    fill: str = _BLACK
    title: str = ''


@dataclasses.dataclass(frozen=True)
class Picture:
    """The parts to draw on white, in order. All lengths are in pixels."""

    width: int
    height: int
    parts: tuple[Box | Text, ...]


def draw(names: Sequence[str],
         slowdowns: Mapping[str, Mapping[str, float | None]]) -> Picture:
    """Return a heat map.

    It has a row for each application that is slowed down, and a column for
    each that causes a slowdown. The colours range from no slowdown to the
    worst one in the picture. Pairs that do not fit together are dark, pairs
    that were not measured are grey.

    :param slowdowns: None for a pair that does not fit together.
    """
    left = _MARGIN * 2 + max([*map(len, names), 5]) * _LETTER
    width = max(left + _MARGIN + len(names) * _CELL_WIDTH,
                2 * _MARGIN + len(_HEAD_TEXT) * _LETTER)
    height = _HEAD + 2 * _MARGIN + len(names) * _CELL_HEIGHT
    worst = max([value for row in slowdowns.values()
                 for value in row.values() if value], default=1.0)
    parts: list[Box | Text] = [Text(_MARGIN, 24, _HEAD_TEXT, 'start')]
    for index, name in enumerate(names):
        middle = left + (index + 0.5) * _CELL_WIDTH
        parts.append(Text(middle, _HEAD, _short(name), 'middle', title=name))
        top = _HEAD + _MARGIN + index * _CELL_HEIGHT
        parts.append(Text(left - _MARGIN, top + 22, name, 'end'))
        for column, other in enumerate(names):
            parts += _cell(left + column * _CELL_WIDTH, top, name, other,
                           slowdowns.get(name, {}), worst)
    return Picture(round(width), height, tuple(parts))


def svg(picture: Picture) -> str:
    """Return the text of an SVG file."""
    width, height = picture.width, picture.height
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="{FONT_SIZE}">',
        f'<rect width="{width}" height="{height}" fill="{_WHITE}"/>',
        *(_box(part) if isinstance(part, Box) else _text(part)
          for part in picture.parts), '</svg>', ''])


def _cell(x, y, name, other, row, worst) -> Iterator[Box | Text]:
    ink = _BLACK
    if other not in row:
        fill, label, meaning = _BLANK, '', 'not measured'
    elif row[other] is None:
        fill, label, ink = _DOES_NOT_FIT, 'memory', _WHITE
        meaning = 'do not fit together'
    else:
        share = _share(row[other], worst)
        fill, label = _colour(share), f'{row[other]:.2f}'
        ink = _WHITE if share > 0.6 else ink
        meaning = label
    yield Box(x, y, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, fill,
              f'{name} beside {other}: {meaning}')
    if label:
        yield Text(x + _CELL_WIDTH / 2 - 1, y + 22, label, 'middle', ink)


def _share(value, worst):
    """Return where a slowdown is between none (0) and the worst (1)."""
    if worst <= 1:
        return 0.0
    return min(1.0, max(0.0, (value - 1) / (worst - 1)))


def _colour(share):
    return '#' + ''.join(f'{round(low + (high - low) * share):02x}'
                         for low, high in zip(_LOW, _HIGH, strict=True))


def _short(name):
    most = int(_CELL_WIDTH / _LETTER)
    return name if len(name) <= most else f'{name[:most - 1]}\u2026'


def _box(box):
    return (f'<rect x="{box.x:.1f}" y="{box.y}" width="{box.width}" '
            f'height="{box.height}" fill="{box.fill}">'
            f'<title>{saxutils.escape(box.title)}</title></rect>')


def _text(text):
    inner = saxutils.escape(text.text)
    if text.title:
        inner += f'<title>{saxutils.escape(text.title)}</title>'
    return (f'<text x="{text.x:.1f}" y="{text.y}" '
            f'text-anchor="{text.anchor}" fill="{text.fill}">{inner}</text>')
