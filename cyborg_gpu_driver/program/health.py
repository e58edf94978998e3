# SPDX-License-Identifier: Apache-2.0

"""Track which GPUs are unhealthy and since when, by errors and checks."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import health as host_health
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

_NOTHING = condition.Facts()


@dataclasses.dataclass(frozen=True)
class Status:
    """One GPU's health and the facts behind it, to be shown."""

    gpu: model.Gpu
    verdict: health.Verdict
    parts: Mapping[health.Part, health.Verdict]
    """The unhealthy GPU instances and virtual functions."""
    facts: condition.Facts
    conditions: tuple[health.Condition, ...]


class GpuHealth:
    """Keeps the health of this machine's GPUs in their records.

    While a record cannot be written, it is kept in memory.

    :param cloud: publishes a GPU when an event has changed its health, that
        of an instance, or its cordons.
    :param clean_checks: how many clean checks in a row heal a GPU.
    :param cordon_errors: how many errors cordon a GPU; 0 for never.
    :param ignored_xids: XIDs that are not counted, in addition to those that
        never are.
    :param clock: seconds of the epoch.
    """

    def __init__(self, machine: platform.Platform, state_path: str,
                 cloud: services.Services, clean_checks: int = 5,
                 ignored_xids: Collection[int] = (),
                 cordon_errors: int = 0,
                 clock: Callable[[], float] = time.time):
        self._nvml = machine.nvml
        self._sysfs = machine.sysfs
        self._board_records = machine.records
        self._store = store.of(state_path)
        self._cloud = cloud
        self._needed = clean_checks
        self._ignored = frozenset(ignored_xids)
        self._most = cordon_errors
        self._boot_id = machine.boot_id
        self._clock = clock

    def check(self, host: model.Host
              ) -> dict[model.PciAddress, health.Verdict]:
        """Ask every GPU of a snapshot for its health.

        Does not raise for errors of the hardware or the disk. If a GPU cannot
        be asked (no NVML, or in passthrough mode), its health remains as it
        was.

        :returns: the health of each GPU of ``host``. For their instances see
            :meth:`unhealthy_instances`.
        """
        facts = self._ask_all(host)
        now = self._clock()

        for gpu in host.gpus:
            self._change(gpu.address, functools.partial(
                health.checked, facts=facts[gpu.address], needed=self._needed,
                now=now, live=None if gpu.mig is None else {
                    (item.instance_id, item.placement)
                    for item in gpu.mig.instances}), gpu.uuid)
        return {gpu.address: self._verdict(gpu.address) for gpu in host.gpus}

    def event(self, event: condition.Event) -> None:
        """Note an error at once; called by the watcher's thread.

        An error that names a GPU instance makes only that one unhealthy, if
        an instance with that id still exists and no reset is needed
        (:func:`.partition.health.noted`).
        """
        if not health.counts(event.xid, self._ignored):
            return
        placement = None
        if event.instance_id is not None:
            placement = host_health.instance_place(
                self._nvml, event.address, event.instance_id)
        now = self._clock()
        before, after = self._change(event.address, lambda known: health.noted(
            known, event.xid, now, placement, event.instance_id))
        if (_verdicts(_conditions(before)) != _verdicts(_conditions(after))
                or before.cordons != after.cordons):
            self._cloud.publish_soon(event.address)

    def unhealthy(self, address: model.PciAddress) -> health.Verdict | None:
        """The verdict on an unhealthy GPU; None for a healthy one."""
        verdict = self._verdict(address)
        return verdict if verdict.is_unhealthy else None

    def unhealthy_instances(self, address: model.PciAddress
                            ) -> frozenset[model.Placement]:
        """Placements of a GPU's instances that are unhealthy by themselves."""
        return frozenset(item.placement for item in self._conditions(address)
                         if item.placement is not None)

    def reset_done(self, address: model.PciAddress) -> None:
        """Forget the conditions that a reset cures; the GPU was just reset."""
        if self._conditions(address):
            self._change(address, health.after_reset)

    def function_died(self, address: model.PciAddress,
                      function: model.PciAddress) -> None:
        """Note that a virtual function of a GPU serves no guest."""
        now = self._clock()
        self._change(address, lambda known: (*known, health.Condition(
            health.DEAD_FUNCTION, now, now, function=function)))

    def dead_functions(self, address: model.PciAddress
                       ) -> frozenset[model.PciAddress]:
        """The virtual functions of a GPU that get no new server."""
        return frozenset(item.function for item in self._conditions(address)
                         if item.function is not None)

    def functions_renewed(self, address: model.PciAddress) -> None:
        """Forget dead functions: the GPU's functions were made anew."""
        self._change(address, lambda known: tuple(
            item for item in known if item.function is None))

    def replaced(self, address: model.PciAddress) -> bool:
        """Forget a GPU's health and errors: an operator says it is healthy."""
        with self._store.gpu(address) as draft:
            known = draft.record.health
            draft.record = dataclasses.replace(draft.record, health=None,
                                               errors=0)
        return known is not None

    def instance_gone(self, address: model.PciAddress,
                      placement: model.Placement) -> None:
        """Forget the conditions of an instance that was just destroyed.

        A new instance may get its id and placement before the next check.
        """
        if placement in self.unhealthy_instances(address):
            self._change(address, lambda known: health.without_instance(
                known, placement))

    def statuses(self, host: model.Host) -> list[Status]:
        """Every GPU's health, for people; changes nothing."""
        now = self._clock()
        facts = self._ask_all(host)
        found = []
        for gpu in host.gpus:
            known = self._of_boot(
                self._store.read(gpu.address).health).of_board(gpu.uuid)
            conditions = health.seen(known.conditions, facts[gpu.address], now)
            found.append(Status(
                gpu, health.judge(conditions),
                {part: health.judge(conditions, part)
                 for part in health.unhealthy_parts(conditions)},
                facts[gpu.address], conditions))
        return found

    def _ask_all(self, host: model.Host
                 ) -> dict[model.PciAddress, condition.Facts]:
        """The answers of all GPUs, which are asked in parallel."""
        return dict(zip(
            (gpu.address for gpu in host.gpus),
            deadline.each(lambda gpu: self._ask(gpu, host), host.gpus),
            strict=True))

    def _ask(self, gpu: model.Gpu, host: model.Host) -> condition.Facts:
        if gpu.physfn is not None:
            return _NOTHING
        if gpu.driver != whole.NVIDIA:
            return self._ask_pci(gpu)
        if host.nvml_problem is not None:
            return _NOTHING
        return host_health.read(self._nvml, gpu.address)

    def _ask_pci(self, gpu: model.Gpu) -> condition.Facts:
        """The facts that the PCI bus tells of a GPU hidden from NVML.

        They are compared with the board's record, if that is of this board
        and this boot.
        """
        seen = host_health.read_pci(self._sysfs, gpu.address)
        record = self._board_records.board(gpu.address)
        before = host_health.Seen()
        if record is not None and boards.holds(record, gpu,
                                               self._boot_id()):
            before = host_health.Seen(fatal=record.aer_fatal,
                                      width=record.link_width)
        return condition.Facts(
            by_pci=True, pci=host_health.wrong_pci(before, seen))

    def _of_boot(self, known: gpu_record.HealthRecord | None
                 ) -> gpu_record.HealthRecord:
        """A health record, without what a reboot since then has cured."""
        boot = self._boot_id()
        return (gpu_record.HealthRecord(boot) if known is None
                else known.in_boot(boot))

    def _conditions(self, address: model.PciAddress
                  ) -> tuple[health.Condition, ...]:
        """The known conditions of a GPU."""
        return self._of_boot(self._store.peek(address).health).conditions

    def _verdict(self, address: model.PciAddress) -> health.Verdict:
        return health.judge(self._conditions(address))

    def _change(self, address: model.PciAddress,
                change: Callable[[tuple[health.Condition, ...]],
                                 tuple[health.Condition, ...]],
                uuid: str | None = None
                ) -> tuple[gpu_record.GpuRecord, gpu_record.GpuRecord]:
        """Change the conditions of a GPU, and log what is new.

        :param uuid: UUID of the board; None if it is not known.
        """
        def changed(record: gpu_record.GpuRecord) -> gpu_record.GpuRecord:
            before = self._of_boot(record.health)
            known = before.of_board(uuid)
            known = dataclasses.replace(
                known, conditions=change(known.conditions))
            return self._counted(dataclasses.replace(
                record, health=known if known.conditions else None),
                *health.errors(before.conditions, known.conditions))

        before, after = self._store.keep(address, changed)
        _log(address, _conditions(before), _conditions(after))
        return before, after

    def _counted(self, record: gpu_record.GpuRecord, errors: int, last: str
                 ) -> gpu_record.GpuRecord:
        """Count new errors in a record, and cordon the GPU at the limit."""
        if not errors or not self._most:
            return record
        errors += record.errors
        cordons = record.cordons
        if (errors >= self._most
                and cordon.of(cordons, cordon.Source.HEALTH) is None):
            cordons = cordon.added(cordons, cordon.Cordon(
                cordon.Source.HEALTH, self._clock(),
                reason=f'{errors} errors, the last was {last}'))
        return dataclasses.replace(record, errors=errors, cordons=cordons)


