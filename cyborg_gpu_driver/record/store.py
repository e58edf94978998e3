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

"""The records of one machine's GPUs: a file, a lock and a cache for each.

``STATE_PATH/gpus/ADDRESS.json`` holds the record of one GPU, with a version
and a checksum. One policy holds for all of them:

* A damaged file costs one GPU. Who reads it gets an error. :meth:`Store.
  check`, with which each report and each restore begins, sets it aside with
  a message, and the claims in it are found again on the hardware.
* What must be on the disk before the hardware is touched is written through
  :meth:`Store.gpu`, which raises if it cannot be written.
* What was observed is written through :meth:`Store.keep`: it stays in this
  process's memory while it cannot be written, and is tried again with each
  write.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import weakref
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import migrate

LOG = logging.getLogger(__name__)

KIND = 'cyborg-gpu GPU'
VERSION = 2
_SUFFIX = '.json'
_EMPTY = gpu_record.GpuRecord()

Change = Callable[[gpu_record.GpuRecord], gpu_record.GpuRecord]

_stores: weakref.WeakValueDictionary[str, Store] = (
    weakref.WeakValueDictionary())
_stores_mutex = threading.Lock()


@dataclasses.dataclass
class Draft:
    """A record that is being changed: put another in the place of it."""

    record: gpu_record.GpuRecord


def of(state_path: str) -> Store:
    """The records of a machine, shared by all that use them in a process.

    :param state_path: ``[gpu] state_path``.
    """
    with _stores_mutex:
        store = _stores.get(state_path)
        if store is None:
            store = _stores[state_path] = Store(state_path)
        return store


class Store:
    """The records of one machine.

    :param state_path: ``[gpu] state_path``.
    """

    def __init__(self, state_path: str):
        self._state_path = state_path
        self._directory = os.path.join(state_path, 'gpus')
        self._cache: dict[model.PciAddress, tuple] = {}
        """Each file's mark and record when it was last read."""
        self._pending: dict[model.PciAddress, dict[str, Any]] = {}
        """Parts of records that could not be written yet."""
        self._said = log_once.LogOnce()
        self._migrated = False

    def path(self, address: model.PciAddress) -> str:
        """The file of a GPU's record."""
        return os.path.join(self._directory, f'{address}{_SUFFIX}')

    def read(self, address: model.PciAddress) -> gpu_record.GpuRecord:
        """The record of a GPU; an empty one without a file. Takes no lock.

        :raises JournalUnreadable: if this process cannot read it.
        :raises JournalError: if it is damaged.
        """
        return self._with_pending(address, self._with_earlier(
            address, self._read(address)))

    def peek(self, address: model.PciAddress) -> gpu_record.GpuRecord:
        """As :meth:`read`; where that is unusable, what is in memory.

        Does not raise. An unusable record is logged once.
        """
        try:
            record = self.read(address)
        except exception.JournalError as error:
            self._say(address, error)
            return self._with_pending(address, _EMPTY)
        self._said.over(address)
        return record

    def addresses(self) -> tuple[model.PciAddress, ...]:
        """The GPUs that have a record, in order.

        :raises JournalUnreadable: if the directory cannot be read.
        """
        earlier = self._earlier()
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise exception.JournalUnreadable(
                path=self._directory,
                reason=f'cannot be read: {error}') from error
        return tuple(sorted({
            *(address for address in map(_address, names)
              if address is not None),
            *self._pending, *earlier}))

    def records(self) -> dict[model.PciAddress, gpu_record.GpuRecord]:
        """All records that can be used; the others are logged once."""
        return {address: self.peek(address) for address in self.addresses()}

    @contextlib.contextmanager
    def gpu(self, address: model.PciAddress) -> Iterator[Draft]:
        """Change a record: read, changed by the caller, written once.

        Nothing is written if it is the same afterwards, or if the caller
        raises.

        :raises JournalError: if it is damaged, or cannot be locked or
            written.
        """
        self._migrate()
        with locks.record(self._state_path, address):
            before = self._read(address)
            pending = dict(self._pending.get(address, {}))
            draft = Draft(dataclasses.replace(before, **pending))
            yield draft
            if draft.record != before:
                self._write(address, draft.record)
            self._forget(address, pending)

    def put(self, address: model.PciAddress, **parts: Any) -> None:
        """Write parts of a record.

        :raises JournalError: as :meth:`gpu`.
        """
        with self.gpu(address) as draft:
            draft.record = dataclasses.replace(draft.record, **parts)

    def keep(self, address: model.PciAddress, change: Change
             ) -> tuple[gpu_record.GpuRecord, gpu_record.GpuRecord]:
        """Change a record, in memory until that can be written.

        Does not raise; what is in the way is logged once.

        :param change: returns the new record for the one that there is.
        :returns: the record before and after.
        """
        try:
            with self.gpu(address) as draft:
                before = draft.record
                after = draft.record = change(before)
            if not self._pending:
                self._said.over('keep')
        except exception.JournalError as error:
            # Most often what is in the way is the same for all GPUs.
            self._say('keep', str(error).replace(str(address), 'ADDRESS')
                      + '. What is seen of the GPUs is kept in memory, and '
                      'a restart would forget it')
            before = self.peek(address)
            after = change(before)
            self._pending.setdefault(address, {}).update(
                (field.name, getattr(after, field.name))
                for field in dataclasses.fields(after)
                if getattr(after, field.name) != getattr(before, field.name))
        return before, after

    def observe(self, address: model.PciAddress, **parts: Any) -> None:
        """Put parts of a record in the place of others, by :meth:`keep`."""
        known = self.peek(address)
        if (address in self._pending or any(
                getattr(known, name) != value
                for name, value in parts.items())):
            self.keep(address, lambda record: dataclasses.replace(
                record, **parts))

    @property
    def unwritten(self) -> int:
        """Of how many GPUs something is in memory that no file has yet."""
        return len(self._pending)

    def check(self) -> None:
        """Set unusable records aside, and what writers left that died.

        :raises JournalUnreadable: if one may well be usable, by others.
        """
        self._migrate()
        for address in self.addresses():
            try:
                self._read(address)
            except exception.JournalUnreadable:
                raise
            except exception.JournalError:
                self.check_gpu(address)

    def check_gpu(self, address: model.PciAddress) -> None:
        """As :meth:`check`, of one GPU.

        :raises JournalError: if the record cannot be put aside.
        """
        self._migrate()
        path = self.path(address)
        with locks.record(self._state_path, address):
            for left in durable.leftovers(path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(left)
            try:
                self._read(address)
            except exception.JournalUnreadable:
                raise
            except exception.JournalError as error:
                kept = durable.keep_aside(path)
                pending = dict(self._pending.get(address, {}))
                self._write(address, gpu_record.GpuRecord(
                    **{'claims_lost': True, **pending}))
                self._forget(address, pending)
                LOG.error(
                    '%(error)s. The record was moved to %(kept)s. The binds '
                    'of GPU %(gpu)s are rebuilt from the hardware and Cyborg; '
                    'compare the GPU with its intended layout.',
                    {'error': error, 'kept': kept, 'gpu': address})

    def is_lost(self, address: model.PciAddress) -> bool:
        """Whether the claims of a GPU have to be found again.

        :raises JournalError: if its record cannot be read.
        """
        if os.path.exists(self.path(address)):
            return self.read(address).claims_lost
        return bool(migrate.lost_claims(self._state_path))

    def has_lost(self) -> bool:
        """Whether the claims of any GPU have to be found again."""
        return bool(migrate.lost_claims(self._state_path)) or any(
            record.claims_lost for record in self.records().values())

    def settle(self) -> None:
        """The claims of all GPUs of this machine have been found again.

        :raises JournalError: if that cannot be written.
        """
        migrate.settle(self._state_path)

    def _migrate(self) -> None:
        """Take over the records of earlier releases, once."""
        if self._migrated:
            return
        if migrate.is_pending(self._state_path):
            with locks.migration(self._state_path):
                migrate.run(self._state_path, self._take_over)
        self._migrated = True

    def _take_over(self, address: model.PciAddress, parts: dict[str, Any]
                   ) -> None:
        try:
            record = self._read(address)
        except exception.JournalUnreadable:
            raise
        except exception.JournalError as error:
            LOG.error('%(error)s. It is kept as %(kept)s.',
                      {'error': error,
                       'kept': durable.keep_aside(self.path(address))})
            record = _EMPTY
        self._write(address, dataclasses.replace(record, **parts))

    def _earlier(self) -> migrate.Parts:
        """What earlier releases left, while it cannot be taken over."""
        if self._migrated:
            return {}
        try:
            self._migrate()
        except exception.JournalError:
            # As of an operator's command that runs as an ordinary user.
            return migrate.read(self._state_path)
        return {}

    def _with_earlier(self, address: model.PciAddress,
                      record: gpu_record.GpuRecord) -> gpu_record.GpuRecord:
        return dataclasses.replace(record,
                                   **self._earlier().get(address, {}))

    def _with_pending(self, address: model.PciAddress,
                      record: gpu_record.GpuRecord) -> gpu_record.GpuRecord:
        pending = self._pending.get(address)
        return dataclasses.replace(record, **pending) if pending else record

    def _read(self, address: model.PciAddress) -> gpu_record.GpuRecord:
        path = self.path(address)
        mark = durable.mark(path)
        known = self._cache.get(address)
        if known is not None and mark is not None and known[0] == mark:
            return known[1]
        content = durable.read(path, KIND, VERSION, 1)
        if content is None:
            return _EMPTY
        try:
            if isinstance(content, dict) and 'ids' in content:
                # Version 1: what NVML had reported, and nothing else.
                content = {'board': content}
            content = migrate.cordons(content)
            record = codec.decode(gpu_record.GpuRecord, content)
            if not record.is_of(address):
                raise ValueError('it is about another GPU')
        except ValueError as error:
            raise exception.JournalError(
                path=path, reason=f'is damaged: {error}') from error
        # Marked as it was before it was read: newer content is read again.
        self._cache[address] = mark, record
        return record

    def _write(self, address: model.PciAddress,
               record: gpu_record.GpuRecord) -> None:
        path = self.path(address)
        durable.write(path, KIND, VERSION, codec.encode(record))
        self._cache[address] = durable.mark(path), record

    def _forget(self, address: model.PciAddress, written: dict[str, Any]
                ) -> None:
        """Parts are on the disk. Another thread may have kept newer ones."""
        pending = self._pending.get(address, {})
        for name, value in written.items():
            if pending.get(name) is value:
                del pending[name]
        if not pending:
            self._pending.pop(address, None)

    def _say(self, what: Hashable, error: object) -> None:
        """Log what is wrong with a record, once."""
        if self._said.is_new(str(error), what):
            LOG.error('%s', error)


def _address(name: str) -> model.PciAddress | None:
    """The GPU whose record a file is; None if it is another file."""
    try:
        address = model.PciAddress.parse(name.removesuffix(_SUFFIX))
    except exception.InvalidPciAddress:
        return None
    return address if name == f'{address}{_SUFFIX}' else None
