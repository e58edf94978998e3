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

"""What is kept of a GPU that NVML cannot be asked about: a file per GPU.

A GPU that is offered whole is bound to vfio-pci, where NVML does not see
it, or must at least not be opened. What NVML reported before is in its
record, which only the code that binds the GPU writes, under the GPU's lock.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import fields
from cyborg_gpu_driver.host import drivers
from cyborg_gpu_driver.host import model

LOG = logging.getLogger(__name__)

_DIRECTORY = 'gpus'
_KIND = 'cyborg-gpu GPU'
_VERSION = 1

_IDS = ('vendor_id', 'device_id', 'subsystem_vendor_id',
        'subsystem_device_id')
_OF_MODEL = ('model', 'architecture', 'memory_mib')
"""Facts that every board with the same PCI ids has. NVIDIA gives boards
with another memory size or form factor other ids (the pci.ids list)."""
_OF_BOARD = ('uuid', 'serial')
"""Facts of one board. Nothing tells them apart in the PCI configuration
space, so they hold until the machine starts again: a board cannot be
replaced by another of its model while it runs."""


@dataclasses.dataclass(frozen=True)
class Health:
    """How the GPU was when NVML last answered."""

    state: str
    reasons: tuple[str, ...]
    time: float
    """Seconds of the epoch."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One GPU as NVML last reported it, and what was done with it since."""

    ids: tuple[str | None, ...]
    """PCI ids: vendor, device, subsystem vendor, subsystem device."""
    boot: str
    """Boot id of the machine at that time."""
    time: float
    """Seconds of the epoch at which NVML reported this."""
    model: str | None = None
    architecture: str | None = None
    uuid: str | None = None
    serial: str | None = None
    memory_mib: int | None = None
    driver_version: str | None = None
    has_mig: bool = False
    nvlink_peers: tuple[model.PciAddress, ...] = ()
    bound_from: str | None = None
    """The driver that it had before this library bound it to vfio-pci;
    None if this library did not bind it."""
    released: bool = False
    """It is offered whole while it is bound to ``nvidia``: no process of
    this library may open it."""
    health: Health | None = None
    link_width: int | None = None
    """PCIe lanes while it was idle."""
    aer_fatal: int | None = None
    """Fatal PCIe errors (AER) counted until then."""


def of(gpu: model.Gpu, boot: str, time: float,
       driver_version: str | None = None, **more: Any) -> Record:
    """The record of a GPU that NVML has just been asked about.

    :param gpu: of a complete snapshot.
    :param more: fields of :class:`Record` that are not the snapshot's.
    """
    return Record(
        ids=_ids(gpu), boot=boot, time=time, driver_version=driver_version,
        has_mig=gpu.mig is not None, nvlink_peers=gpu.nvlink_peers,
        **{name: getattr(gpu, name) for name in (*_OF_MODEL, *_OF_BOARD)},
        **more)


def holds(record: Record, gpu: model.Gpu, boot: str) -> bool:
    """Whether ``record`` is of this board, since the machine's last start."""
    return record.ids == _ids(gpu) and bool(boot) and record.boot == boot


def complete(gpu: model.Gpu, record: Record, boot: str) -> model.Gpu:
    """A GPU that NVML was not asked about, with what its record says.

    :param boot: boot id of the machine now.
    """
    if record.ids != _ids(gpu):
        return gpu
    names = _OF_MODEL
    known: dict[str, Any] = {'told_at': record.time}
    if holds(record, gpu, boot):
        names += _OF_BOARD
        known.update(
            nvlink_peers=record.nvlink_peers, released=record.released,
            bound_from=(None if gpu.driver == drivers.NVIDIA
                        else record.bound_from))
    return dataclasses.replace(gpu, **known, **{
        name: getattr(record, name) for name in names})


class Records:
    """The records of one machine's GPUs.

    :param state_path: ``[gpu] state_path``; None keeps no records.
    """

    def __init__(self, state_path: str | None):
        self._state_path = state_path
        self._said: set[str] = set()

    def get(self, address: model.PciAddress) -> Record | None:
        """The record of a GPU; None without one that can be used.

        Does not raise. An unusable file concerns this GPU alone and is
        logged once.
        """
        if self._state_path is None:
            return None
        path = self._path(address)
        try:
            content = durable.read(path, _KIND, _VERSION)
            return None if content is None else _from_content(content)
        except exception.JournalError as error:
            self._say(path, str(error))
        except (KeyError, TypeError, ValueError, AttributeError,
                exception.InvalidPciAddress) as error:
            self._say(path, f'{path} is damaged: {error!r}')
        return None

    def put(self, address: model.PciAddress, record: Record) -> None:
        """Replace the record of a GPU; an unusable one is kept beside.

        :raises JournalError: if it cannot be put on the disk.
        """
        if self._state_path is None:
            return
        path = self._path(address)
        if self.get(address) is None and os.path.exists(path):
            LOG.warning('%(path)s was moved to %(kept)s',
                        {'path': path, 'kept': durable.set_aside(path)})
        durable.write(path, _KIND, _VERSION, _to_content(record))

    def _path(self, address):
        return os.path.join(self._state_path, _DIRECTORY, f'{address}.json')

    def _say(self, path, reason):
        if path not in self._said:
            self._said.add(path)
            LOG.error('The record of a GPU cannot be used: %s. What NVML '
                      'reported of it before is not known.', reason)


def _ids(gpu):
    return tuple(getattr(gpu, name) for name in _IDS)


def _to_content(record: Record) -> dict[str, Any]:
    return dict(dataclasses.asdict(record),
                nvlink_peers=[str(peer) for peer in record.nvlink_peers])


def _from_content(content: Mapping[str, Any]) -> Record:
    """The record in a file.

    :raises KeyError, TypeError, ValueError, AttributeError,
        InvalidPciAddress: if it is none.
    """
    if set(content) != {field.name for field in dataclasses.fields(Record)}:
        raise ValueError('it has other fields')
    ids = tuple(map(_optional_text, content['ids']))
    if len(ids) != len(_IDS):
        raise ValueError(f'{ids!r} are not {len(_IDS)} PCI ids')
    known = {name: _optional_text(content[name]) for name in (
        'model', 'architecture', 'uuid', 'serial', 'driver_version',
        'bound_from')}
    known.update((name, fields.optional_number(content[name])) for name in (
        'memory_mib', 'link_width', 'aer_fatal'))
    known.update((name, fields.truth(content[name])) for name in (
        'has_mig', 'released'))
    return Record(
        ids=ids, boot=fields.text(content['boot']),
        time=fields.time(content['time']),
        nvlink_peers=tuple(map(model.PciAddress.parse,
                               content['nvlink_peers'])),
        health=_health(content['health']), **known)


def _health(content):
    if content is None:
        return None
    return Health(fields.text(content['state']),
                  tuple(map(fields.text, content['reasons'])),
                  fields.time(content['time']))


def _optional_text(value):
    return None if value is None else fields.text(value)
