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

"""Bind and unbind: a partition made for one attach handle, and returned.

Under the GPU's lock: plan, journal, make, read back, journal, then publish
what is left. Whatever fails on the way is undone before the error leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable

from oslo_log import log as logging
from oslo_utils import excutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import offers
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import live
from cyborg_gpu_driver.program import plan
from cyborg_gpu_driver.program import request
from cyborg_gpu_driver.program import shared

LOG = logging.getLogger(__name__)

_ATTEMPTS = 3
"""Plans tried where others than we change the GPU at the same time."""

_SESSION_ENDED = frozenset({'UNINITIALIZED', 'INVALID_ARGUMENT'})
"""What NVML says to one whose session another thread has ended, and of a
handle from there: sriov-manage wants NVML closed for any GPU."""
_NO_ROOM = (errno.ENOSPC, errno.EIO)
"""What the kernel says where no GPU instance takes the vGPU: of an mdev, and
of vendor VFIO."""


class _Refused(Exception):
    """NVML made nothing; carries its error past the undoing."""

    def __init__(self, error):
        super().__init__(error)
        self.error = error


class _NoRoom(_Refused):
    """The instances that were to be shared take no more; undone."""


class Binder:
    """Carries out binds and unbinds on one machine.

    :param host: what is known of the machine.
    :param tools: what changes it.
    :param records: the journal.
    :param state_path: where the locks are.
    :param publish: called with a GPU's address, under its lock, when what
        can still be made on it has changed. It must not raise.
    :param destroyed: called with a GPU's address and the placement of an
        instance that was destroyed. It must not raise.
    """

    def __init__(self, host: live.LiveHost, tools: hardware.Hardware,
                 records: journal.Journal, state_path: str,
                 publish: Callable[[model.PciAddress], None],
                 destroyed: Callable[[model.PciAddress, model.Placement],
                                     None] = lambda gpu, placement: None):
        self._host = host
        self._tools = tools
        self._journal = records
        self._shared = shared.SharedInstances(tools, records)
        self._state_path = state_path
        self._publish = publish
        self._destroyed = destroyed
        self._audit = audit.Audit(state_path)
        self._kept: dict[str, str] = {}
        """Why what a handle had left could not be removed, by handle."""

    def bind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """Make what the handle stands for.

        Repeating a bind that succeeded does nothing.

        :raises InvalidValue: if an argument is malformed.
        :raises UnknownGpu: if ``pci_addr`` is no function of our GPUs.
        :raises BindRefused: if it cannot be made; nothing has changed.
        :raises NvmlError, SysfsError: as the hardware refused it; undone.
        """
        asked = request.parse(pci_addr, asked_type, ah_uuid)
        address = self._host.owner(asked.function)
        with locks.gpu(self._state_path, address):
            entry = self._journal.get(asked.handle, address)
            if entry is not None and self._is_done(entry, asked):
                LOG.info('Handle %s is bound already', asked.handle)
                return
            made = self._make_planned(address, asked)
            self._publish(address)
        self._audit.record(made.gpu, 'bound', made.handle,
                           audit.of_entry(made))
        LOG.info('Bound handle %(handle)s: %(profile)s%(where)s on GPU '
                 '%(gpu)s, vGPU on %(function)s',
                 {'handle': made.handle, 'profile': made.profile,
                  'where': _where(made), 'gpu': made.gpu,
                  'function': made.function})

    def unbind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """Return what the handle stands for; idempotent.

        What is still held by a guest stays in the journal and is removed
        by :meth:`recover` when it can be. So is what was given back while
        the journal could not be written, as long as this process lives.

        :raises InvalidValue: if an argument is malformed.
        :raises BindRefused: if the handle is bound as something else; that
            is left alone.
        :raises NvmlError, SysfsError, VgpuInUse, UsageUnknown: if something
            could not be removed.
        :raises JournalError: if that could not be written.
        """
        asked = request.parse(pci_addr, asked_type, ah_uuid)
        try:
            self._unbind(asked)
        except exception.JournalError:
            with contextlib.suppress(exception.JournalError):
                self._journal.give_back(asked.handle)
            raise

    def _unbind(self, asked):
        entry = self._journal.get(asked.handle)
        if entry is None:
            self._remove_unrecorded(asked)
            return
        _check_same(entry, asked)
        with locks.gpu(self._state_path, entry.gpu):
            entry = self._journal.get(asked.handle)
            if entry is not None:
                self._release(entry)

    def recover(self) -> None:
        """Finish what was under way when a process ended; never raises."""
        left = [entry for entry in self._journal.entries()
                if entry.phase is not journal.Phase.BOUND]
        self._kept = {entry.handle: self._kept.get(entry.handle, '')
                      for entry in left}
        for entry in left:
            try:
                with locks.gpu(self._state_path, entry.gpu):
                    current = self._journal.get(entry.handle)
                    if (current is not None
                            and current.phase is not journal.Phase.BOUND):
                        self._release(current)
                        LOG.info('Removed what handle %s had left on GPU '
                                 '%s', entry.handle, entry.gpu)
            except exception.GpuDriverError as error:
                self._tell_kept(entry, str(error))

    def _tell_kept(self, entry, reason):
        """Say once why something cannot be removed."""
        if self._kept.get(entry.handle) == reason:
            return
        self._kept[entry.handle] = reason
        LOG.warning('Handle %(handle)s still has a part of GPU %(gpu)s: '
                    '%(error)s. Each report tries again.',
                    {'handle': entry.handle, 'gpu': entry.gpu,
                     'error': reason})

    def _is_done(self, entry, asked):
        """Whether an earlier bind left what this one asks for.

        What an earlier unbind could not remove is removed first.
        """
        if entry.phase is not journal.Phase.BOUND:
            self._release(entry)
            return False
        _check_same(entry, asked)
        if self._tools.vgpu_type(entry) == entry.mdev_type:
            return True
        self._release(entry)
        return False

    def _remove_unrecorded(self, asked):
        """Remove the mdev of a handle that the journal does not know.

        Its UUID is the handle's, so it is Cyborg's; which instance it was
        on is not known, and an instance that we do not know is left alone.
        So is a vGPU of vendor VFIO, which does not tell whose it is.
        """
        if self._tools.mdev_type(asked.handle) != asked.mdev_type:
            LOG.info('Handle %s has nothing on this machine that is known '
                     'to be its own', asked.handle)
            return
        address = self._host.owner(asked.function)
        with locks.gpu(self._state_path, address):
            self._tools.remove_mdev(asked.handle)
            self._tools.undefine_mdev(asked.handle)
            self._host.record(address, gone=(None, model.Vgpu(
                asked.function, asked.mdev_type, asked.handle)))
            self._publish(address)
        LOG.warning('Removed mdev %(handle)s from GPU %(gpu)s, of which the '
                    'journal knows nothing; a GPU instance that it may have '
                    'been on stays.',
                    {'handle': asked.handle, 'gpu': address})

    def _check_unclaimed(self, entry, asked):
        """See to it that what is to be made is not there already."""
        if self._tools.vgpu_type(entry) is not None:
            raise plan.refusal(asked, (
                'that virtual function carries a vGPU' if entry.vfio
                else 'an mdev with that UUID exists')
                + ' that this driver did not make')

    def _make_planned(self, address, asked):
        """Plan on what is known; look again where that proves wrong."""
        share = True
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._make(self._host.gpu(address), asked, share)
            except _NoRoom as full:
                LOG.info('The instances on GPU %s take no more', address)
                share, failure = False, full.error
            except exception.NvmlError as error:
                if error.symbol in _SESSION_ENDED:
                    LOG.info('NVML was closed meanwhile')
                    failure = error
                elif error.symbol == 'INSUFFICIENT_RESOURCES':
                    LOG.info('GPU %s was changed by somebody else', address)
                    failure = plan.refusal(
                        asked, 'the place chosen was taken by somebody else')
                else:
                    raise
            except exception.BindRefused as error:
                failure = error
            if (attempt == _ATTEMPTS
                    or self._journal.get(asked.handle) is not None):
                break
            before = self._host.gpu(address)
            if (self._host.refresh_gpu(address) == before
                    and isinstance(failure, exception.BindRefused)):
                break
        raise failure

    def _make(self, gpu, asked, share):
        available = self._host.offers(gpu)
        offer = plan.find_offer(gpu, available, asked)
        planned = plan.plan(gpu, available, offer, asked,
                            self._journal.entries(gpu.address), share)
        entry = self._entry(gpu, offer, planned, asked)
        self._check_unclaimed(entry, asked)
        self._journal.put(entry)
        cut = None
        try:
            if entry.placement is not None and entry.instance_id is None:
                entry = self._make_instance(entry)
                cut = shared.created(entry)
            entry = self._tools.make_vgpu(entry)
            moved, below = self._shared.settle(entry)
            if moved is not entry:
                cut = None
            entry = dataclasses.replace(moved, phase=journal.Phase.BOUND)
            self._journal.put(entry)
        except _Refused as refused:
            self._journal.remove(entry.handle)
            raise refused.error from None
        except exception.SysfsError as error:
            self._undo(entry)
            if planned.instance_id is None or error.errno not in _NO_ROOM:
                raise
            raise _NoRoom(error) from error
        except Exception:
            with excutils.save_and_reraise_exception():
                self._undo(entry)
        self._host.record(gpu.address, made=(cut, _vgpu(entry, below)))
        return entry

    def _make_instance(self, entry):
        try:
            return self._tools.make_instance(entry)
        except exception.NvmlError as error:
            if hardware.was_refused(error):
                # Nothing of ours is there, so what lies at the placement is
                # another's and must not be taken for ours when undoing.
                raise _Refused(error) from error
            raise

    def _entry(self, gpu: model.Gpu, offer: offers.Offer,
               planned: plan.BindPlan, asked: request.Request
               ) -> journal.Entry:
        foreign = ()
        if planned.placement is not None and planned.instance_id is None:
            foreign = self._tools.instance_ids(
                gpu.address, gpu.mig.profile_by_id(planned.profile_id))
        return self._tools.numbered(journal.Entry(
            handle=asked.handle, gpu=gpu.address, function=planned.function,
            mdev_type=asked.mdev_type, profile=offer.profile,
            phase=journal.Phase.BINDING, profile_id=planned.profile_id,
            placement=planned.placement, foreign_ids=foreign,
            vfio=gpu.framework is model.Framework.VENDOR_VFIO,
            vgpu_placement=planned.vgpu_placement), planned.instance_id)

    def _undo(self, entry):
        """Back to what was there; what resists is left to recover()."""
        try:
            self._release(entry, published=False)
        except exception.GpuDriverError as error:
            LOG.error('Could not undo the bind of handle %(handle)s on GPU '
                      '%(gpu)s: %(error)s. Trying again at the next report.',
                      {'handle': entry.handle, 'gpu': entry.gpu,
                       'error': error})

    def _release(self, entry, published=True):
        if entry.phase is journal.Phase.BOUND:
            entry = dataclasses.replace(
                entry, phase=journal.Phase.UNBINDING)
            self._mark_unbinding(entry)
        self._tools.remove_vgpu(
            entry, self._host.gpu(entry.gpu) if entry.vfio else None)
        if entry.phase is journal.Phase.UNBINDING and not entry.vfio:
            self._tools.undefine_mdev(entry.handle)
        instance = self._shared.remove(entry)
        if instance is not None:
            self._destroyed(entry.gpu, instance.placement)
        self._journal.remove(entry.handle)
        self._audit.record(
            entry.gpu, 'unbound' if entry.phase is journal.Phase.UNBINDING
            else 'undone', entry.handle, audit.of_entry(entry))
        self._host.record(entry.gpu, gone=(instance, _vgpu(entry)))
        if published:
            self._publish(entry.gpu)

    def _mark_unbinding(self, entry):
        """Write that an entry's partition is to go.

        It goes all the same where that cannot be written: whoever is given
        the handle next must not find it.
        """
        with contextlib.suppress(exception.JournalError):
            self._journal.give_back(entry.handle)


def _where(entry):
    return f' at {entry.placement}' if entry.placement is not None else ''


def _vgpu(entry, instance_id=None):
    return model.Vgpu(entry.function, entry.mdev_type,
                      None if entry.vfio else entry.handle, instance_id)


def _check_same(entry, asked):
    """Refuse a handle that is bound as something else, or elsewhere.

    Nova looks for the vGPU on the function that it names now.
    """
    if entry.mdev_type != asked.mdev_type:
        raise plan.refusal(asked, f'the handle is bound as {entry.mdev_type}')
    if entry.function != asked.function:
        raise plan.refusal(asked, f'the handle is bound on {entry.function}')
