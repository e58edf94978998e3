# SPDX-License-Identifier: Apache-2.0

"""The part of the driver that works in cyborg-agent: report, bind, unbind.

Everything is created at first use, in the process that uses it, because
cyborg-agent creates its drivers in its master process and works in a forked
one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver import node
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import orphans
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import health as host_health
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import observer
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import withdrawal
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names

LOG = logging.getLogger(__name__)


class Agent(node.Node):
    """One host's GPUs as Cyborg sees them: a node that asks the services."""

    tree: publishing.ProviderTree

    def __init__(self, conf: cfg.ConfigOpts, settings: policies.Settings,
                 hostname: str, placement: Callable[[], Any],
                 mdev_problem: str = ''):
        connection.register_opts(conf)
        super().__init__(conf, settings, hostname,
                         publishing.ProviderTree(placement), mdev_problem)
        if self.platform.is_root():
            self.act_here()
        self.publisher = publishing.Publisher(self._write)
        self.claims: reconcile.Requests | None = None
        """Cyborg's last answer about the accelerator requests."""
        self._requests = cyborg.RequestWatch(conf, hostname)
        self._disabled = cyborg.DisabledWatch(conf, hostname)
        self._drift = drift.Drift(self.tree, hostname)
        self._steady = drift.Steady()
        self._observer = observer.Observer(self)
        self._said = log_once.LogOnce()
        self._conditions: set[str] = set()
        """What the current report logs once."""
        self._watcher = host_health.Watcher(self.platform.nvml, self._event)
        self._finisher = orphans.Finisher(
            functools.partial(connection.Cloud.of_section, conf,
                              gpu_conf.CLOUD)
            if gpu_conf.has_cloud_user(conf) else None,
            hostname, settings.orphan_grace)
        self._turn = threading.Lock()
        """Held by a report, and by the thread that works between two."""
        self._reported: tuple[names.ReportedDevice, ...] = ()
        self._others: Collection[model.PciAddress] = ()
        """GPUs that servers have through Cyborg's own driver."""
        self._released: set[model.PciAddress] = set()
        """GPUs of mode auto and of groups that no server has any more."""
        self._between = deadline.Repeated(
            self.look_between, conf.gpu.clean_poll_interval,
            'cyborg-gpu-tenants')
        self._namer = deadline.Repeated(self._observer.name_new, 1.0,
                                        'cyborg-gpu-owners')

    def requests(self) -> reconcile.Requests | None:
        self.claims = self._requests.read()
        return self.claims

    def usages(self, looked: Mapping[model.PciAddress,
                                     Sequence[partition_offers.Offer]]
               ) -> Mapping[model.PciAddress,
                            tuple[reconcile.Usage, ...]] | None:
        return self._drift.read(looked, {
            address: self.inventories(address) for address in looked})

    def publish(self, address: model.PciAddress) -> None:
        self.publisher.publish(*self.live.board(address))
        self._note_release(address)

    def settle(self, address: model.PciAddress) -> bool:
        return self.publisher.settle(address)

    def publish_soon(self, address: model.PciAddress) -> None:
        self.publisher.ask(*self.live.board(address))

    def _write(self, address: model.PciAddress,
               generations: Mapping[str, int] | None) -> None:
        """Write the free capacity of a GPU to Placement."""
        wanted = self.inventories(address)
        if generations is None:
            self.reserved_writer.write(wanted)
        else:
            self.reserved_writer.enforce(wanted, generations)

    def _why_disabled(self, address: model.PciAddress
                      ) -> cordon.Cordon | None:
        """Who disabled a GPU in Cyborg, when and why; None if unknown.

        ``openstack gpu cordon`` writes that to a trait of the GPU's
        providers, because Cyborg's API takes no reason.
        """
        try:
            for uuid in sorted(self.records.read(address).providers):
                found = self.tree.get(f'/resource_providers/{uuid}/traits')
                if why := found and cordon.of_traits(found['traits']):
                    return why
        except Exception as error:
            # The report of the GPUs must not fail because of this.
            LOG.debug('Placement does not say why GPU %(gpu)s is disabled: '
                      '%(error)s', {'gpu': address,
                                    'error': exception.steady(error)})
        return None

    def bind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """See :meth:`cyborg_gpu_driver.program.bind.binder.Binder.bind`."""
        with self._observer.call('bind'):
            self.binder.bind(pci_addr, asked_type, ah_uuid,
                              self.bind_timeout)

    def unbind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """See :meth:`cyborg_gpu_driver.program.bind.binder.Binder.unbind`."""
        with self._observer.call('unbind'):
            self.binder.unbind(pci_addr, asked_type, ah_uuid)

    @property
    def bind_timeout(self) -> float:
        """Seconds that a bind may take."""
        return float(self.settings.bind_timeout
                     or gpu_conf.rpc_timeout(self.conf) / 2)

    def owns(self, function: model.PciAddress) -> bool:
        """Whether ``function`` is a GPU of this machine or a VF of one."""
        try:
            self.live.owner(function)
        except exception.UnknownGpu:
            return False
        return True

    def report(self) -> tuple[names.ReportedDevice, ...]:
        """Report all GPUs in full, and correct ``reserved`` in Placement."""
        return self._report()[0]

    def report_changes(self) -> tuple[names.ReportedDevice, ...]:
        """Report with stubs for the GPUs that need no full report."""
        return self._steady.thin(*self._report(), drift.room(
            gpu_conf.rpc_timeout(self.conf), self.tree.latency))

    def _report(self) -> tuple[tuple[names.ReportedDevice, ...],
                               Collection[str] | None]:
        """All GPUs in full, and the providers that Placement has."""
        self._conditions.clear()
        with self._turn, self._observer.report(), locks.report():
            report = self._make_report()
        if self.conf.gpu.clean_poll_interval:
            changes = any(map(self._gets_ready, self.live.host().gpus))
            # If no thread can be started now, the next report tries again.
            with contextlib.suppress(RuntimeError):
                if changes:
                    self._between.start()
                if changes or gpu_conf.has_cloud_user(self.conf):
                    self._namer.start()
        return report

    def _make_report(self) -> tuple[tuple[names.ReportedDevice, ...],
                                    Collection[str] | None]:
        lost = self.records.check()
        self.cordons.note_disabled(self._disabled.read(), self._why_disabled)
        self.cordons.log_changes()
        self.binder.recover()
        self.live.refresh()
        asked = time.time()
        self.reconciler.look(lost)
        self._observer.claims(self.claims, asked)
        self._finisher.look()
        host = self.live.host()
        self._say_empty(host)
        self._others = self.withdrawal.of_other_driver(host)
        host = self._make_ready(host)
        verdicts = self._examine(host)
        decided = self.withdrawal.decide(
            host, self._offers, self.ignored(host),
            {claim.gpu for claim in self.records.claims()},
            {address for address, verdict in verdicts.items()
             if verdict.is_unhealthy} | set(self.cordons.known()))
        self._reported = decided.devices
        self.cleaner.look(self.wholes(decided.devices), {
            device.address for device in decided.devices if device.stub})
        if self.resetter.done:
            # A reset cures a GPU, unless the GPU now shows another problem.
            self.resetter.done.clear()
            verdicts = self._examine(self._make_ready(self.live.refresh()))
        there = self._enforce(decided)
        self._said.keep(self._conditions)
        return build.mark_unhealthy(
            decided.devices, verdicts, self._is_used), there

    def stop(self) -> None:
        """Stop all work between two reports, and close NVML."""
        self._between.stop()
        self._namer.stop()
        self._watcher.stop()
        self.platform.nvml.reset()

    def look_between(self) -> None:
        """Note which whole GPUs servers have got since the last report.

        A server may live less than the time between two reports. Its GPU must
        not go to the next one before it was reset. A GPU of mode auto whose
        last part was unbound is made ready for all its roles, and a group
        that was reset for its next server. The first report starts the thread
        that calls this.
        """
        with self._turn, locks.report():
            released = set()
            while self._released:
                released.add(self._released.pop())
            used = self.cleaner.look_at_changed(
                self.wholes(self._reported))
            if used or released:
                self._examine(self._make_ready(self.live.refresh()))
            for address in {*used, *released}:
                self.publish_soon(address)

    def _note_release(self, address: model.PciAddress) -> None:
        """Let a GPU that no server has any more be ready again soon."""
        with contextlib.suppress(exception.GpuDriverError):
            if (self._gets_ready(self.live.gpu(address))
                    and self.records.has_claims(address) is False):
                self._released.add(address)
                self._between.ask()

    def _gets_ready(self, gpu: model.Gpu) -> bool:
        """Whether a GPU changes between its last server and the next one."""
        governing = self.settings.policy_for(gpu)
        return governing is not None and bool(
            governing.roles or not policy.WHOLE.isdisjoint(governing.modes))

    def held(self) -> tuple[names.ReportedDevice, ...]:
        """Stubs of all GPUs that exist or were reported.

        A stub tells Cyborg to leave everything as it is.
        """
        return self.withdrawal.held(
            gpu.address for gpu in self.live.host().gpus)

    def _make_ready(self, host: model.Host) -> model.Host:
        """Prepare idle GPUs for their policies; return the host after that.

        GPUs that servers have through Cyborg's own driver are left alone.
        """
        outcomes = [self.preparer.prepare(gpu) for gpu in host.gpus
                    if gpu.address not in self._others]
        return (self.live.refresh()
                if any(outcome.done for outcome in outcomes) else host)

    def _offers(self, gpu: model.Gpu) -> tuple[partition_offers.Offer, ...]:
        """What a GPU offers; logs what it cannot offer."""
        offers = self.servable(gpu)
        for complaint in self.live.complaints(gpu):
            self._say(complaint)
        alike: dict[str, list[str]] = {}
        for offer in offers:
            # The driver has logged mdev_problem once for all GPUs.
            if offer.problem and offer.problem != self.mdev_problem:
                alike.setdefault(offer.problem, []).append(offer.profile)
        for problem, profiles in alike.items():
            self._say(f'GPU {gpu.address}: not offered '
                      f'({", ".join(profiles)}): {problem}')
        return offers

    def _examine(self, host: model.Host
                 ) -> dict[model.PciAddress, health.Verdict]:
        """The health of every GPU; starts to watch for their errors.

        A GPU in passthrough mode is not watched: the agent would have to keep
        it open, and libvirt could not take it.
        """
        if self.settings.health_events:
            self._watcher.watch(gpu.address for gpu in host.gpus
                                if gpu.visible_to_nvml
                                and not self._is_whole(gpu))
        return self.health.check(host)

    def _event(self, event: condition.Event) -> None:
        """Called by the watcher's thread."""
        self._observer.event(event)
        self.health.event(event)

    def _is_whole(self, gpu: model.Gpu) -> bool:
        governing = self.settings.policy_for(gpu)
        return (governing is not None
                and not policy.WHOLE.isdisjoint(governing.modes)
                and not (governing.roles
                         and self.records.has_claims(gpu.address)))

    def _is_used(self, device: names.ReportedDevice) -> bool:
        return (self.records.has_claims(device.address) is not False
                or any(self.withdrawal.held_by(deployable.provider_uuid)
                       for deployable in device.deployables))

    def _enforce(self, decided: withdrawal.Decision
                 ) -> Collection[str] | None:
        """Correct ``reserved`` of every GPU that is reported.

        :returns: UUIDs of this host's providers; None if Placement does not
            answer.
        """
        self.draining = frozenset(
            item.provider for item in decided.draining)
        there = None
        try:
            if not decided.providers:
                return there
            # The drift comparison has just read them, if it had a reason to.
            there = generations = (
                self._drift.take_generations()
                or self.tree.generations(decided.providers))
            complete = self.publisher.enforce(decided.trusted, generations)
            self.reserved_writer.enforce(decided.draining, generations)
        except Exception as error:
            self.publisher.say(error)
        else:
            if complete:
                self.publisher.recovered()
        return there

    def _say_empty(self, host: model.Host) -> None:
        if not host.gpus:
            why = f' ({host.nvml_problem})' if host.nvml_problem else ''
            self._say(f'This host has no NVIDIA GPU{why}; it reports nothing.')

    def _say(self, message: str) -> None:
        """Log a condition once, until a report does not find it any more."""
        self._conditions.add(message)
        if self._said.is_new(message, about=message):
            LOG.warning('%s', message)
