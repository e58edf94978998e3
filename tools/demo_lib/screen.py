# SPDX-License-Identifier: Apache-2.0


"""What the demonstration prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from collections.abc import Sequence

_WIDTH = 80
_INDENT = '   '


class Screen:
    """Headings, remarks and small tables, in at most 80 columns."""

    def __init__(self):
        self._number = 0

    def heading(self, text: str) -> None:
        """Begin the next numbered part."""
        self._number += 1
        _print(f'\n== {self._number}. {text}')

    def line(self, text: str) -> None:
        """Print a remark, on several lines if it is long."""
        _print(textwrap.fill(
            text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT,
            break_long_words=False, break_on_hyphens=False))

    def block(self, text: str) -> None:
        """Print several lines unchanged."""
        _print(textwrap.indent(text.rstrip('\n'), _INDENT))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence]
              ) -> None:
        """Print aligned columns; numbers are right-aligned."""
        cells = [tuple(columns), *(tuple(row) for row in rows)]
        widths = [max(len(str(row[column])) for row in cells)
                  for column in range(len(columns))]
        for row in cells:
            self.block('  '.join(
                _aligned(value, width)
                for value, width in zip(row, widths)).rstrip())

    def proof(self, text: str) -> None:
        """Print a fact that was checked and is true."""
        self.line('ok: ' + text)


def _aligned(value, width):
    if isinstance(value, int):
        return str(value).rjust(width)
    return str(value).ljust(width)


def _print(text):
    print(text, flush=True)
