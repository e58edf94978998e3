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

"""Draw a dashboard with the answers of Prometheus to its queries.

The picture has as much of Grafana's panels as the dashboards of this project
need: the position of each panel, and its lines, areas, bars, numbers and cells
with their units and thresholds.
"""

from __future__ import annotations

import math
import re
from typing import Any

COLUMN, ROW, GAP, HEAD = 42, 28, 8, 26
COLORS = ('#3b7a57', '#d9a300', '#3f6fb5', '#d4622a', '#7b4ea3', '#b23a48',
          '#2a9d8f', '#8d6e63', '#5c6bc0', '#9e9d24')
NAMED = {'green': '#3b8a3e', 'orange': '#d97a00', 'red': '#c62f3b'}
FAINT, FRAME = '#e4e7eb', '#c3cad2'
LETTER = 6.6
"""The approximate width of a character of 11 pixels."""


def draw(svg: Any, dashboard: dict[str, Any], answers: dict[str, Any]) -> str:
    """Return the picture as an SVG document.

    :param svg: the drawing object of ``tools/draw``.
    :param answers: the answers, as :mod:`history` returns them.
    :raises ValueError: if the answers are not to the dashboard's queries.
    """
    bottom = 0
    for panel in dashboard['panels']:
        at = panel['gridPos']
        place = (GAP + at['x'] * COLUMN, GAP + 30 + at['y'] * ROW,
                 at['w'] * COLUMN - GAP, at['h'] * ROW - GAP)
        bottom = max(bottom, place[1] + place[3])
        if panel['type'] == 'row':
            _write(svg, place[0] + 4, place[1] + 16, panel['title'], 13,
                   ' font-weight="bold"')
            continue
        svg.rect(*place, '#ffffff', FRAME, 3)
        _write(svg, place[0] + 8, place[1] + 17,
               _cut(panel['title'], place[2] - 10), 12)
        PANELS[panel['type']](svg, place, panel,
                              _answers(dashboard, panel, answers))
    chosen = [f'{item["label"]}: {answers["variables"][item["name"]]}'
              for item in dashboard['templating']['list']
              if item['name'] in answers['variables']]
    _write(svg, GAP + 4, 24, '   |   '.join([dashboard['title'], *chosen]),
           14, ' font-weight="bold"')
    return svg.document(24 * COLUMN + GAP, bottom + GAP, dashboard['title'])


def _answers(dashboard, panel, answers):
    """Return pairs of a target and the series of its answer."""
    found = []
    for target in panel['targets']:
        answer = answers['panels'].get(f'{panel["id"]}{target["refId"]}')
        if answer is None or answer['expr'] != target['expr']:
            raise ValueError(
                f'{dashboard["title"]}, {panel["title"]}: its query has '
                'changed: run tools/draw --query')
        legend = target.get('legendFormat', '')
        for name, value in answers['variables'].items():
            legend = legend.replace(f'${name}', value)
        found.append(({**target, 'legendFormat': legend}, answer['series']))
    return found


def _number_panel(svg, place, panel, answers):
    left, top, width, height = place
    ((_, series),) = answers
    value = series[0]['values'][-1] if series else None
    style = f' font-weight="bold" style="fill:{_color(value, panel)}"'
    _write(svg, left + width / 2, top + HEAD + (height - HEAD) / 2 + 8,
           _shown(value, _defaults(panel)), 26, style, 'middle')


def _bars_panel(svg, place, panel, answers):
    left, top, width, height = place
    bars = [(_legend(target, item['labels']), item['values'][-1])
            for target, series in answers for item in series]
    longest = max(value for _, value in bars) or 1
    pitch = min(34, (height - HEAD - 8) / len(bars))
    for number, (name, value) in enumerate(bars):
        y = top + HEAD + 6 + number * pitch
        _write(svg, left + 8, y + pitch / 2 + 3, name, 11)
        room = width - 220
        svg.rect(left + 160, y + 2, room * value / longest, pitch - 6,
                 _color(value, panel), 'none', 2)
        _write(svg, left + 166 + room * value / longest, y + pitch / 2 + 3,
               _shown(value, _defaults(panel)), 11)


