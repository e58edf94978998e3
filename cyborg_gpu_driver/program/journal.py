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

"""Who owns what on this machine, and what was under way.

One entry an attach handle, written before its partition is touched and
again when that is done, so that whoever comes next can finish or undo.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import glob
import os
from collections.abc import Iterable

from oslo_log import log as logging

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import fields
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import locks
from cyborg_gpu_driver.program import request

LOG = logging.getLogger(__name__)

_KIND = 'cyborg-gpu journal'
_VERSION = 1


class Phase(enum.Enum):
    """How far an entry has come."""

    BINDING = 'binding'
    """Being made; undone if found so at start."""
    BOUND = 'bound'
    """Complete, and owned by the handle."""
    UNBINDING = 'unbinding'
    """Given back by Cyborg; what is left of it is to be removed."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """What one attach handle has on a GPU.

    ``function`` is where its vGPU is, the one that the handle names. The
    GPU instance's fields are None for time-sliced vGPUs; entries whose
    vGPUs share an instance have the same.
    """

    handle: str
    gpu: model.PciAddress
    function: model.PciAddress
    mdev_type: str
    profile: str
    phase: Phase
    profile_id: int | None = None
    placement: model.Placement | None = None
    instance_id: int | None = None
    foreign_ids: tuple[int, ...] = ()
    """Instances of the profile that were there before, never ours."""
    vfio: bool = False
    """Made by the vendor's VFIO driver: no mdev, and no UUID."""
    vgpu_placement: int | None = None
    """Placement id of the vGPU among those of mixed sizes."""
    boot: str | None = None
    """Boot id of the machine when the instance was made. GPU instances do
    not outlive a boot, and their ids are given again (MIG User Guide). None
    in records of earlier releases."""
    repeats: int = 0
    """How often Cyborg has bound it again while it was bound. A repair that
    has found nobody to want it compares the number."""

    @property
    def instance(self) -> spec.MigInstanceSpec | None:
        """The GPU instance below the vGPU; None for a time-sliced one."""
        if self.placement is None or self.profile_id is None:
            return None
        return spec.MigInstanceSpec(self.placement, self.profile_id)

    def is_on(self, instance: model.GpuInstance) -> bool:
        """Whether a live instance is this entry's: ids alone are reused."""
        return (self.instance_id == instance.instance_id
                and self.instance == spec.of(instance))


