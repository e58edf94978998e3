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


"""The live screen of ``cyborg-gpu top``.

The GPUs are read in a thread, because a call into NVIDIA's driver may not
return. The main thread waits for keys, readings and signals at once, so it
answers whatever the GPUs do.
"""

from __future__ import annotations

import contextlib
import curses
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.top import frame as frames
from cyborg_gpu_driver.cmd.top import screen
from cyborg_gpu_driver.cmd.top import text
from cyborg_gpu_driver.partition import picture

_KEYS = {
    curses.KEY_UP: screen.Key.UP, ord('k'): screen.Key.UP,
    curses.KEY_DOWN: screen.Key.DOWN, ord('j'): screen.Key.DOWN,
    curses.KEY_PPAGE: screen.Key.PAGE_UP,
    curses.KEY_NPAGE: screen.Key.PAGE_DOWN, ord(' '): screen.Key.PAGE_DOWN,
    curses.KEY_HOME: screen.Key.HOME, curses.KEY_END: screen.Key.END,
    ord('s'): screen.Key.SORT, ord('r'): screen.Key.READ,
    ord('h'): screen.Key.HELP, ord('?'): screen.Key.HELP,
    ord('q'): screen.Key.QUIT, ord('Q'): screen.Key.QUIT}
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a process."""
_REDRAW = 1.0
"""Seconds between two looks at the clock while a reading takes long."""


def run(read: Callable[[], frames.Frame], interval: float) -> None:
    """Show readings until a person quits.

    SIGTERM and SIGHUP raise SystemExit here, and Ctrl-C KeyboardInterrupt;
    the terminal is restored in any case.

    :param read: reads the host.
    :param interval: seconds from the end of a reading to the next.
    :raises NoTerminal: if TERM names no terminal with a cursor.
    :raises GpuDriverError: that ``read`` raised.
    """
    _check_terminal()
    with _Pipe() as pipe, _signals(pipe), _quiet():
        reader = _Reader(read, interval, pipe.wake)
        try:
            curses.wrapper(lambda window: _Live(window, reader, pipe).run())
        finally:
            reader.stop()


def _check_terminal() -> None:
    # initscr() of ncurses ends the process where it knows no such terminal.
    try:
        curses.setupterm(fd=sys.__stdout__.fileno())
        usable = curses.tigetstr('cup') is not None
    except curses.error:
        usable = False
    if not usable:
        raise exception.NoTerminal(
            reason=f'TERM={os.environ.get("TERM", "")} names no terminal '
                   'that this program can draw on')


class _Pipe:
    """Wakes up the main thread."""

    def __enter__(self) -> _Pipe:
        self.end, self._start = os.pipe()
        os.set_blocking(self.end, False)
        os.set_blocking(self._start, False)
        return self

    def __exit__(self, *_exc: object) -> None:
        end, start, self._start = self.end, self._start, -1
        os.close(start)
        os.close(end)

    def wake(self) -> None:
        # Full, or closed where a reading outlives the screen.
        with contextlib.suppress(OSError):
            os.write(self._start, b'.')

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.end, 4096)


@contextlib.contextmanager
def _signals(pipe: _Pipe) -> Iterator[None]:
    """Let signals end the program through its ``finally`` clauses."""
    def end(number, _frame):
        raise SystemExit(_SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in _ENDINGS}
    # With this handler, ncurses installs none of its own.
    before[signal.SIGWINCH] = signal.signal(
        signal.SIGWINCH, lambda _number, _frame: pipe.wake())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep log records from the terminal: the screen shows what they say."""
    handlers = [handler for handler in logging.getLogger('').handlers
                if isinstance(handler, logging.StreamHandler)
                and not isinstance(handler, logging.FileHandler)]

    def drop(_record):
        return False

    for handler in handlers:
        handler.addFilter(drop)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(drop)


class _Reader:
    """Reads in a thread that nobody waits for.

    :param wake: called when there is a new frame, or an error.
    """

    def __init__(self, read: Callable[[], frames.Frame], interval: float,
                 wake: Callable[[], None]):
        self._read = read
        self._interval = interval
        self._wake = wake
        self._wanted = threading.Event()
        self._stopped = False
        self.frame: frames.Frame | None = None
        self.error: BaseException | None = None
        self.since: float | None = None
        """When the reading that is under way began (monotonic)."""
        threading.Thread(target=self._run, name='cyborg-gpu-top',
                         daemon=True).start()

    def now(self) -> None:
        """Do not wait for the interval to end."""
        self._wanted.set()

    def stop(self) -> None:
        self._stopped = True
        self._wanted.set()

    def _run(self) -> None:
        while not self._stopped:
            self.since = time.monotonic()
            self._wake()
            try:
                self.frame = self._read()
            except BaseException as error:
                self.error = error
                self._stopped = True
            self.since = None
            self._wake()
            self._wanted.wait(self._interval)
            self._wanted.clear()


class _Live:
    """One screen on a terminal."""

    def __init__(self, window: curses.window, reader: _Reader,
                 pipe: _Pipe):
        self._window = window
        self._reader = reader
        self._pipe = pipe
        self._view = screen.View()
        self._cut = picture.pens_for(window.encoding).cut
        window.nodelay(True)
        with contextlib.suppress(curses.error):
            # Not every terminal can hide its cursor.
            curses.curs_set(0)
        self._styles = _styles()

    def run(self) -> None:
        while self._reader.error is None:
            self._draw()
            reading = self._reader.since is not None
            select.select([sys.__stdin__.fileno(), self._pipe.end], [], [],
                          _REDRAW if reading else None)
            self._pipe.clear()
            if not self._obey():
                return
        raise self._reader.error

    def _obey(self) -> bool:
        """Carry out all keys that were pressed; whether to go on."""
        while (pressed := self._window.getch()) != curses.ERR:
            key = _KEYS.get(pressed)
            if key is screen.Key.QUIT:
                return False
            if key is screen.Key.READ:
                self._reader.now()
            elif key is not None:
                height, width = self._window.getmaxyx()
                self._view = self._view.pressed(key, height, len(
                    screen.body(self._reader.frame, self._view, width,
                                self._cut)))
        return True

    def _draw(self) -> None:
        size = os.get_terminal_size(sys.__stdout__.fileno())
        if (size.lines, size.columns) != self._window.getmaxyx():
            curses.resizeterm(size.lines, size.columns)
        height, width = self._window.getmaxyx()
        since = self._reader.since
        self._window.erase()
        for row, line in enumerate(screen.screen(
                self._reader.frame, self._view, height, width, self._cut,
                0.0 if since is None else time.monotonic() - since)):
            style = self._styles.get(line.style, curses.A_NORMAL)
            shown = (line.text.ljust(width) if line.style
                     is text.Style.HEADING else line.text)
            with contextlib.suppress(curses.error):
                # A window that is one line high has no cell but the last.
                self._window.addstr(row, 0, shown, style)
        self._window.refresh()


def _styles() -> dict[text.Style, int]:
    """Attributes of lines; without colours where there are none.

    Anything in NO_COLOR asks for none: https://no-color.org
    """
    failed = curses.A_BOLD
    if curses.has_colors() and not os.environ.get('NO_COLOR'):
        curses.use_default_colors()
        curses.init_pair(1, curses.COLOR_RED, -1)
        failed |= curses.color_pair(1)
    return {text.Style.HEADING: curses.A_REVERSE,
            text.Style.GPU: curses.A_BOLD, text.Style.FAILED: failed}
