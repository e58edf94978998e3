# SPDX-License-Identifier: Apache-2.0

"""Clean whole GPUs for their next tenants.

A whole GPU is reserved in Placement while a server has it, so that it does
not become free when the server releases it. It is first reset and checked,
and only then offered again. A GPU in use is never reset: before a reset, one
step checks that its provider has no allocations and closes it to new ones.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Protocol

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

_PAUSE = 300.0
"""Seconds from a failed reset of a GPU to the next attempt. The kernel waits
up to a minute for a device to come back."""
_YOUNG = 90.0
"""Seconds in which a GPU that a server has got is looked at between two
reports too: a stay that is shorter than a report is billed to its end."""
_LOOKS = 5
"""Attempts at a provider that changes between the look and the write."""
_State = cleaning.State


@dataclasses.dataclass(frozen=True)
class Whole:
    """A GPU that is offered as a whole."""

    gpu: model.Gpu
    provider: str
    """The provider's UUID."""
    resource_class: str


class Tenancy(Protocol):
    """The calls to Placement; see :mod:`cyborg_gpu_driver.report.reserved`."""

    def seen(self, provider: str) -> cleaning.Seen | None:
        """The consumers of a provider; None if it is missing."""

    def close(self, provider: str, resource_class: str,
              seen: cleaning.Seen) -> cleaning.Seen | None:
        """Close a provider to new allocations."""

    def generations(self, providers: Sequence[str]) -> Mapping[str, int]:
        """Generation of each provider of the host, in one request."""