class Journal:
    """The entries of this machine, in one file.

    :param state_path: ``[gpu] state_path``.
    """

    def __init__(self, state_path: str):
        self._state_path = state_path
        self._path = os.path.join(state_path, 'journal.json')
        self._read: tuple | None = None
        """The file's mark and entries when it was last read."""
        self._given_back: set[str] = set()
        """Handles of which the file does not say yet that they are."""

    def get(self, handle: str) -> Entry | None:
        """The entry of ``handle``.

        :raises JournalError: if the file cannot be read.
        """
        return self._load().get(handle)

    def entries(self, gpu: model.PciAddress | None = None
                ) -> tuple[Entry, ...]:
        """All entries, or those of one GPU."""
        return tuple(entry for entry in self._load().values()
                     if gpu is None or entry.gpu == gpu)

    def put(self, *entries: Entry) -> None:
        """Write entries, in one step, over those of the same handles.

        Without entries there is a file, too, afterwards. What was given
        back is written as unbinding, whatever phase an entry has here.

        :raises JournalError: if it cannot be put on the disk.
        """
        with locks.journal(self._state_path):
            known = self._load()
            known.update((entry.handle, entry) for entry in entries)
            self._store(self._as_given_back(known))

    def remove(self, handle: str) -> None:
        """Forget ``handle``; does nothing if it is not there."""
        with locks.journal(self._state_path):
            known = self._load()
            if known.pop(handle, None) is not None:
                self._store(known)

    def give_back(self, handle: str) -> None:
        """Write that Cyborg has given a handle back.

        Only the lock of the journal is needed. The entry of the handle
        counts as unbinding from now on until it is removed, also where
        that cannot be written: Cyborg does not ask twice, and may give the
        handle to the next server.

        :raises JournalError: if it cannot be put on the disk.
        """
        self._given_back.add(handle)
        with locks.journal(self._state_path):
            known = self._load()
            if handle in known:
                self._store(known)
            else:
                self._given_back.discard(handle)

    def check(self) -> bool:
        """Set an unusable file aside, with a message, and start anew.

        :returns: whether the entries are lost and have to be found again:
            a file was set aside, now or by a process that died before it
            had written another.
        :raises JournalUnreadable: if it may well be usable, by others.
        """
        try:
            self._load()
        except exception.JournalUnreadable:
            raise
        except exception.JournalError as error:
            kept = durable.set_aside(self._path)
            LOG.error(
                '%(error)s. It was moved to %(kept)s; what it named is '
                'looked for on the hardware and in Cyborg.',
                {'error': error, 'kept': kept})
        return (not os.path.exists(self._path)
                and bool(glob.glob(glob.escape(self._path) + '.unusable-*')))

    def _load(self) -> dict[str, Entry]:
        return self._as_given_back(self._load_file())

    def _as_given_back(self, found: dict[str, Entry]) -> dict[str, Entry]:
        for handle in self._given_back & found.keys():
            if found[handle].phase is Phase.BOUND:
                found[handle] = dataclasses.replace(
                    found[handle], phase=Phase.UNBINDING)
        return found

    def _load_file(self):
        mark = _mark(self._path)
        known = self._read
        if known is not None and mark is not None and known[0] == mark:
            return dict(known[1])
        content = durable.read(self._path, _KIND, _VERSION) or []
        try:
            entries = [_entry(item) for item in content]
        except (KeyError, TypeError, ValueError,
                exception.InvalidValue) as error:
            raise exception.JournalError(
                path=self._path, reason=f'has a bad entry: {error!r}'
            ) from error
        found = {entry.handle: entry for entry in entries}
        # Marked as it was before it was read: newer content is read again.
        self._read = (mark, found)
        return dict(found)

    def _store(self, known: dict[str, Entry]) -> None:
        durable.write(self._path, _KIND, _VERSION,
                      [_record(entry) for entry in known.values()])
        self._read = (_mark(self._path), known)
        self._given_back -= {handle for handle in tuple(self._given_back)
                             if handle not in known}


def owned(entries: Iterable[Entry]) -> collections.Counter[str]:
    """How many of each profile stand for a bound handle."""
    return collections.Counter(entry.profile for entry in entries
                               if entry.phase is Phase.BOUND)


def _mark(path):
    """What changes when the file is replaced; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _record(entry):
    place = entry.placement
    return {
        'handle': entry.handle, 'gpu': str(entry.gpu),
        'function': str(entry.function), 'mdev_type': entry.mdev_type,
        'profile': entry.profile, 'phase': entry.phase.value,
        'profile_id': entry.profile_id,
        'placement': place and {'start': place.start, 'size': place.size},
        'instance_id': entry.instance_id,
        'foreign_ids': list(entry.foreign_ids), 'vfio': entry.vfio,
        'vgpu_placement': entry.vgpu_placement, 'boot': entry.boot,
        'repeats': entry.repeats}


def _entry(record):
    return Entry(**dict(
        record, handle=request.handle(record['handle']),
        gpu=model.PciAddress.parse(record['gpu']),
        function=model.PciAddress.parse(record['function']),
        mdev_type=request.mdev_type(record['mdev_type']),
        profile=fields.text(record['profile']),
        phase=Phase(record['phase']),
        profile_id=fields.optional_number(record['profile_id']),
        placement=_placement(record['placement']),
        instance_id=fields.optional_number(record['instance_id']),
        foreign_ids=tuple(map(fields.number, record['foreign_ids'])),
        # Records of earlier releases lack these. The first one had mdevs
        # alone.
        vfio=fields.truth(record.get('vfio', False)),
        vgpu_placement=fields.optional_number(record.get('vgpu_placement')),
        boot=_optional_text(record.get('boot')),
        repeats=fields.number(record.get('repeats', 0))))


def _placement(value):
    if value is None:
        return None
    return model.Placement(fields.number(value['start']),
                           fields.number(value['size']))


def _optional_text(value):
    return None if value is None else fields.text(value)
