# SPDX-License-Identifier: Apache-2.0

"""Figures that a benchmark measures, and how they are shown."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of a benchmark."""

    name: str
    value: float
    unit: str = ''
    baseline: float | None = None
    """The value of other software for the same work in the same run."""
    floor: float | None = None
    """The least that the work takes, in this unit: what remains without the
    code of this project."""
    limit: float | None = None
    """The program fails if the value is larger. Times have no limit."""
    target: float | None = None
    """The aim for a time. A busy machine must not make the program fail."""
    more: bool = False
    """Whether more is better."""

    @property
    def ratio(self) -> float | None:
        """The value divided by its baseline."""
        return self.value / self.baseline if self.baseline else None

    @property
    def miss(self) -> str:
        """Which bound the value misses, ``''`` if none.

        A value within a twentieth of its baseline counts as equal.
        """
        if self.is_exceeded:
            return 'limit'
        if self.target is not None and self.value > self.target:
            return 'target'
        if self.baseline is None:
            return ''
        worse = (self.value < self.baseline * 0.95 if self.more
                 else self.value > self.baseline * 1.05)
        return 'baseline' if worse else ''

    @property
    def is_exceeded(self) -> bool:
        return self.limit is not None and self.value > self.limit


def parser(description: str, repeat: int) -> argparse.ArgumentParser:
    """Return the argument parser of a benchmark that prints figures.

    :param repeat: how often each figure is measured without ``--repeat``.
    """
    made = argparse.ArgumentParser(description=description)
    made.add_argument('-f', '--format', choices=('table', 'json'),
                      default='table')
    made.add_argument('--repeat', type=at_least(1), default=repeat,
                      metavar='N', help='how often to measure each figure '
                      f'(default: {repeat})')
    return made


def at_least(least: int):
    """Return an argument type for whole numbers from ``least`` on."""
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(
                f'expected a number of at least {least}')
        return value
    return number


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
    """Log nothing in the block: the services of a benchmark log a lot."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def show(figures: Iterable[Figure], form: str) -> int:
    """Print figures.

    :param form: ``table`` or ``json``: a list of objects with the fields of
        :class:`Figure`.
    :returns: the program's exit code, 1 if a limit is exceeded.
    """
    figures = list(figures)
    if form == 'json':
        json.dump([dataclasses.asdict(figure) for figure in figures],
                  sys.stdout, indent=1)
        print()
    else:
        print('\n'.join(lines(figures)))
    exceeded = [figure for figure in figures if figure.is_exceeded]
    for figure in exceeded:
        print(f'{figure.name}: {figure.value:g} is more than {figure.limit}',
              file=sys.stderr)
    return 1 if exceeded else 0


COLUMNS = ('', 'value', 'unit', 'baseline', 'floor', 'ratio', 'bound')


def cells(figure: Figure) -> tuple[str, ...]:
    """Return the cells of a figure, in the order of :data:`COLUMNS`."""
    bound = (f'limit {figure.limit:g}' if figure.limit is not None
             else f'target {figure.target:g}' if figure.target is not None
             else '')
    return (figure.name, number(figure.value), figure.unit,
            number(figure.baseline), number(figure.floor),
            number(figure.ratio), bound)


def number(value: float | None) -> str:
    """Return a number with three significant digits, as text."""
    if value is None:
        return ''
    if float(value).is_integer() or abs(value) >= 100:
        return f'{value:.0f}'
    return f'{value:.3g}'


def lines(figures: Sequence[Figure]) -> list[str]:
    """Return the lines of a table for people."""
    rows = [COLUMNS, *map(cells, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ['  '.join(
        cell.ljust(width) if index in (0, 2, 6) else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip() for row in rows]
