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


"""What a screen of ``cyborg-gpu top`` shows, and what a key changes. Pure."""

from __future__ import annotations

import dataclasses
import enum
import time

from cyborg_gpu_driver.cmd.top import frame as frames
from cyborg_gpu_driver.cmd.top import text

_AROUND = 4
"""Lines that do not scroll: title, messages, heading and keys."""
_SLOW = 2.0
"""Seconds after which a reading is said to take long."""

HELP = (
    'Up, Down, k, j     scroll by one line',
    'PgUp, PgDn         scroll by one screen',
    'Home, End          go to the first or the last line',
    's                  sort by the next column',
    'r                  read the GPUs now',
    'h                  show or hide this help',
    'q                  quit',
    '',
    'A line without a number is a GPU instance, a vGPU or a whole GPU, and',
    'the server that has it. Where this host does not know the server, *',
    'stands before the attach handle, which Cyborg knows.')


class Key(enum.Enum):
    """What a person can ask for."""

    UP = 'up'
    DOWN = 'down'
    PAGE_UP = 'page up'
    PAGE_DOWN = 'page down'
    HOME = 'home'
    END = 'end'
    SORT = 's'
    HELP = 'h'
    READ = 'r'
    QUIT = 'q'


@dataclasses.dataclass(frozen=True)
class View:
    """Which part of a frame is on the screen, and in which order."""

    order: frames.Order = frames.Order.GPU
    offset: int = 0
    """Lines of the body above the screen."""
    help: bool = False
    """Whether the help is there instead."""

    def pressed(self, key: Key, height: int, total: int) -> View:
        """The view after a key.

        :param height: lines of the screen.
        :param total: lines of the body.
        """
        if key is Key.HELP:
            return dataclasses.replace(self, help=not self.help, offset=0)
        if key is Key.SORT:
            return dataclasses.replace(self, order=self.order.next, offset=0)
        room = max(1, height - _AROUND)
        last = max(0, total - room)
        # The body may have shrunk since the offset was set.
        now = min(self.offset, last)
        moved = {Key.UP: now - 1, Key.DOWN: now + 1,
                 Key.PAGE_UP: now - room, Key.PAGE_DOWN: now + room,
                 Key.HOME: 0, Key.END: last}.get(key, now)
        return dataclasses.replace(self, offset=max(0, min(moved, last)))


def body(frame: frames.Frame | None, view: View, width: int, cut: str
         ) -> list[text.Line]:
    """All lines that scroll.

    :param frame: None where nothing was read yet.
    :param cut: stands at the end of what is too long.
    """
    if view.help:
        return [text.Line(text.shortened(line, width, cut)) for line in HELP]
    if frame is None:
        return [text.Line('Reading the GPUs ...')]
    return text.lines(frames.ordered(frame.blocks, view.order), width, cut)


def screen(frame: frames.Frame | None, view: View, height: int, width: int,
           cut: str, reading: float = 0.0) -> list[text.Line]:
    """The lines of the whole screen, at most ``height``.

    :param reading: seconds since the reading that is under way began.
    """
    found = body(frame, view, width, cut)
    room = max(1, height - _AROUND)
    first = max(0, min(view.offset, len(found) - room))
    shown = found[first:first + room]
    message = '; '.join(frame.messages) if frame else ''
    lines = [text.Line(_title(frame, reading)),
             text.Line(message, text.Style.FAILED),
             text.Line('Keys' if view.help else text.heading(width, cut),
                       text.Style.HEADING), *shown]
    lines += [text.Line('')] * (height - 1 - len(lines))
    keys = (f'q quit  h help  s sort: {view.order.value}  '
            f'{first + 1}-{first + len(shown)} of {len(found)}')
    # Nothing may be written to the last cell of a terminal: it scrolls.
    return [text.Line(text.shortened(line.text, width, cut), line.style)
            for line in lines[:height - 1]] + [
                text.Line(text.shortened(keys, width - 1, cut))]


def _title(frame, reading):
    parts = ['cyborg-gpu top']
    if frame is not None:
        when = time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime(frame.time))
        count = len(frame.blocks)
        had = sum(bool(part.handle or part.server)
                  for block in frame.blocks for part in block.parts)
        parts += [frame.hostname, f'{count} GPU{"" if count == 1 else "s"}',
                  f'{had} in use', when]
    if reading >= _SLOW:
        parts.append(f'reading for {reading:.0f} s')
    return '  '.join(parts)
