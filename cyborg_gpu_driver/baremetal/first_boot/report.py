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

"""What a first boot came to, for people and for programs."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.record import codec

_KIND = 'cyborg-gpu first boot'
_VERSION = 1
_LINE = 'cyborg-gpu-firstboot:'
"""Of the line that operators look for on the console."""
_REASON_MAX = 500
"""Characters of a reason there; the report has all of it."""
_PLAIN = re.compile(r'[\w./:,+-]+', re.ASCII)
"""A value that needs no quotes."""


class Result(enum.Enum):
    """What became of the layout."""

    APPLIED = 'applied'
    """Every GPU that it speaks of is as it says."""
    NO_GPU = 'no-gpu'
    NO_LAYOUT = 'no-layout'
    """Nobody has given this server a layout; its GPUs are as they were."""
    UNUSABLE = 'unusable'
    """The layout is malformed, or not for these GPUs; they are as they
    were."""
    FAILED = 'failed'
    """The machine was in the way; the GPUs that failed are as they were,
    unless their error says otherwise."""

    @property
    def code(self) -> int:
        """Exit code."""
        return {Result.FAILED: 1, Result.UNUSABLE: 2}.get(self, 0)


@dataclasses.dataclass(frozen=True)
class GpuReport:
    """What became of one GPU."""

    index: int | None
    """Among all NVIDIA GPUs by PCI address; None in reports of old."""
    address: str
    status: str
    """``unchanged``, ``changed``, ``skipped`` (a board without MIG),
    ``ignored`` or ``failed``."""
    wanted: str
    error: str | None = None

    def __str__(self) -> str:
        name = ('GPU' if self.index is None else f'GPU {self.index}')
        return (f'{name} ({self.address}): {self.status}: '
                + (self.error or self.wanted))


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of a first boot."""

    result: Result
    time: str
    """ISO 8601, UTC."""
    boot_id: str
    """Of the kernel: another one after each reboot."""
    source: str | None = None
    """Where the layout stands."""
    layout: str | None = None
    """Its name."""
    others: tuple[str, ...] = ()
    """Where else a layout stands."""
    notes: tuple[str, ...] = ()
    error: str | None = None
    """What kept the whole from being done; a GPU has an error of its own."""
    gpus: tuple[GpuReport, ...] = ()
    no_service: str | None = None
    """URL of the metadata service that was asked and did not answer."""

    def lines(self) -> Iterator[str]:
        """For people: one a GPU, and what it all came to."""
        return map(printable, self._lines())

    def _lines(self):
        yield from map(str, self.gpus)
        for other in self.others:
            yield f'There is a layout in {other}, too.'
        yield from self.notes
        yield _SENTENCES[self.result].format(
            layout=self.layout, source=self.source, error=self.error)

    def summary(self) -> str:
        """One line for a console, which says what the run came to.

        ``cyborg-gpu-firstboot: result=ok layout=mixed gpus=8 source=...``
        """
        failed = [gpu for gpu in self.gpus if gpu.error]
        return _line(
            not self.result.code, layout=self.layout, gpus=len(self.gpus),
            failed=len(failed) or None, source=self.source,
            reason=None if self.result is Result.APPLIED else
            '; '.join(map(str, failed)) or self.error or self.result.value)

    def to_dict(self) -> dict[str, Any]:
        """As programs have it."""
        return {**dataclasses.asdict(self), 'result': self.result.value}


_SENTENCES = {
    Result.APPLIED: 'Layout {layout} of {source} is in effect.',
    Result.NO_GPU: 'There is no NVIDIA GPU, so there is nothing to do.',
    Result.NO_LAYOUT: 'No layout was found. The GPUs were not changed.',
    Result.UNUSABLE: 'Not a layout for this server: {error}. The GPUs were '
                     'not changed.',
    Result.FAILED: 'FAILED: {error}'}


def failure(error: Exception) -> str:
    """As :meth:`Report.summary`, of a run that came to no report."""
    return _line(False, reason=str(error))


def _line(succeeded, **values):
    """The line; a value with blanks is a string of JSON.

    It is in ASCII: few serial consoles show anything else.
    """
    values = {'result': 'ok' if succeeded else 'failed', **values}
    if len(values.get('reason') or '') > _REASON_MAX:
        values['reason'] = values['reason'][:_REASON_MAX] + '...'
    return ' '.join((_LINE, *(f'{name}={_value(str(value))}'
                              for name, value in values.items()
                              if value is not None)))


def _value(text):
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def printable(text: str) -> str:
    """Text on one line, whatever names others have given.

    A terminal would obey what they put there, and an output refuse it.
    """
    return ''.join(
        letter if letter.isprintable()
        else letter.encode('unicode_escape').decode('ascii')
        for letter in text)


def write(state_path: str, report: Report) -> None:
    """Keep a report until the next one.

    :raises JournalError: if it cannot be put on the disk.
    """
    durable.write(_path(state_path), _KIND, _VERSION, report.to_dict())


def read(state_path: str) -> Report | None:
    """The last report; None if there is none.

    :raises JournalError: if it cannot be read, or is something else.
    """
    path = _path(state_path)
    content = durable.read(path, _KIND, _VERSION)
    if content is None:
        return None
    try:
        return codec.decode(Report, content)
    except ValueError as error:
        raise exception.JournalError(
            path=path, reason=f'is damaged: {error}') from error


def _path(state_path):
    return os.path.join(state_path, 'firstboot.json')
