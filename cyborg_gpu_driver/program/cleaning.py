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

"""Whole GPUs made fit for their next tenant.

A whole GPU is reserved in Placement while somebody has it, so that it does
not become free with its release: it is reset and looked at first, and only
then offered again. Nothing is reset that anybody has or uses: its provider
is found without allocations and closed to new ones in one step before.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
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
"""Seconds between two resets of a GPU of which the first has failed. The
kernel waits up to a minute for a device to come back."""
_LOOKS = 5
"""At a provider that somebody changes between the look and the write."""
_State = cleaning.State


@dataclasses.dataclass(frozen=True)
class Whole:
    """A GPU that is offered as a whole."""

    gpu: model.Gpu
    provider: str
    """UUID."""
    resource_class: str


class Tenancy(Protocol):
    """Placement's side; see :mod:`cyborg_gpu_driver.report.reserved`."""

    def seen(self, provider: str) -> cleaning.Seen | None:
        """Who has it."""

    def close(self, provider: str, resource_class: str,
              seen: cleaning.Seen) -> cleaning.Seen | None:
        """Let nobody have it any more."""


class Cleaner:
    """Knows which whole GPUs are clean, and cleans the others.

    :param resetter: resets GPUs.
    :param state_path: ``[gpu] state_path``.
    :param tenancy: asks Placement; None where :meth:`Cleaner.look` is not
        called.
    :param record: what was done.
    :param enabled: ``[gpu] clean_whole_gpus``. False: nothing is looked at,
        remembered or withheld.
    :param clock: seconds that only grow.
    :param closes_used: whether a GPU is closed as soon as somebody has it.
        False closes it when it was given back: Placement before 14.0.0
        refuses to write an allocation again where ``reserved`` and ``used``
        are more than ``total`` together, even if it is unchanged
        (_check_capacity_exceeded in placement/objects/allocation.py).
    """

    def __init__(self, resetter: reset.Resetter, state_path: str,
                 tenancy: Tenancy | None, record: audit.Audit,
                 enabled: bool = True,
                 clock: Callable[[], float] = time.monotonic,
                 closes_used: bool = True):
        self._resetter = resetter
        self._state_path = state_path
        self._store = store.of(state_path)
        self._tenancy = tenancy
        self._audit = record
        self._enabled = enabled
        self._clock = clock
        self._closes_used = closes_used
        self._memory: dict[model.PciAddress, cleaning.Known | None] = {}
        """What this process has seen, with what no record has of it."""
        self._failed: dict[model.PciAddress, float] = {}
        self._said = log_once.LogOnce()

    def withholds(self, found: Collection[offers.Offer]) -> bool:
        """Whether nobody may be promised a GPU as a whole now.

        :param found: what the GPU offers; of another mode than whole it
            does not matter who had it before.
        """
        return (not self.stays_open(found)
                and any(known.withheld for known in self._of(found)))

    def is_taken(self, found: Collection[offers.Offer]) -> bool:
        """Whether somebody has a GPU as a whole, or it is not clean yet."""
        return any(known.withheld for known in self._of(found))

    def take(self, whole: Whole, is_reported: bool, is_parted: bool) -> str:
        """Let nobody have a GPU as a whole from now on.

        Its provider is closed in one step with the look at who has it. The
        caller sees to it that it stays closed.

        :param is_reported: whether Cyborg was told of it.
        :param is_parted: whether parts of it are bound. Nobody can have had
            it as a whole since then, whatever has changed its provider.
        :returns: who has it, or may have; empty if nobody has.
        :raises Exception: what the client of Placement raises.
        """
        if self._tenancy is None:
            return ''
        for _ in range(_LOOKS):
            seen = self._tenancy.seen(whole.provider)
            if seen is None:
                return ('it is not known whether a server has it as a whole: '
                        f'Placement has no provider {whole.provider} yet'
                        if is_reported else '')
            known = cleaning.following(self._known(whole.gpu.address), seen)
            if known.state is _State.USED:
                return 'as a whole it is of server ' + _who(known)
            if known.withheld and not is_parted:
                return ('a server had it as a whole, and it has not been '
                        'reset yet')
            closed = self._tenancy.close(whole.provider,
                                         whole.resource_class, seen)
            if closed is not None:
                self._keep(whole.gpu.address, cleaning.Known(
                    _State.FREE, generation=closed.generation,
                    ours=closed.ours))
                return ''
        return f'provider {whole.provider} in Placement changes too often'

    def stays_open(self, found: Collection[offers.Offer]) -> bool:
        """Whether a GPU must not be closed while somebody has it.

        Nothing of it is free, and the allocation may have to be written
        again, as when its server is evacuated.

        :param found: as :meth:`withholds`.
        """
        return not self._closes_used and any(
            known.state is _State.USED for known in self._of(found))

    def _of(self, found: Iterable[offers.Offer]) -> list[cleaning.Known]:
        """What is known of the GPU, if it is in passthrough mode."""
        if not self._enabled:
            return []
        return [known for offer in found
                if offer.mode is policy.Mode.PASSTHROUGH
                and (known := self._known(offer.gpu)) is not None]

    def look(self, wholes: Iterable[Whole]) -> None:
        """See who has come and gone, and clean what was left; never raises.

        Where Placement does not answer all stays as it was.

        :param wholes: GPUs that are reported as they are in the machine.
        """
        if not self._enabled or self._tenancy is None:
            return
        for whole in wholes:
            try:
                seen = self._tenancy.seen(whole.provider)
            except Exception as error:
                # It would not answer for the others either.
                reason = exception.steady(error)
                if self._said.is_new(reason):
                    LOG.warning('Cannot read from Placement which servers '
                                'have the whole GPUs of this host: %s. Each '
                                'report tries again.', reason)
                return
            self._said.over()
            self._follow(self._tenancy, whole, seen)

    def _follow(self, tenancy: Tenancy, whole: Whole,
                seen: cleaning.Seen | None) -> None:
        address = whole.gpu.address
        before = self._known(address)
        known = cleaning.following(before, seen)
        # Rather recorded twice, if this process is killed, than never.
        self._tell(address, before, known, cleaning.doubt(before, seen))
        self._keep(address, known)
        if known.state is _State.DIRTY and seen is not None:
            self._clean(tenancy, whole, known, seen)
        elif known.state is _State.FREE:
            self._warn_of_no_reset(address)

    def _tell(self, address: model.PciAddress,
              before: cleaning.Known | None, known: cleaning.Known,
              doubt: str) -> None:
        """Record what has changed of a GPU since the last look."""
        was = before and before.state
        if known.state is _State.USED and (
                before is None or was is not _State.USED
                or before.tenants != known.tenants):
            self._said.over(address)
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
        """Reset a GPU that nobody has; what becomes of it is kept."""
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
        except exception.GpuInUse as error:
            self._put_off(address, known, _State.DIRTY, str(error))
        except Exception as error:
            if not isinstance(error, exception.GpuDriverError):
                # As of privsep, whose daemon may not start. A report must
                # not depend on it.
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

    def _warn_of_no_reset(self, address: model.PciAddress) -> None:
        if (not self._resetter.can_reset(address)
                and self._said.is_new('no reset', (address, 'reset'))):
            LOG.warning('GPU %s cannot be reset: after its next server it '
                        'will not be offered again, unless [gpu] '
                        'clean_whole_gpus is false', address)

    def _put_off(self, address: model.PciAddress, known: cleaning.Known,
                 state: cleaning.State, reason: str) -> None:
        """Keep a GPU withheld; why is said once."""
        self._keep(address, dataclasses.replace(known, state=state,
                                                reason=reason))
        if self._said.is_new(reason, address):
            self._audit.record(address, 'not-cleaned', _who(known),
                               {'reason': reason})
            LOG.warning('GPU %(gpu)s was released by its server and is not '
                        'offered before it is reset: %(reason)s',
                        {'gpu': address, 'reason': reason})

    def _known(self, address: model.PciAddress) -> cleaning.Known | None:
        """What is remembered; nothing if the record cannot be used.

        A GPU that has had a provider is reset then.
        """
        if address not in self._memory:
            known = self._store.peek(address).tenancy
            self._memory[address] = known and dataclasses.replace(
                known, ours=0)
        return self._memory[address]

    def _keep(self, address: model.PciAddress, known: cleaning.Known
              ) -> None:
        # What an older record makes of it is a reset too many.
        self._memory[address] = known
        self._store.observe(address, tenancy=known)


def _who(known: cleaning.Known) -> str:
    return ', '.join(known.tenants)

