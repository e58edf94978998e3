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

"""The output of the commands of ``cyborg-gpu`` and ``openstack gpu``.

cliff (4.17) shows every column in a table and breaks words to fit the table
to a terminal. In the flat formats, it writes lists and None as Python does.
The classes here replace those of cliff for both programs.
"""

from __future__ import annotations

import argparse
import functools
import json
import textwrap
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import TextIO

from cliff import columns
from cliff import lister
from cliff import show
from cliff import utils
from cliff.formatters import base

WIDTH = 80
"""Characters in a line of a table that is not shown on a terminal."""
_EDGE = 1
_BESIDE = 3
"""Characters that the table adds to each column: a border and two blanks."""
_FLAT = frozenset({'csv', 'value', 'shell'})
"""Formats without nested values and without None."""
_FIELDS = ('Field', 'Value')
"""The columns of a table that shows one thing, as cliff names them."""


class Lister(lister.Lister):
    """A list whose default table is short enough for a terminal.

    ``brief`` are the columns of that table, all if it is empty. ``--long``
    shows the others too, and so does every format for programs.
    """

    brief: tuple[str, ...] = ()

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--long', action='store_true',
            help='show all columns in the table, however wide it gets')
        return parser

    def get_epilog(self):
        """Return the epilog without the name of the plugin.

        It is always this package. To find it, cliff (4.17) reads the metadata
        of every installed distribution.
        """
        return self._epilog or ''

    def produce_output(self, parsed_args, column_names, data):
        short = not (parsed_args.long or parsed_args.columns)
        if short and parsed_args.formatter == 'table':
            parsed_args.columns = [name for name in self.brief
                                   if name in column_names]
        self.formatter = prepared(self.formatter, parsed_args,
                                  self.app.stdout, short)
        return super().produce_output(parsed_args, column_names, data)


class ShowOne(show.ShowOne):
    """One thing with its fields, a line each."""

    def produce_output(self, parsed_args, column_names, data):
        self.formatter = prepared(self.formatter, parsed_args,
                                  self.app.stdout)
        return super().produce_output(parsed_args, column_names, data)


def prepared(formatter: base.Formatter, parsed_args: argparse.Namespace,
             stdout: TextIO, folds: bool = True) -> base.Formatter:
    """Return a formatter that prepares the rows for its format.

    :param formatter: cliff's formatter of the format that the user chose.
    :param folds: whether to fold the lines of a table.
    """
    if parsed_args.formatter in _FLAT:
        return _Prepared(formatter, _flat_rows)
    if parsed_args.formatter == 'table' and folds:
        return _Prepared(formatter, functools.partial(
            fold, width=line_width(parsed_args.max_width, stdout)))
    return formatter


def line_width(wanted: int, stdout: TextIO) -> int:
    """Return the characters in a line: as wanted, of the terminal, or 80.

    :param wanted: the width that the user set; 0 if none.
    """
    if wanted > 0:
        return wanted
    return stdout.isatty() and utils.terminal_width() or WIDTH


class _Prepared(base.ListFormatter, base.SingleFormatter):
    """A formatter that prepares the rows and calls another formatter.

    :param formatter: the other formatter.
    :param prepare: called with names and rows; returns the rows to show.
    """

    def __init__(self, formatter, prepare):
        self._formatter = formatter
        self._prepare = prepare

    def add_argument_group(self, parser):
        self._formatter.add_argument_group(parser)

    def emit_list(self, column_names, data, stdout, parsed_args):
        self._formatter.emit_list(
            column_names, self._prepare(column_names, data), stdout,
            parsed_args)

    def emit_one(self, column_names, data, stdout, parsed_args):
        rows = self._prepare(_FIELDS, zip(column_names, data, strict=True))
        self._formatter.emit_one(
            column_names, [value for _, value in rows], stdout, parsed_args)


def _flat_rows(_names, rows):
    return [[_flat(cell) for cell in row] for row in rows]


def _flat(cell):
    """Return a value as flat text.

    A list of single values is joined with commas, deeper nested values become
    JSON, and None becomes empty. A text is put on one line.
    """
    if isinstance(cell, columns.FormattableColumn):
        cell = cell.machine_readable()
    if cell is None:
        return ''
    if isinstance(cell, str):
        return ' '.join(cell.splitlines())
    if isinstance(cell, (list, tuple)) and not any(
            isinstance(item, (dict, list, tuple)) for item in cell):
        return ','.join(str(_flat(item)) for item in cell)
    if isinstance(cell, (dict, list, tuple)):
        return json.dumps(cell)
    return cell


def fold(names: Sequence[str], rows: Iterable[Sequence[Any]], width: int
         ) -> list[list[Any]]:
    """Fold the texts of a table so that its lines are short enough.

    The widest columns are folded first. A word is broken only if the table
    does not fit otherwise. The name of a column is never broken.

    :param width: characters in a line of the table with its borders.
    :returns: the rows, with columns converted to texts and numbers.
    """
    shown = [[_shown(cell) for cell in row] for row in rows]
    texts = [[str(row[index]) for row in shown]
             for index in range(len(names))]
    widths = _widths(names, texts, width - _EDGE - _BESIDE * len(names))
    return [[_folded(cell, limit) for cell, limit in
             zip(row, widths, strict=True)] for row in shown]


def _shown(cell):
    if isinstance(cell, columns.FormattableColumn):
        return cell.human_readable()
    return cell


def _widths(names, texts, space):
    """Return the width of each column; together within ``space`` if possible.
    """
    least = [len(name) for name in names]
    words = _longest(texts, least, str.split)
    lines = _longest(texts, least, str.splitlines)
    for floors in words, least:
        for limit in range(max(lines, default=0), 0, -1):
            found = [max(floor, min(line, limit))
                     for floor, line in zip(floors, lines, strict=True)]
            if sum(found) <= space:
                return _widened(texts, least, found, lines, space)
    return least


def _widened(texts, least, widths, lines, space):
    """Give space that folding frees to columns that then need no folding.

    :param lines: the width of each column without folding.
    """
    found = _longest([[_folded(text, width) for text in column]
                      for column, width in zip(texts, widths, strict=True)],
                     least, str.splitlines)
    for index, line in enumerate(lines):
        if sum(found) - found[index] + line <= space:
            found[index] = line
    return found


def _longest(texts, least, parts):
    """Return the longest part of each column's texts, at least ``least``."""
    return [max([floor, *(len(part) for text in column
                          for part in parts(text))])
            for column, floor in zip(texts, least, strict=True)]


def _folded(cell, width):
    if not isinstance(cell, str):
        return cell
    return '\n'.join(
        part for line in cell.splitlines() for part in textwrap.wrap(
            line, width, break_on_hyphens=False) or [''])
