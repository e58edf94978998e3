# SPDX-License-Identifier: Apache-2.0

"""Whole GPUs between two tenants: their states and transitions. Pure.

Cyborg does not call the driver when a server gets or releases a whole GPU.
Placement shows it: its allocations name the server that has the GPU, and the
provider's generation grows with each new allocation (not with each deletion).
So a tenant that came and went between two reports leaves a trace.
"""

from __future__ import annotations

import dataclasses
import enum

from cyborg_gpu_driver.host.snapshot import gpu_record

_MEMORY_SHARE = 64
"""On an idle GPU, less than one part in this many of the memory is in use.
The driver's own use is some megabytes, and NVML does not count all of it."""


class State(enum.Enum):
    """Where a whole GPU is between two tenants."""

    FREE = 'free'
    """No server has had it since it was reset, or first offered."""
    USED = 'used'
    """A server has it."""
    DIRTY = 'dirty'
    """A server had it; it has to be reset."""
    CLEANING = 'cleaning'
    """Its reset has begun. If a report finds this, that process has ended."""
    STUCK = 'stuck'
    """A server had it, and its last reset or the check after it failed."""

    @property
    def awaits_reset(self) -> bool:
        """Whether the GPU was released and is not clean yet."""
        return self not in (State.FREE, State.USED)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What Placement records about a whole GPU's provider."""

    tenants: tuple[str, ...]
    """UUIDs of the consumers (servers) that have allocations, sorted."""
    generation: int
    """The provider's generation."""
    ours: int = 0
    """How often this process has written to the provider. Each write has
    raised the generation by one."""


@dataclasses.dataclass(frozen=True)
class Known:
    """What the driver remembers of a whole GPU between two reports."""

    state: State
    tenants: tuple[str, ...] = ()
    """The servers that have it, or had it last."""
    generation: int | None = None
    """The provider's generation; None if Cyborg had not created it yet."""
    ours: int = 0
    """As in :class:`Seen`; valid only in the process that counted it."""
    reason: str = ''
    """Why it is not clean yet; empty if only the next report is missing."""

    @property
    def withheld(self) -> bool:
        """Whether the GPU must not be offered now."""
        return self.state is not State.FREE


@dataclasses.dataclass(frozen=True)
class Traces:
    """Signs of use that a GPU shows; None where it shows nothing."""

    driver: str | None
    uuid: str | None = None
    processes: int | None = None
    memory_used_mib: int | None = None
    """nvmlMemory_v2_t.used: without the memory that the driver reserves."""
    memory_mib: int | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded or the GPU reset (volatile)."""


def following(known: Known | None, seen: Seen | None) -> Known:
    """Return what to remember after a report.

    A GPU with a provider of which nothing is remembered may have had a
    tenant: before this version, or before the record was lost. A GPU whose
    provider Cyborg has not created yet had none.

    :param seen: None if the provider does not exist.
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
    """Return why a tenant may have got the GPU uncleaned; empty if none has.

    The allocation of a tenant raises the generation by exactly one.
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
    """Return why a reset GPU is not fit for the next tenant; or ``''``."""
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


def changed(address: str, before: gpu_record.Modes,
            now: gpu_record.Modes) -> str:
    """Return which mode a server has changed for good; or ``''``.

    :param before: the modes that it had before the server.
    """
    for name, is_same in (('ECC', before.ecc in (None, now.ecc)),
                          ('MIG', before.mig is now.mig)):
        if not is_same:
            return (f'its {name} mode is not what it was before the server '
                    'had it')
    was, mode = before.confidential_computing, now.confidential_computing
    if was is not None and mode != was:
        return (f'confidential computing is {mode}, and was {was} before the '
                f'server had it: {_by_tools(address, was)}')
    return ''


def shut(address: str, before: gpu_record.Modes) -> str:
    """Return why the driver may not open a GPU after a server; or ``''``.

    A driver outside of a confidential guest refuses a GPU with confidential
    computing (confComputeConstructEngine in conf_compute.c of NVIDIA's open
    kernel modules), and says so only in the kernel log.

    :param before: the modes that it had before the server.
    """
    was = before.confidential_computing
    if was is None:
        return ''
    return ('if the kernel log says "CPU does not support confidential '
            f'compute", a server has turned it on: {_by_tools(address, was)}')


def _by_tools(address: str, mode: str) -> str:
    return (f"NVML cannot change it; NVIDIA's gpu-admin-tools can, with "
            f'"nvidia_gpu_tools.py --devices {address.partition(":")[2]} '
            f'--set-cc-mode={mode} --reset-after-cc-mode-switch"')


def in_use(traces: Traces) -> str:
    """Describe the sign that a GPU is in use; or ``''``."""
    if traces.processes:
        return f'{traces.processes} process(es) use it'
    if (traces.memory_used_mib is not None and traces.memory_mib
            and traces.memory_used_mib * _MEMORY_SHARE > traces.memory_mib):
        return f'{traces.memory_used_mib} MiB of its memory are in use'
    return ''


def _uses(known: Known, seen: Seen) -> int:
    """Return how often others have changed the provider since ``known``."""
    if known.generation is None:
        return 0
    return (seen.generation - seen.ours) - (known.generation - known.ours)
