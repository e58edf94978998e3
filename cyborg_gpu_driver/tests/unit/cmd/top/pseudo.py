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


"""Run a program on a real pseudo terminal and interpret what it shows.

The terminal supports the sequences of a VT220 and of screen(1) that ncurses
uses for the cursor, lines and characters. It refuses all others.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import fixtures

from cyborg_gpu_driver.tests import scope

_PROGRAM = """
import fcntl, signal, sys, termios
# Programs in the background, such as a test runner, may ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Ctrl-C and a new size are signals from the terminal that controls it.
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = 'cyborg-gpu'
from cyborg_gpu_driver.cmd import start
sys.exit(start.main())
"""
_SEQUENCE = re.compile(
    r'\x1b\[(?P<private>[?>]?)(?P<numbers>[0-9;]*)(?P<final>[@-~])'
    r'|\x1b[()][0-9A-Za-z]|\x1b[ #].|\x1b(?P<single>[^\[()\x20#])')


class Terminal(fixtures.Fixture):
    """A program and its terminal.

    :param arguments: arguments of ``cyborg-gpu``.
    """

    def __init__(self, *arguments: object, lines: int = 24,
                 columns: int = 80, term: str = 'vt220'):
        super().__init__()
        self._arguments = [str(item) for item in arguments]
        self._size = lines, columns
        self._term = term
        self.output = ''
        """Everything that the program has written."""

    def _setUp(self):
        self._master, slave = pty.openpty()
        self.addCleanup(os.close, self._master)
        # Stays open, so that its settings can be read after the program ends.
        self._slave = slave
        self.addCleanup(os.close, slave)
        self.before = termios.tcgetattr(slave)
        self._screen = _Screen(*self._size)
        self._set_size()
        environment = {**os.environ, 'TERM': self._term, 'LC_ALL': 'C.UTF-8'}
        for name in ('LINES', 'COLUMNS', 'NO_COLOR'):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, '-c', _PROGRAM, *self._arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True)
        self.addCleanup(self._end)

    def _end(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _set_size(self):
        fcntl.ioctl(self._master, termios.TIOCSWINSZ,
                    struct.pack('HHHH', *self._size, 0, 0))

    @property
    def settings(self) -> list:
        """The current settings of the terminal."""
        return termios.tcgetattr(self._slave)

    @property
    def rows(self) -> list[str]:
        """The rows of text on the screen."""
        return self._screen.text()

    def resize(self, lines: int, columns: int) -> None:
        """Give the terminal another size; the program gets SIGWINCH."""
        self._size = lines, columns
        self._screen.resize(lines, columns)
        self._set_size()

    def press(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._master, keys.encode())

    def kill(self, number: int) -> None:
        """Send a signal to the program."""
        self._process.send_signal(number)

    def see(self, *texts: str, row: int | None = None) -> list[str]:
        """Wait until the screen, or one row of it, contains these texts.

        :returns: the screen.
        """
        def is_there():
            rows = self.rows
            shown = '\n'.join(rows) if row is None else rows[row]
            return all(text in shown for text in texts)

        self._read(is_there, f'the screen never had {texts}')
        return self.rows

    def ended(self) -> int:
        """Wait for the program to end.

        :returns: its exit code.
        """
        self._read(lambda: self._process.poll() is not None,
                   'the program did not end')
        self._take(0)
        return self._process.returncode

    def _read(self, is_enough, otherwise):
        end = time.monotonic() + scope.HANG
        while not is_enough():
            if time.monotonic() > end:
                raise AssertionError(otherwise + ':\n' + '\n'.join(self.rows))
            if not self._take(0.1) and self._process.poll() is not None:
                # The program has ended and will write nothing more.
                end = min(end, time.monotonic() + 1)

    def _take(self, seconds):
        taken = False
        while select.select([self._master], [], [], seconds)[0]:
            piece = os.read(self._master, 65536).decode(errors='replace')
            self.output += piece
            self._screen.feed(piece)
            taken, seconds = True, 0
        return taken


class _Screen:
    """The characters on the terminal."""

    def __init__(self, lines: int, columns: int):
        self._pending = ''
        self.resize(lines, columns)

    def resize(self, lines, columns):
        self._lines, self._columns = lines, columns
        self._cells = [[' '] * columns for _ in range(lines)]
        self._row = self._column = 0
        self._top, self._bottom = 0, lines - 1

    def text(self):
        return [''.join(row).rstrip() for row in self._cells]

    def feed(self, text):
        text = self._pending + text
        at = 0
        while at < len(text):
            if text[at] == '\x1b':
                found = _SEQUENCE.match(text, at)
                if found is None:
                    break
                self._obey(found)
                at = found.end()
            else:
                self._write(text[at])
                at += 1
        self._pending = text[at:]

    def _write(self, letter):
        if letter == '\r':
            self._column = 0
        elif letter == '\n':
            self._down()
        elif letter == '\b':
            self._column = max(0, self._column - 1)
        elif letter == '\t':
            self._column = min(self._columns - 1, self._column // 8 * 8 + 8)
        elif letter.isprintable():
            if self._column == self._columns:
                self._column = 0
                self._down()
            self._cells[self._row][self._column] = letter
            self._column += 1

    def _down(self):
        if self._row == self._bottom:
            self._scroll(self._top, 1)
        else:
            self._row = min(self._row + 1, self._lines - 1)

    def _scroll(self, first, count):
        """Remove lines and insert empty ones at the bottom."""
        for _ in range(count):
            del self._cells[first]
            self._cells.insert(self._bottom, [' '] * self._columns)

    def _insert(self, first, count):
        for _ in range(count):
            del self._cells[self._bottom]
            self._cells.insert(first, [' '] * self._columns)

    def _obey(self, found):
        if found['single']:
            self._obey_single(found['single'])
        elif found['final'] is not None and not found['private']:
            numbers = [int(number) for number
                       in found['numbers'].split(';') if number]
            obey = _CONTROLS.get(found['final'])
            if obey is None:
                raise AssertionError(f'unknown sequence {found[0]!r}')
            obey(self, numbers[0] if numbers else None, numbers)

    def _obey_single(self, letter):
        if letter == 'D':
            self._down()
        elif letter == 'M' and self._row == self._top:
            self._insert(self._top, 1)
        elif letter == 'M':
            self._row -= 1

    def _go(self, row, column):
        self._row = max(0, min(row, self._lines - 1))
        self._column = max(0, min(column, self._columns - 1))

    def _clear(self, row, first, end):
        end = min(end, self._columns)
        self._cells[row][first:end] = ' ' * (end - first)

    def _position(self, _number, numbers):
        row, column = [*numbers, 1, 1][:2] if len(numbers) != 1 else (
            numbers[0], 1)
        self._go(row - 1, column - 1)

    def _clear_below(self, _number, _numbers):
        self._clear(self._row, self._column, self._columns)
        for row in range(self._row + 1, self._lines):
            self._clear(row, 0, self._columns)

    def _clear_line(self, number, _numbers):
        if number:
            self._clear(self._row, 0, self._column + 1)
        else:
            self._clear(self._row, self._column, self._columns)

    def _clear_characters(self, number, _numbers):
        self._clear(self._row, self._column, self._column + (number or 1))

    def _delete_characters(self, number, _numbers):
        row = self._cells[self._row]
        del row[self._column:self._column + (number or 1)]
        row += ' ' * (self._columns - len(row))

    def _insert_characters(self, number, _numbers):
        row = self._cells[self._row]
        row[self._column:self._column] = ' ' * (number or 1)
        del row[self._columns:]

    def _set_region(self, _number, numbers):
        self._top, self._bottom = (
            (numbers[0] - 1, numbers[1] - 1) if len(numbers) == 2
            else (0, self._lines - 1))
        self._go(0, 0)


_CONTROLS = {
    'H': _Screen._position, 'J': _Screen._clear_below,
    'K': _Screen._clear_line, 'X': _Screen._clear_characters,
    'P': _Screen._delete_characters, '@': _Screen._insert_characters,
    'r': _Screen._set_region,
    'L': lambda it, number, _: it._insert(it._row, number or 1),
    'M': lambda it, number, _: it._scroll(it._row, number or 1),
    'd': lambda it, number, _: it._go((number or 1) - 1, it._column),
    'G': lambda it, number, _: it._go(it._row, (number or 1) - 1),
    'A': lambda it, number, _: it._go(it._row - (number or 1), it._column),
    'B': lambda it, number, _: it._go(it._row + (number or 1), it._column),
    'C': lambda it, number, _: it._go(it._row, it._column + (number or 1)),
    'D': lambda it, number, _: it._go(it._row, it._column - (number or 1)),
    # Colours and modes do not change characters.
    **dict.fromkeys('mhl', lambda *_: None)}
"""The effects of the sequences with parameters (ECMA-48, 8.3)."""
