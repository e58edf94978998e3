# SPDX-License-Identifier: Apache-2.0

"""The host of a command: its snapshot, offers and changes."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver import cyborg_hooks
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.cmd import view
from cyborg_gpu_driver.host.fabric import reader as fabric_reader
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offer as offer_module
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.partition.offer import whole as offer_whole
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import withdrawal
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names


class Machine(view.HostView, node.Node):
    """The host of a command that needs more than a snapshot."""

    _changes = False
    _links = True

    def for_changes(self, links: bool = True) -> Machine:
        """Return this host, for a command that works on GPUs through NVML.

        From now on, this process itself makes privileged changes. The
        snapshot has no details, and :attr:`host` raises HostUnusable if NVML
        is not available.

        :param links: whether the snapshot includes NVLinks.
        """
        self.act_here()
        self._changes, self._links = True, links
        return self

    def _snapshot(self) -> model.Host:
        if not self._changes:
            return super()._snapshot()
        host = self.reader.snapshot(links=self._links)
        if host.nvml_problem:
            raise exception.HostUnusable(reason=host.nvml_problem)
        return host

    @property
    def gpus(self) -> tuple[model.Gpu, ...]:
        """The GPUs in the order of their indices, see :mod:`.host.choice`.

        :raises HostUnusable: if NVML is not available, if there is no GPU, or
            if they cannot be numbered.
        """
        found = choice.gpus(self.host)
        if not found:
            raise exception.HostUnusable(reason='; '.join(
                ('it has no NVIDIA GPU', *self.host.problems)))
        return found

    def reachable(self, gpus: Iterable[model.Gpu]) -> tuple[model.Gpu, ...]:
        """Return these GPUs if NVML can work on all of them, else raise."""
        gpus = tuple(gpus)
        reasons = [reason for gpu in gpus
                   if (reason := choice.obstacle(self.host, gpu))]
        if reasons:
            raise exception.HostUnusable('; '.join(reasons))
        return gpus

    def current(self, gpu: model.Gpu) -> model.Gpu:
        """Return the current state of a GPU, with compute instances."""
        return self.transactions.read(gpu)

    def check_root(self, what: str = 'change its GPUs') -> None:
        """Refuse other users than root, before anything changes.

        :param what: completes the sentence "only root may ...".
        """
        if not self.platform.simulated and not self.platform.is_root():
            raise exception.HostUnusable(reason=f'only root may {what}')

    def open_placement(self) -> None:
        """Let :meth:`publish` write to Placement, if it is configured."""
        # Other commands start faster without it.
        from cyborg_gpu_driver.cloud import placement_client
        try:
            client = placement_client.Placement(self.conf)
        except exception.CloudError as error:
            if not self.platform.simulated:
                output.say(f'Placement is not used: {error}')
        else:
            self.tree = publishing.ProviderTree(lambda: client)

    def publish(self, address: model.PciAddress) -> None:
        """Write what can be created now, as the agent does too.

        An error is only printed, so that the other GPUs are written.
        """
        if self.tree is None:
            return
        try:
            wanted = self.inventories(address)
            self.reserved_writer.enforce(wanted, self.tree.generations(
                [inventory.provider for inventory in wanted]))
        except exception.UnknownGpu:
            # A GPU that no longer exists has no offers.
            return
        except exception.GpuDriverError as error:
            output.say(f'GPU {address}: Placement was not updated: {error}')

    def offers(self, gpu: model.Gpu, everything: bool = False
               ) -> tuple[offer_module.Offer, ...]:
        """Return the offers of the GPU's policy, or all possible offers.

        An offer that the agent could not report has its problem set.
        """
        if everything:
            found = offers.possible_offers(gpu)
        else:
            governing = self.settings.policy_for(gpu)
            found = () if governing is None else offers.offers(
                gpu, governing, plan.held(gpu, self.claims(gpu),
                                          self.platform.boot_id()),
                must_be_bound=True, situation=self.situation(gpu),
                groups=self._groups(gpu, governing))
        if all(offer.mode is policy.Mode.PASSTHROUGH for offer in found):
            return found
        return build.servable(found, self.mdev_problem,
                              self.host.nova_unpatched)

    def _groups(self, gpu: model.Gpu, governing: policy.Policy
                ) -> tuple[offer_whole.State, ...]:
        """Return the NVLink groups of a GPU as the agent knows them.

        If no agent has read them yet, return those it would find now.
        """
        if governing.mode is not policy.Mode.NVLINK:
            return ()
        known = self.live.groups([gpu.address]) or [
            group for group in self._found_groups
            if gpu.address in group.members]
        return plan.group_states(self.host, known, self.settings.policy_for,
                                 self.records.owners)

    @functools.cached_property
    def _found_groups(self) -> tuple[nvlink.Group, ...]:
        fabric = fabric_reader.read(self.platform, self.host)
        if fabric is not None:
            return nvlink.of_partitions(fabric.partitions, fabric.modules)
        return nvlink.of_bridges({
            gpu.address: gpu.nvlink_peers for gpu in self.host.gpus
            if gpu.visible_to_nvml})

    @functools.cached_property
    def mdev_problem(self) -> str:
        """Why an agent in this environment supports no handle of type MDEV.

        Empty if the agent supports it. A simulated machine and an environment
        without Cyborg are not checked.
        """
        if self.conf.gpu.simulate or not importlib.util.find_spec('cyborg'):
            return ''
        return cyborg_hooks.mismatch() or capability.mdev_problem()

    @functools.cached_property
    def sent(self) -> Mapping[model.PciAddress, withdrawal.Sent]:
        """What the agent would send for each GPU that exists or existed.

        This does not query Placement. The agent does, and leaves a GPU alone
        while servers use what its policy does not offer any more.
        """
        claimed = {gpu.address for gpu in self.host.gpus
                   if self.claims(gpu)}
        found = self.withdrawal.preview(
            self.host, self._reported, self.offers, self.ignored(self.host),
            claimed)
        return {address: _marked(sent, self.verdicts, claimed)
                for address, sent in found.items()}

    @property
    def _reported(self) -> Mapping[model.PciAddress, gpu_record.Reported]:
        """The last report of each GPU; a bad record is only printed."""
        return {address: record.reported
                for address in self.records.addresses()
                if (record := self._record(address)) and record.reported}

    @property
    def providers(self) -> frozenset[str]:
        """UUIDs of the providers that the GPUs have, or would have."""
        return frozenset(
            item.provider_uuid for sent in self.sent.values() if sent.device
            for item in sent.device.deployables).union(
                *(known.providers for known in self._reported.values()))

    @functools.cached_property
    def verdicts(self) -> Mapping[model.PciAddress, health.Verdict]:
        """The health of each GPU, as far as it is known; changes nothing."""
        try:
            return {status.gpu.address: status.verdict
                    for status in self.health.statuses(self.host)}
        except exception.JournalError as error:
            self._say_once(error)
            return {}

    def problem(self, gpu: model.Gpu) -> str:
        """Return why the agent leaves the whole GPU as Cyborg has it, or does
        not report it for now; empty if the offers give the reasons.
        """
        problem = self.sent[gpu.address].problem
        if problem and condition.is_failed(gpu):
            return f'{condition.state(gpu)}: {problem}'
        return problem

    def reported(self, offer: offer_module.Offer
                 ) -> names.ReportedDeployable | None:
        """Return an offer's deployable in the agent's report; None if none."""
        device = self.sent[offer.gpu].device
        name = names.provider_name(self.hostname, offer)
        return next((deployable for deployable
                     in (device.deployables if device else ())
                     if deployable.name == name
                     and not deployable.offer.withdrawn), None)


def add_cloud(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that query a cloud about this host."""
    parser.add_argument(
        '--os-cloud', metavar='NAME',
        help='cloud of clouds.yaml to read accelerator requests from '
             '(default: the one that OS_CLOUD or OS_AUTH_URL names, if any)')
    parser.add_argument(
        '--host', metavar='NAME',
        help='this host as Cyborg names it (default: [DEFAULT] host of '
             'cyborg.conf, or the host name)')
    parser.add_argument(
        '--without-cloud', action='store_true',
        help='use no cloud, even if the environment names one')


def has_cloud(parsed_args: argparse.Namespace) -> bool:
    """Whether the command line or the environment names a cloud."""
    # Other commands start faster without it.
    from cyborg_gpu_driver.cloud import connection
    return not parsed_args.without_cloud and bool(
        parsed_args.os_cloud or connection.is_named())


def _marked(sent, verdicts, claimed):
    """Return what is sent for a GPU, with an unhealthy GPU marked."""
    if sent.device is None:
        return sent
    (device,) = build.mark_unhealthy(
        (sent.device,), verdicts, lambda device: device.address in claimed)
    if device.stub and not sent.device.stub:
        return withdrawal.Sent(device, 'unhealthy and in use: ' + '; '.join(
            verdicts[device.address].reasons))
    return dataclasses.replace(sent, device=device)
