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

"""How the GPUs of a host are to be after a reboot.

Instances never outlive a reboot, and on most GPUs the MIG mode does not
either. The checkpoint keeps what an operator laid out; what is bound to
handles, or was cut for fixed vGPUs, is in a record of its own and not here,
because it goes with them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import arrangement
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import locks

_KIND = 'cyborg-gpu checkpoint'
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Saved:
    """One GPU as it is to be."""

    gpu: model.PciAddress
    device_id: str
    """Of the board: on another one the same profile ids mean others."""
    vfs: bool
    """Whether it has virtual functions."""
    layout: spec.MigLayout


def path(state_path: str) -> str:
    """The checkpoint that is restored unless another is named."""
    return os.path.join(state_path, 'checkpoint.json')


def saved(gpu: model.Gpu, entries: Iterable[journal.Entry],
          fixed: Collection[spec.MigInstanceSpec] = ()) -> Saved:
    """What to remember of a GPU.

    :param gpu: as it is now, with compute instances.
    :param entries: its binds, whose instances are left out.
    :param fixed: the instances that were created for fixed vGPUs, which are
        left out, too.
    """
    others = {*fixed, *(entry.instance for entry in entries)}
    found = spec.layout_of(gpu)
    return Saved(gpu.address, gpu.device_id, bool(gpu.sriov_numvfs),
                 dataclasses.replace(
                     found, pending=found.enabled, instances=tuple(
                         item for item in found.instances
                         if item.bare not in others)))


def read(file: str) -> tuple[Saved, ...]:
    """The GPUs of a checkpoint; empty without a file.

    :raises JournalError: if it cannot be read, or is something else.
    """
    content = durable.read(file, _KIND, _VERSION)
    try:
        return tuple(map(_saved, content or ()))
    except (KeyError, TypeError, ValueError,
            exception.InvalidValue) as error:
        raise exception.JournalError(
            path=file, reason=f'is damaged: {error!r}') from error


def write(file: str, gpus: Iterable[Saved]) -> None:
    """Write a checkpoint of these GPUs over the one that is there.

    :raises JournalError: if it cannot be put on the disk.
    """
    durable.write(os.path.abspath(file), _KIND, _VERSION, [
        {'gpu': str(item.gpu), 'device_id': item.device_id, 'vfs': item.vfs,
         **arrangement.to_record(item.layout)}
        for item in sorted(gpus, key=lambda item: item.gpu)])


def update(state_path: str, gpus: Iterable[Saved]) -> None:
    """Put GPUs into the checkpoint, beside the others that it has.

    :raises JournalError: if it cannot be read or written.
    """
    with locks.checkpoint(state_path):
        file = path(state_path)
        known = {item.gpu: item for item in read(file)}
        known.update((item.gpu, item) for item in gpus)
        write(file, known.values())


def _saved(record: dict[str, Any]) -> Saved:
    if type(record['vfs']) is not bool:
        raise ValueError(f'vfs {record["vfs"]!r}')
    return Saved(model.PciAddress.parse(record['gpu']),
                 str(record['device_id']), record['vfs'],
                 arrangement.from_record(record))
