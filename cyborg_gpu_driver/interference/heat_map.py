# SPDX-License-Identifier: Apache-2.0

"""A picture of measured slowdowns, drawn by matplotlib.

matplotlib is no requirement of this library: see the extra ``heat-map``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception

FORMATS = ('svg', 'png')
_CELL_WIDTH, _CELL_HEIGHT = 0.8, 0.4
"""In inches."""
_MARGIN = 2.0
_DPI = 150
_BLANK, _DOES_NOT_FIT = '#eeeeee', '#4d4d4d'
_HEAD = 'Run time beside another application, relative to the run time alone'


def check() -> None:
    """Check whether pictures can be drawn.

    :raises InvalidValue: without matplotlib.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise exception.InvalidValue(
            what='picture', value='heat map',
            expected='it needs the Python package matplotlib, which is not '
                     f'installed here ({error})') from error


def draw(names: Sequence[str],
         slowdowns: Mapping[str, Mapping[str, float | None]],
         form: str) -> bytes:
    """Return the content of a picture file.

    It has a row for each application that is slowed down, and a column for
    each that causes a slowdown. The colours range from no slowdown to the
    worst one in the picture. Pairs that do not fit together are dark, pairs
    that were not measured are grey.

    :param slowdowns: None for a pair that does not fit together.
    :param form: one of FORMATS.
    :raises InvalidValue: without matplotlib.
    """
    check()
    import matplotlib
    from matplotlib import figure

    worst = max([value for row in slowdowns.values()
                 for value in row.values() if value], default=1.0)
    worst = max(worst, 1.01)
    colours = matplotlib.colormaps['YlOrRd'].with_extremes(
        bad=_BLANK, over=_DOES_NOT_FIT)
    # The text of an SVG stays text, and the same numbers give the same file.
    with matplotlib.rc_context({'svg.fonttype': 'none',
                                'svg.hashsalt': _HEAD}):
        picture = figure.Figure(
            (_MARGIN + len(names) * _CELL_WIDTH,
             _MARGIN + len(names) * _CELL_HEIGHT), layout='constrained')
        axes = picture.add_subplot()
        axes.set_title(_HEAD, fontsize='small')
        places = range(len(names))
        axes.set_xticks(places, names, rotation=45, ha='left',
                        parse_math=False)
        axes.set_yticks(places, names, parse_math=False)
        axes.tick_params(top=True, labeltop=True, bottom=False,
                         labelbottom=False)
        if names:
            axes.imshow(
                [[_value(slowdowns.get(name, {}), other, worst)
                  for other in names] for name in names],
                cmap=colours, vmin=1.0, vmax=worst, aspect='auto')
        for row, name in enumerate(names):
            for column, other in enumerate(names):
                _label(axes, column, row, slowdowns.get(name, {}), other,
                       worst)
        content = io.BytesIO()
        picture.savefig(content, format=form, dpi=_DPI,
                        metadata={'Date': None} if form == 'svg' else None)
    return content.getvalue()


def _value(row: Mapping[str, float | None], other: str, worst: float
           ) -> float:
    """Return the value that stands for a cell's colour."""
    if other not in row:
        return math.nan
    value = row[other]
    return 2 * worst if value is None else value


def _label(axes: Any, x: int, y: int, row: Mapping[str, float | None],
           other: str, worst: float) -> None:
    if other not in row:
        return
    value = row[other]
    is_dark = value is None or (value - 1) / (worst - 1) > 0.6
    axes.text(x, y, 'memory' if value is None else f'{value:.2f}',
              ha='center', va='center',
              color='white' if is_dark else 'black')
