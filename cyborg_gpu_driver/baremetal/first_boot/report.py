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

"""The outcome of a first boot, for people and for programs."""

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
"""Start of the line that operators look for on the console."""
_REASON_MAX = 500
"""Characters of a reason in that line; the report has all of it."""
_PLAIN = re.compile(r'[\w./:,+-]+', re.ASCII)
"""A value that needs no quotes."""


class Result(enum.Enum):
    """The outcome for the layout."""

    APPLIED = 'applied'
    """Every GPU that the layout selects is as it says."""
    NO_GPU = 'no-gpu'
    NO_LAYOUT = 'no-layout'
    """No source has a layout for this server; its GPUs are unchanged."""
    UNUSABLE = 'unusable'
    """The layout is malformed, or does not suit these GPUs; they are
    unchanged."""
    FAILED = 'failed'
    """The machine prevented it. GPUs that failed are unchanged, unless their
    error says otherwise."""

    @property
    def code(self) -> int:
        """The exit code of the program."""
        return {Result.FAILED: 1, Result.UNUSABLE: 2}.get(self, 0)


@dataclasses.dataclass(frozen=True)
class GpuReport:
    """The outcome for one GPU."""

    index: int | None
    """Among all NVIDIA GPUs by PCI address; None in old reports."""
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
    """The outcome of a first boot."""

    result: Result
    time: str
    """ISO 8601, UTC."""
    boot_id: str
    """The kernel's boot id, which changes with each reboot."""
    source: str | None = None
    """The source of the layout."""
    layout: str | None = None
    """The layout's name."""
    others: tuple[str, ...] = ()
    """The other sources that have a layout."""
    notes: tuple[str, ...] = ()
    error: str | None = None
    """What prevented the whole; GPUs have errors of their own."""
    gpus: tuple[GpuReport, ...] = ()
    no_service: str | None = None
    """URL of the metadata service that was queried and did not answer."""

    def lines(self) -> Iterator[str]:
        """Return the lines for people: one per GPU, and the outcome."""
        return map(printable, self._lines())

    def _lines(self):
        yield from map(str, self.gpus)
        for other in self.others:
            yield f'There is a layout in {other}, too.'
        yield from self.notes
        yield _SENTENCES[self.result].format(
            layout=self.layout, source=self.source, error=self.error)

    def summary(self) -> str:
        """Return one line for a console, with the outcome of the run.

        ``cyborg-gpu-firstboot: result=ok layout=mixed gpus=8 source=...``
        """
        failed = [gpu for gpu in self.gpus if gpu.error]
        return _line(
            not self.result.code, layout=self.layout, gpus=len(self.gpus),
            failed=len(failed) or None, source=self.source,
            reason=None if self.result is Result.APPLIED else
            '; '.join(map(str, failed)) or self.error or self.result.value)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for programs."""
        return {**dataclasses.asdict(self), 'result': self.result.value}


_SENTENCES = {
    Result.APPLIED: 'Layout {layout} of {source} is in effect.',
    Result.NO_GPU: 'There is no NVIDIA GPU, so there is nothing to do.',
    Result.NO_LAYOUT: 'No layout was found. The GPUs were not changed.',
    Result.UNUSABLE: 'Not a layout for this server: {error}. The GPUs were '
                     'not changed.',
    Result.FAILED: 'FAILED: {error}'}


def failure(error: Exception) -> str:
    """Return a :meth:`Report.summary` line for a run without a report."""
    return _line(False, reason=str(error) or repr(error))


def _line(succeeded, **values):
    """Return the line; a value with blanks becomes a string of JSON.

    The line is in ASCII, because few serial consoles show anything else.
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
    """Return text on one line, with names from outside made harmless.

    A terminal would execute control characters in such a name, and an output
    would refuse them.
    """
    return ''.join(
        letter if letter.isprintable()
        else letter.encode('unicode_escape').decode('ascii')
        for letter in text)


def write(state_path: str, report: Report) -> None:
    """Keep a report until the next one.

    :raises JournalError: if it cannot be written to the disk.
    """
    durable.write(_path(state_path), _KIND, _VERSION, report.to_dict())


def read(state_path: str) -> Report | None:
    """Return the last report; None if there is none.

    :raises JournalError: if it cannot be read, or is not a report.
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
