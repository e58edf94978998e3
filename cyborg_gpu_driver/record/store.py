# SPDX-License-Identifier: Apache-2.0

"""The records of one machine's GPUs, with the claims of attach handles.

``STATE_PATH/gpus/ADDRESS.json`` has the record of one GPU, with a version
and a checksum. The same rules apply to all records:

* A damaged or unreadable file affects one GPU. A read of it raises an error.
  Each report and each restore begins with :meth:`Store.check`, which sets a
  damaged file aside and keeps each part that can be decoded. Lost claims are
  rebuilt from the hardware and Cyborg. A GPU whose cordons or health are lost
  is cordoned until an operator lifts that.
* A field that only a later release knows is ignored, and written again.
* Data that must be on the disk before the hardware is touched is written
  through :meth:`Store.gpu`, which raises if it cannot be written.
* Observations are written through :meth:`Store.keep`. While they cannot be
  written, they are kept in this process's memory, and each write of the
  record tries again. What was observed while a file could not be read does
  not replace what the file has.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import ledger
from cyborg_gpu_driver.record import uptime

LOG = logging.getLogger(__name__)

KIND = 'cyborg-gpu GPU'
VERSION = 1
_CLOSING = frozenset({'cordons', 'health'})
"""Parts that say why a GPU gets no new server."""


def _decoded(path: str, address: model.PciAddress, content: Any
             ) -> gpu_record.GpuRecord:
    """The record that a file contains.

    :raises JournalError: if the record is damaged.
    """
    try:
        values, problems = codec.parts(gpu_record.GpuRecord, content)
        for name, problem in problems.items():
            raise ValueError(f'{name}: {problem}')
        record = gpu_record.GpuRecord(**values)
        if not record.is_of(address):
            raise ValueError('it belongs to another GPU')
    except ValueError as error:
        raise exception.JournalError(
            path=path, reason=f'is damaged: {error}') from error
    return record


def _salvage(path: str, address: model.PciAddress
             ) -> tuple[gpu_record.GpuRecord, str, Any]:
    """What the file of a damaged record still tells, and what is lost.

    Also returns the content, for the fields of a later release; None if it
    has an error somewhere.
    """
    content, is_sound = durable.salvage(path, KIND)
    values: dict[str, Any] = {}
    lost = {field.name for field in dataclasses.fields(gpu_record.GpuRecord)}
    with contextlib.suppress(ValueError):
        found, problems = codec.parts(gpu_record.GpuRecord, content)
        is_ours = gpu_record.GpuRecord(**found).is_of(address)
        if is_ours and is_sound:
            values, lost = found, set(problems)
        elif not is_ours:
            content = None
        else:
            # Any value may be wrong. Keep what only closes the GPU.
            values = {name: found[name] for name in _CLOSING & found.keys()}
    record = gpu_record.GpuRecord(**values)
    text = f'These parts of it are lost: {", ".join(sorted(lost))}.'
    if not lost.isdisjoint({'claims', 'reported'}):
        # Without the last report, Cyborg's handles are not known either.
        record = dataclasses.replace(record, claims_lost=True)
        text += (' Its binds are rebuilt from the hardware and Cyborg; '
                 'compare the GPU with its intended layout.')
    if not lost.isdisjoint(_CLOSING):
        text += (' The GPU gets no new server until an operator lifts its '
                 'cordon with "cyborg-gpu gpu uncordon".')
        record = dataclasses.replace(record, cordons=cordon.added(
            record.cordons, cordon.Cordon(
                cordon.Source.RECORD, time.time(),
                reason='other cordons and errors of it may be lost')))
    return record, text, content if is_sound else None


_EMPTY = gpu_record.GpuRecord()


Change = Callable[[gpu_record.GpuRecord], gpu_record.GpuRecord]
"""Returns the new record for the current one. It may be called again for
another record: while a file cannot be read or written, its changes wait."""


def _changed(record: gpu_record.GpuRecord, changes: Iterable[Change]
             ) -> gpu_record.GpuRecord:
    return functools.reduce(lambda known, change: change(known), changes,
                            record)


_SUFFIX = '.json'
_stores: weakref.WeakValueDictionary[str, Store] = (
    weakref.WeakValueDictionary())
_stores_mutex = threading.Lock()
_LOST = 'was damaged, and its claims are not rebuilt yet'


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Why the claims of a GPU are not known, and the remedy, for people."""

    reason: str
    remedy: str


