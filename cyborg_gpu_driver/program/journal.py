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

"""The claims of attach handles on this machine, and how far they have come.

Each attach handle has one claim on each of its GPUs. A claim is written
before its partition is touched and again afterwards, so that the next process
can finish the operation or roll it back.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition.offer import elastic
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.record import unknown_claims

Entry = gpu_record.Claim
Phase = gpu_record.Phase


class Journal:
    """The claims in the records of this machine's GPUs.

    :param state_path: ``[gpu] state_path``.
    :param clock: the time of day, in seconds of the epoch.
    """

    def __init__(self, state_path: str,
                 clock: Callable[[], float] = time.time):
        self._store = store.of(state_path)
        self.clock = clock
        self._given_back: dict[str, float] = {}
        """Handle to the time when Cyborg gave it back, if its record may not
        say so yet."""

    def get(self, handle: str, gpu: model.PciAddress | None = None
            ) -> Entry | None:
        """The claim of ``handle``; for a group, the claim on its first GPU.

        :param gpu: the GPU that the claim can be on; None for any.
        :returns: None if there is no claim.
        :raises JournalError: if no readable record has a claim, and the
            record of ``gpu`` (if None: of any GPU) cannot be read.
        """
        problem = None
        follower = None
        for address in self._store.addresses():
            try:
                found = self.entries(address)
            except exception.JournalError as error:
                if gpu in (None, address):
                    problem = error
                continue
            for entry in found:
                if entry.handle == handle and entry.leads:
                    return entry
                if entry.handle == handle:
                    follower = entry
        if follower is not None:
            return follower
        if problem is not None:
            raise problem
        return None

    def entries(self, gpu: model.PciAddress | None = None
                ) -> tuple[Entry, ...]:
        """The claims on one GPU, or on all whose records can be read.

        :raises JournalError: if the record of ``gpu`` cannot be read.
        """
        if gpu is not None:
            return self._as_given_back(self._store.read(gpu).claims)
        return tuple(entry for record in self._store.records().values()
                     for entry in self._as_given_back(record.claims))

    def all_entries(self) -> tuple[Entry, ...]:
        """The claims on all GPUs.

        :raises JournalError: if the claims on a GPU are not known.
        """
        found: list[Entry] = []
        for address in self._store.addresses():
            # One look, because another process may write the record.
            record = self._store.read(address)
            if record.claims_lost:
                raise exception.JournalError(
                    path=self._store.path(address),
                    reason=unknown_claims.LOST)
            found += self._as_given_back(record.claims)
        return tuple(found)

    def has_claims(self, gpu: model.PciAddress) -> bool | None:
        """Whether a GPU has claims; None if its record cannot be read."""
        try:
            return bool(self.entries(gpu))
        except exception.JournalError:
            return None

    def situation(self, gpu: model.PciAddress) -> elastic.Situation:
        """What the record of a GPU in mode auto says about its roles.

        :raises JournalError: if the record cannot be read.
        """
        return elastic.Situation(claimed(self.entries(gpu)),
                                 self._store.read(gpu).by_role)

    def reported(self, gpu: model.PciAddress) -> frozenset[str]:
        """UUIDs of the GPU's providers that were reported to Cyborg.

        :raises JournalError: if the record cannot be read.
        """
        known = self._store.read(gpu).reported
        return frozenset(known.providers if known else ())

    def facts_by_role(self) -> list[tuple[model.PciAddress,
                                      roles.FactsByRole]]:
        """The GPUs with facts by role; empty if the records are unreadable.
        """
        try:
            records = self._store.records()
        except exception.JournalUnreadable:
            return []
        return [(address, record.by_role)
                for address, record in records.items() if record.by_role]

    def put(self, *entries: Entry) -> None:
        """Write claims, replacing those of the same handles.

        The claims of one GPU are written in one step. A bound claim whose
        handle Cyborg has given back is written as unbinding.

        :raises JournalError: if they cannot be written to the disk.
        """
        by_gpu = collections.defaultdict(list)
        for entry in entries:
            by_gpu[entry.gpu].append(entry)
        for address, changed in by_gpu.items():
            with self._store.gpu(address) as draft:
                self._set(draft, (*draft.record.claims, *changed))

    def found(self, gpu: model.PciAddress, entries: Iterable[Entry]) -> None:
        """Write the rebuilt claims of a GPU whose record was lost.

        :raises JournalError: if they cannot be written to the disk.
        """
        with self._store.gpu(gpu) as draft:
            self._set(draft, (*draft.record.claims, *entries))
            draft.record = dataclasses.replace(draft.record,
                                               claims_lost=False)

    def remove(self, handle: str) -> None:
        """Remove the claims of ``handle``; does nothing if it has none."""
        entry = self.get(handle)
        if entry is None:
            return
        for address in reversed(entry.gpus):
            with self._store.gpu(address) as draft:
                self._set(draft, (other for other in draft.record.claims
                                  if other.handle != handle))
        self._given_back.pop(handle, None)

    def give_back(self, handle: str) -> None:
        """Write that Cyborg has given a handle back.

        This takes only the lock of the record. From now on the handle's
        entry counts as unbinding until it is removed, even if that cannot be
        written: Cyborg does not ask twice, and may give the handle to the
        next server.

        :raises JournalError: if it cannot be written to the disk.
        """
        self._given_back.setdefault(handle, self.clock())
        entry = self.get(handle)
        if entry is None:
            self._given_back.pop(handle, None)
        else:
            # Not ``entry``: the claim may have been written again meanwhile.
            for address in entry.gpus:
                with self._store.gpu(address) as draft:
                    self._set(draft, draft.record.claims)

    def given_away(self, handle: str) -> None:
        """Note that Cyborg has given a handle without an entry to a server.

        The handle no longer counts as given back. Another process, such as
        ``cyborg-gpu doctor --repair``, may have removed its old entry.
        """
        self._given_back.pop(handle, None)

    def check(self) -> bool:
        """Set damaged records aside, with a message.

        :returns: whether claims are lost and have to be rebuilt.
        :raises JournalError: see :meth:`.store.Store.check`.
        """
        self._store.check()
        return self._store.has_lost()

    def owners(self, gpu: model.PciAddress) -> str:
        """The claims on a GPU, as text for people; empty if there is none.

        If they are not known, the text says why.
        """
        try:
            if self._store.is_lost(gpu):
                return 'unknown: its record was lost'
            return ', '.join(f'{entry.profile} of handle {entry.handle}'
                             for entry in self.entries(gpu))
        except exception.JournalError as error:
            return f'unknown: {error}'

    def nvlink(self, gpu: model.PciAddress) -> gpu_record.Nvlink | None:
        """How NVLink connects a GPU; None if unknown."""
        return self._store.peek(gpu).nvlink

    def closed_by_damage(self) -> tuple[model.PciAddress, ...]:
        """The GPUs that are cordoned because their records were damaged.

        :raises JournalUnreadable: if the directory of the records cannot be
            read.
        """
        return tuple(address for address, record
                     in self._store.records().items()
                     if cordon.of(record.cordons, cordon.Source.RECORD))

    def keep_nvlink(self, gpu: model.PciAddress, known: gpu_record.Nvlink
                    ) -> None:
        """Remember how NVLink connects a GPU.

        While it cannot be written to the disk, it is kept in memory. See
        :meth:`.store.Store.keep`.
        """
        self._store.observe(gpu, nvlink=known)

    def _set(self, draft: store.Draft, claims: Iterable[Entry]) -> None:
        by_handle = {entry.handle: entry for entry in claims}
        draft.record = dataclasses.replace(
            draft.record,
            claims=self._as_given_back(tuple(by_handle.values())))

    def _as_given_back(self, entries: tuple[Entry, ...]
                       ) -> tuple[Entry, ...]:
        def current(entry: Entry) -> Entry:
            # One look: another thread may remove the handle meanwhile.
            when = self._given_back.get(entry.handle)
            if when is None or entry.phase is not Phase.BOUND:
                return entry
            return dataclasses.replace(entry, phase=Phase.UNBINDING,
                                       until=max(when, entry.since or 0))

        return tuple(map(current, entries)) if self._given_back else entries


def claimed(entries: Iterable[Entry]) -> frozenset[policy.Mode]:
    """The roles that a GPU in mode auto has by its claims; at most one."""
    return frozenset(entry.role for entry in entries)


def owned(entries: Iterable[Entry]) -> collections.Counter[str]:
    """How many handles are bound with each profile."""
    return collections.Counter(entry.profile for entry in entries
                               if entry.is_owned)


def on_each(entry: Entry, **changes: Any) -> tuple[Entry, ...]:
    """The claims of a handle on all of its GPUs, the first GPU's first.

    :param changes: changed fields, for all of the claims.
    """
    return tuple(dataclasses.replace(entry, gpu=address, **changes)
                 for address in entry.gpus)
