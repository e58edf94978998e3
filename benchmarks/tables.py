# SPDX-License-Identifier: Apache-2.0

"""Figures as CSV files, for the documentation."""

from __future__ import annotations

import csv
import datetime
import os
import pathlib
import platform
from collections.abc import Sequence

import figures

COLUMNS = ('figure', *figures.COLUMNS[1:])
MISSES = ('benchmark', *COLUMNS, 'worse than')
RUNS = ('benchmark', 'date', 'machine', 'load', 'duration')


def write(directory: pathlib.Path, name: str,
          measured: Sequence[figures.Figure], seconds: float) -> None:
    """Write the figures of a benchmark, and keep those of other benchmarks.

    :param name: the name of the benchmark.
    :param seconds: how long the benchmark took.
    """
    _write(directory / f'{name}.csv', COLUMNS, map(figures.cells, measured))
    _update(directory / 'misses.csv', MISSES, name, [
        (name, *figures.cells(figure), figure.miss)
        for figure in measured if figure.miss])
    _update(directory / 'runs.csv', RUNS, name, [
        (name, today(), machine(),
         f'{os.getloadavg()[2]:.1f}', f'{seconds:.0f} s')])


def today() -> str:
    """Return the date in UTC, in the format of ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def machine() -> str:
    """Return the kind of this machine and the version of Python."""
    return (f'{os.cpu_count()} CPUs ({platform.machine()}), '
            f'Python {platform.python_version()}')


def read(path: pathlib.Path) -> list[list[str]]:
    """Return the rows of a CSV file, without its header."""
    with path.open(encoding='utf-8', newline='') as stream:
        return list(csv.reader(stream))[1:]


def _update(path, columns, name, rows):
    """Replace the rows of a benchmark, whose name is their first cell."""
    others = read(path) if path.exists() else []
    _write(path, columns, sorted(
        [row for row in others if row[0] != name] + list(map(list, rows)),
        key=lambda row: row[0]))


def _write(path, columns, rows):
    with path.open('w', encoding='utf-8', newline='') as stream:
        # Unix line ends, so that a diff of two versions is readable.
        writer = csv.writer(stream, lineterminator='\n')
        writer.writerow(columns)
        writer.writerows(rows)
