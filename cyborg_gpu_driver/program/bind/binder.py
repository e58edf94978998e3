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

Each has a time limit, because Cyborg has one and does not say when it is
over. A bind that is late is refused, or rolled back. An unbind writes first
that the handle was given back; what it cannot remove soon, it leaves to the
next report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import TypeVar

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import cordons as cordon_keeper
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import making
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.bind import role_taker
from cyborg_gpu_driver.program.bind import turns
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.planning import request
from cyborg_gpu_driver.program.steps import transaction

LOG = logging.getLogger(__name__)

_Subject = TypeVar('_Subject', journal.Entry, request.Request)


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long what Cyborg asks for may take, in seconds."""

    unbind: float = 5.0
    """Until an unbind answers; what is left to do goes on after that."""
    clock: Callable[[], float] = time.monotonic


class Binder:
    """Carries out binds and unbinds on one machine.

    :param host: what is known of the machine.
    :param parts: create and destroy what claims stand for.
    :param transactions: roll back what a process that died has left.
    :param records: the journal.
    :param cloud: publishes what can still be made on a GPU when that may
        have changed.
    :param keeper: forgets the health of instances that were destroyed.
    :param cordons: knows which GPUs get no new server.
    :param limits: how long each may take.
    :param running: the binds of this process that have not ended.
    """

    def __init__(self, host: live.LiveHost, parts: partitions.Partitions,
                 transactions: transaction.Transactions,
                 records: journal.Journal, cloud: services.Services,
                 keeper: health.HealthKeeper,
                 cordons: cordon_keeper.CordonKeeper,
                 limits: Limits = Limits(),
                 running: turns.Turns | None = None):
        self._host = host
        self._parts = parts
        self._transactions = transactions
        self._journal = records
        self._state_path = transactions.state_path
        self._cloud = cloud
        self._limits = limits
        self._cordons = cordons
        self._audit = audit.Audit(self._state_path)
        self._maker = making.Maker(transactions.machine, host, parts,
                                   records, self._audit, keeper)
        self._roles = role_taker.RoleTaker(host, transactions, cloud)
        self._turns = running or turns.Turns(limits.clock)
        self._kept = log_once.LogOnce()
        """Why what a handle had left could not be removed, by handle."""

    def bind(self, pci_addr: str, asked_type: str, ah_uuid: str,
             seconds: float = 30.0) -> None:
        """Make what the handle stands for, unless it is there already.

        :param seconds: how long it may take.
        :raises InvalidValue: if an argument is malformed.
        :raises UnknownGpu: if ``pci_addr`` is no function of our GPUs.
        :raises BindRefused: if it cannot be made; nothing has changed.
        :raises BindAbandoned: if it took too long, or its handle was given
            back meanwhile; undone.
        :raises NvmlError, SysfsError: as the hardware refused it; undone.
        """
        asked = request.parse(pci_addr, asked_type, ah_uuid)
        with self._turns.turn(asked, seconds) as turn:
            address = self._host.owner(asked.function)
            self._check_company(address, asked)
            try:
                with self._roles.alone(address, asked):
                    made = self._bind(address, turn)
            finally:
                # Also what a refused bind has learnt: Placement would
                # promise the same place to the next server.
                self._cloud.publish(address)
        if made is None:
            LOG.info('Handle %s is bound already', asked.handle)
            return
        self._audit.record(made.gpu, 'bound', made.handle,
                           audit.of_entry(made))
        LOG.info('Bound handle %(handle)s: %(profile)s%(where)s on GPU '
                 '%(gpu)s, function %(function)s',
                 {'handle': made.handle, 'profile': made.profile,
                  'where': _where(made), 'function': made.function,
                  'gpu': ' and '.join(map(str, made.gpus))})

    def unbind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """Return what the handle stands for; idempotent.

        Binds of the handle that are under way are cancelled. What is still
        held by a guest stays in the journal and is removed by
        :meth:`recover` when it can be; so is what could not be removed in
        time, and what was given back while the journal could not be
        written, as long as this process lives.

        :raises InvalidValue: if an argument is malformed.
        :raises BindRefused: if the handle is bound as something else; that
            is left alone.
        :raises NvmlError, SysfsError, VgpuInUse, UsageUnknown: if something
            could not be removed.
        :raises JournalError: if that could not be written, or the GPU's
            lock is held by somebody.
        :raises StepFailed: if it is not done yet.
        """
        asked = request.parse(pci_addr, asked_type, ah_uuid)
        self._turns.cancel(asked.handle)
        try:
            entry = self._journal.get(asked.handle)
        except exception.JournalError:
            with contextlib.suppress(exception.JournalError):
                self._journal.give_back(asked.handle)
            raise
        if entry is None:
            self._soon(self._remove_unrecorded, asked)
            return
        making.check_same(entry, asked)
        # It goes all the same where that cannot be written.
        with contextlib.suppress(exception.JournalError):
            self._journal.give_back(asked.handle)
        if entry.members:  # Their resets take longer than Cyborg waits.
            self._cloud.publish(entry.gpu)
        self._soon(self._return, entry)

    def recover(self) -> None:
        """Finish what was under way when a process ended; never raises."""
        try:
            left = [entry for entry in self._journal.entries()
                    if entry.phase is not journal.Phase.BOUND and entry.leads]
        except exception.JournalError as error:
            LOG.error('%s', error)
            return
        self._kept.keep({entry.handle for entry in left})
        locked: dict[model.PciAddress, str] = {}
        for entry in left:
            reason = locked.get(entry.gpu)
            try:
                if reason is None:
                    self._return(entry, locks.REPORT_SECONDS)
                    LOG.info('Removed the leftovers of handle %s on GPU %s',
                             entry.handle, entry.gpu)
            except exception.LockTimeout as error:
                # For its other entries it would be waited for in vain too.
                reason = locked[entry.gpu] = str(error)
            except Exception as error:
                # What is reported of the GPUs must not depend on it.
                reason = str(error)
                if not isinstance(error, exception.GpuDriverError):
                    LOG.exception('GPU %s', entry.gpu)
            if reason:
                self._tell_kept(entry, reason)

    def _bind(self, address: model.PciAddress, turn: turns.Turn
              ) -> journal.Entry | None:
        """The entry that was made; None where the handle has it already."""
        purpose = f'the bind of handle {turn.asked.handle}'
        defined: list[str] = []
        gpus = self._host.changed_by(address, turn.asked)
        try:
            with locks.gpus(self._state_path, gpus, turn.left, purpose):
                turn.check()
                for gpu in gpus:
                    self._finish_change(gpu, turn)
                    self._finish_others(gpu, turn.asked.handle, gpus, defined)
                if self._maker.is_made(address, turn.asked):
                    return None
                for gpu in gpus:
                    self._check_cordons(gpu, turn.asked)
                self._roles.take(address, turn)
                made = self._maker.make(address, turn)
                if turn.cancelled:
                    # An unbind may have come before the entry was written.
                    self._maker.remove(made)
                    turn.check()
                return made
        except exception.LockTimeout as error:
            if turn.cancelled:
                turn.check()
            raise plan.refusal(turn.asked, str(error)) from error
        finally:
            for handle in defined:
                # Cyborg does not wait for mdevctl.
                threading.Thread(
                    target=self._parts.undefine_mdev, args=(handle,),
                    daemon=True, name=f'mdevctl undefine {handle}').start()

    def _check_cordons(self, address: model.PciAddress,
                       asked: request.Request) -> None:
        """Placement may have promised the GPU just before it was cordoned.

        :raises BindRefused: if it is cordoned.
        """
        cordons = self._cordons.of(address)
        if cordons:
            raise plan.refusal(asked, f'GPU {address} is cordoned: '
                               + cordon.text(cordons))

    def _check_company(self, address: model.PciAddress,
                       asked: request.Request) -> None:
        """Refuse to put servers of two projects on a GPU that forbids it.

        It needs no lock: allocations precede binds.

        :raises BindRefused: or if it is not known whose they are.
        """
        reason = self._cloud.mixed(address, asked.handle)
        if reason:
            raise plan.refusal(
                asked, f'GPU {address} has isolation = project, and {reason}')

    def _finish_change(self, address: model.PciAddress, turn: turns.Turn
                       ) -> None:
        """Roll back the change of a GPU that a process left that died.

        A bind might take a place that the rollback needs.

        :raises BindRefused: if it cannot be rolled back now.
        """
        try:
            if self._transactions.finish(self._host.gpu(address)):
                self._host.refresh_gpu(address)
        except exception.ChangeFailed as error:
            raise plan.refusal(turn.asked, str(error)) from error

    def _finish_others(self, address: model.PciAddress, handle: str,
                       locked: frozenset[model.PciAddress],
                       defined: list[str]) -> None:
        """Finish what is under way for other handles of a GPU.

        Whoever began it is dead, or has no time left. An instance that is
        looked for by its place must not be taken for one that is made now.

        :param locked: a group with other GPUs is left alone.
        :param defined: gets the handles whose definition is to go.
        """
        for entry in self._journal.entries(address):
            if (entry.phase is journal.Phase.BOUND or entry.handle == handle
                    or not entry.leads
                    or not locked.issuperset(entry.gpus)):
                continue
            try:
                self._maker.remove(entry)
            except Exception as error:
                self._tell_kept(entry, str(error))
            else:
                if (entry.phase is journal.Phase.UNBINDING
                        and entry.is_mdev):
                    defined.append(entry.handle)

    def _soon(self, function: Callable[[_Subject, float], None],
              subject: _Subject) -> None:
        """Call a function of an unbind; after a while it goes on alone.

        :raises Exception: what it raises until then.
        :raises StepFailed: if it has not ended by then.
        """
        errors: list[Exception] = []
        late = threading.Event()

        def run() -> None:
            try:
                function(subject, self._limits.unbind)
            except Exception as error:
                errors.append(error)
                if late.is_set():
                    LOG.error('Unbind of handle %(handle)s: %(error)s',
                              {'handle': subject.handle, 'error': error})

        thread = threading.Thread(
            target=run, daemon=True,
            name=f'the unbind of handle {subject.handle}')
        thread.start()
        thread.join(self._limits.unbind)
        if thread.is_alive():
            late.set()
            raise exception.StepFailed(
                reason=f'not finished after {self._limits.unbind:g} s. It '
                'goes on, and each report tries again what is left then')
        if errors:
            raise errors[0]

    def _return(self, entry: journal.Entry, seconds: float) -> None:
        """Return what an entry has, unless that was done or is not wanted.

        mdevctl is asked without the GPU's lock.
        """
        gone = False
        try:
            if entry.is_mdev and entry.phase is not journal.Phase.BINDING:
                with self._unfinished(entry, seconds) as current:
                    if current is not None:
                        self._maker.remove_vgpu(current)
                        gone = True
                if gone:
                    self._parts.undefine_mdev(entry.handle)
            with self._unfinished(entry, seconds) as current:
                if current is not None:
                    self._maker.remove(current)
        finally:
            # What stays is no server's any more: without its allocation
            # Placement would give its place to the next one.
            self._cloud.publish(entry.gpu)

    @contextlib.contextmanager
    def _unfinished(self, entry: journal.Entry, seconds: float
                    ) -> Iterator[journal.Entry | None]:
        """Hold the GPU; the entry as it is then, if it is to be removed."""
        with locks.gpus(self._state_path, entry.gpus, seconds):
            current = self._journal.get(entry.handle)
            if (current is not None
                    and current.phase is journal.Phase.BOUND):
                current = None
            yield current

    def _remove_unrecorded(self, asked: request.Request, seconds: float
                           ) -> None:
        """Remove the mdev of a handle that the journal does not know.

        Its UUID is the handle's, so it is Cyborg's; which instance it was
        on is not known, and an instance that we do not know is left alone.
        So is a vGPU of vendor VFIO, which does not tell whose it is.
        """
        if (asked.is_group
                or self._parts.vgpu_type(asked.mdev) != asked.mdev_type):
            LOG.info('Handle %s has nothing on this machine', asked.handle)
            return
        address = self._host.owner(asked.function)
        with locks.gpu(self._state_path, address, seconds):
            if self._journal.get(asked.handle) is not None:
                # A bind that came after the unbind.
                return
            self._maker.remove_unrecorded(address, asked)
        self._cloud.publish(address)
        self._parts.undefine_mdev(asked.handle)
        LOG.warning('Removed mdev %(handle)s from GPU %(gpu)s, which is not '
                    'in the journal of binds; the GPU instance that it may '
                    'have used is kept.',
                    {'handle': asked.handle, 'gpu': address})

    def _tell_kept(self, entry: journal.Entry, reason: str) -> None:
        """Say once why something cannot be removed."""
        if self._kept.is_new(reason, entry.handle):
            LOG.warning(
                'Could not remove everything that handle %(handle)s has on '
                'GPU %(gpu)s: %(error)s. Each report tries again.',
                {'handle': entry.handle, 'gpu': entry.gpu, 'error': reason})


def _where(entry: journal.Entry) -> str:
    return f' at {entry.placement}' if entry.placement is not None else ''
