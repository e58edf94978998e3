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

"""Create the partition of a bind and remove it, under the GPU's lock.

The steps of a bind: plan, write the journal, create, read back, write the
journal. If a step fails, the bind is rolled back before the error is raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from typing import TypeGuard

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program.bind import groups
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.bind import turns
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.planning import request
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.program.steps import reset

LOG = logging.getLogger(__name__)

_ATTEMPTS = 3
"""Plans to try if another program changes the GPU at the same time."""

_SESSION_ENDED = frozenset({'UNINITIALIZED', 'INVALID_ARGUMENT'})
"""NVML's errors if another thread has ended the session, and for a handle of
an ended session: sriov-manage needs NVML closed for all GPUs."""
_NO_ROOM = (errno.ENOSPC, errno.EIO)
"""The kernel's errors if no GPU instance has room for the vGPU: for an mdev,
and for vendor VFIO."""


class _NoRoom(Exception):
    """The instance to share has no room; the bind was rolled back."""

    def __init__(self, error: exception.GpuDriverError):
        super().__init__(error)
        self.error = error


class Maker:
    """Makes and removes partitions; callers hold the GPU's lock.

    :param machine: the machine to change.
    :param host: the state of the machine.
    :param parts: creates and destroys the partitions of claims.
    :param records: the journal.
    :param history: the audit log.
    :param keeper: forgets the health of destroyed instances.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 parts: partitions.Partitions, records: journal.Journal,
                 history: audit.Audit, keeper: health.HealthKeeper):
        self._host = host
        self._parts = parts
        self._journal = records
        self._audit = history
        self._health = keeper
        self._groups = groups.Groups(machine, host, records, history,
                                     reset.Resetter(machine, keeper))

    def is_made(self, address: model.PciAddress,
                asked: request.Request) -> bool:
        """Whether an earlier bind has made what this bind asks for.

        Removes first what an earlier unbind could not remove.

        :raises BindRefused: if the handle is bound as something else.
        :raises NvmlError, SysfsError, VgpuInUse, UsageUnknown: if something
            could not be removed.
        """
        entry = self._journal.get(asked.handle, address)
        if entry is None:
            self._journal.given_away(asked.handle)
            return False
        if entry.phase is journal.Phase.BOUND or entry.gpu != address:
            # The lock of another GPU is not held.
            check_same(entry, asked)
        if entry.phase is journal.Phase.BOUND:
            if (entry.members or self._parts.vgpu_type(entry.vgpu)
                    == entry.mdev_type):
                self._journal.put(dataclasses.replace(
                    entry, repeats=entry.repeats + 1))
                return True
        self.remove(entry)
        return False

    def make(self, address: model.PciAddress, turn: turns.Turn
             ) -> journal.Entry:
        """Make the partition or group of a handle.

        :raises BindRefused: if that is impossible; nothing has changed.
        :raises BindAbandoned: if Cyborg no longer waits for the bind, which
            is rolled back.
        :raises NvmlError, SysfsError, FabricError: if the hardware refused
            it; the bind is rolled back.
        """
        if turn.asked.is_group:
            return self._groups.make(turn)
        return self._make_part(address, turn)

    def _make_part(self, address: model.PciAddress, turn: turns.Turn
                   ) -> journal.Entry:
        """Plan with the known state; read the GPU again if that fails."""
        share = True
        for attempt in range(1, _ATTEMPTS + 1):
            turn.check()
            try:
                return self._make(self._known(address), turn, share)
            except exception.BindAbandoned:
                raise
            except _NoRoom as full:
                LOG.info('The instances on GPU %s have no room for another '
                         'vGPU', address)
                share, failure = False, full.error
            except exception.NvmlError as error:
                if error.symbol in _SESSION_ENDED:
                    LOG.info('NVML was closed in the meantime')
                    failure = error
                elif error.symbol == 'INSUFFICIENT_RESOURCES':
                    LOG.info('GPU %s was changed by another program', address)
                    failure = plan.refusal(
                        turn.asked,
                        'another program has taken the chosen placement')
                else:
                    raise
            except exception.BindRefused as error:
                failure = error
            if (attempt == _ATTEMPTS
                    or self._journal.get(turn.asked.handle, address)
                    is not None):
                break
            before = self._host.gpu(address)
            if (self._host.refresh_gpu(address) == before
                    and isinstance(failure, exception.BindRefused)):
                break
        raise failure

    def remove(self, entry: journal.Entry) -> None:
        """Remove all that an entry has, also after an interrupted bind.

        :raises NvmlError, SysfsError, VgpuInUse, UsageUnknown: if something
            could not be removed.
        :raises StepFailed: if a step of the bind has not ended yet.
        :raises JournalError: if the journal could not be written.
        """
        if entry.members:
            self._groups.remove(entry)
            return
        if entry.since is None:
            privileged_gpu.check_ended(
                sorted({str(entry.gpu), str(entry.function)}))
        self.remove_vgpu(entry)
        self.remove_instance(entry)

    def remove_vgpu(self, entry: journal.Entry) -> None:
        """Remove the vGPU of an entry, the first half of :meth:`remove`.

        :raises SysfsError, VgpuInUse, UsageUnknown, NvmlError: if it could
            not be removed.
        """
        if entry.phase is journal.Phase.BOUND:
            # Continue even if the journal cannot be written: the next
            # server that gets the handle must not find this vGPU.
            with contextlib.suppress(exception.JournalError):
                self._journal.give_back(entry.handle)
        self._parts.destroy_vgpu(
            entry.gpu, entry.vgpu,
            self._host.gpu(entry.gpu) if entry.vfio else None)
        self._parts.disconnect(entry)

    def remove_instance(self, entry: journal.Entry) -> None:
        """Remove an entry whose vGPU is gone, with its GPU instance.

        :raises NvmlError: IN_USE while something runs on the instance.
        :raises JournalError: if the entry could not be removed.
        """
        instance = self._parts.destroy_instance(entry,
                                                self._host.refresh_gpu)
        if instance is not None:
            self._health.instance_gone(entry.gpu, instance.placement)
        # The record has the times. If the process is killed between the two
        # writes, both are repeated: the line may exist twice, but is never
        # missing.
        ended = self._journal.get(entry.handle, entry.gpu) or entry
        self._audit.record(
            entry.gpu, 'undone' if entry.phase is journal.Phase.BINDING
            else 'unbound', entry.handle, audit.of_entry(ended))
        self._journal.remove(entry.handle)
        self._host.record(entry.gpu, gone=(instance, entry.live()))

    def remove_unrecorded(self, address: model.PciAddress,
                          asked: request.Request) -> None:
        """Remove the mdev of a handle that the journal does not know.

        :raises VgpuInUse, UsageUnknown: if it is, or may be, in use.
        :raises SysfsError, DriverStuck: if the kernel does not remove it.
        """
        self._parts.destroy_vgpu(address, asked.mdev)
        self._host.record(address, gone=(None, model.Vgpu(
            asked.function, asked.mdev_type, asked.handle)))

    def _known(self, address: model.PciAddress) -> model.Gpu:
        """The known state of a GPU; read again if it has mixed sizes.

        Only the driver knows the placements of vGPUs that other tools made.
        A taken placement fails when the guest starts, not at the bind.
        """
        gpu = self._host.gpu(address)
        return self._host.refresh_gpu(address) if gpu.mixed_sizes else gpu

    def _make(self, gpu: model.Gpu, turn: turns.Turn, share: bool
              ) -> journal.Entry:
        asked = turn.asked
        available = self._host.offers(gpu)
        offer = plan.find_offer(gpu, available, asked)
        planned = plan.plan(
            gpu, available, offer, asked,
            self._journal.entries(gpu.address), self._host.reader.boot_id(),
            share)
        entry = self._entry(gpu, offer, planned, asked)
        self._check_unclaimed(entry, asked)
        self._journal.put(entry)
        created = None
        try:
            if entry.placement is not None and entry.instance_id is None:
                created = self._parts.create_instance(
                    gpu, entry, self._host.wants(gpu))
                entry = self._parts.numbered(entry, created.instance_id)
            entry, made = self._parts.create_vgpu(gpu, entry, created)
            # In this order: the room that is left is read without a lock,
            # and must never seem larger than it is.
            self._host.record(gpu.address, made=made)
            turn.check()
            entry = dataclasses.replace(entry, phase=journal.Phase.BOUND,
                                        since=self._journal.clock())
            self._journal.put(entry)
        except Exception as error:
            self._roll_back(entry, error)
            if planned.instance_id is not None and _is_full(error):
                raise _NoRoom(error) from error
            if isinstance(error, exception.StepFailed):
                raise plan.refusal(asked, str(error)) from error
            raise
        return entry

    def _check_unclaimed(self, entry: journal.Entry,
                         asked: request.Request) -> None:
        """Refuse the bind if its vGPU exists already."""
        if self._parts.vgpu_type(entry.vgpu) is not None:
            raise plan.refusal(asked, (
                'that virtual function carries a vGPU' if entry.vfio
                else 'an mdev with that UUID exists')
                + ' that this driver did not create')

    def _entry(self, gpu: model.Gpu, offer: offers.Offer,
               planned: plan.BindPlan, asked: request.Request
               ) -> journal.Entry:
        foreign: tuple[int, ...] = ()
        profile = spec.profile(gpu, planned.profile_id)
        if profile is not None and planned.instance_id is None:
            foreign = self._parts.instance_ids(gpu.address, profile)
        return self._parts.numbered(journal.Entry(
            handle=asked.handle, gpu=gpu.address, function=planned.function,
            mdev_type=asked.mdev_type, profile=offer.profile,
            phase=journal.Phase.BINDING, profile_id=planned.profile_id,
            placement=planned.placement, foreign_ids=foreign,
            vfio=gpu.framework is model.Framework.VENDOR_VFIO,
            vgpu_placement=planned.vgpu_placement,
            fabric_partition=_own_partition(gpu, asked)),
            planned.instance_id)

    def _roll_back(self, entry: journal.Entry, reason: Exception) -> None:
        """Roll back a bind. What fails is left to the next report.

        :raises JournalError: if nothing was created, and the entry cannot be
            removed.
        """
        if executor.was_refused(reason):
            # The instance at the placement is not of this bind.
            self._journal.remove(entry.handle)
            return
        try:
            self.remove(entry)
        except Exception as error:
            # Cyborg must get the error of the bind, not this one.
            LOG.error('Could not roll back the bind of handle %(handle)s on '
                      'GPU %(gpu)s: %(error)s. The next report tries again.',
                      {'handle': entry.handle, 'gpu': entry.gpu,
                       'error': error}, exc_info=not isinstance(
                           error, exception.GpuDriverError))


def _own_partition(gpu: model.Gpu, asked: request.Request) -> int | None:
    """The NVSwitch partition that the vGPU needs; None if it needs none.

    :raises BindRefused: if the vGPU needs a partition and cannot get it.
    """
    try:
        return privileged_fabric.partition_of_vgpu(gpu, asked.mdev_type)
    except (exception.FabricError, exception.StepFailed) as error:
        raise plan.refusal(asked, str(error)) from error


def check_same(entry: journal.Entry, asked: request.Request) -> None:
    """Refuse a handle that is bound as something else, or elsewhere.

    Nova looks for the vGPU on the function in the current request.

    :raises BindRefused: if the type or the function differs.
    """
    if entry.mdev_type != asked.mdev_type:
        raise plan.refusal(asked, f'the handle is bound as {entry.mdev_type}')
    if entry.function != asked.function:
        raise plan.refusal(asked, f'the handle is bound on {entry.function}')


def _is_full(error: Exception
             ) -> TypeGuard[exception.SysfsError | exception.VgpuNotCreatable]:
    """Whether an error says that no GPU instance has room for the vGPU."""
    return (isinstance(error, exception.VgpuNotCreatable)
            or isinstance(error, exception.SysfsError)
            and error.errno in _NO_ROOM)
