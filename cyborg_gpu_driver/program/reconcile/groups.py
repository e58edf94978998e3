# SPDX-License-Identifier: Apache-2.0

"""Keeps NVLink groups and the partitions of NVSwitches as claims need them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import config
from cyborg_gpu_driver.host.fabric import reader
from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

_Phase = gpu_record.Phase


class Connections:
    """Compares groups and partitions with claims, and corrects them.

    After a restart, the fabric manager has forgotten the active partitions,
    or asks for their list ("Resiliency" in its user guide). The records keep
    which GPUs NVLink connects, because NVML and the fabric manager report it
    only at some times.

    Each change is made under the locks of its GPUs. An error with one
    partition is logged once, and the others are changed.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: store.Store):
        self._machine = machine
        self._host = host
        self._records = records
        self._failed = log_once.LogOnce()

    def look(self) -> None:
        """Compare and correct. Called for each report. Never raises."""
        with self._noted('the partitions of vGPUs'):
            self._look_at_vgpus()
        with self._noted('the groups of GPUs'):
            self._look_at_groups()

    def _noted(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Log an error once, instead of raising it."""
        return self._failed.noted(LOG.warning, f'Could not check {what}; '
                                  'each report tries again')

    # Partitions of NVSwitches

    def partitions(self) -> tuple[model.FabricPartition, ...]:
        """All partitions, also those whose hardware has failed.

        A fabric manager that asks for the list of active partitions gets it,
        unless a claim or its partition is not known: the fabric manager takes
        a partition that is not in the list for inactive, even if a guest uses
        it.
        """
        try:
            return privileged_fabric.read_partitions(unsupported=True)
        except exception.FabricError as error:
            if error.symbol != 'NOT_CONFIGURED':
                raise
        privileged_fabric.give_list(self._active())
        LOG.warning('NVSwitches: gave the fabric manager the list of active '
                    'partitions')
        return privileged_fabric.read_partitions(unsupported=True)

    def _active(self) -> list[int]:
        """The partitions that servers have."""
        try:
            claims = self._records.all_claims()
        except exception.JournalError as error:
            raise exception.StepFailed(
                reason='the fabric manager gets no list of the active '
                'partitions, because not all claims of this host are known: '
                f'{error}. "cyborg-gpu doctor" shows what to do'
            ) from error
        for claim in self._without_partition(claims):
            if self._may_be_on_switches(claim.gpu):
                raise exception.StepFailed(
                    reason='the fabric manager gets no list of the active '
                    'partitions, because the partition of handle '
                    f'{claim.handle} on GPU {claim.gpu} is not known. Start '
                    'the fabric manager once with FABRIC_MODE_RESTART=0, then '
                    'the agent asks for it; this interrupts the NVLink '
                    'traffic of running servers')
        return sorted(
            claim.fabric_partition for claim in claims
            if claim.fabric_partition is not None and claim.is_owned)

    def connect(self, claims: Iterable[gpu_record.Claim],
                active: Collection[int]) -> None:
        """Activate the inactive partitions of bound claims."""
        for claim in claims:
            if (claim.fabric_partition is None or not claim.is_owned
                    or claim.fabric_partition in active):
                continue
            with (self._noted(f'partition {claim.fabric_partition}'),
                  locks.gpus(self._records.state_path, claim.gpus)):
                now = self._records.claim(claim.handle)
                step = now and partitions.connect(self._machine, now)
                if step:
                    LOG.warning('Handle %(handle)s: %(step)s',
                                {'handle': claim.handle, 'step': step})

    def _disconnect(self, group: nvlink.Group) -> None:
        """Deactivate the partition of GPUs that no server has."""
        if group.partition is None:
            return
        with (self._noted(f'partition {group.partition}'),
              locks.gpus(self._records.state_path, group.members)):
            if any(self._records.owners(address)
                   or privileged_driver.holders(str(address))
                   for address in group.members):
                return
            privileged_fabric.deactivate(group.partition)
            LOG.warning('NVSwitches: deactivated partition %s, which no '
                        'server has', group.partition)

    def _look_at_vgpus(self) -> None:
        """Activate missing partitions of vGPUs.

        Does nothing if the fabric manager does not run for vGPUs. A partition
        that a removed vGPU has left is deactivated at the next bind.
        """
        try:
            if (config.read(self._machine.fabric_config).mode
                    is not model.FabricMode.VGPU):
                return
        except exception.FabricError:
            return
        found = self.partitions()
        self._add_partitions(self._without_partition(self._records.claims()))
        self.connect(self._records.claims(),
                     privileged_fabric.active_of(found))

    def _without_partition(self, claims: Iterable[gpu_record.Claim]
                           ) -> list[gpu_record.Claim]:
        """The claims of vGPUs that may need a partition that is not known.

        A claim that was rebuilt from the hardware is one.
        """
        gpus = {gpu.address: gpu for gpu in self._host.host().gpus}
        return [claim for claim in claims
                if claim.fabric_partition is None and not claim.is_group
                and claim.placement is None and claim.is_owned
                and _may_take_whole_gpu(gpus.get(claim.gpu), claim.mdev_type)]

    def _may_be_on_switches(self, address: model.PciAddress) -> bool:
        """Whether a GPU is on NVSwitches; True if NVML does not tell."""
        try:
            return reader.module_on_switches(self._machine,
                                             address) is not None
        except exception.NvmlError:
            return True

    def _add_partitions(self, claims: Iterable[gpu_record.Claim]) -> None:
        """Write the partitions of these claims, if they have one."""
        for claim in claims:
            with (self._noted(f'the partition of handle {claim.handle}'),
                  locks.gpus(self._records.state_path, claim.gpus)):
                partition = privileged_fabric.partition_of_vgpu(
                    self._host.gpu(claim.gpu), claim.mdev_type)
                if (partition is not None
                        and self._records.claim(claim.handle) == claim):
                    self._records.put_claims(dataclasses.replace(
                        claim, fabric_partition=partition))

    # Groups of GPUs, for mode nvlink

    def _look_at_groups(self) -> None:
        """Learn the groups, and correct claims and partitions that differ.

        Does nothing on a machine without mode nvlink.
        """
        gpus = {gpu.address: gpu for gpu in self._host.host().gpus
                if self._host.is_linked(gpu)}
        claims = [claim for claim in self._records.claims()
                  if claim.is_group]
        if not gpus and not claims:
            return
        self._complete(claims)
        self._learn_modules(gpus)
        self._learn_bridges(gpus, claims)
        modules = {address: known.module for address, known
                   in self._known(gpus).items() if known.module is not None}
        claims = [claim for claim in self._records.claims()
                  if claim.is_group]
        if not modules and not any(claim.fabric_partition is not None
                                   for claim in claims):
            return
        found = self.partitions()
        self._learn(gpus, nvlink.of_partitions(found, modules))
        active = privileged_fabric.active_of(found)
        self.connect(claims, active)
        for group in self._host.groups(gpus):
            if (group.partition in active
                    and gpus.keys() >= set(group.members)):
                self._disconnect(group)

    def _learn_modules(self, gpus: Mapping[model.PciAddress, model.Gpu]
                       ) -> None:
        """Learn the module id of each GPU."""
        for address, gpu in gpus.items():
            try:
                found = self._baseboard(gpu)
            except exception.NvmlError as error:
                LOG.debug('GPU %(gpu)s: %(error)s',
                          {'gpu': address, 'error': error})
                continue
            if found is None:
                continue
            module, on_switches = found
            if module and not on_switches and not gpu.nvlink_peers:
                # The GPU is on a baseboard, and NVML does not say which kind.
                continue
            known = self._records.peek(address).nvlink
            self._records.observe(address, nvlink=gpu_record.Nvlink(
                self._machine.boot_id(), module if on_switches else None,
                known.groups if known else ()))

    def _baseboard(self, gpu: model.Gpu) -> tuple[int | None, bool] | None:
        """Module id of a GPU, and whether it is on NVSwitches.

        NVML tells it while the GPU is bound to nvidia. Then the record of its
        hand-over, by the agent or by "cyborg-gpu gpu prepare", has it.

        :returns: None if it was not read since the boot.
        """
        if gpu.visible_to_nvml and gpu.driver == whole.NVIDIA:
            return reader.baseboard(self._machine, gpu.address)
        record = self._machine.records.board(gpu.address)
        if record is None or not boards.holds(record, gpu,
                                              self._machine.boot_id()):
            return None
        return record.module, record.on_switches

    def _learn_bridges(self, gpus: Mapping[model.PciAddress, model.Gpu],
                       claims: Collection[gpu_record.Claim]) -> None:
        """Record the groups of the GPUs that are not on NVSwitches.

        A pair whose bridge is removed is no longer offered, unless a server
        has it. No activation at the bind would reveal the missing bridge. A
        pair stays if the links of one of its GPUs have not been read.
        """
        read = self._known(gpus)
        unread = gpus.keys() - read.keys()
        known = {address: item for address, item in read.items()
                 if item.module is None}
        groups = nvlink.of_bridges({
            address: gpus[address].nvlink_peers for address in known})
        used = {nvlink.Group(claim.members) for claim in claims}

        def stays(group: nvlink.Group) -> bool:
            return group in used or (
                not unread.isdisjoint(group.members)
                and not self._is_past(group, groups))

        for address, item in known.items():
            self._note(address, item, groups, stays)

    def _known(self, gpus: Iterable[model.PciAddress]
               ) -> dict[model.PciAddress, gpu_record.Nvlink]:
        """The NVLink facts that were read of each GPU since the boot."""
        boot = self._machine.boot_id()
        found = {address: self._records.peek(address).nvlink
                 for address in gpus}
        return {address: known for address, known in found.items()
                if known is not None and known.boot == boot}

    def _learn(self, gpus: Iterable[model.PciAddress],
               groups: Collection[nvlink.Group]) -> None:
        """Record the groups of each GPU.

        A known group is kept, because a server may have it. The bind detects
        a group that the hardware no longer has. Another group of the same
        size with one of its GPUs replaces it: the board is then another one.
        """
        for address in gpus:
            known = self._records.peek(address).nvlink
            if known is None:
                # Its record was lost. Records of other GPUs have its groups.
                known = gpu_record.Nvlink('', groups=self._host.groups(gpus))
            self._note(address, known, groups,
                       lambda group: not self._is_past(group, groups))

    def _note(self, address: model.PciAddress, known: gpu_record.Nvlink,
              groups: Iterable[nvlink.Group],
              stays: Callable[[nvlink.Group], bool]) -> None:
        """Record the groups of one GPU, with the known ones that stay."""
        found = {group for group in (*groups, *filter(stays, known.groups))
                 if address in group.members}
        if found or known.boot:
            self._records.observe(address, nvlink=dataclasses.replace(
                known, groups=tuple(sorted(found))))

    def _is_past(self, former: nvlink.Group,
                 groups: Collection[nvlink.Group]) -> bool:
        """Whether another group of its size has one of its GPUs now."""
        return any(
            group != former and group.profile == former.profile
            and set(group.members) & set(former.members) for group in groups)

    def _complete(self, claims: Iterable[gpu_record.Claim]) -> None:
        """Write the claims of a group again that a lost record contained.

        The claim of the first GPU is written first and removed last, so that
        each claim found implies all others. The next report tries a claim
        again whose GPUs another holder has locked.
        """
        for claim in claims:
            missing = self._lacking(claim)
            if not missing:
                continue
            with contextlib.suppress(exception.LockTimeout), \
                    locks.gpus(self._records.state_path, claim.gpus):
                now = self._records.claim(claim.handle)
                missing = self._lacking(claim)
                if now is None or (now.leads and missing
                                   and now.phase is _Phase.BINDING):
                    # The claim was removed since, or will be rolled back.
                    continue
                self._records.put_claims(*(
                    dataclasses.replace(now, gpu=address)
                    for address in missing))
                LOG.warning('Restored the claim of handle %(handle)s on GPUs '
                            '%(gpus)s',
                            {'handle': claim.handle,
                             'gpus': ', '.join(map(str, missing))})

    def _lacking(self, claim: gpu_record.Claim) -> list[model.PciAddress]:
        """The GPUs of a claim whose records do not have it.

        A record that cannot be read may have it.
        """
        def lacks(address: model.PciAddress) -> bool:
            try:
                return all(other.handle != claim.handle
                           for other in self._records.claims(address))
            except exception.JournalError:
                return False

        return list(filter(lacks, claim.gpus))


def _may_take_whole_gpu(gpu: model.Gpu | None, mdev_type: str) -> bool:
    """Whether a vGPU takes the whole GPU; True if NVML does not tell."""
    return (gpu is None or not gpu.vgpu_types
            or privileged_fabric.takes_whole_gpu(gpu, mdev_type))
