# SPDX-License-Identifier: Apache-2.0

"""What the agent reports about itself: one small file, replaced atomically.

The agent and the exporter are two processes of two users. The agent counts in
its memory and writes all counts after each report, because a write to the
disk would make each bind slower. A reader sees the old file or the new one.
The size of the file depends only on the number of GPUs. The counters begin at
0 when the agent starts, which is what Prometheus expects.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)

KIND = 'cyborg-gpu metrics'
VERSION = 1
_NAME = 'metrics.json'
RESULTS = ('success', 'refused', 'late', 'error')
OPERATIONS = ('bind', 'unbind', 'report')
_RESULTS = {exception.BindRefused: 'refused',
            exception.InvalidValue: 'refused',
            exception.UnknownGpu: 'refused',
            exception.BindAbandoned: 'late',
            exception.StepFailed: 'late'}


@dataclasses.dataclass(frozen=True)
class Latency:
    """How long an operation took, as a histogram."""

    counts: tuple[int, ...] = (0,) * (len(definitions.BUCKETS) + 1)
    """Number of operations by bucket; the last has all that took longer."""
    seconds: float = 0.0
    """Sum of all durations."""

    def plus(self, seconds: float) -> Latency:
        """Return the histogram with one more operation."""
        place = bisect.bisect_left(definitions.BUCKETS, seconds)
        return Latency(
            tuple(count + (index == place)
                  for index, count in enumerate(self.counts)),
            self.seconds + seconds)


@dataclasses.dataclass(frozen=True)
class OfferState:
    """One offer as the agent knew it."""

    mode: str
    profile: str
    resource_class: str
    total: int
    in_use: int
    reserved: int
    open: int
    """How many Placement can still give away."""
    creatable: int


@dataclasses.dataclass(frozen=True)
class GpuState:
    """One GPU as the agent knew it."""

    healthy: bool
    offers: tuple[OfferState, ...] = ()
    free_slices: int | None = None
    """Compute slices in no GPU instance; None outside MIG mode."""
    largest_slices: int | None = None


@dataclasses.dataclass(frozen=True)
class Owner:
    """The owner of a handle, as Cyborg reports it."""

    arq: str
    server: str
    since: float | None = None
    """When the bind that Cyborg was asked about was made, as in the claim.
    Cyborg gives a handle to one server after another."""


@dataclasses.dataclass(frozen=True)
class State:
    """The content of the file."""

    hostname: str
    written: float
    operations: Mapping[str, Mapping[str, int]]
    """By operation and result."""
    latencies: Mapping[str, Latency]
    """By operation."""
    last_report: float | None = None
    drift: Mapping[str, int] = dataclasses.field(default_factory=dict)
    repaired: Mapping[str, int] = dataclasses.field(default_factory=dict)
    missed_deadlines: int = 0
    stuck_calls: int = 0
    unwritten: int = 0
    gpus: Mapping[model.PciAddress, GpuState] = dataclasses.field(
        default_factory=dict)
    owners: Mapping[str, Owner] = dataclasses.field(default_factory=dict)
    """By handle; bound handles only."""
    xids: Mapping[model.PciAddress, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)
    """How often NVML has reported each XID, by GPU and number."""


def owner_of(claim: gpu_record.Claim, owners: Mapping[str, Owner]
             ) -> Owner | None:
    """Return the owner of a claim; None if only that of an earlier bind is
    known, or none.
    """
    found = owners.get(claim.handle)
    return None if found is None or found.since != claim.since else found


def path(state_path: str) -> str:
    """Return the path of the file below ``[gpu] state_path``."""
    return os.path.join(state_path, _NAME)


def read(state_path: str) -> State | None:
    """Return what the agent wrote last; None if it has never written.

    :raises JournalUnreadable: if this process cannot read the file.
    :raises JournalError: if the file is damaged.
    """
    place = path(state_path)
    content = durable.read(place, KIND, VERSION)
    if content is None:
        return None
    try:
        return codec.decode(State, content)
    except ValueError as error:
        raise exception.JournalError(
            path=place, reason=f'is damaged: {error}') from error


class StateWriter:
    """Counts for one agent, and writes the file.

    :param clock: the time of day, in seconds of the epoch.
    :param timer: a monotonic clock, in seconds.
    """

    def __init__(self, state_path: str, hostname: str,
                 clock: Callable[[], float] = time.time,
                 timer: Callable[[], float] = time.monotonic):
        self._state_path = state_path
        self._clock = clock
        self._timer = timer
        self._mutex = threading.Lock()
        self._writing = threading.Lock()
        """Separate from ``_mutex``: a bind must not wait for the disk."""
        self._said = log_once.LogOnce()
        self._operations: dict[str, collections.Counter[str]] = (
            collections.defaultdict(collections.Counter))
        self._latencies: dict[str, Latency] = {}
        self._repaired: collections.Counter[str] = collections.Counter()
        self._state = State(hostname, 0.0, {}, {})
        with contextlib.suppress(exception.JournalError):
            before = read(state_path)
            if before is not None:
                self._state = dataclasses.replace(
                    self._state, owners=before.owners)

    @contextlib.contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Time an operation, and count it by its result."""
        begun = self._timer()
        result = 'error'
        try:
            yield
            result = 'success'
        except Exception as error:
            result = next((name for kind, name in _RESULTS.items()
                           if isinstance(error, kind)), 'error')
            raise
        finally:
            seconds = self._timer() - begun
            with self._mutex:
                self._operations[operation][result] += 1
                self._latencies[operation] = self._latencies.get(
                    operation, Latency()).plus(seconds)

    def found(self, kinds: Iterable[str], repaired: Iterable[str]) -> None:
        """Record the kinds of the differences that remain or were repaired.
        """
        self._repaired.update(repaired)
        self.set(drift=dict(collections.Counter(kinds)),
                 repaired=dict(self._repaired))

    def xid(self, event: condition.Event) -> None:
        """Count an error of a GPU that the NVIDIA driver has reported."""
        with self._mutex:
            counts = collections.Counter(
                self._state.xids.get(event.address, {}))
            counts[str(event.xid)] += 1
            self._state = dataclasses.replace(self._state, xids={
                **self._state.xids, event.address: dict(counts)})

    def set(self, **parts: Any) -> None:
        """Replace parts of the state."""
        with self._mutex:
            self._state = dataclasses.replace(self._state, **parts)

    @property
    def owners(self) -> Mapping[str, Owner]:
        """The known owner of each handle; at first as the file has them."""
        return self._state.owners

    def write(self) -> None:
        """Write the file. Never raises; a failure is logged once."""
        with self._writing:
            with self._mutex:
                state = self._state = dataclasses.replace(
                    self._state, written=self._clock(),
                    operations={name: dict(counts) for name, counts
                                in self._operations.items()},
                    latencies=dict(self._latencies))
            try:
                durable.write(path(self._state_path), KIND, VERSION,
                              codec.encode(state))
            except exception.JournalError as error:
                if self._said.is_new(str(error)):
                    LOG.warning('The metrics of this agent are stale: %s',
                                error)
            else:
                self._said.over()
