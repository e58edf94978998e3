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


"""The text of ``cyborg-gpu top``, on the screen and with --once. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from collections.abc import Iterator

from cyborg_gpu_driver.cmd.top import frame
from cyborg_gpu_driver.cmd.top import load as loads
from cyborg_gpu_driver.host.snapshot import condition

_INDENT = 4
_NAME = 20
"""Characters for the name of a part."""
_UTILIZATION, _MEMORY = 4, 11
"""Characters of the numbers at the end of a line."""
_NUMBERS = _UTILIZATION + _MEMORY + 2
_WIDE = 60
"""Lines with fewer characters have no numbers."""
_GIB = 1024
"""MiB in one GiB."""
_MARK = '*'
"""Precedes an attach handle whose server this host does not know."""


class Style(enum.Enum):
    """How a line is highlighted, if the terminal supports it."""

    HEADING = 'heading'
    GPU = 'gpu'
    PART = 'part'
    FAILED = 'failed'


@dataclasses.dataclass(frozen=True)
class Line:
    """One line, without a line feed."""

    text: str
    style: Style = Style.PART


def heading(width: int, cut: str) -> str:
    """Return the heading of the columns; parameters as in :func:`lines`."""
    return _laid_out('GPU  ' + 'SLICE OR VGPU'.ljust(_NAME)
                     + f'SERVER, OR {_MARK}ATTACH HANDLE', 'UTIL',
                     'MEMORY GiB', width, cut)


def lines(blocks: Iterable[frame.Block], width: int, cut: str
          ) -> list[Line]:
    """Return a line for each GPU and for each of its parts.

    :param width: characters of a line.
    :param cut: replaces the end of a text that is too long.
    """
    return [line for block in blocks
            for line in _block(block, width, cut)]


def _laid_out(left: str, utilization: str, memory: str, width: int, cut: str
              ) -> str:
    """Return a line, with its numbers if the line is wide enough."""
    if width < _WIDE:
        return shortened(left, width, cut)
    room = width - _NUMBERS
    return (f'{shortened(left, room, cut):<{room}} '
            f'{utilization:>{_UTILIZATION}} {memory:>{_MEMORY}}').rstrip()


def _numbers(load: loads.Load, total_mib: int | None) -> tuple[str, str]:
    """Return utilisation and memory; empty if they are unknown."""
    percent = '' if load.percent is None else f'{load.percent}%'
    total = load.memory_mib or total_mib
    if load.memory_used_mib is None:
        return percent, ''
    used = f'{load.memory_used_mib / _GIB:.1f}'
    return percent, f'{used}/{total / _GIB:.1f}' if total else used


def shortened(text: str, width: int, cut: str) -> str:
    """Return a text cut to ``width``, with unprintable letters replaced."""
    text = ''.join(letter if letter.isprintable() else '?'
                   for letter in text)
    return text if len(text) <= width else text[:max(0, width - 1)] + cut


def _block(block: frame.Block, width: int, cut: str) -> Iterator[Line]:
    gpu = block.gpu
    failed = condition.is_failed(gpu)
    style = Style.FAILED if failed else Style.GPU
    number = '-' if block.index is None else block.index
    name = (gpu.model or '').removeprefix('NVIDIA ')
    mode = block.mode.value if block.mode else 'no mode'
    left = '  '.join(filter(None, (f'{number:>3}', str(gpu.address), name,
                                   mode)))
    about = ', '.join(block.remarks)
    room = width - (_NUMBERS if width >= _WIDE else 0)
    if about and len(left) + len(about) + 2 <= room:
        left, about = f'{left}, {about}', ''
    yield Line(_laid_out(left, *_numbers(block.load, gpu.memory_mib), width,
                         cut), style)
    if about:
        yield Line(shortened(' ' * _INDENT + ' ' + about, width, cut), style)
    if failed:
        for problem in gpu.problems:
            yield Line(shortened(' ' * _INDENT + ' ' + problem, width, cut),
                       style)
    for part in block.parts:
        yield Line(_laid_out(
            f'{"":{_INDENT}} {part.name:<{_NAME}}{_holder(part)}',
            *_numbers(part.load, part.memory_mib), width, cut))


def _holder(part: frame.Part) -> str:
    who = part.server or (part.handle and _MARK + part.handle)
    if not who:
        return {'fixed': 'fixed vGPU'}.get(part.state, '-')
    return who if part.state == 'bound' else f'{part.state} {who}'
