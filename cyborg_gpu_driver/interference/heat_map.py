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

"""A picture of measured slowdowns, in SVG. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from xml.sax import saxutils

_CELL_WIDTH, _CELL_HEIGHT = 76, 36
_LETTER = 7.5
"""About the width of a letter of the font."""
_MARGIN = 16
_HEAD = 58
"""Height of the title and of what stands over the columns."""
_BLANK = '#eeeeee'
_DOES_NOT_FIT = '#4d4d4d'
_LOW, _HIGH = (255, 255, 229), (178, 24, 43)
"""Colours of no slowdown and of the worst one."""
_HEAD_TEXT = ('Run time beside another application, relative to the run time '
              'alone')


def draw(names: Sequence[str],
         slowdowns: Mapping[str, Mapping[str, float | None]]) -> str:
    """The text of an SVG file.

    A row for each application that is slowed down, a column for each that
    causes it. The colour goes from no slowdown to the worst one in the
    picture. Two that do not fit together are dark, what was not measured is
    grey.

    :param slowdowns: None for two that do not fit together.
    """
    left = _MARGIN * 2 + max([*map(len, names), 5]) * _LETTER
    width = max(left + _MARGIN + len(names) * _CELL_WIDTH,
                2 * _MARGIN + len(_HEAD_TEXT) * _LETTER)
    height = _HEAD + 2 * _MARGIN + len(names) * _CELL_HEIGHT
    worst = max([value for row in slowdowns.values()
                 for value in row.values() if value], default=1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height}" viewBox="0 0 {width:.0f} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>',
        _text(_MARGIN, 24, _HEAD_TEXT, 'start')]
    for index, name in enumerate(names):
        middle = left + (index + 0.5) * _CELL_WIDTH
        parts.append(_text(middle, _HEAD, _short(name), 'middle',
                           title=name))
        top = _HEAD + _MARGIN + index * _CELL_HEIGHT
        parts.append(_text(left - _MARGIN, top + 22, name, 'end'))
        for column, other in enumerate(names):
            parts += _cell(left + column * _CELL_WIDTH, top, name, other,
                           slowdowns.get(name, {}), worst)
    return '\n'.join([*parts, '</svg>', ''])


def _cell(x, y, name, other, row, worst):
    ink = '#000000'
    if other not in row:
        fill, label, meaning = _BLANK, '', 'not measured'
    elif row[other] is None:
        fill, label, ink = _DOES_NOT_FIT, 'memory', '#ffffff'
        meaning = 'do not fit together'
    else:
        share = _share(row[other], worst)
        fill, label = _colour(share), f'{row[other]:.2f}'
        ink = '#ffffff' if share > 0.6 else ink
        meaning = label
    title = saxutils.escape(f'{name} beside {other}: {meaning}')
    yield (f'<rect x="{x:.1f}" y="{y}" width="{_CELL_WIDTH - 2}" '
           f'height="{_CELL_HEIGHT - 2}" fill="{fill}">'
           f'<title>{title}</title></rect>')
    if label:
        yield _text(x + _CELL_WIDTH / 2 - 1, y + 22, label, 'middle', ink)


def _share(value, worst):
    """Where a slowdown is between none (0) and the worst (1)."""
    if worst <= 1:
        return 0.0
    return min(1.0, max(0.0, (value - 1) / (worst - 1)))


def _colour(share):
    return '#' + ''.join(f'{round(low + (high - low) * share):02x}'
                         for low, high in zip(_LOW, _HIGH, strict=True))


def _short(name):
    most = int(_CELL_WIDTH / _LETTER)
    return name if len(name) <= most else f'{name[:most - 1]}\u2026'


def _text(x, y, text, anchor, fill='#000000', title=''):
    inner = saxutils.escape(text)
    if title:
        inner += f'<title>{saxutils.escape(title)}</title>'
    return (f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" '
            f'fill="{fill}">{inner}</text>')
