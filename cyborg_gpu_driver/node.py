# SPDX-License-Identifier: Apache-2.0

"""One host with its GPUs, as the agent, the commands and the ramdisk use it.

All code that needs the machine, the policies or the records of a host gets
them from here. No other module puts the parts together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import host_parts
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import cleaning
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import admission
from cyborg_gpu_driver.program.bind import binder
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.program.ready import fixed
from cyborg_gpu_driver.program.ready import prepare
from cyborg_gpu_driver.program.reconcile import groups
from cyborg_gpu_driver.program.reconcile import orphans
from cyborg_gpu_driver.program.reconcile import rebuild
from cyborg_gpu_driver.program.reconcile import reconcile
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report import withdrawal
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names

CLEAN_CHECKS = 5
"""Reports in a row without a problem after which a GPU is healthy again."""


class Node(host_parts.HostParts, services.Services):
    """All parts of one host, each created at its first use.

    The node also represents the cloud's services to its parts. A program
    that may query those services overrides the methods.

    :param hostname: name of the compute node's resource provider; None is
        ``[DEFAULT] host``.
    :param tree: the host's providers in Placement; None if the node must not
        query Placement.
    :param mdev_problem: why no handle of type MDEV can be served; ``''`` if
        all can.
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 settings: policies.Settings | None = None,
                 hostname: str | None = None,
                 tree: publishing.ProviderTree | None = None,
                 mdev_problem: str = ''):
        super().__init__(conf, settings)
        privsep.set_timeout(gpu_conf.privileged_timeout(conf))
        self.tree = tree
        self._hostname = hostname
        self._mdev_problem = mdev_problem
        self.draining: frozenset[str] = frozenset()
        """UUIDs of providers that offer no more capacity."""

    @property
    def hostname(self) -> str:
        """Name of the compute node's resource provider."""
        return self._hostname or self.conf.host

    @property
    def mdev_problem(self) -> str:
        """Why no handle of type MDEV can be served; ``''`` if all can."""
        return self._mdev_problem

    @functools.cached_property
    def live(self) -> live.LiveHost:
        return live.LiveHost(self.reader, self.settings, self.records)

    @functools.cached_property
    def health(self) -> health.GpuHealth:
        return health.GpuHealth(
            self.platform, self.state_path, self,
            clean_checks=CLEAN_CHECKS,
            cordon_errors=self.settings.health_cordon_errors,
            ignored_xids=self.settings.health_ignored_xids)

    @functools.cached_property
    def claimed_vgpus(self) -> partitions.Vgpus:
        return partitions.Vgpus(self.platform, self.live, self.records,
                                self.health)

    @functools.cached_property
    def history(self) -> audit.Audit:
        return audit.Audit(self.state_path)

    @functools.cached_property
    def transactions(self) -> transaction.Transactions:
        return transaction.Transactions(self.platform, self.reader,
                                        self.state_path)

    @functools.cached_property
    def binder(self) -> binder.Binder:
        return binder.Binder(
            self.live, self.claimed_vgpus,
            partitions.Groups(self.platform, self.live, self.records,
                              self.history, self.resetter),
            admission.Admission(self.live, self, self.cordons, self.health),
            self.transactions, self.history, self, self.health, self.turns)

    @functools.cached_property
    def turns(self) -> admission.Turns:
        return admission.Turns()

    @functools.cached_property
    def rebuilder(self) -> rebuild.Rebuilder:
        return rebuild.Rebuilder(self.platform, self.live, self.records,
                                 self)

    @functools.cached_property
    def reconciler(self) -> reconcile.Reconciler:
        return reconcile.Reconciler(
            self.platform, self.live, self.records, self.settings,
            groups.Connections(self.platform, self.live, self.records),
            self.vgpus, self.rebuilder, self.binder, self.preparer, self,
            self.settings.orphan_grace)

    @functools.cached_property
    def applier(self) -> apply.Applier:
        return apply.Applier(self.transactions)

    @functools.cached_property
    def preparer(self) -> prepare.Preparer:
        return prepare.Preparer(
            self.transactions, self.settings, self.health, self,
            self.claimed_vgpus,
            fixed.FixedVgpus(self.transactions, self.settings))

    @functools.cached_property
    def vgpus(self) -> orphans.VgpuOrphans:
        return orphans.VgpuOrphans(self.platform, self.reader, self.records,
                                   self.settings)

    @functools.cached_property
    def resetter(self) -> reset.Resetter:
        return reset.Resetter(self.platform, self.health)

    @functools.cached_property
    def reserved_writer(self) -> reserved.ReservedWriter:
        """Reads and writes ``reserved`` in Placement.

        :raises HostUnusable: if the node must not query Placement.
        """
        if self.tree is None:
            raise exception.HostUnusable(
                reason='no Placement client is configured')
        return reserved.ReservedWriter(self.tree)

    @functools.cached_property
    def withdrawal(self) -> withdrawal.Withdrawal:
        return withdrawal.Withdrawal(
            self.state_path, self.tree, self.device, self.hostname)

    @functools.cached_property
    def cordons(self) -> cordons.GpuCordons:
        return cordons.GpuCordons(self.state_path)

    @functools.cached_property
    def cleaner(self) -> cleaning.Cleaner:
        return cleaning.Cleaner(
            self.resetter, self.state_path,
            None if self.tree is None else self.reserved_writer,
            self.history, self.settings.clean_whole_gpus)

    def act_here(self) -> None:
        """Make privileged changes in this process, not in a daemon."""
        privileged.run_here(self.platform)

    def claimed(self, address: model.PciAddress) -> str:
        """Why a GPU may have servers that leave no trace on this host.

        Placement knows such servers. Without Placement, the agent's last
        report is the source.
        """
        if self.tree is None:
            return capacity.of_reports(self.state_path, address)
        return capacity.of_placement(self.tree, self.hostname, address)

    @contextlib.contextmanager
    def partitioning(self, address: model.PciAddress) -> Iterator[str]:
        with self.turns.partitioning(address):
            # No earlier write can still offer it; all later ones reserve it.
            settled = self.settle(address)
            try:
                reason = self._take_whole(address) if settled else (
                    'it is not reserved in Placement yet')
            except Exception as error:
                reason = ('Placement does not say whether a server has the '
                          f'whole GPU: {exception.steady(error)}')
            try:
                yield reason and f'GPU {address}: {reason}'
            finally:
                self.live.refresh_gpu(address)

    def _take_whole(self, address: model.PciAddress) -> str:
        gpu = self.live.gpu(address)
        known = self.records.read(address).providers
        for item in self.live.offers(gpu):
            if (item.mode is policy.Mode.PASSTHROUGH
                    and build.reportable(item)):
                uuid = names.provider_uuid(
                    names.provider_name(self.hostname, item))
                return self.cleaner.take(cleaning.Whole(
                    gpu, uuid, names.resource_class(item)), uuid in known,
                    bool(self.records.claims(address)))
        return ''

    def wholes(self, devices: Iterable[names.ReportedDevice]
               ) -> Iterator[cleaning.Whole]:
        """The GPUs that a server may have as a whole.

        A GPU of mode auto that has another role now is not among them.
        """
        for device in devices:
            offered = [item for item in device.deployables
                       if not item.offer.withdrawn]
            for item in offered:
                gpu = self.live.gpu(device.address)
                if item.offer.mode is policy.Mode.PASSTHROUGH and (
                        len(offered) == 1
                        or not readiness.carved_up(gpu)
                        and not self.records.claims(gpu.address)):
                    yield cleaning.Whole(gpu, item.provider_uuid,
                                         item.resource_class)

    def mixed(self, address: model.PciAddress, handle: str) -> str:
        """Why a GPU must not get the server of an attach handle."""
        governing = self.settings.policy_for(self.live.gpu(address))
        if governing is None or not governing.isolated:
            return ''
        if self.tree is None:
            return 'only the agent can query Placement'
        others = sum(claim.handle != handle
                     for claim in self.records.claims(address))
        return capacity.mixed(self.tree, self.hostname, address, others + 1)

    def allocated(self, item: offer.Offer) -> Mapping[str, int] | None:
        """How many units of an offer each server has in Placement."""
        return None if self.tree is None else capacity.allocated(
            self.tree, self.hostname, item)

    def servable(self, gpu: model.Gpu) -> tuple[offer.Offer, ...]:
        """A GPU's offers; one that cannot be served names its problem."""
        return build.servable(self.live.offers(gpu), self.mdev_problem,
                              self.live.host().nova_unpatched)

    def device(self, gpu: model.Gpu, offers: Iterable[offer.Offer]
               ) -> names.ReportedDevice | None:
        """The device to report for a GPU; None if there is none."""
        device = build.device(
            roles.complete(gpu, self.records.read(gpu.address).by_role),
            offers, self.hostname, self.cordons.of(gpu.address))
        return device if device.deployables else None

    def withdrawn(self) -> frozenset[str]:
        """UUIDs of providers that get no servers until the next report.

        The GPU does not offer them any more, or changes their handles.
        """
        host = self.live.host()
        sent = self.withdrawal.preview(
            host, withdrawal.remembered(self.state_path), self.servable,
            self.ignored(host),
            {claim.gpu for claim in self.records.claims()})
        return frozenset(uuid for item in sent.values() for uuid in item.left)

    def inventories(self, address: model.PciAddress
                    ) -> tuple[reserved.Inventory, ...]:
        """The inventories of this driver that Placement should have of a GPU.

        Nothing else computes ``reserved``, so the agent and a repair write
        the same values. Providers that are :attr:`draining` are left out.
        """
        host = self.live.host()
        gpu = host.gpu(address)
        unread = capacity.is_unread(self.state_path, host, gpu)
        # In this order: a bind that ends meanwhile counts once.
        running = self.turns.handles
        claims = self.records.claims(address)
        return tuple(
            item for item in self.promised(
                address, self.live.offers(gpu, claims),
                gpu_record.owned(claims, plan.begun(gpu, claims, running)),
                unread or self.health.unhealthy(address) is not None)
            if item.provider not in self.draining)

    def promised(self, address: model.PciAddress,
                 offers: Collection[offer.Offer],
                 owned: Mapping[str, int], unhealthy: bool
                 ) -> tuple[reserved.Inventory, ...]:
        """The inventories that Placement should have of a GPU in this state.
        """
        offers = partition_offers.settled(
            offers, self.cleaner.withholds(offers),
            self.turns.is_partitioning(address))
        withheld = unhealthy or self.cleaner.withholds(offers)
        return capacity.inventories(
            map(self._fit, offers), owned, self.hostname, withheld,
            bool(self.cordons.of(address)))

    def _fit(self, found: offer.Offer) -> offer.Offer:
        """The offer; not creatable if a GPU of its group is unhealthy or
        cordoned, or if one of its handles names a dead virtual function.

        Cyborg gives out the first free handle, and takes no single handle
        back (:mod:`.report.content.build`). So the next server would get the
        dead function, however many others are free.
        """
        if (any(self.health.unhealthy(address) is not None
                or self.cordons.of(address) for address in found.members)
                or not self.health.dead_functions(found.gpu).isdisjoint(
                    found.parents)):
            return dataclasses.replace(found, creatable=0)
        return found
