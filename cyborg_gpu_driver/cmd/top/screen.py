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


"""The screen of ``cyborg-gpu top``, and the effect of its keys. Pure."""

from __future__ import annotations

import dataclasses
import enum
import time

from cyborg_gpu_driver.cmd.top import frame as frames
from cyborg_gpu_driver.cmd.top import text

_AROUND = 4
"""Lines that do not scroll: title, messages, heading and keys."""
_SLOW = 2.0
"""Seconds after which the title shows how long a reading takes."""

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
    """The actions that the user can choose with a key."""

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
    """The part of a frame that is on the screen, and its order."""

    order: frames.Order = frames.Order.GPU
    offset: int = 0
    """The number of lines of the body that are above the screen."""
    help: bool = False
    """Whether the screen shows the help instead."""

    def pressed(self, key: Key, height: int, total: int) -> View:
        """Return the view after a key is pressed.

        :param height: number of lines of the screen.
        :param total: number of lines of the body.
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
    """Return all lines that scroll.

    :param frame: None before the first reading ends.
    :param cut: replaces the end of a text that is too long.
    """
    if view.help:
        return [text.Line(text.shortened(line, width, cut)) for line in HELP]
    if frame is None:
        return [text.Line('Reading the GPUs ...')]
    return text.lines(frames.ordered(frame.blocks, view.order), width, cut)


def screen(frame: frames.Frame | None, view: View, height: int, width: int,
           cut: str, reading: float = 0.0) -> list[text.Line]:
    """Return the lines of the whole screen, at most ``height``.

    :param reading: seconds since the current reading began; 0 if there is
        none.
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
    # Leave the last cell of the terminal empty: writing to it would scroll.
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
