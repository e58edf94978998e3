# SPDX-License-Identifier: Apache-2.0

"""What commands print: columns, tables, messages and questions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any
from typing import TextIO

from cliff import columns
from cliff import lister
from cliff import show
from cliff import utils

from cyborg_gpu_driver import exception

# Column values with different formats for people and for programs.


class Names(columns.FormattableColumn):
    """A sequence of names."""

    def human_readable(self) -> str:
        return '\n'.join(self._value)

    def machine_readable(self) -> list[str]:
        return list(self._value)


class Counts(columns.FormattableColumn):
    """The count of each name; one name per line for people."""

    def human_readable(self) -> str:
        return '\n'.join(f'{count}x {name}'
                         for name, count in sorted(self._value.items()))

    def machine_readable(self) -> dict[str, int]:
        return dict(sorted(self._value.items()))


class Optional(columns.FormattableColumn):
    """A value that may be unknown."""

    def human_readable(self) -> str:
        return '-' if self._value is None else str(self._value)

    def machine_readable(self):
        return self._value


class Structure(columns.FormattableColumn):
    """Nested data, all of it for programs; None if it is unknown.

    :param line: returns the line of one item for people, who otherwise see
        only the number of items.
    """

    def __init__(self, value: Any, line: Callable[[Any], str] | None = None):
        super().__init__(value)
        self._line = line

    def human_readable(self) -> str:
        if self._value is None:
            return '-'
        if self._line is None:
            return str(len(self._value))
        return '\n'.join(map(self._line, self._value))

    def machine_readable(self):
        return self._value


# The output of the commands of ``cyborg-gpu`` and ``openstack gpu``.
#
# cliff (4.17) shows every column in a table, as wide as it gets. In the flat
# formats, it writes lists and None as Python does. The classes here replace
# those of cliff for both programs.

WIDTH = 80
"""Characters in a line of a table that is not shown on a terminal."""
FLAT = frozenset({'csv', 'value', 'shell'})
"""Formats without nested values and without None."""


class Lister(lister.Lister):
    """A list whose default table is short enough for a terminal.

    ``brief`` are the columns of that table, all if it is empty. ``--long``
    shows the others too, and so does every format for programs.
    """

    brief: tuple[str, ...] = ()
    code = 0
    """The exit code, which ``take_action`` may set."""

    def run(self, parsed_args):
        return super().run(parsed_args) or self.code

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
        data = [*data]
        if not data and parsed_args.formatter == 'table' and (
                not parsed_args.print_empty):
            # cliff prints an empty line.
            return 0
        if not (parsed_args.long or parsed_args.columns):
            fit(parsed_args, self.app.stdout)
            if parsed_args.formatter == 'table':
                parsed_args.columns = [name for name in self.brief
                                       if name in column_names]
        if parsed_args.formatter in FLAT:
            data = [[flat(cell) for cell in row] for row in data]
        return super().produce_output(parsed_args, column_names, data)


class ShowOne(show.ShowOne):
    """One thing with its fields, a line each."""

    def produce_output(self, parsed_args, column_names, data):
        fit(parsed_args, self.app.stdout)
        if parsed_args.formatter in FLAT:
            data = [flat(cell) for cell in data]
        return super().produce_output(parsed_args, column_names, data)


def fit(parsed_args: argparse.Namespace, stdout: TextIO) -> None:
    """Let cliff fold a table to the terminal, unless the user set a width."""
    parsed_args.max_width = line_width(parsed_args.max_width, stdout)


def line_width(wanted: int, stdout: TextIO) -> int:
    """Return the characters in a line: as wanted, of the terminal, or 80.

    :param wanted: the width that the user set; 0 if none.
    """
    if wanted > 0:
        return wanted
    return stdout.isatty() and utils.terminal_width() or WIDTH


def flat(cell: Any) -> Any:
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
        return ','.join(str(flat(item)) for item in cell)
    if isinstance(cell, (dict, list, tuple)):
        return json.dumps(cell)
    return cell


# Messages and questions to the user, and files that the user names.

_STDIN = '-'


def read_text(name: str) -> tuple[str, str]:
    """Return a file's text, and the file's name for error messages.

    :param name: a path, or ``-`` for standard input.
    """
    try:
        if name == _STDIN:
            return sys.stdin.read(), 'standard input'
        with open(name, encoding='utf-8') as stream:
            return stream.read(), name
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise exception.InvalidValue(
            what='file', value=name, expected=str(reason)) from error


def agreed(question: str) -> bool:
    """Ask the user a question; return whether the answer is yes."""
    print(f'{question} [y/N] ', end='', file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ('y', 'yes')


def say(message: str) -> None:
    """Print one line to standard error, apart from the answer for programs."""
    print(message, file=sys.stderr)
