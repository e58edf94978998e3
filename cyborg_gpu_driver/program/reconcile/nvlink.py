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

"""Learns which GPUs NVLink connects, and keeps their partitions in order.

This is for mode nvlink. The records keep the connections, because NVML and
the fabric manager report them only at some times.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import reader
from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.program.reconcile import fabric
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)

_Phase = journal.Phase


class NvlinkKeeper:
    """Maintains the groups of GPUs of one machine.

    :param machine: the machine to read.
    :param host: the last snapshot of the machine.
    :param records: the journal.
    :param state_path: where the locks are.
    :param switches: changes partitions.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: journal.Journal, state_path: str,
                 switches: fabric.FabricKeeper):
        self._machine = machine
        self._host = host
        self._journal = records
        self._state_path = state_path
        self._switches = switches
        self._failure = log_once.LogOnce()

    def look(self) -> None:
        """Learn the groups, and correct claims and partitions that differ.

        Called for each report. Never raises. Does nothing on a machine
        without mode nvlink.
        """
        gpus = {gpu.address: gpu for gpu in self._host.host().gpus
                if self._host.is_linked(gpu)}
        try:
            claims = [claim for claim in self._journal.entries()
                      if claim.members]
            if not gpus and not claims:
                return
            self._complete(claims)
            self._learn_modules(gpus)
            self._learn_bridges(gpus, claims)
            modules = self._modules(gpus)
            if modules or any(claim.fabric_partition is not None
                              for claim in claims):
                self._look_at_switches(gpus, modules)
        except Exception as error:
            # The report of the GPUs must not depend on it.
            if self._failure.is_new(str(error)):
                LOG.error('Could not check the groups of GPUs that NVLink '
                          'connects: %s', error, exc_info=not isinstance(
                              error, exception.GpuDriverError))
        else:
            self._failure.over()

    def _look_at_switches(self, gpus: Collection[model.PciAddress],
                          modules: Mapping[model.PciAddress, int]) -> None:
        """Ask the fabric manager for its partitions, and correct them."""
        claims = [claim for claim in self._journal.entries()
                  if claim.members]
        partitions = self._switches.partitions(unsupported=True)
        self._learn(gpus, nvlink.of_partitions(partitions, modules))
        active = privileged_fabric.active_of(partitions)
        self._switches.connect(claims, active)
        for group in self._host.groups(gpus):
            if (group.partition in active
                    and set(group.members) <= set(gpus)):
                self._switches.disconnect(
                    group, lambda gpu: privileged_driver.holders(str(gpu)))

    # Which GPUs are connected

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
            known = self._journal.nvlink(address)
            self._journal.keep_nvlink(address, gpu_record.Nvlink(
                self._machine.boot_id(), module if on_switches else None,
                known.groups if known else ()))

    def _baseboard(self, gpu: model.Gpu) -> tuple[int | None, bool] | None:
        """Module id of a GPU, and whether it is on NVSwitches.

        NVML tells it while the GPU is bound to nvidia. Then the record of its
        hand-over, by the agent or by "cyborg-gpu gpu prepare", has it.

        :returns: None if it was not read since the boot.
        :raises NvmlError: if NVML cannot be queried.
        """
        if gpu.visible_to_nvml and gpu.driver == drivers.NVIDIA:
            return reader.baseboard(self._machine, gpu.address)
        record = self._machine.records.get(gpu.address)
        if record is None or not boards.holds(record, gpu,
                                              self._machine.boot_id()):
            return None
        return record.module, record.on_switches

    def _modules(self, gpus: Iterable[model.PciAddress]
                 ) -> dict[model.PciAddress, int]:
        """Module ids of the GPUs on NVSwitches, as read since the boot."""
        return {address: known.module for address, known
                in self._known(gpus).items() if known.module is not None}

    def _learn_bridges(self, gpus: Mapping[model.PciAddress, model.Gpu],
                       claims: Collection[journal.Entry]) -> None:
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
            mine = {group for group in groups if address in group.members}
            self._journal.keep_nvlink(address, dataclasses.replace(
                item, groups=tuple(sorted(
                    mine.union(filter(stays, item.groups))))))

    def _known(self, gpus: Iterable[model.PciAddress]
               ) -> dict[model.PciAddress, gpu_record.Nvlink]:
        """The NVLink facts that were read of each GPU since the boot."""
        boot = self._machine.boot_id()
        found = {address: self._journal.nvlink(address) for address in gpus}
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
            mine = {(group.leader, group.profile): group for group in groups
                    if address in group.members}
            known = self._journal.nvlink(address)
            if known is None:
                # Its record was lost. Records of other GPUs have its groups.
                known = gpu_record.Nvlink('', groups=tuple(
                    group for group in self._host.groups(gpus)
                    if address in group.members))
            if not mine and not known.groups:
                continue
            former = {(group.leader, group.profile): group
                      for group in known.groups
                      if not self._is_past(group, groups)}
            self._journal.keep_nvlink(address, dataclasses.replace(
                known, groups=tuple(sorted((former | mine).values()))))

    def _is_past(self, former: nvlink.Group,
                 groups: Collection[nvlink.Group]) -> bool:
        """Whether another group of its size has one of its GPUs now."""
        return any(
            group != former and group.profile == former.profile
            and set(group.members) & set(former.members) for group in groups)

    # Which servers have them

    def _complete(self, claims: Iterable[journal.Entry]) -> None:
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
                    self._held(claim):
                now = self._journal.get(claim.handle)
                missing = self._lacking(claim)
                if now is None or (now.leads and missing
                                   and now.phase is _Phase.BINDING):
                    # The claim was removed since, or will be rolled back.
                    continue
                self._journal.put(*(dataclasses.replace(now, gpu=address)
                                    for address in missing))
                LOG.warning('Restored the claim of handle %(handle)s on GPUs '
                            '%(gpus)s',
                            {'handle': claim.handle,
                             'gpus': ', '.join(map(str, missing))})

    def _lacking(self, claim: journal.Entry) -> list[model.PciAddress]:
        """The GPUs of a claim whose records do not have it.

        A record that cannot be read may have it.
        """
        def lacks(address: model.PciAddress) -> bool:
            try:
                return all(entry.handle != claim.handle
                           for entry in self._journal.entries(address))
            except exception.JournalError:
                return False

        return list(filter(lacks, claim.gpus))

    def _held(self, claim: journal.Entry
              ) -> contextlib.AbstractContextManager:
        return locks.gpus(self._state_path, claim.gpus, locks.REPORT_SECONDS)