def _table_panel(svg, place, panel, answers):
    left, top, width, height = place
    steps = {step['id']: step['options']
             for step in panel['transformations']}
    names = steps['organize']['renameByName']
    mapped = {item['matcher']['options']: item['properties'][0]['value'][0]
              for item in panel['fieldConfig']['overrides']
              if item['properties'][0]['id'] == 'mappings'}
    lines: list[dict[str, str]] = []
    for target, series in answers:
        several = len(answers) > 1
        value_name = f'Value #{target["refId"]}' if several else 'Value'
        for item in series:
            line = {name: text for name, text in item['labels'].items()
                    if name in names}
            same = next((other for other in lines if all(
                other.get(name, text) == text
                for name, text in line.items())), None)
            if same is None or not several:
                same = {}
                lines.append(same)
            same.update(line)
            options = mapped.get(names.get(value_name))
            same[value_name] = (
                options['options'][f'{item["values"][-1]:g}']['text']
                if options else _shown(item['values'][-1],
                                       _defaults(panel)))
    cells = [[line.get(name, '') for name in names] for line in lines]
    titles = list(names.values())
    wide = [max(len(text) for text in column) + 2 for column
            in zip(titles, *cells, strict=True)]
    x = left + 8.0
    pitches = [(width - 12) * part / sum(wide) for part in wide]
    for number, title in enumerate(titles):
        _write(svg, x, top + HEAD + 14, _cut(title, pitches[number] - 4), 11,
               ' font-weight="bold"')
        for line, row in enumerate(cells[:int((height - HEAD - 20) / 19)]):
            _write(svg, x, top + HEAD + 34 + 19 * line,
                   _cut(row[number], pitches[number] - 4), 11)
        x += pitches[number]


def _lines_panel(svg, place, panel, answers):
    left, top, width, height = place
    series = [(_legend(target, item['labels']), item['values'])
              for target, items in answers for item in items]
    custom = _defaults(panel)['custom']
    stacked = custom['stacking']['mode'] == 'normal'
    if stacked:
        # A series that is always 0 appears only in Grafana's legend.
        series = [item for item in series if any(item[1])] or series[:1]
    tops = _sums(series) if stacked else [values for _, values in series]
    largest = max((value for values in tops for value in values
                   if value is not None), default=0)
    low, high, step = _axis(largest, _defaults(panel))
    box = left + 62, top + HEAD + 6, width - 74, height - HEAD - 58
    _grid(svg, box, low, high, step, _defaults(panel))
    if not series:
        _write(svg, box[0] + box[2] / 2, box[1] + box[3] / 2,
               _shown(None, _defaults(panel)), 12, anchor='middle')
    floor = [low] * len(tops[0]) if tops else []
    for number, values in enumerate(tops):
        color = COLORS[number % len(COLORS)]
        points = _points(box, values, low, high)
        if custom['drawStyle'] == 'bars':
            _columns(svg, box, values, floor, low, high, color)
        elif stacked:
            below = _points(box, floor, low, high)
            _area(svg, points, below, color)
        else:
            _line(svg, points, color)
        if stacked:
            floor = values
    _names(svg, (left + 8, top + height - 26, width - 16),
           [name for name, _ in series])


def _sums(series):
    """Return each series with the sum of the series below it added."""
    found, below = [], None
    for _, values in series:
        values = [value or 0 for value in values]
        below = values if below is None else [
            one + other for one, other in zip(values, below, strict=True)]
        found.append(below)
    return found


def _axis(largest, defaults):
    """Return the begin and end of the axis, and the step between two lines."""
    high = defaults.get('max', largest) or 1
    step = 10 ** math.floor(math.log10(high))
    step = next(part for part in (step / 5, step / 2, step, 2 * step)
                if high / part <= 5)
    return 0, step * math.ceil(high / step - 1e-9), step


