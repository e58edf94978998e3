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

"""Decides of each GPU: report it anew, or have Cyborg leave it alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import memory
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import values

LOG = logging.getLogger(__name__)

_LEFT = 'GPU %(gpu)s stays as it was reported to Cyborg: %(reason)s'
_WAITING = 'GPU %(gpu)s is not reported yet: %(reason)s'


@dataclasses.dataclass(frozen=True)
class Decision:
    """One report.

    ``offered`` is what is read of each GPU, None where that counts for
    nothing; ``draining`` is what must not be promised to anybody any more;
    ``leaving`` are GPUs of which Placement still has providers that this
    report leaves out.
    """

    devices: tuple[values.ReportedDevice, ...]
    offered: Mapping[model.PciAddress, values.ReportedDevice | None]
    draining: tuple[reserved.Inventory, ...]
    leaving: frozenset[model.PciAddress] = frozenset()

    @property
    def trusted(self) -> tuple[model.PciAddress, ...]:
        """GPUs whose ``reserved`` follows what is read of them."""
        return tuple(filter(self.offered.get, self.offered))

    @property
    def providers(self) -> tuple[str, ...]:
        """UUIDs of all providers of which ``reserved`` is to be written."""
        return (*(deployable.provider_uuid
                  for device in self.offered.values() if device
                  for deployable in device.deployables),
                *(item.provider for item in self.draining))


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a report sends of one GPU."""

    device: values.ReportedDevice | None
    """A stub tells Cyborg to leave the GPU as it has it; None is nothing."""
    problem: str = ''
    """Why it is not what the GPU offers; empty if it is."""
    left: tuple[str, ...] = ()
    """UUIDs of providers that the report deletes or gives other handles.
    Nothing is promised of them before: a handle that Cyborg still has would
    be refused."""


@dataclasses.dataclass(frozen=True)
class _Look:
    """What is decided of one GPU."""

    gpu: model.Gpu | None
    """With what NVML told before, where it tells nothing."""
    device: values.ReportedDevice | None
    """As it is read; None where nothing is to be reported."""
    reason: str
    """Why it is left as Cyborg has it; empty if it is not."""
    waiting: str
    """Why it is not reported before it is idle."""
    left: tuple[str, ...] = ()
    """Providers that are to go, and of which nothing is promised."""

    def sent(self, address: model.PciAddress,
             before: gpu_record.Reported | None) -> Sent:
        if self.reason:
            return Sent(build.stub_device(address), self.reason, self.left)
        return Sent(self.device, self.waiting, memory.withdrawn(
            before, self.device) if before else ())