class Cleaner:
    """Knows which whole GPUs are clean, and cleans the others.

    :param tenancy: queries Placement; None if :meth:`Cleaner.look` is not
        called.
    :param enabled: ``[gpu] clean_whole_gpus``. If False, GPUs are not
        checked, remembered or withheld.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, resetter: reset.Resetter, state_path: str,
                 tenancy: Tenancy | None, record: audit.Audit,
                 enabled: bool = True,
                 clock: Callable[[], float] = time.monotonic):
        self._resetter = resetter
        self._state_path = state_path
        self._store = store.of(state_path)
        self._tenancy = tenancy
        self._audit = record
        self._enabled = enabled
        self._clock = clock
        self._memory: dict[model.PciAddress, cleaning.Known | None] = {}
        """What this process knows, including what no record has."""
        self._given: dict[model.PciAddress, float] = {}
        """When a look has first found the GPU's server."""
        self._failed: dict[model.PciAddress, float] = {}
        self._said = log_once.LogOnce()

    def withholds(self, found: Collection[offers.Offer]) -> bool:
        """Whether a server has a GPU as a whole, or it is not clean yet.

        Placement must not promise it to another server then. Placement still
        lets Nova write the allocation of its server again.

        :param found: the GPU's offers. Only those of whole GPUs count: for
            other modes the last tenant does not matter.
        """
        return self._enabled and any(
            known.withheld for offer in found
            if offer.mode is policy.Mode.PASSTHROUGH
            and (known := self._known(offer.gpu)) is not None)

    def take(self, whole: Whole, is_reported: bool, is_parted: bool) -> str:
        """Let no server get a GPU as a whole from now on.

        One step checks that the provider has no allocations and closes it.
        The caller ensures that it remains closed.

        :param is_reported: whether the GPU was reported to Cyborg.
        :param is_parted: whether parts of the GPU are bound. Since then no
            server can have had the whole GPU, even if its provider has
            changed.
        :returns: why a server has or may have the whole GPU; empty if none
            has.
        """
        if self._tenancy is None:
            return ''
        for _ in range(_LOOKS):
            seen = self._tenancy.seen(whole.provider)
            if seen is None:
                return ('it is not known whether a server has the whole GPU: '
                        f'Placement has no provider {whole.provider} yet'
                        if is_reported else '')
            known = cleaning.following(self._known(whole.gpu.address), seen)
            if known.state is _State.USED:
                return f'server {_who(known)} has the whole GPU'
            if known.withheld and not is_parted:
                return ('a server had the whole GPU, which has not been '
                        'reset yet')
            closed = self._tenancy.close(whole.provider,
                                         whole.resource_class, seen)
            if closed is not None:
                self._keep(whole.gpu.address, cleaning.Known(
                    _State.FREE, generation=closed.generation,
                    ours=closed.ours))
                return ''
        return f'provider {whole.provider} in Placement changes too often'

    def look(self, wholes: Iterable[Whole],
             unread: Collection[model.PciAddress] = ()) -> None:
        """See which servers have whole GPUs, and clean the released GPUs.

        Never raises for Placement. If it does not answer, nothing changes.

        :param wholes: GPUs that are reported as they are in the machine.
        :param unread: GPUs that stay as they were reported.
        """
        wholes = tuple(wholes)
        self._leave({*unread, *(whole.gpu.address for whole in wholes)})
        if self._enabled and self._tenancy is not None:
            self._look(self._tenancy, wholes)

    def look_at_changed(self, wholes: Iterable[Whole]
                        ) -> list[model.PciAddress]:
        """Look at the free GPUs of which servers may have got one just now.

        This makes one request for all free GPUs if no provider has changed. A
        release changes no provider. So it makes one more request for each
        GPU that a server has got a short time ago.

        :returns: the GPUs that a server has got, or had and that were cleaned.
        """
        if not self._enabled or self._tenancy is None:
            return []
        free: list[tuple[Whole, int]] = []
        young: list[Whole] = []
        for whole in wholes:
            known = self._known(whole.gpu.address)
            if known is None or known.generation is None:
                continue
            if known.state is _State.FREE:
                free.append((whole, known.generation))
            elif (known.state is _State.USED and self._clock() <
                    self._given.get(whole.gpu.address, -_YOUNG) + _YOUNG):
                young.append(whole)
        return self._look(self._tenancy,
                          [*young, *self._changed(self._tenancy, free)])

    def _changed(self, tenancy: Tenancy, free: Sequence[tuple[Whole, int]]
                 ) -> list[Whole]:
        """The free GPUs whose providers have changed."""
        if not free:
            return []
        try:
            generations = tenancy.generations(
                [whole.provider for whole, _ in free])
        except Exception as error:
            self._tell_unseen(error)
            return []
        return [whole for whole, generation in free
                if generations.get(whole.provider, generation) != generation]

    def _look(self, tenancy: Tenancy, wholes: Iterable[Whole]
              ) -> list[model.PciAddress]:
        """Returns the GPUs whose use has begun or ended."""
        used = []
        for whole in wholes:
            try:
                seen = tenancy.seen(whole.provider)
            except exception.PlacementRefused as error:
                self._tell_unseen(error, whole.provider)
                continue
            except Exception as error:
                # Placement would not answer for the other GPUs either.
                self._tell_unseen(error)
                break
            self._said.over()
            self._said.over(whole.provider)
            if self._follow(tenancy, whole, seen):
                used.append(whole.gpu.address)
        return used

    def _leave(self, kept: Collection[model.PciAddress]) -> None:
        """End the time of servers whose GPUs are not looked at any more.

        Such a GPU is reset before it is offered as a whole again. With
        ``clean_whole_gpus = false`` nothing is remembered of any GPU.

        :param kept: the GPUs that servers may still have as a whole.
        """
        for address, record in self._store.records().items():
            known = record.tenancy
            if known is None or (self._enabled and (
                    address in kept or known.state is not _State.USED)):
                continue
            if known.state is _State.USED:
                self._audit.record(address, 'returned', _who(known), {
                    'generation': known.generation,
                    'seen': known.state.value})
            self._keep(address, dataclasses.replace(
                known, state=_State.DIRTY) if self._enabled else None)

    def _tell_unseen(self, error: Exception, provider: str | None = None
                     ) -> None:
        reason = exception.steady(error)
        if self._said.is_new(reason, provider):
            LOG.warning('Cannot read from Placement which servers have the '
                        'whole GPUs of this host: %s. Each report tries '
                        'again.', reason)

    def _follow(self, tenancy: Tenancy, whole: Whole,
                seen: cleaning.Seen | None) -> bool:
        """Returns whether the use of the GPU has begun or ended."""
        address = whole.gpu.address
        before = self._known(address)
        known = cleaning.following(before, seen)
        # In this order: if this process is killed, the audit log has the
        # change twice, but never misses it.
        self._tell(address, before, known, cleaning.doubt(before, seen))
        self._keep(address, known)
        if known.state is _State.DIRTY and seen is not None:
            self._clean(tenancy, whole, known, seen)
        elif known.state is _State.FREE:
            self._warn_of_no_reset(whole.gpu)
        return known.withheld and known != before

    def _tell(self, address: model.PciAddress,
              before: cleaning.Known | None, known: cleaning.Known,
              doubt: str) -> None:
        """Write to the audit log what has changed since the last look."""
        was = before and before.state
        if known.state is _State.USED and (
                before is None or was is not _State.USED
                or before.tenants != known.tenants):
            self._said.over(address)
            self._given[address] = self._clock()
            for tenant in known.tenants:
                self._audit.record(address, 'given', tenant, {
                    'generation': known.generation, 'doubt': doubt,
                    'tenants': list(known.tenants)})
            if doubt:
                LOG.error('GPU %(gpu)s may not have been reset before '
                          '%(who)s got it: %(doubt)s',
                          {'gpu': address, 'who': ', '.join(known.tenants),
                           'doubt': doubt})
        elif known.state is _State.DIRTY and not (was and was.awaits_reset):
            self._audit.record(address, 'returned', _who(known), {
                'generation': known.generation,
                'seen': was.value if was else 'never'})

    def _clean(self, tenancy: Tenancy, whole: Whole, known: cleaning.Known,
               seen: cleaning.Seen) -> None:
        """Reset a GPU that no server has, and remember the result."""
        address = whole.gpu.address
        if self._clock() < self._failed.get(address, 0.0):
            self._keep(address, dataclasses.replace(
                known, state=_State.STUCK))
            return
        try:
            closed = tenancy.close(whole.provider, whole.resource_class,
                                   seen)
            with locks.gpu(self._state_path, address):
                known = self._clean_closed(whole, known, closed)
        except (exception.GpuInUse, exception.LockTimeout) as error:
            self._put_off(address, known, _State.DIRTY, str(error))
        except Exception as error:
            if not isinstance(error, exception.GpuDriverError):
                # For example of privsep, whose daemon may not start. A
                # report must not fail because of this.
                LOG.exception('GPU %s', address)
            self._failed[address] = self._clock() + _PAUSE
            self._put_off(address, known, _State.STUCK, str(error))
        else:
            self._failed.pop(address, None)
            self._said.over(address)
            self._keep(address, known)
            LOG.info('GPU %s was reset and is offered again', address)

    def _clean_closed(self, whole: Whole, known: cleaning.Known,
                      closed: cleaning.Seen | None) -> cleaning.Known:
        gpu = whole.gpu
        if closed is None:
            raise exception.GpuInUse(
                gpu=gpu.address, reason='its provider in Placement has just '
                                        'been changed')
        evidence = self._resetter.reset(gpu, lambda: self._keep(
            gpu.address, dataclasses.replace(known, state=_State.CLEANING)))
        self._audit.record(gpu.address, 'cleaned', _who(known), evidence)
        return cleaning.Known(_State.FREE, generation=closed.generation,
                              ours=closed.ours)

    def _warn_of_no_reset(self, gpu: model.Gpu) -> None:
        address = gpu.address
        if (not self._resetter.can_reset(gpu)
                and self._said.is_new('no reset', (address, 'reset'))):
            LOG.warning('GPU %s cannot be reset: once its next server has '
                        'released it, it will not be offered again, unless '
                        '[gpu] clean_whole_gpus is false', address)

    def _put_off(self, address: model.PciAddress, known: cleaning.Known,
                 state: cleaning.State, reason: str) -> None:
        """Keep a GPU withheld, and log the reason once."""
        self._keep(address, dataclasses.replace(known, state=state,
                                                reason=reason))
        if self._said.is_new(reason, address):
            self._audit.record(address, 'not-cleaned', _who(known),
                               {'reason': reason})
            LOG.warning('GPU %(gpu)s was released by its server and is not '
                        'offered until it is reset: %(reason)s',
                        {'gpu': address, 'reason': reason})

    def _known(self, address: model.PciAddress) -> cleaning.Known | None:
        """The remembered state; None if the record cannot be used.

        In that case a GPU that has a provider is reset.
        """
        if address not in self._memory:
            known = self._store.peek(address).tenancy
            self._memory[address] = known and dataclasses.replace(
                known, ours=0)
        return self._memory[address]

    def _keep(self, address: model.PciAddress,
              known: cleaning.Known | None) -> None:
        # If the record cannot be written, an older one remains. That causes
        # at most an unnecessary reset.
        self._memory[address] = known
        self._store.observe(address, tenancy=known)


def _who(known: cleaning.Known) -> str:
    return ', '.join(known.tenants)