@dataclasses.dataclass
class Draft:
    """A record that is being changed: replace it with the new one."""

    record: gpu_record.GpuRecord


def of(state_path: str) -> Store:
    """The records of a machine, one shared object in each process."""
    with _stores_mutex:
        store = _stores.get(state_path)
        if store is None:
            store = _stores[state_path] = Store(state_path)
        return store


class Store(boards.Records):
    """The records of one machine.

    :param clock: the time of day, in seconds of the epoch.
    """

    def __init__(self, state_path: str,
                 clock: Callable[[], float] = time.time):
        self.state_path = state_path
        self.clock = clock
        self._directory = os.path.join(state_path, 'gpus')
        self._cache: dict[model.PciAddress, tuple] = {}
        """The mark, record and content of each file when it was last read."""
        self._unwritten: dict[model.PciAddress, list[Change]] = {}
        """The changes of each record that no file has yet, in order."""
        self._failed: set[model.PciAddress] = set()
        """The GPUs whose last change is not written."""
        self._said = log_once.LogOnce()
        self._given_back: dict[str, float] = {}
        """Handle to the time when Cyborg gave it back, if its record may not
        say so yet."""

    def path(self, address: model.PciAddress) -> str:
        """The file of a GPU's record."""
        return os.path.join(self._directory, f'{address}{_SUFFIX}')

    def read(self, address: model.PciAddress) -> gpu_record.GpuRecord:
        """The record of a GPU; an empty one without a file. Takes no lock.

        :raises JournalUnreadable: if this process cannot read the file.
        :raises JournalError: if the record is damaged.
        """
        return self._current(_changed(self._read(address),
                                      self._waiting(address)))

    def peek(self, address: model.PciAddress) -> gpu_record.GpuRecord:
        """Like :meth:`read`; if the file is unusable, only what is in memory.

        Does not raise for an unusable record, but logs it once.
        """
        return self._look(address)[0]

    def is_usable(self, address: model.PciAddress) -> bool:
        """Whether the record of a GPU can be read."""
        return self._look(address)[1]

    def addresses(self) -> tuple[model.PciAddress, ...]:
        """The GPUs that have a record, in order."""
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
            *filter(self._waiting, list(self._unwritten))}))

    def records(self) -> dict[model.PciAddress, gpu_record.GpuRecord]:
        """All records by GPU, each read with :meth:`peek`."""
        return {address: self.peek(address) for address in self.addresses()}

    @contextlib.contextmanager
    def gpu(self, address: model.PciAddress) -> Iterator[Draft]:
        """Read a record, let the caller change it, and write it once.

        Nothing is written if the record is unchanged, or if the caller
        raises.

        :raises JournalError: if the record is damaged, or cannot be locked
            or written.
        """
        with locks.record(self.state_path, address):
            before = self._read(address)
            changes = self._waiting(address)
            draft = Draft(self._current(_changed(before, changes)))
            yield draft
            draft.record = self._counted(self._current(draft.record))
            if draft.record != before:
                self._write(address, draft.record)
            self._forget(address, changes)

    def put(self, address: model.PciAddress, **parts: Any) -> None:
        """Write parts of a record."""
        with self.gpu(address) as draft:
            draft.record = dataclasses.replace(draft.record, **parts)

    def keep(self, address: model.PciAddress, change: Change
             ) -> tuple[gpu_record.GpuRecord, gpu_record.GpuRecord]:
        """Change a record; keep the change in memory while it is unwritable.

        Does not raise; the reason is logged once.

        :returns: the record before and after.
        """
        try:
            with self.gpu(address) as draft:
                before = draft.record
                after = draft.record = change(before)
            self._failed.discard(address)
            if not self._failed:
                self._said.over('keep')
        except exception.JournalError as error:
            self._failed.add(address)
            # The reason is usually the same for all GPUs.
            self._say('keep', str(error).replace(str(address), 'ADDRESS')
                      + '. Changes of the records are kept in memory only, '
                      'and are lost at a restart')
            before = self.peek(address)
            after = change(before)
            if after != before:
                self._unwritten.setdefault(address, []).append(change)
        return before, after

    def observe(self, address: model.PciAddress, **parts: Any) -> None:
        """Replace parts of a record through :meth:`keep`.

        A part that the record has, but this process could not read, stays:
        the next report observes again what is there.
        """
        known = self.peek(address)
        before = {name: getattr(known, name) for name in parts}
        if before != parts or self._waiting(address):
            self.keep(address, lambda record: dataclasses.replace(record, **{
                name: value for name, value in parts.items()
                if getattr(record, name) == before[name]}))

    @property
    def unwritten(self) -> int:
        """The number of GPUs with data in memory that no file has yet."""
        return sum(map(bool, list(self._unwritten.values())))

    def check(self) -> bool:
        """Set damaged records aside, and delete files of dead writers.

        A record that this process cannot read stays: others may be able to
        read it. Records that stay are logged once.

        :returns: whether claims of any GPU are lost and have to be rebuilt.
        """
        for address in self.addresses():
            try:
                if self._damage(address) is not None:
                    self.check_gpu(address)
                self._said.over(('check', address))
            except exception.JournalUnreadable as error:
                self._say(address, error)
            except exception.JournalError as error:
                self._say(('check', address), error)
        return any(record.claims_lost for record in self.records().values())

    def check_gpu(self, address: model.PciAddress) -> None:
        """Like :meth:`check`, for one GPU."""
        path = self.path(address)
        with locks.record(self.state_path, address):
            for left in durable.leftovers(path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(left)
            error = self._damage(address)
            if error is not None:
                kept = durable.keep_aside(path)
                record, lost, content = _salvage(path, address)
                changes = self._waiting(address)
                self._write(address, _changed(record, changes), content)
                self._forget(address, changes)
                LOG.error('%(error)s. The record was moved to %(kept)s. '
                          '%(lost)s', {'error': error, 'kept': kept,
                                       'lost': lost})

    def _damage(self, address: model.PciAddress
                ) -> exception.JournalError | None:
        """What is wrong with a damaged record; None for another one."""
        try:
            self._read(address)
        except exception.JournalError as error:
            if isinstance(error, exception.JournalUnreadable):
                raise
            return error
        return None

    def unknown_claims(self) -> dict[model.PciAddress, Unknown]:
        """The GPUs whose claims are not known now."""
        found = {}
        for address in self.addresses():
            try:
                if self.read(address).claims_lost:
                    found[address] = Unknown(
                        f'its record {_LOST}',
                        'each report of the agent and "cyborg-gpu doctor '
                        '--repair" try to rebuild them; in mode nvlink this '
                        'needs [gpu_cloud]; if the GPU has been removed '
                        'for good, delete ' + self.path(address))
            except exception.JournalUnreadable as error:
                found[address] = Unknown(
                    str(error),
                    'make the file readable for the user of cyborg-agent')
            except exception.JournalError as error:
                found[address] = Unknown(
                    str(error),
                    'the next report of the agent moves the damaged record '
                    'aside and rebuilds it; "cyborg-gpu doctor --repair" '
                    'does so now')
        return found

    def closed_by_damage(self) -> tuple[model.PciAddress, ...]:
        """The GPUs that are cordoned because their records were damaged."""
        return tuple(address for address, record in self.records().items()
                     if cordon.of(record.cordons, cordon.Source.RECORD))

    # The claims of attach handles

    def claim(self, handle: str, gpu: model.PciAddress | None = None
              ) -> gpu_record.Claim | None:
        """The claim of ``handle``; for a group, the claim on its first GPU.

        :param gpu: the GPU that the claim can be on; None for any.
        :returns: None if there is no claim.
        :raises JournalError: if no readable record has a claim, and the
            record of ``gpu`` (if None: of any GPU) cannot be read.
        """
        problem = None
        found: list[gpu_record.Claim] = []
        for address in self.addresses():
            try:
                found += [claim for claim in self.claims(address)
                          if claim.handle == handle]
            except exception.JournalError as error:
                if gpu in (None, address):
                    problem = error
        if not found and problem is not None:
            raise problem
        return max(found, key=lambda claim: claim.leads, default=None)

    def claims(self, gpu: model.PciAddress | None = None
               ) -> tuple[gpu_record.Claim, ...]:
        """The claims on one GPU, or on all whose records can be read.

        :raises JournalError: if the record of ``gpu`` cannot be read.
        """
        if gpu is not None:
            return self.read(gpu).claims
        return tuple(claim for record in self.records().values()
                     for claim in record.claims)

    def all_claims(self) -> tuple[gpu_record.Claim, ...]:
        """The claims on all GPUs.

        :raises JournalError: if the claims on a GPU are not known.
        """
        found: list[gpu_record.Claim] = []
        for address in self.addresses():
            # One look, because another process may write the record.
            record = self.read(address)
            if record.claims_lost:
                raise exception.JournalError(path=self.path(address),
                                             reason=_LOST)
            found += record.claims
        return tuple(found)

    def has_claims(self, gpu: model.PciAddress) -> bool | None:
        """Whether a GPU has claims; None if its record cannot be read."""
        try:
            return bool(self.claims(gpu))
        except exception.JournalError:
            return None

    def owners(self, gpu: model.PciAddress) -> str:
        """The claims on a GPU, as text for people; empty if there is none.

        If they are not known, the text says why.
        """
        try:
            record = self.read(gpu)
            if record.claims_lost:
                return 'unknown: its record was lost'
            return ', '.join(f'{claim.profile} of handle {claim.handle}'
                             for claim in record.claims)
        except exception.JournalError as error:
            return f'unknown: {error}'

    def put_claims(self, *claims: gpu_record.Claim) -> None:
        """Write claims, replacing those of the same handles.

        The claims of one GPU are written in one step. A bound claim whose
        handle Cyborg has given back is written as unbinding.
        """
        by_gpu = collections.defaultdict(list)
        for claim in claims:
            by_gpu[claim.gpu].append(claim)
        for address, changed in by_gpu.items():
            with self.gpu(address) as draft:
                draft.record = draft.record.with_claims(changed)

    def rebuilt(self, gpu: model.PciAddress,
                claims: Iterable[gpu_record.Claim]) -> None:
        """Write the rebuilt claims of a GPU whose record was lost."""
        with self.gpu(gpu) as draft:
            draft.record = dataclasses.replace(
                draft.record.with_claims(claims), claims_lost=False)

    def remove_claims(self, handle: str) -> None:
        """Remove the claims of ``handle``; does nothing if it has none."""
        claim = self.claim(handle)
        if claim is None:
            return
        for address in reversed(claim.gpus):
            with self.gpu(address) as draft:
                draft.record = dataclasses.replace(draft.record, claims=tuple(
                    other for other in draft.record.claims
                    if other.handle != handle))
        self._given_back.pop(handle, None)

    def give_back(self, handle: str) -> None:
        """Write that Cyborg has given a handle back.

        This takes only the lock of the record. From now on the handle's
        claim counts as unbinding until it is removed, even if that cannot be
        written: Cyborg does not ask twice, and may give the handle to the
        next server.

        :raises JournalError: if it cannot be written to the disk.
        """
        self._given_back.setdefault(handle, self.clock())
        claim = self.claim(handle)
        if claim is None:
            self._given_back.pop(handle, None)
        else:
            for address in claim.gpus:
                with self.gpu(address):
                    pass  # It is read, and written, as unbinding.

    def given_away(self, handle: str) -> None:
        """Note that Cyborg has given a handle without a claim to a server.

        The handle no longer counts as given back. Another process, such as
        ``cyborg-gpu doctor --repair``, may have removed its old claim.
        """
        self._given_back.pop(handle, None)

    # NVML's answers about the boards

    def board(self, address: model.PciAddress) -> boards.Record | None:
        """The kept record of a board; logs an unusable GPU record once."""
        return self.peek(address).board

    def keep_board(self, address: model.PciAddress, record: boards.Record
                   ) -> None:
        """Keep a new record of a board.

        A server that has had the GPU since it was clean may have changed the
        modes, so the earlier ones are kept.
        """
        before = self.peek(address)
        if (before.board is not None and before.board.uuid == record.uuid
                and (before.claims or before.tenancy is not None
                     and before.tenancy.withheld)):
            record = dataclasses.replace(record, modes=before.board.modes)
        self.put(address, board=record)

    def _current(self, record: gpu_record.GpuRecord) -> gpu_record.GpuRecord:
        """The record, with what Cyborg has given back as unbinding."""
        def current(claim: gpu_record.Claim) -> gpu_record.Claim:
            # One look: another thread may remove the handle meanwhile.
            when = self._given_back.get(claim.handle)
            if when is None or claim.phase is not gpu_record.Phase.BOUND:
                return claim
            return dataclasses.replace(
                claim, phase=gpu_record.Phase.UNBINDING,
                until=max(when, claim.since or 0))

        return dataclasses.replace(
            record, claims=tuple(map(current, record.claims))
        ) if self._given_back else record

    def _look(self, address: model.PciAddress
              ) -> tuple[gpu_record.GpuRecord, bool]:
        """The result of :meth:`peek`, and whether the file is usable."""
        try:
            record = self.read(address)
        except exception.JournalError as error:
            self._say(address, error)
            return _changed(_EMPTY, self._waiting(address)), False
        self._said.over(address)
        return record, True

    def _waiting(self, address: model.PciAddress) -> tuple[Change, ...]:
        return tuple(self._unwritten.get(address, ()))

    def _forget(self, address: model.PciAddress, written: tuple[Change, ...]
                ) -> None:
        """Drop changes that were written; the record is locked.

        Another thread may have kept newer ones.
        """
        del self._unwritten.get(address, [])[:len(written)]

    def _read(self, address: model.PciAddress) -> gpu_record.GpuRecord:
        path = self.path(address)
        mark = durable.mark(path)
        known = self._cache.get(address)
        if known is not None and mark is not None and known[0] == mark:
            return known[1]
        content = durable.read(path, KIND, VERSION)
        if content is None:
            self._cache.pop(address, None)
            return _EMPTY
        record = _decoded(path, address, content)
        # The mark is from before the read: newer content is read again.
        self._cache[address] = mark, record, content
        return record

    def _counted(self, record: gpu_record.GpuRecord
                 ) -> gpu_record.GpuRecord:
        if not record.assigned and not record.ledger.running:
            return record
        now, last = uptime.now(), None
        if record.ledger.is_past(now.boot):
            try:
                last = uptime.last(self.state_path)
            except exception.JournalError as error:
                LOG.error('%s. The time since the last change of what servers '
                          'had before the restart is not counted.', error)
        return dataclasses.replace(record, ledger=ledger.following(
            record.ledger, record.assigned, now, last))

    def _write(self, address: model.PciAddress, record: gpu_record.GpuRecord,
               before: Any = None) -> None:
        """Write a record.

        :param before: the content that it replaces; None for the last one
            that was read.
        """
        path = self.path(address)
        if before is None and address in self._cache:
            before = self._cache[address][2]
        content = codec.carried(gpu_record.GpuRecord, before,
                                codec.encode(record))
        durable.write(path, KIND, VERSION, content)
        self._cache[address] = durable.mark(path), record, content

    def _say(self, what: Hashable, error: object) -> None:
        """Log an error once."""
        if self._said.is_new(str(error), what):
            LOG.error('%s', error)


def _address(name: str) -> model.PciAddress | None:
    """The GPU of a record's file name; None for another file."""
    try:
        address = model.PciAddress.parse(name.removesuffix(_SUFFIX))
    except exception.InvalidValue:
        return None
    return address if name == f'{address}{_SUFFIX}' else None
