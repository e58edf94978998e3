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

"""Bind and unbind groups of whole GPUs that NVLink connects.

A bind writes a claim on each GPU before it activates the partition. An unbind
deactivates the partition before it removes a claim. So no partition is active
without an owner, whenever a process dies.

A GPU is reset after its server has left and its partition is inactive. It is
never reset between the activation of its partition and the start of the
server: no source says what a reset does to an active partition.
"""

from __future__ import annotations

import contextlib

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import turns
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import reset

LOG = logging.getLogger(__name__)

Action = action.Action


class Groups:
    """Binds and unbinds groups; callers hold the locks of their GPUs.

    :param machine: the machine with the GPUs.
    :param host: the state of the machine.
    :param records: the journal.
    :param history: the audit log.
    :param resetter: resets GPUs.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: journal.Journal, history: audit.Audit,
                 resetter: reset.Resetter):
        self._machine = machine
        self._host = host
        self._journal = records
        self._audit = history
        self._resetter = resetter

    def make(self, turn: turns.Turn) -> journal.Entry:
        """Bind a free group to a handle.

        :returns: the claim on the first GPU.
        :raises BindRefused: if the group is not free; nothing has changed.
        :raises BindAbandoned: if Cyborg no longer waits for the bind, which
            is rolled back.
        :raises FabricError: if the fabric manager refused it; rolled back.
        """
        asked = turn.asked
        group = self._check(turn)
        entry = journal.Entry(
            handle=asked.handle, gpu=group.leader, function=asked.function,
            mdev_type=asked.mdev_type, profile=group.profile,
            phase=journal.Phase.BINDING, boot=self._machine.boot_id(),
            fabric_partition=group.partition, members=group.members)
        try:
            self._journal.put(*journal.on_each(entry))
            # A partition that is active was left by a deleted server.
            self._take(entry, Action.DEACTIVATE_PARTITION)
            self._take(entry, Action.ACTIVATE_PARTITION)
            for address in entry.gpus:
                # A GPU that has disappeared refuses the bind.
                self._host.refresh_gpu(address)
            turn.check()
            bound = journal.on_each(entry, phase=journal.Phase.BOUND,
                                    since=self._journal.clock())
            self._journal.put(*reversed(bound))
        except Exception as error:
            self._roll_back(entry)
            if isinstance(error, exception.StepFailed):
                raise plan.refusal(asked, str(error)) from error
            raise
        return bound[0]

    def remove(self, entry: journal.Entry) -> None:
        """Release a group: deactivate its partition, and reset its GPUs.

        After a bind that did not finish no GPU is reset, because the group
        had no server yet.

        :raises GpuInUse: while a process has one of its GPUs open.
        :raises FabricError: if the fabric manager refused it.
        :raises StepFailed: if a GPU cannot be reset, or is not clean.
        :raises NvmlError, SysfsError, UsageUnknown, DriverError, NvmlHeld: as
            the machine answers.
        :raises JournalError: if the claims could not be removed.
        """
        had_server = entry.phase is not journal.Phase.BINDING
        if entry.phase is journal.Phase.BOUND:
            # The unbind continues even if the journal cannot be written.
            with contextlib.suppress(exception.JournalError):
                self._journal.give_back(entry.handle)
        if had_server:
            for address in entry.gpus:
                reset.refuse_held(address)
        self._take(entry, Action.DEACTIVATE_PARTITION)
        if had_server and self._host.cleans:
            for address in entry.gpus:
                self._clean(entry, address)
        ended = self._journal.get(entry.handle, entry.gpu) or entry
        self._audit.record(
            entry.gpus[0], 'unbound' if had_server else 'undone',
            entry.handle, audit.of_entry(ended))
        self._journal.remove(entry.handle)
        for address in entry.gpus:
            with contextlib.suppress(exception.UnknownGpu):
                self._host.refresh_gpu(address)

    def _check(self, turn: turns.Turn) -> nvlink.Group:
        """Return the requested group, if it is free.

        :raises BindRefused: if there is no such group, or one of its GPUs
            is claimed or in use.
        """
        asked = turn.asked
        group = self._host.group(asked.function, asked.mdev_type)
        for address in group.members if group else ():
            self._host.refresh_gpu(address)
        gpu = self._host.gpu(asked.function)
        offer = plan.find_offer(gpu, self._host.offers(gpu), asked)
        if group is None or offer.members != group.members:
            raise plan.refusal(asked, 'its GPUs are not known')
        for address in group.members:
            owners = self._journal.owners(address)
            if owners:
                raise plan.refusal(
                    asked, f'GPU {address} of the group is taken: {owners}')
        if not offer.creatable:
            raise plan.refusal(asked, offer.busy or 'it is in use')
        try:
            for address in group.members:
                reset.refuse_held(address)
        except exception.GpuInUse as error:
            raise plan.refusal(asked, str(error)) from error
        self._check_boot(turn, group)
        return group

    def _check_boot(self, turn: turns.Turn, group: nvlink.Group) -> None:
        """Refuse a group if a module id was not read since the host started.

        The GPUs of a partition are identified by their module ids.
        """
        if group.partition is None:
            return
        for address in group.members:
            known = self._journal.nvlink(address)
            if known is None or known.boot != self._machine.boot_id():
                raise plan.refusal(
                    turn.asked, f'the module ID of GPU {address} has not '
                    'been read since the host started: the GPU must be bound '
                    'to nvidia when the agent starts')

    def _clean(self, entry: journal.Entry, address: model.PciAddress
               ) -> None:
        evidence = self._resetter.reset(self._host.refresh_gpu(address),
                                        lambda: None)
        self._audit.record(address, 'cleaned', entry.handle, evidence)

    def _take(self, entry: journal.Entry, what: action.Action) -> None:
        """Change the partition of a group, if it has one."""
        if entry.fabric_partition is not None:
            executor.Executor(self._machine, entry.gpu).take(action.Step(
                what, fabric_partition=entry.fabric_partition))

    def _roll_back(self, entry: journal.Entry) -> None:
        """Roll back a bind. What fails is left to the next report."""
        try:
            self.remove(entry)
        except Exception as error:
            # Cyborg must get the error of the bind, not this one.
            LOG.error('Could not roll back the bind of handle %(handle)s on '
                      'GPUs %(gpus)s: %(error)s. The next report tries '
                      'again.', {'handle': entry.handle,
                                 'gpus': ', '.join(map(str, entry.gpus)),
                                 'error': error}, exc_info=not isinstance(
                                     error, exception.GpuDriverError))
