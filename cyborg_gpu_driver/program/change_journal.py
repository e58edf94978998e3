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

"""What a change of a GPU's layout was doing when its process ended.

One file a GPU, written before each step and removed when the change is
complete or undone. A file that is there says what the GPU was cut into
before, and what may have been changed since.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import fields
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import arrangement

_KIND = 'cyborg-gpu layout change'
_VERSION = 1
_DIRECTORY = 'changes'
_SUFFIX = '.json'


@dataclasses.dataclass(frozen=True)
class Record:
    """A change that is under way on one GPU, or was when a process died.

    ``before`` is the GPU as it was before the first change that has not
    come to an end, so that undoing goes all the way back.
    """

    gpu: model.PciAddress
    before: spec.MigLayout
    steps: tuple[str, ...] = ()
    """For people, in their order."""
    at: int = 0
    """Index of the step that was about to be taken."""
    touched: tuple[spec.MigInstanceSpec, ...] = ()
    """Each instance that a step was about, without compute instances."""
    problem: str | None = None
    """Why undoing did not come to an end; None if it was not tried."""

    def __str__(self) -> str:
        if self.problem:
            return f'the way back is blocked: {self.problem}'
        step = (self.steps[self.at] if self.at < len(self.steps)
                else 'the check at the end')
        return (f'step {self.at + 1} of {len(self.steps)} ({step}) was '
                'under way')


class ChangeJournal:
    """The records of this machine.

    :param state_path: ``[gpu] state_path``.

    Whoever writes a GPU's record holds the GPU's lock.
    """

    def __init__(self, state_path: str):
        self._directory = os.path.join(state_path, _DIRECTORY)

    def get(self, gpu: model.PciAddress) -> Record | None:
        """The record of a GPU; None if no change is under way.

        :raises JournalError: if the file cannot be read.
        """
        path = self.path(gpu)
        content = durable.read(path, _KIND, _VERSION)
        if content is None:
            return None
        try:
            record = _record(content)
        except (KeyError, TypeError, ValueError, AttributeError,
                exception.InvalidValue) as error:
            raise exception.JournalError(
                path=path, reason=f'is damaged: {error!r}') from error
        if record.gpu != gpu:
            raise exception.JournalError(
                path=path, reason=f'is about GPU {record.gpu}')
        return record

    def gpus(self) -> tuple[model.PciAddress, ...]:
        """GPUs that have a record."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise exception.JournalError(
                path=self._directory,
                reason=f'cannot be read: {error}') from error
        return tuple(sorted(gpu for gpu in map(_gpu, names)
                            if gpu is not None))

    def put(self, record: Record) -> None:
        """Write a record.

        :raises JournalError: if it cannot be put on the disk.
        """
        durable.write(self.path(record.gpu), _KIND, _VERSION,
                      _content(record))

    def remove(self, gpu: model.PciAddress) -> None:
        """The change of a GPU has come to an end.

        :raises JournalError: if the file cannot be removed.
        """
        try:
            os.unlink(self.path(gpu))
        except FileNotFoundError:
            return
        except OSError as error:
            raise exception.JournalError(
                path=self.path(gpu),
                reason=f'cannot be removed: {error}') from error

    def tidy(self, gpu: model.PciAddress) -> None:
        """Remove what a process left that died while it wrote a record.

        :raises JournalError: if that cannot be removed.
        """
        path = self.path(gpu)
        try:
            for left in durable.leftovers(path):
                os.unlink(left)
        except OSError as error:
            raise exception.JournalError(
                path=path, reason=f'cannot be tidied: {error}') from error

    def set_aside(self, gpu: model.PciAddress) -> str:
        """Move an unusable record out of the way, keeping it.

        :returns: its new path.
        :raises JournalError: if it cannot be moved.
        """
        return durable.set_aside(self.path(gpu))

    def path(self, gpu: model.PciAddress) -> str:
        """The file of a GPU's record."""
        return os.path.join(self._directory, f'{gpu}{_SUFFIX}')


def _gpu(name):
    """The GPU whose record a file is; None if it is another file."""
    try:
        gpu = model.PciAddress.parse(name.removesuffix(_SUFFIX))
    except exception.InvalidPciAddress:
        return None
    return gpu if name == f'{gpu}{_SUFFIX}' else None


def _content(record: Record) -> dict[str, Any]:
    return {
        'gpu': str(record.gpu),
        'before': arrangement.to_record(record.before),
        'steps': list(record.steps), 'at': record.at,
        'touched': [{'profile_id': item.profile_id,
                     'start': item.placement.start,
                     'size': item.placement.size}
                    for item in record.touched],
        'problem': record.problem}


def _record(content):
    return Record(
        gpu=model.PciAddress.parse(content['gpu']),
        before=arrangement.from_record(content['before']),
        steps=tuple(map(fields.text, content['steps'])),
        at=fields.number(content['at']),
        touched=tuple(spec.MigInstanceSpec(
            model.Placement(fields.number(item['start']),
                            fields.number(item['size'])),
            fields.number(item['profile_id']))
            for item in content['touched']),
        problem=None if content['problem'] is None
        else fields.text(content['problem']))
