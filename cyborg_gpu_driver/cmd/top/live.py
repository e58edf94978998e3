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

A thread reads the GPUs, because a call into NVIDIA's driver may not return.
The main thread waits for keys, readings and signals at the same time, so it
responds even if a reading hangs.
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
"""The number that a shell adds to that of the signal that ended a process."""
_REDRAW = 1.0
"""Seconds between two updates of the screen during a reading."""


def run(read: Callable[[], frames.Frame], interval: float) -> None:
    """Show readings until the user quits.

    SIGTERM and SIGHUP raise SystemExit here, and Ctrl-C KeyboardInterrupt.
    The terminal is restored in any case.

    :param read: reads the host.
    :param interval: seconds from the end of a reading to the next.
    :raises NoTerminal: if TERM names no terminal with a cursor.
    :raises GpuDriverError: if ``read`` raises it.
    """
    _check_terminal()
    with _Pipe() as pipe, _signals(), _quiet():
        reader = _Reader(read, interval, pipe.wake)
        try:
            curses.wrapper(lambda window: _Live(window, reader, pipe).run())
        finally:
            reader.stop()


def _check_terminal() -> None:
    # initscr() of ncurses ends the process if it does not know the terminal.
    try:
        curses.setupterm(fd=sys.__stdout__.fileno())
        usable = curses.tigetstr('cup') is not None
    except curses.error:
        usable = False
    if not usable:
        raise exception.NoTerminal(
            reason=f'TERM={os.environ.get("TERM", "")} is not a terminal '
                   'type that this program can draw on')


class _Pipe:
    """A pipe that wakes up the main thread, also at each signal.

    A signal that arrives just before select() would not interrupt it.
    """

    def __enter__(self) -> _Pipe:
        self.end, self._start = os.pipe()
        os.set_blocking(self.end, False)
        os.set_blocking(self._start, False)
        self._before = signal.set_wakeup_fd(self._start,
                                            warn_on_full_buffer=False)
        return self

    def __exit__(self, *_exc: object) -> None:
        signal.set_wakeup_fd(self._before)
        end, start, self._start = self.end, self._start, -1
        os.close(start)
        os.close(end)

    def wake(self) -> None:
        # The pipe is full, or closed because a reading outlives the screen.
        with contextlib.suppress(OSError):
            os.write(self._start, b'.')

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.end, 4096)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let signals end the program through its ``finally`` clauses."""
    def end(number, _frame):
        raise SystemExit(_SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in _ENDINGS}
    # With this handler, ncurses installs none of its own. The pipe wakes up
    # the main thread.
    before[signal.SIGWINCH] = signal.signal(
        signal.SIGWINCH, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep log records off the terminal; the screen shows their content."""
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
    """Reads frames in a daemon thread that no other thread joins.

    :param wake: called when a reading begins, and when it has ended with a
        new frame or an error.
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
        """When the current reading began (monotonic); None between readings.
        """
        threading.Thread(target=self._run, name='cyborg-gpu-top',
                         daemon=True).start()

    def now(self) -> None:
        """Start the next reading without waiting for the interval to end."""
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
        """Process all pressed keys; return whether to continue."""
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
                # In a window of one line, curses cannot write the last cell.
                self._window.addstr(row, 0, shown, style)
        self._window.refresh()


def _styles() -> dict[text.Style, int]:
    """Return the attributes of lines; no colors if the terminal has none.

    Any value of NO_COLOR disables colors: https://no-color.org
    """
    failed = curses.A_BOLD
    if curses.has_colors() and not os.environ.get('NO_COLOR'):
        curses.use_default_colors()
        curses.init_pair(1, curses.COLOR_RED, -1)
        failed |= curses.color_pair(1)
    return {text.Style.HEADING: curses.A_REVERSE,
            text.Style.GPU: curses.A_BOLD, text.Style.FAILED: failed}