def _conditions(record: gpu_record.GpuRecord) -> tuple[health.Condition, ...]:
    return record.health.conditions if record.health else ()


def _verdicts(conditions: tuple[health.Condition, ...]
              ) -> dict[health.Part | None, health.Verdict]:
    """Verdicts on a GPU (key None) and its unhealthy parts."""
    return {part: health.judge(conditions, part)
            for part in (None, *health.unhealthy_parts(conditions))}


def _log(address: model.PciAddress, before: tuple[health.Condition, ...],
         after: tuple[health.Condition, ...]) -> None:
    """Log what became unhealthy, worse or healthy."""
    old, new = _verdicts(before), _verdicts(after)
    for part in sorted({*old, *new}, key=str):
        was = old.get(part, health.WELL)
        now = new.get(part, health.WELL)
        if was.state is now.state:
            continue
        name = f'GPU {address}' + (
            '' if part is None else f', instance at {part}'
            if isinstance(part, model.Placement) else f', function {part}')
        if now.is_unhealthy:
            LOG.warning(
                '%(name)s is unhealthy (%(state)s): %(reasons)s. Nothing new '
                'is created on it.',
                {'name': name, 'state': now.state.value,
                 'reasons': '; '.join(now.reasons)})
        else:
            LOG.info('%(name)s is healthy again; it had: %(reasons)s.',
                     {'name': name, 'reasons': '; '.join(was.reasons)})
