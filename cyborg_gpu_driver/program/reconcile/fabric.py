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

"""Keeps the partitions of NVSwitches as the claims of the GPUs need them.

After a restart, the fabric manager has forgotten the active partitions, or
asks for their list ("Resiliency" in its user guide).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import config
from cyborg_gpu_driver.host.fabric import reader
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import fabric
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.program.steps import executor

LOG = logging.getLogger(__name__)


class FabricKeeper:
    """Compares partitions with the claims of one machine, and corrects them.

    Each change is made under the locks of its GPUs. An error with one
    partition is logged once, and the others are changed.

    :param machine: the machine to change.
    :param host: the last snapshot of the machine.
    :param records: the journal.
    :param state_path: where the locks are.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: journal.Journal, state_path: str):
        self._machine = machine
        self._host = host
        self._journal = records
        self._state_path = state_path
        self._failure = log_once.LogOnce()
        self._failed = log_once.LogOnce()

    def look(self) -> None:
        """Activate missing partitions of vGPUs, and deactivate unclaimed ones.

        Called for each report. Never raises. Does nothing if the fabric
        manager of this machine does not run for vGPUs.
        """
        try:
            if (config.read(self._machine.fabric_config).mode
                    is not fabric.Mode.VGPU):
                return
        except exception.FabricError:
            return
        try:
            self._look()
        except Exception as error:
            # The report of the GPUs must not depend on it.
            if self._failure.is_new(str(error)):
                LOG.error('The partitions of the NVSwitches could not be '
                          'restored: %s', error, exc_info=not isinstance(
                              error, exception.GpuDriverError))
        else:
            self._failure.over()

    def partitions(self, unsupported: bool = False
                   ) -> tuple[fabric.Partition, ...]:
        """All partitions.

        A fabric manager that asks for the list of active partitions gets it,
        unless a claim or its partition is not known: the fabric manager takes
        a partition that is not in the list for inactive, even if a guest uses
        it.

        :param unsupported: whether to include partitions whose hardware has
            failed.
        :raises FabricError: if the fabric manager cannot be asked.
        :raises StepFailed: if it asks for the list, and the list is not
            known.
        """
        try:
            return privileged_fabric.read_partitions(unsupported)
        except exception.FabricError as error:
            if error.symbol != 'NOT_CONFIGURED':
                raise
        privileged_fabric.give_list(self._active())
        LOG.warning('NVSwitches: gave the fabric manager the list of active '
                    'partitions')
        return privileged_fabric.read_partitions(unsupported)

    def _active(self) -> list[int]:
        """The partitions that servers have.

        :raises StepFailed: if not all of them are known.
        """
        try:
            claims = self._journal.all_entries()
        except exception.JournalError as error:
            raise exception.StepFailed(
                reason='the fabric manager gets no list of the active '
                'partitions, because not all claims of this host are known: '
                f'{error}. "cyborg-gpu doctor" shows what to do'
            ) from error
        for claim in self._lacking(claims):
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
            if claim.fabric_partition is not None and _has_server(claim))

    def connect(self, claims: Iterable[journal.Entry],
                active: Collection[int]) -> None:
        """Activate the inactive partitions of bound claims."""
        for claim in claims:
            if (claim.fabric_partition is None or not _has_server(claim)
                    or claim.fabric_partition in active):
                continue
            with (self._noted(f'partition {claim.fabric_partition}'),
                  self._held(claim.gpus)):
                now = self._journal.get(claim.handle)
                active = privileged_fabric.active_of(
                    privileged_fabric.read_partitions())
                if (now is None or not _has_server(now)
                        or claim.fabric_partition in active):
                    continue
                step = action.Step(
                    action.Action.ACTIVATE_PARTITION,
                    vgpu=None if claim.members else claim.vgpu,
                    fabric_partition=claim.fabric_partition)
                executor.Executor(self._machine, claim.gpu).take(step)
                LOG.warning('Handle %(handle)s: %(step)s',
                            {'handle': claim.handle, 'step': step})

    def disconnect(self, group: nvlink.Group,
                   is_used: Callable[[model.PciAddress], object]
                   ) -> None:
        """Deactivate the partition of GPUs that no server has.

        :param is_used: whether a GPU without a claim may have a server.
        """
        if group.partition is None:
            return
        with (self._noted(f'partition {group.partition}'),
              self._held(group.members)):
            if any(self._journal.owners(address) or is_used(address)
                   for address in group.members):
                return
            privileged_fabric.deactivate(group.partition)
            LOG.warning('NVSwitches: deactivated partition %s, which no '
                        'server has', group.partition)

    def _look(self) -> None:
        partitions = self.partitions()
        active = privileged_fabric.active_of(partitions)
        self._add_partitions(self._lacking(self._journal.entries()))
        claims = self._journal.entries()
        self.connect(claims, active)
        if active <= {claim.fabric_partition for claim in claims}:
            return
        board = fabric.Fabric(self._modules(), partitions=partitions)
        for address in board.modules:
            item = board.single(address)
            if item is not None and item.active:
                self.disconnect(nvlink.Group((address,), item.partition_id),
                                self._may_have_vgpus)

    def _lacking(self, claims: Iterable[journal.Entry]
                 ) -> list[journal.Entry]:
        """The claims of vGPUs that may need a partition that is not known.

        A claim that was rebuilt from the hardware is one.
        """
        gpus = {gpu.address: gpu for gpu in self._host.host().gpus}
        return [claim for claim in claims
                if claim.fabric_partition is None and not claim.members
                and claim.placement is None and _has_server(claim)
                and _may_take_whole_gpu(gpus.get(claim.gpu), claim.mdev_type)]

    def _may_be_on_switches(self, address: model.PciAddress) -> bool:
        """Whether a GPU is on NVSwitches; True if NVML does not tell."""
        try:
            return reader.module_on_switches(self._machine,
                                             address) is not None
        except exception.NvmlError:
            return True

    def _add_partitions(self, claims: Iterable[journal.Entry]) -> None:
        """Write the partitions of these claims, if they have one.

        The next report tries those again that fail.
        """
        for claim in claims:
            with (self._noted(f'partition of handle {claim.handle}'),
                  self._held(claim.gpus)):
                partition = privileged_fabric.partition_of_vgpu(
                    self._host.gpu(claim.gpu), claim.mdev_type)
                if (partition is not None
                        and self._journal.get(claim.handle) == claim):
                    self._journal.put(dataclasses.replace(
                        claim, fabric_partition=partition))

    def _may_have_vgpus(self, address: model.PciAddress) -> bool:
        gpu = self._host.refresh_gpu(address)
        return bool(gpu.vgpus or condition.doubts(gpu))

    def _modules(self) -> dict[model.PciAddress, int]:
        found = {}
        for gpu in self._host.host().gpus:
            if not gpu.visible_to_nvml or gpu.vgpus:
                continue
            # The partition of a GPU whose links cannot be read stays active.
            with contextlib.suppress(exception.NvmlError):
                module = reader.module_on_switches(self._machine, gpu.address)
                if module is not None:
                    found[gpu.address] = module
        return found

    def _held(self, gpus: Sequence[model.PciAddress]
              ) -> contextlib.AbstractContextManager:
        return locks.gpus(self._state_path, gpus, locks.REPORT_SECONDS)

    @contextlib.contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Log an error once, instead of raising it.

        :param what: what the error is about.
        """
        try:
            yield
        except exception.GpuDriverError as error:
            if self._failed.is_new(str(error), what):
                LOG.warning('NVSwitches: %(what)s: %(error)s. Each report '
                            'tries again.', {'what': what, 'error': error})
        else:
            self._failed.over(what)


def _has_server(claim: journal.Entry) -> bool:
    return claim.leads and claim.phase is journal.Phase.BOUND


def _may_take_whole_gpu(gpu: model.Gpu | None, mdev_type: str) -> bool:
    """Whether a vGPU takes the whole GPU; True if NVML does not tell."""
    return (gpu is None or not gpu.vgpu_types
            or privileged_fabric.takes_whole_gpu(gpu, mdev_type))