class Withdrawal:
    """Remembers reports in ``state_path`` and compares the next with them.

    A report may never reach Cyborg. So what one leaves out is remembered,
    and asked for again with the next, until Placement does not have it any
    more.

    :param keeper: knows which providers have allocations. None if Placement
        is not to be asked: then no provider has any.
    """

    def __init__(self, state_path: str,
                 keeper: reserved.ReservedKeeper | None):
        self._state_path = state_path
        self._keeper = keeper
        self._store = store.of(state_path)
        self._memory: dict[model.PciAddress,
                           gpu_record.Reported] | None = None
        self._said = log_once.LogOnce()

    def decide(self, host: model.Host,
               make: Callable[[model.Gpu], values.ReportedDevice | None],
               ignored: Collection[model.PciAddress],
               claimed: Collection[model.PciAddress],
               sick: Collection[model.PciAddress] = (),
               earlier: Collection[reconcile.Earlier] | None = ()
               ) -> Decision:
        """Make the report of ``host``.

        :param make: builds one GPU's device.
        :param ignored: GPUs that the operator excluded.
        :param claimed: GPUs with entries in the journal.
        :param sick: GPUs on which nothing more may be promised, also where
            they cannot be read any more.
        :param earlier: what servers have through Cyborg's own driver; None
            if that is not known.
        :raises JournalUnreadable: if the record of earlier reports cannot
            be read now.
        """
        known = self._known()
        kept, devices, offered, draining = {}, [], {}, []
        leaving = set()
        present = {gpu.address: gpu for gpu in host.gpus}
        for address in sorted({*present, *known}):
            before = known.get(address)
            look = _not_ours(address, before, earlier) or self._look_at(
                present.get(address), before, make, ignored,
                address in claimed, host.library_missing)
            device, reason, left = look.device, look.reason, look.left
            if before is not None and left:
                draining.extend(_drained(before, left))
                leaving.add(address)
            if reason:
                self._say(address, reason, _LEFT)
                # What is still offered is closed as the GPU's inventories are.
                draining.extend(_drained(before, memory.withdrawn(
                    before, device)) if before and address in sick else ())
            elif look.waiting or device is not None:
                self._say(address, look.waiting, _WAITING)
            # Also where it stays beside what is to be withdrawn.
            offered[address] = device
            sent = look.sent(address, before).device
            if sent is not None:
                devices.append(sent)
            if reason:
                if before is not None:
                    kept[address] = before
            elif device is not None and look.gpu is not None:
                kept[address] = memory.remember(look.gpu, device, before,
                                                left)
            elif left and before is not None:
                kept[address] = memory.leaving(before, left)
        devices += [build.stub_device(item.function)
                    for item in earlier or () if item.function != item.gpu]
        self._keep(kept)
        return Decision(tuple(devices), offered, tuple(draining),
                        frozenset(leaving))

    def preview(self, host: model.Host,
                known: Mapping[model.PciAddress, gpu_record.Reported],
                make: Callable[[model.Gpu], values.ReportedDevice | None],
                ignored: Collection[model.PciAddress],
                claimed: Collection[model.PciAddress]
                ) -> dict[model.PciAddress, Sent]:
        """What the next report would send of each GPU; changes nothing.

        :param known: what :func:`remembered` reads.
        :param make, ignored, claimed: as of :meth:`decide`.
        """
        present = {gpu.address: gpu for gpu in host.gpus}
        return {address: self._look_at(
            present.get(address), known.get(address), make, ignored,
            address in claimed, host.library_missing).sent(
                address, known.get(address))
            for address in sorted({*present, *known})}

    def held(self, present: Iterable[model.PciAddress] = ()
             ) -> tuple[values.ReportedDevice, ...]:
        """Stubs of all that is remembered, as far as that can be read.

        :param present: GPUs that there are, which get stubs too.
        """
        try:
            known = [*self._known()]
        except exception.JournalUnreadable:
            known = []
        return tuple(build.stub_device(address)
                     for address in sorted({*known, *present}))

    def _look_at(self, gpu: model.Gpu | None,
                 before: gpu_record.Reported | None,
                 make: Callable[[model.Gpu], values.ReportedDevice | None],
                 ignored: Collection[model.PciAddress], claimed: bool,
                 library_missing: bool) -> _Look:
        """What is to be reported of one GPU, and what keeps it from that."""
        device: values.ReportedDevice | None = None
        reason = waiting = ''
        left: list[str] = []
        if gpu is not None and gpu.address not in ignored:
            reason = memory.untrusted(gpu, before, library_missing)
            if not reason:
                gpu = memory.complete(gpu, before)
                device = make(gpu)
        if device is not None and device.busy:
            waiting, device = self._without_busy_news(device, before)
        if not reason and before is not None:
            reason, left = self._withdrawn(before, device, claimed)
        return _Look(gpu, device, reason, waiting, tuple(left))

    def _withdrawn(self, before: gpu_record.Reported,
                   device: values.ReportedDevice | None, claimed: bool
                   ) -> tuple[str, list[str]]:
        """Why nothing may be withdrawn, and which providers are to go.

        Nothing more may be promised of those.
        """
        uses = {uuid: claimed or self.held_by(uuid)
                for uuid in memory.withdrawn(before, device)}
        there = [uuid for uuid, used in uses.items() if used is not None]
        if any(uses.values()):
            return ('its reported offers are in use and are to be withdrawn',
                    there)
        # The others get other handles.
        kept = {deployable.provider_uuid for deployable
                in (device.deployables if device else ())}
        return '', [uuid for uuid in there if uuid not in kept]

    def held_by(self, provider: str) -> bool | None:
        """Whether servers may use a provider; None if there is none.

        What cannot be found out is taken for yes.
        """
        if self._keeper is None:
            return False
        try:
            return self._keeper.in_use(provider)
        except Exception as error:
            LOG.debug('Usage of provider %(uuid)s is unknown: %(error)s',
                      {'uuid': provider, 'error': error})
            return True

    def _without_busy_news(self, device: values.ReportedDevice,
                           before: gpu_record.Reported | None
                           ) -> tuple[str, values.ReportedDevice | None]:
        """Leave out what cannot be had now and Cyborg does not have yet.

        It would make a provider that is open until the next report.

        :returns: why nothing is left, or an empty text and what is left.
        """
        known = before.providers if before is not None else {}
        left = tuple(
            deployable for deployable in device.deployables
            if deployable.name not in device.busy_names
            or deployable.provider_uuid in known
            and self.held_by(deployable.provider_uuid) is not None)
        if not left:
            return device.busy, None
        return '', dataclasses.replace(device, deployables=left)

    def _known(self) -> dict[model.PciAddress, gpu_record.Reported]:
        if self._memory is None:
            self._store.check()
            self._memory = remembered(self._state_path)
        return self._memory

    def _keep(self, kept: dict[model.PciAddress, gpu_record.Reported]
              ) -> None:
        self._memory = kept
        for address in {*kept, *remembered(self._state_path)}:
            self._store.observe(address, reported=kept.get(address))

    def _say(self, address: model.PciAddress, reason: str, message: str
             ) -> None:
        """Log a change of reason, in either direction, once."""
        if not reason:
            if self._said.over(address):
                LOG.info('GPU %s is reported according to its state again',
                         address)
        elif self._said.is_new(reason, address):
            LOG.warning(message, {'gpu': address, 'reason': reason})


def remembered(state_path: str
               ) -> dict[model.PciAddress, gpu_record.Reported]:
    """What was last reported of each GPU; none without a record.

    :param state_path: ``[gpu] state_path``.
    """
    return {address: record.reported for address, record
            in store.of(state_path).records().items()
            if record.reported is not None}


def _not_ours(address: model.PciAddress, before: gpu_record.Reported | None,
              earlier: Collection[reconcile.Earlier] | None) -> _Look | None:
    """What to do with a GPU that is not ours to report; None if it is.

    Before Placement has answered, that is a GPU that was never reported.
    """
    if earlier is None:
        reason = '' if before else (
            'Placement has not answered yet whether a server has it through '
            "Cyborg's own driver")
    else:
        reason = '' if address not in {item.gpu for item in earlier} else (
            "a server has it through Cyborg's own driver")
    return _Look(None, None, reason, '') if reason else None


def _drained(before: gpu_record.Reported, dropped: Iterable[str]
             ) -> list[reserved.Inventory]:
    return [reserved.Inventory(uuid, before.providers[uuid].resource_class,
                               before.providers[uuid].total,
                               before.providers[uuid].total)
            for uuid in dropped]
