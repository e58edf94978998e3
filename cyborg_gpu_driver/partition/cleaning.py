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

"""Whole GPUs between two tenants: what is known, and what follows. Pure.

Cyborg calls nobody when a whole GPU is given away or given back. Placement
tells: its allocations name who has the GPU, and the provider's generation
grows with each allocation that is made (not with each that is deleted), so
that a tenant who came and went between two looks leaves a trace.
"""

from __future__ import annotations

import dataclasses
import enum

_MEMORY_SHARE = 64
"""Of a GPU that nobody uses, less than one part in so many of its memory is
in use: the driver's own is some megabytes, and is not counted in full."""


class State(enum.Enum):
    """Where a whole GPU is between two tenants."""

    FREE = 'free'
    """Nobody has had it since it was reset, or first offered."""
    USED = 'used'
    """Somebody has it."""
    DIRTY = 'dirty'
    """Somebody had it; it is to be reset."""
    CLEANING = 'cleaning'
    """Its reset has begun. Found at a look, its process ended meanwhile."""
    STUCK = 'stuck'
    """Somebody had it, and its last reset or the check after it failed."""

    @property
    def awaits_reset(self) -> bool:
        """Whether it was given back and is not clean yet."""
        return self not in (State.FREE, State.USED)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What Placement says of a whole GPU's provider."""

    tenants: tuple[str, ...]
    """UUIDs of the consumers that have allocations, sorted: servers."""
    generation: int
    """The provider's."""
    ours: int = 0
    """How often this process has written to the provider, each of which has
    raised its generation by one."""


@dataclasses.dataclass(frozen=True)
class Known:
    """What is remembered of a whole GPU from one look to the next."""

    state: State
    tenants: tuple[str, ...] = ()
    """Who has it, or had it last."""
    generation: int | None = None
    """Of the provider; None where Cyborg had not made it yet."""
    ours: int = 0
    """As in :class:`Seen`. It counts in the process that saw it alone."""
    reason: str = ''
    """Why it is not clean yet; empty if there is none but the next look."""

    @property
    def withheld(self) -> bool:
        """Whether it must not be promised to anybody now."""
        return self.state is not State.FREE


@dataclasses.dataclass(frozen=True)
class Traces:
    """What a GPU shows of who used it; None where it does not tell."""

    driver: str | None
    uuid: str | None = None
    processes: int | None = None
    memory_used_mib: int | None = None
    """nvmlMemory_v2_t.used: without what the driver reserves."""
    memory_mib: int | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded or the GPU reset (volatile)."""


def following(known: Known | None, seen: Seen | None) -> Known:
    """What is to be remembered after a look.

    A GPU of which nothing is remembered although its provider is there may
    have had a tenant: before this version, or before the record was lost.
    One whose provider Cyborg has yet to make had none.

    :param seen: None if there is no such provider.
    """
    if seen is None:
        if known is None or known.state is State.FREE:
            return Known(State.FREE)
        return known
    if seen.tenants:
        found = Known(State.USED, seen.tenants)
    elif known is None:
        found = Known(State.DIRTY)
    elif known.state is State.FREE and not _uses(known, seen):
        found = known
    else:
        found = Known(State.DIRTY, known.tenants, reason=known.reason)
    return dataclasses.replace(found, generation=seen.generation,
                               ours=seen.ours)


def doubt(known: Known | None, seen: Seen | None) -> str:
    """Why a tenant may have got the GPU uncleaned; empty if none has.

    The one allocation that makes a tenant raises the generation by one.
    """
    if known is None or seen is None or not seen.tenants:
        return ''
    if known.state is State.FREE:
        if _uses(known, seen) > 1:
            return ('its provider has changed more than once since the last '
                    'report, so another server may have used it')
    elif known.state is State.USED:
        if not set(seen.tenants) <= set(known.tenants):
            return 'other servers used it at the last report'
    else:
        return 'it was assigned before it was reset'
    return ''


def remains(before: Traces, after: Traces) -> str:
    """Why a GPU that was reset is not fit for the next tenant; or ``''``."""
    if after.driver != before.driver:
        return (f'its driver was {before.driver} before the reset and is '
                f'{after.driver} now')
    if after.uuid != before.uuid:
        return f'NVML lists {after.uuid} instead of {before.uuid}'
    used = in_use(after)
    if used:
        return f'{used} after the reset'
    if before.ecc_uncorrected and after.ecc_uncorrected:
        return ('the reset did not clear its count of memory errors, so the '
                'GPU was not reset')
    return ''


def in_use(traces: Traces) -> str:
    """How a GPU shows that somebody uses it; or ``''``."""
    if traces.processes:
        return f'{traces.processes} process(es) use it'
    if (traces.memory_used_mib is not None and traces.memory_mib
            and traces.memory_used_mib * _MEMORY_SHARE > traces.memory_mib):
        return f'{traces.memory_used_mib} MiB of its memory are in use'
    return ''


def _uses(known: Known, seen: Seen) -> int:
    """How often others have changed the provider since it was known."""
    if known.generation is None:
        return 0
    return (seen.generation - seen.ours) - (known.generation - known.ours)