def _grid(svg, box, low, high, step, defaults):
    left, top, width, height = box
    for number in range(round((high - low) / step) + 1):
        y = top + height * (1 - number * step / (high - low))
        svg.parts.append(f'<path d="M {left:g} {y:g} h {width:g}" '
                         f'stroke="{FAINT}"/>')
        _write(svg, left - 5, y + 4, _shown(low + number * step, defaults),
               10, anchor='end')
    for number, name in enumerate(('-24 h', '-18 h', '-12 h', '-6 h',
                                   'now')):
        _write(svg, left + width * number / 4, top + height + 13, name, 10,
               anchor='end' if number == 4 else 'middle')


def _points(box, values, low, high):
    """Return runs of points. A missing value ends a run."""
    left, top, width, height = box
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        part = min(1, (value - low) / (high - low))
        runs[-1].append((left + width * number / max(1, len(values) - 1),
                         top + height * (1 - part)))
    return [run for run in runs if run]


def _path(points):
    return ' '.join(f'{x:.0f} {y:.1f}' for x, y in points)


def _line(svg, runs, color):
    for run in runs:
        svg.parts.append(f'<polyline points="{_path(run)}" fill="none" '
                         f'stroke="{color}" stroke-width="1.6"/>')


def _area(svg, runs, below, color):
    (run,), (floor,) = runs, below
    svg.parts.append(
        f'<polygon points="{_path(run)} {_path(floor[::-1])}" '
        f'fill="{color}" fill-opacity="0.45"/>')
    _line(svg, runs, color)


def _columns(svg, box, values, floor, low, high, color):
    left, top, width, height = box
    pitch = width / len(values)
    for number, (value, under) in enumerate(zip(values, floor, strict=True)):
        tall = height * (value - under) / (high - low)
        if tall > 0:
            svg.rect(round(left + number * pitch + 1, 1), round(
                top + height * (1 - (value - low) / (high - low)), 1),
                round(pitch - 2, 1), round(tall, 1), color, 'none', 0)


def _names(svg, place, names):
    """Draw the legend, in at most two lines."""
    left, top, width = place
    x, y = left, top
    for number, name in enumerate(names):
        wide = 18 + LETTER * len(name) + 10
        if x + wide > left + width and x > left:
            if y > top:
                break
            x, y = left, top + 16
        svg.rect(x, y - 1, 10, 4, COLORS[number % len(COLORS)], 'none', 1)
        _write(svg, x + 14, y + 5, _cut(name, width - 20), 11)
        x += wide


def _legend(target, labels):
    return re.sub(r'\{\{(\w+)\}\}',
                  lambda found: labels.get(found[1], ''),
                  target['legendFormat']).strip()


def _defaults(panel):
    return panel['fieldConfig']['defaults']


def _color(value, panel):
    found = 'green'
    for step in _defaults(panel)['thresholds']['steps']:
        if step['value'] is None or (value is not None
                                     and value >= step['value']):
            found = step['color']
    return NAMED[found]


def _shown(value, defaults):
    """Return a value as Grafana shows it with the panel's unit."""
    if value is None:
        return 'No data'
    unit = defaults['unit']
    if unit == 'percentunit':
        return f'{100 * value:.{defaults.get("decimals", 0)}f}%'
    if unit == 's' and value >= 60:
        return f'{value / 60:.3g} min'
    if unit == 's' and 0 < value < 1:
        return f'{1000 * value:.3g} ms'
    text = (f'{value:.{defaults["decimals"]}f}' if 'decimals' in defaults
            else f'{value:.4g}')
    return text + {'short': '', 's': ' s', 'h': ' h',
                   'opm': ' ops/m', 'watt': ' W', 'celsius': ' °C'}[unit]


def _cut(text, width):
    room = int(width / LETTER)
    return text if len(text) <= room else text[:max(1, room - 1)] + '…'


def _write(svg, x, y, words, size, more='', anchor='start'):
    svg.text(x, y, words, size, more=more, anchor=anchor)


PANELS = {'stat': _number_panel, 'bargauge': _bars_panel,
          'table': _table_panel, 'timeseries': _lines_panel}
