# SPDX-License-Identifier: Apache-2.0

"""Decide for each GPU: report its state, or have Cyborg leave it alone.

A provider that is not reported any more is deleted by Cyborg. nova-compute
caches its providers for five minutes and asks each one for its allocations in
every boot, so each boot on the host would fail (Nova 34,
get_allocations_for_provider_tree in nova/scheduler/client/report.py). So what
a GPU does not offer any more is reported as before, with nothing left to
allocate, until an operator deletes its provider. The providers of Cyborg's own
driver are treated like those of a former report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names

LOG = logging.getLogger(__name__)

_LEFT = 'GPU %(gpu)s stays as it was reported to Cyborg: %(reason)s'
_WAITING = 'GPU %(gpu)s is not reported yet: %(reason)s'


@dataclasses.dataclass(frozen=True)
class Decision:
    """One report.

    ``offered`` is the device that was read of each GPU, None if the reading
    is not to be used. ``draining`` are the inventories that must not be
    promised any more.
    """

    devices: tuple[names.ReportedDevice, ...]
    offered: Mapping[model.PciAddress, names.ReportedDevice | None]
    draining: tuple[reserved.Inventory, ...]

    @property
    def trusted(self) -> tuple[model.PciAddress, ...]:
        """GPUs whose ``reserved`` follows from their reading."""
        return tuple(filter(self.offered.get, self.offered))

    @property
    def providers(self) -> tuple[str, ...]:
        """UUIDs of all providers whose ``reserved`` is to be written."""
        return (*(deployable.provider_uuid
                  for device in self.offered.values() if device
                  for deployable in device.deployables),
                *(item.provider for item in self.draining))


@dataclasses.dataclass(frozen=True)
class Sent:
    """The part of a report that is about one GPU."""

    device: names.ReportedDevice | None
    """The device to send; None for none. A stub tells Cyborg to keep the GPU
    as it is in its database."""
    problem: str = ''
    """Why the device is not what the GPU offers; empty if it is."""
    left: tuple[str, ...] = ()
    """UUIDs of providers that the GPU does not offer any more, or that the
    report gives other handles. Placement must not promise them: the driver
    would refuse to bind a handle that Cyborg still has."""


@dataclasses.dataclass(frozen=True)
class _Look:
    """The decision about one GPU."""

    gpu: model.Gpu | None
    """The GPU. Facts that NVML does not tell now are from before."""
    device: names.ReportedDevice | None
    """The device as it was read; None if there is nothing to report."""
    reason: str
    """Why Cyborg has to keep the GPU as it is; empty if it does not."""
    waiting: str
    """Why the GPU is not reported until it is idle."""
    left: tuple[str, ...] = ()
    """Providers to withdraw. Placement must not promise them any more."""
    withdrawn: names.ReportedDevice | None = None
    """The device with what is withdrawn; None if nothing is."""
    unread: bool = False
    """Whether the GPU, or its record, cannot be read. Nothing can be bound on
    such a GPU."""

    def sent(self, address: model.PciAddress,
             before: gpu_record.Reported | None) -> Sent:
        if self.reason:
            return Sent(build.stub_device(address), self.reason, self.left)
        device = self.device or self.withdrawn
        if self.device and self.withdrawn:
            device = dataclasses.replace(self.device, deployables=(
                *self.device.deployables, *self.withdrawn.deployables))
        return Sent(device, self.waiting, capacity.withdrawn(
            before, self.device) if before else ())


class Withdrawal:
    """Remembers reports in ``state_path`` and compares the next with them.

    :param tree: the providers of this host. None does not ask Placement and
        assumes that no provider has any allocation.
    :param make: makes the device of a GPU and its offers, None without any.
    """

    def __init__(self, state_path: str,
                 tree: publishing.ProviderTree | None,
                 make: Callable[[model.Gpu, Iterable[offer.Offer]],
                                names.ReportedDevice | None],
                 hostname: str):
        self._tree = tree
        self._hostname = hostname
        self._make = make
        self._records = store.of(state_path)
        self._said = log_once.LogOnce()
        self._silent = False
        """Whether Placement has not answered in this report. Each further
        request would wait as long."""
        self._generations: Mapping[str, int] | None = None
        """Of this host's providers; None if not read for this decision."""
        self._adopted: set[model.PciAddress] = set()
        """GPUs of which Placement has said what Cyborg's own driver has
        reported. That driver ends before this one starts."""

    def decide(self, host: model.Host,
               offers: Callable[[model.Gpu], Iterable[offer.Offer]],
               ignored: Collection[model.PciAddress],
               claimed: Collection[model.PciAddress],
               unhealthy: Collection[model.PciAddress] = ()) -> Decision:
        """Make the report of ``host``.

        What Cyborg still offers of a GPU that cannot be read is reserved,
        whatever the reason, because a bind would fail. Only if Placement or
        Cyborg does not answer, everything stays as it was.

        :param ignored: GPUs that the operator excluded.
        :param unhealthy: GPUs on which nothing more may be promised, even if
            they cannot be read any more.
        :raises JournalUnreadable: if the record of earlier reports cannot
            be read now.
        """
        known = self._adopt(host)
        kept, offered = {}, {}
        devices: list[names.ReportedDevice] = []
        draining: list[reserved.Inventory] = []
        present = {gpu.address: gpu for gpu in host.gpus}
        unknown = self._records.unknown_claims()
        unread = set()
        for address in sorted({*present, *known, *unknown}):
            before = known.get(address)
            look = (_unknown(unknown.get(address))
                    or self._unasked(address, before)
                    or self._look_at(
                        address, present.get(address), before, offers,
                        ignored, address in claimed, host.library_missing))
            device, reason = look.device, look.reason
            if before is not None:
                draining.extend(_closed(before, look, address in unhealthy))
            if look.unread and not (before and address in unhealthy):
                unread.add(address)
            if reason:
                self._say(address, reason, _LEFT)
            elif look.waiting or device is not None:
                self._say(address, look.waiting, _WAITING)
            # Also if nothing may be withdrawn now: the providers that the
            # GPU keeps still need their ``reserved``.
            offered[address] = device
            sent = look.sent(address, before).device
            if sent is not None:
                devices += _by_function(sent, before)
            if reason:
                if before is not None:
                    kept[address] = before
            elif sent is not None and look.gpu is not None:
                kept[address] = capacity.remember(look.gpu, sent, before,
                                                  look.left)
        draining.extend(self._reserved_in_placement(unread))
        self._keep(kept, known)
        self._silent = False
        return Decision(tuple(devices), offered, tuple(draining))

    def of_other_driver(self, host: model.Host) -> set[model.PciAddress]:
        """GPUs that servers have through Cyborg's own driver.

        A report asks this first, and then :meth:`decide`.
        """
        self._silent = False
        return {address for address, before in self._adopt(host).items()
                if any(item.function and self.held_by(uuid)
                       for uuid, item in before.providers.items())}

    def preview(self, host: model.Host,
                known: Mapping[model.PciAddress, gpu_record.Reported],
                offers: Callable[[model.Gpu], Iterable[offer.Offer]],
                ignored: Collection[model.PciAddress],
                claimed: Collection[model.PciAddress]
                ) -> dict[model.PciAddress, Sent]:
        """Return what the next report would send; changes nothing."""
        present = {gpu.address: gpu for gpu in host.gpus}
        unknown = self._records.unknown_claims()
        return {address: (
            _unknown(unknown.get(address)) or self._look_at(
                address, present.get(address), known.get(address), offers,
                ignored, address in claimed, host.library_missing)).sent(
                    address, known.get(address))
                for address in sorted({*present, *known, *unknown})}

    def held(self, present: Iterable[model.PciAddress] = ()
             ) -> tuple[names.ReportedDevice, ...]:
        """Stubs for all remembered GPUs; for none if they cannot be read.

        A GPU whose record cannot be used may have been reported.

        :param present: GPUs of the host, which get stubs too.
        """
        try:
            known = remembered(self._records.state_path)
            unknown = {*self._records.unknown_claims()}
        except exception.JournalUnreadable:
            known, unknown = {}, set()
        return tuple(
            device for address in sorted({*known, *unknown, *present})
            for device in _by_function(build.stub_device(address),
                                       known.get(address)))

    def _adopt(self, host: model.Host
               ) -> dict[model.PciAddress, gpu_record.Reported]:
        """All GPUs that were reported, also by Cyborg's own driver.

        Earlier answers of Placement about generations are not used any more.
        """
        self._generations = None
        known = remembered(self._records.state_path)
        unknown = self._records.unknown_claims()
        there = {gpu.address: gpu for gpu in host.gpus
                 if gpu.address not in unknown}
        if (self._tree is None or self._silent
                or there.keys() <= self._adopted):
            return known
        try:
            found = [*self._in_tree(self._tree, there.values())]
        except Exception as error:
            # The report logs which GPUs it leaves alone because of this.
            self._silent = not isinstance(error, exception.PlacementRefused)
            LOG.debug("Providers of Cyborg's own driver are unknown: %s",
                      error)
            return known
        for uuid, item in found:
            before = known.get(item.gpu) or capacity.never_reported(
                there[item.gpu])
            known[item.gpu] = dataclasses.replace(
                before, providers={uuid: item, **before.providers})
            self._records.observe(item.gpu, reported=known[item.gpu])
        self._adopted.update(there)
        return known

    def _in_tree(self, tree: publishing.ProviderTree,
                 gpus: Iterable[model.Gpu]
                 ) -> Iterator[tuple[str, offer.Offer]]:
        """What Cyborg's own driver has reported of GPUs, with the UUIDs.

        It reports each function of a GPU as a device of its own.
        """
        possible = {}
        for gpu in gpus:
            for function in (gpu.address, *(vf.address for vf in gpu.vfs)):
                item = offer.Offer(
                    gpu.address, '', policy.Mode.PASSTHROUGH, '', 0,
                    function=function)
                possible[names.provider_uuid(names.provider_name(
                    self._hostname, item))] = item
        for uuid in (item['uuid'] for item in tree.of_host(self._hostname)):
            if uuid in possible:
                for kind, entry in tree.inventories(uuid).items():
                    yield uuid, dataclasses.replace(
                        possible[uuid], profile=kind, total=entry['total'])

    def _unasked(self, address: model.PciAddress,
                 before: gpu_record.Reported | None) -> _Look | None:
        if before or address in self._adopted or self._tree is None:
            return None
        return _Look(None, None, 'Placement has not answered yet whether a '
                     "server has it through Cyborg's own driver", '')

    def _look_at(self, address: model.PciAddress, gpu: model.Gpu | None,
                 before: gpu_record.Reported | None,
                 offers: Callable[[model.Gpu], Iterable[offer.Offer]],
                 ignored: Collection[model.PciAddress], claimed: bool,
                 library_missing: bool) -> _Look:
        """Decide what to report of one GPU, and what prevents it."""
        device: names.ReportedDevice | None = None
        withdrawn: names.ReportedDevice | None = None
        reason = waiting = ''
        unread = False
        left: list[str] = []
        if gpu is None or address in ignored:
            gpu = capacity.recalled(address, before) if before else None
        else:
            reason = capacity.untrusted(gpu, before, library_missing)
            unread = bool(reason)
            if not unread:
                gpu = capacity.complete(gpu, before)
                device = self._make(gpu, offers(gpu))
        if device is not None and device.busy:
            waiting, device = self._without_busy_news(device, before)
        if not reason and before is not None:
            reason, left = self._withdrawn(before, device, claimed)
            if gpu is not None and left:
                withdrawn = self._make_withdrawn(gpu, before, left)
        return _Look(gpu, device, reason, waiting, tuple(left), withdrawn,
                     unread)

    def _reserved_in_placement(self, unread: Collection[model.PciAddress]
                               ) -> tuple[reserved.Inventory, ...]:
        """The inventories of GPUs that cannot be read, closed.

        An earlier process may have reported them, and what servers have of
        them may have no claim: only Placement knows both.
        """
        if not unread or self._tree is None or self._silent:
            return ()
        try:
            return tuple(self._reserved_of(self._tree, unread))
        except Exception as error:
            self._silent = not isinstance(error, exception.PlacementRefused)
            LOG.warning('What Placement promises of GPU %(gpus)s could not be '
                        'reserved: %(error)s',
                        {'gpus': ', '.join(map(str, sorted(unread))),
                         'error': exception.steady(error)})
            return ()

    def _reserved_of(self, tree: publishing.ProviderTree,
                     gpus: Collection[model.PciAddress]
                     ) -> Iterator[reserved.Inventory]:
        """The inventories that Placement has of GPUs, closed.

        Only what servers use now is not reserved.
        """
        for item in tree.of_host(self._hostname):
            name, uuid = item['name'], item['uuid']
            parts = names.parse_provider_name(name)
            if (parts is None or uuid != names.provider_uuid(name)
                    or model.PciAddress.parse(parts.gpu) not in gpus):
                continue
            usages = tree.usages(uuid) or {}
            for kind, entry in tree.inventories(uuid).items():
                yield reserved.Inventory(
                    uuid, kind, entry['total'],
                    max(0, entry['total'] - usages.get(kind, 0)))

    def _withdrawn(self, before: gpu_record.Reported,
                   device: names.ReportedDevice | None, claimed: bool
                   ) -> tuple[str, list[str]]:
        """Why nothing may be withdrawn now, and which providers are to go.

        Placement must not promise those providers any more. What was
        withdrawn before has no claim.
        """
        uses = {uuid: (claimed and not before.providers[uuid].withdrawn
                       or self.held_by(uuid))
                for uuid in capacity.withdrawn(before, device)}
        there = [uuid for uuid, used in uses.items() if used is not None]
        used = [names.provider_name(self._hostname, before.providers[uuid])
                for uuid, is_used in uses.items() if is_used]
        if used:
            return ('offers that must be withdrawn are still in use: '
                    + ', '.join(used), there)
        # Providers that are kept get other handles.
        kept = {deployable.provider_uuid for deployable
                in (device.deployables if device else ())}
        return '', [uuid for uuid in there if uuid not in kept]

    def _make_withdrawn(self, gpu: model.Gpu, before: gpu_record.Reported,
                        left: Collection[str]) -> names.ReportedDevice | None:
        """The device with some of the providers that it had before.

        Without those of a host that had another name, because they cannot be
        reported on this one.
        """
        device = self._make(gpu, [
            dataclasses.replace(before.providers[uuid], withdrawn=True)
            for uuid in left])
        made = tuple(item for item in (device.deployables if device else ())
                     if item.provider_uuid in left)
        return (dataclasses.replace(device, deployables=made)
                if device and made else None)

    def held_by(self, provider: str) -> bool | None:
        """Whether servers may use a provider; None if it does not exist.

        If Placement does not answer, the provider counts as used.
        """
        if self._tree is None:
            return False
        if self._silent:
            return True
        try:
            if self._generations is None:
                self._generations = self._tree.generations([provider])
            usages = self._tree.usages(
                provider, self._generations.get(provider))
            return None if usages is None else any(usages.values())
        except Exception as error:
            self._silent = not isinstance(error, exception.PlacementRefused)
            LOG.debug('Usage of provider %(uuid)s is unknown: %(error)s',
                      {'uuid': provider, 'error': error})
            return True

    def _without_busy_news(self, device: names.ReportedDevice,
                           before: gpu_record.Reported | None
                           ) -> tuple[str, names.ReportedDevice | None]:
        """Leave out busy deployables that Cyborg does not have yet.

        Cyborg would create their providers, and those would be open until
        the next report.

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

    def _keep(self, kept: Mapping[model.PciAddress, gpu_record.Reported],
              before: Iterable[model.PciAddress]) -> None:
        for address in {*kept, *before}:
            self._records.observe(address, reported=kept.get(address))

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
    """The last report of each GPU that has a record of it."""
    return {address: record.reported for address, record
            in store.of(state_path).records().items()
            if record.reported is not None}


def _unknown(why: store.Unknown | None) -> _Look | None:
    """The decision about a GPU whose claims are unknown; None if they are
    known.
    """
    return None if why is None else _Look(
        None, None, f'{why.reason}; {why.remedy}', '', unread=True)


def _closed(before: gpu_record.Reported, look: _Look, unhealthy: bool
            ) -> Iterator[reserved.Inventory]:
    """The inventories of a GPU that must not be promised any more."""
    yield from capacity.drained(before, look.left)
    if look.reason and unhealthy:
        # Also close what Cyborg still offers.
        yield from capacity.drained(
            before, capacity.withdrawn(before, look.device))


def _by_function(device: names.ReportedDevice,
                 before: gpu_record.Reported | None
                 ) -> Iterator[names.ReportedDevice]:
    """A GPU's device, and those of functions of it.

    Cyborg's own driver has reported each function as a device of its own.
    """
    functions: dict[model.PciAddress, list[names.ReportedDeployable]] = {
        device.address: []}
    for item in before.providers.values() if before else ():
        if item.function:
            functions.setdefault(item.function, [])
    for deployable in device.deployables:
        functions[deployable.offer.function or device.address].append(
            deployable)
    for address, deployables in functions.items():
        if device.stub:
            yield build.stub_device(address)
        elif deployables:
            yield dataclasses.replace(
                device, address=address, cpid_info=build.cpid_info(address),
                deployables=tuple(deployables))
