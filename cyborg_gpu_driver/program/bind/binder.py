# SPDX-License-Identifier: Apache-2.0

"""Bind and unbind: create a partition for an attach handle, and remove it.

Both have a time limit, because Cyborg has one and does not say when it ends.
A late bind is refused or rolled back. An unbind first writes that the handle
was given back. What it cannot remove soon, the next report removes.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
from typing import Any
from typing import TypeVar

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import cordons as gpu_cordons
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.bind import making
from cyborg_gpu_driver.program.bind import partitions
from cyborg_gpu_driver.program.bind import turns
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.record import gpu as gpu_record

# Which binds are refused before anything is changed for them.

LOG = logging.getLogger(__name__)

_SECONDS = 5.0
"""How long a bind waits for Placement's answer."""


class Admission:
    """Refuses the binds of servers that must not be on a GPU.

    Cyborg does not tell the driver which server a handle is for. So each
    bound handle counts for one unit that a server has in Placement. A bind
    is refused if no unit is left: it has no allocation. Handles that were
    bound before this process started, or whose servers are gone, count for
    none.

    :param host: the state of the machine.
    :param cloud: knows the servers' allocations and projects.
    :param cordons: knows which GPUs get no new server.
    :param gpu_health: knows which virtual functions get none.
    """

    def __init__(self, host: live.LiveHost, cloud: services.Services,
                 cordons: gpu_cordons.GpuCordons,
                 gpu_health: health.GpuHealth):
        self._host = host
        self._cloud = cloud
        self._cordons = cordons
        self._health = gpu_health
        self._mutex = threading.Lock()
        self._units: dict[str, str] = {}
        """By handle: the server and provider that its bind counts for."""
        self._stuck: futures.Future | None = None
        """A request that Placement has not answered in time."""
        self._said = log_once.LogOnce()

    def check_servers(self, address: model.PciAddress, asked: plan.Request
                      ) -> None:
        """Refuse the bind of a server that must not have its handle.

        The server needs an allocation, and no other project may have a part
        of a GPU that forbids it. This needs no lock, because allocations
        precede binds.

        :raises BindRefused: also if the projects matter and are unknown.
        """
        reason = self._cloud.mixed(address, asked.handle)
        if reason:
            raise plan.refusal(
                asked, f'GPU {address} has isolation = project, and {reason}')
        self._check_allocation(address, asked)

    def check_closed(self, address: model.PciAddress, asked: plan.Request
                     ) -> None:
        """Refuse a bind that Placement promised before its place was closed.

        :raises BindRefused: if the GPU is cordoned, or the handle names a
            virtual function that is set aside.
        """
        cordons = self._cordons.of(address)
        if cordons:
            raise plan.refusal(asked, f'GPU {address} is cordoned: '
                               + cordon.text(cordons))
        if asked.function in self._health.dead_functions(address):
            raise plan.refusal(
                asked, 'two servers in a row did not come up on its virtual '
                'function, which gets no new server until the functions of '
                f'GPU {address} were disabled and enabled')

    def over(self, handle: str) -> None:
        """Forget a handle that is not bound, or not any more."""
        with self._mutex:
            self._units.pop(handle, None)

    def _check_allocation(self, address: model.PciAddress,
                          asked: plan.Request) -> None:
        """Refuse a bind without an allocation; if unknown, let it go on.

        Nova and Cyborg bind only what a server has claimed.
        """
        allocated = self._allocated(address, asked)
        if allocated is None:
            return
        with self._mutex:
            counted = collections.Counter(
                unit for handle, unit in self._units.items()
                if handle != asked.handle)
            free = [unit for unit, number in sorted(allocated.items())
                    if number > counted[unit]]
            if free:
                self._units[asked.handle] = free[0]
                return
        raise plan.refusal(
            asked, f'Placement has no allocation for it on GPU {address}')

    def _allocated(self, address: model.PciAddress, asked: plan.Request
                   ) -> Mapping[str, int] | None:
        """What servers have of the offer of a bind; None if unknown."""
        gpu = self._host.gpu(address)
        try:
            item = plan.find_offer(gpu, self._host.offers(gpu), asked)
        except exception.BindRefused:
            # The bind will be refused for this.
            return None
        problem: Exception = TimeoutError(
            f'it has not answered within {_SECONDS:g} s')
        if self._stuck is None or self._stuck.done():
            answer = _begin(f'the allocation of handle {asked.handle}',
                            self._cloud.allocated, item)
            try:
                found = answer.result(_SECONDS)
                self._said.over()
                return found
            except futures.TimeoutError:
                self._stuck = answer
            except Exception as error:
                problem = error
        if self._said.is_new(type(problem).__name__):
            LOG.warning('Binds go on although it is not known whether their '
                        'servers have allocations, because of Placement: %s',
                        exception.steady(problem))
        return None


def _begin(name: str, function: Callable[..., Any], *arguments: Any
           ) -> futures.Future:
    """Call a function in a thread of its own; its future is returned."""
    future: futures.Future = futures.Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    deadline.begin_thread(run, name=name)
    return future


CAME_UP_SECONDS = 10.0
"""A server that gives its vGPU back earlier never came up."""
_Subject = TypeVar('_Subject', gpu_record.Claim, plan.Request)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Time limits for Cyborg's requests, in seconds."""

    unbind: float = 5.0
    """Time until an unbind answers. The rest of its work continues."""
    clock: Callable[[], float] = time.monotonic


class Binder:
    """Carries out binds and unbinds on one machine.

    :param host: the state of the machine.
    :param maker: makes and removes partitions.
    :param vgpus: knows the vGPUs that no record has.
    :param roles: gives GPUs in mode auto the roles that binds ask for.
    :param admission: refuses binds.
    :param transactions: roll back the changes that a dead process left.
    :param history: the audit log.
    :param cloud: publishes what a GPU has room for when that may have
        changed.
    :param gpu_health: learns on which functions no server comes up.
    :param limits: the time limits.
    :param running: the binds of this process that have not ended.
    """

    def __init__(self, host: live.LiveHost, maker: making.Maker,
                 vgpus: partitions.Vgpus, roles: making.RoleTaker,
                 admission: Admission, transactions: transaction.Transactions,
                 history: audit.Audit, cloud: services.Services,
                 gpu_health: health.GpuHealth, limits: Limits,
                 running: turns.Turns):
        self._host = host
        self._maker = maker
        self._vgpus = vgpus
        self._roles = roles
        self._admission = admission
        self._transactions = transactions
        self._records = transactions.records
        self._audit = history
        self._cloud = cloud
        self._limits = limits
        self._turns = running
        self._health = gpu_health
        self._failed: set[model.PciAddress] = set()
        """Virtual functions whose last server never came up."""
        self._kept = log_once.LogOnce()
        """By handle: why its leftovers could not be removed."""

    def bind(self, pci_addr: str, asked_type: str, ah_uuid: str,
             seconds: float = 30.0) -> None:
        """Create the partition of an attach handle, unless it exists.

        :param seconds: how long the bind may take.
        :raises InvalidValue: if an argument is malformed.
        :raises UnknownGpu: if ``pci_addr`` is not a function of a known GPU.
        :raises BindRefused: if the bind is impossible; nothing has changed.
        :raises BindAbandoned: if the bind took too long, or Cyborg gave the
            handle back meanwhile. The bind is rolled back.
        :raises NvmlError, SysfsError: if the hardware refused it; undone.
        """
        asked = plan.parse_request(pci_addr, asked_type, ah_uuid)
        with self._turns.turn(asked, seconds) as turn:
            address = self._host.owner(asked.function)
            self._admission.check_servers(address, asked)
            made = done = None
            try:
                with self._roles.partitioning(address, asked):
                    gpus = self._host.changed_by(address, asked)
                    self._recover(gpus, turn)
                    made = self._bind(address, gpus, turn)
                    done = True
            except Exception:
                # A complete bind must not be answered as failed: Cyborg
                # would never give its handle back.
                if not done:
                    self._admission.over(asked.handle)
                    raise
                LOG.exception('After the bind of handle %s', asked.handle)
            finally:
                # Also after a refused bind: otherwise Placement promises
                # the same place to the next server.
                self._cloud.publish(address)
        if made is None:
            LOG.info('Handle %s is already bound', asked.handle)
            return
        self._audit.record(made.gpu, 'bound', made.handle,
                           audit.of_claim(made))
        LOG.info('Bound handle %(handle)s: %(profile)s%(where)s on GPU '
                 '%(gpu)s, function %(function)s',
                 {'handle': made.handle, 'profile': made.profile,
                  'where': f' at {made.placement}' if made.placement else '',
                  'function': made.function,
                  'gpu': ' and '.join(map(str, made.gpus))})

    def unbind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """Remove the partition of an attach handle; idempotent.

        Cancels the binds of the handle that are under way. Its record
        keeps what a guest still holds and what could not be removed in
        time; :meth:`recover` removes it later. If the record cannot be
        written, this process remembers the unbind as long as it lives.

        :raises InvalidValue: if an argument is malformed.
        :raises BindRefused: if the handle is bound as something else, which
            is not touched.
        :raises NvmlError, SysfsError, GpuInUse, UsageUnknown: if something
            could not be removed.
        :raises JournalError: if the record cannot be read or written, or
            another process holds the GPU's lock.
        :raises StepFailed: if the removal is not finished yet.
        """
        asked = plan.parse_request(pci_addr, asked_type, ah_uuid)
        self._turns.cancel(asked.handle)
        self._admission.over(asked.handle)
        try:
            claim = self._records.claim(asked.handle)
        except exception.JournalError:
            with contextlib.suppress(exception.JournalError):
                self._records.give_back(asked.handle)
            raise
        if claim is None:
            self._soon(self._remove_unrecorded, asked)
            return
        making.check_same(claim, asked)
        self._note_end(claim)
        # The unbind continues even if the record cannot be written.
        with contextlib.suppress(exception.JournalError):
            self._records.give_back(asked.handle)
        if claim.is_group:  # Resets of GPUs take longer than Cyborg waits.
            self._cloud.publish(claim.gpu)
        self._soon(self._return, claim)

    def _note_end(self, claim: gpu_record.Claim) -> None:
        """Set a virtual function aside on which no server comes up.

        A guest that is killed in its first seconds can leave a function of
        vendor VFIO on which no guest can use its vGPU, although each vGPU is
        created without an error (kernel/hypeman#321, #462). Nova gives the
        handle of a server that does not come up back within seconds. Once may
        have any reason, twice in a row counts.
        """
        if (not claim.vfio or claim.since is None
                or claim.phase is not gpu_record.Phase.BOUND):
            return
        function = claim.function
        if self._records.clock() - claim.since >= CAME_UP_SECONDS:
            self._failed.discard(function)
        elif function not in self._failed:
            self._failed.add(function)
        else:
            self._failed.discard(function)
            self._health.function_died(claim.gpu, function)

    def recover(self) -> None:
        """Finish what dead processes and unbinds left. Never raises."""
        try:
            left = [claim for claim in self._records.claims()
                    if claim.phase is not gpu_record.Phase.BOUND
                    and claim.leads]
        except exception.JournalError as error:
            LOG.error('%s', error)
            return
        self._kept.keep({claim.handle for claim in left})
        locked: dict[model.PciAddress, str] = {}
        for claim in left:
            reason = locked.get(claim.gpu)
            try:
                if reason is None and self._return(claim, None):
                    LOG.info('Removed the leftovers of handle %s on GPU %s',
                             claim.handle, claim.gpu)
            except exception.LockTimeout as error:
                # Do not wait for the lock again for the GPU's other claims.
                reason = locked[claim.gpu] = str(error)
            except Exception as error:
                # The report of the GPUs must not fail because of this.
                reason = str(error)
                if not isinstance(error, exception.GpuDriverError):
                    LOG.exception('GPU %s', claim.gpu)
            if reason:
                self._tell_kept(claim, reason)

    def _recover(self, gpus: frozenset[model.PciAddress], turn: turns.Turn
                 ) -> None:
        """Finish on GPUs what dead processes and unbinds have left.

        A bind could take a place that the rollback of a change needs. And an
        unfinished claim of another handle finds its instance by placement:
        it must not find the one that the bind makes.

        :raises BindRefused: if a change cannot be rolled back now.
        """
        if not any(self._records.read(gpu).change or self._left(gpu, turn)
                   for gpu in gpus):
            return
        with self._locked(gpus, turn):
            for gpu in gpus:
                try:
                    if self._transactions.finish(self._host.gpu(gpu)):
                        self._host.refresh_gpu(gpu)
                except exception.ChangeFailed as error:
                    raise plan.refusal(turn.asked, str(error)) from error
                for claim in self._left(gpu, turn):
                    if gpus.issuperset(claim.gpus):
                        self._finish(claim)

    def _left(self, gpu: model.PciAddress, turn: turns.Turn
              ) -> list[gpu_record.Claim]:
        """The unfinished claims of other handles on a GPU."""
        return [claim for claim in self._records.claims(gpu)
                if claim.phase is not gpu_record.Phase.BOUND
                and claim.leads and claim.handle != turn.asked.handle]

    def _finish(self, claim: gpu_record.Claim) -> None:
        """Remove a claim whose process is dead or out of time."""
        try:
            self._maker.remove(claim)
        except Exception as error:
            self._tell_kept(claim, str(error))
            return
        if claim.is_mdev and claim.phase is gpu_record.Phase.UNBINDING:
            # Cyborg does not wait for mdevctl.
            deadline.begin_thread(self._vgpus.undefine_mdev, claim.handle,
                                  name=f'mdevctl undefine {claim.handle}')

    def _bind(self, address: model.PciAddress,
              gpus: frozenset[model.PciAddress], turn: turns.Turn
              ) -> gpu_record.Claim | None:
        """Bind, and return the new claim; None if it was bound already."""
        with self._locked(gpus, turn):
            if self._maker.is_made(address, turn.asked):
                return None
            for gpu in gpus:
                if self._records.read(gpu).change is not None:
                    raise plan.refusal(
                        turn.asked, f'a change of GPU {gpu} has just been '
                        'interrupted')
                self._admission.check_closed(gpu, turn.asked)
            self._roles.take(address, turn)
            made = self._maker.make(address, turn)
            if turn.cancelled:
                # An unbind may have read the record before the claim was
                # written.
                self._maker.remove(made)
                turn.check()
            return made

    @contextlib.contextmanager
    def _locked(self, gpus: frozenset[model.PciAddress], turn: turns.Turn
                ) -> Iterator[None]:
        """Hold the locks of GPUs for a bind that Cyborg still waits for."""
        try:
            with locks.gpus(self._records.state_path, gpus, turn.left,
                            f'the bind of handle {turn.asked.handle}'):
                turn.check()
                yield
        except exception.LockTimeout as error:
            if turn.cancelled:
                turn.check()
            raise plan.refusal(turn.asked, str(error)) from error

    def _soon(self, function: Callable[[_Subject, float], object],
              subject: _Subject) -> None:
        """Call a function of an unbind, and wait for it up to the limit.

        :raises Exception: what the function raises within the limit.
        :raises StepFailed: if it takes longer; it continues in its thread.
        """
        unbind = _begin(f'the unbind of handle {subject.handle}', function,
                        subject, self._limits.unbind)
        futures.wait([unbind], self._limits.unbind)
        if unbind.done():
            unbind.result()
            return

        def tell(late: futures.Future) -> None:
            if late.exception() is not None:
                LOG.error('Unbind of handle %(handle)s: %(error)s',
                          {'handle': subject.handle,
                           'error': late.exception()})

        unbind.add_done_callback(tell)
        raise exception.StepFailed(
            reason=f'not finished after {self._limits.unbind:g} s. It '
            'continues, and each report retries what is left then')

    def _return(self, claim: gpu_record.Claim, seconds: float | None
                ) -> bool:
        """Remove what a claim has, unless it is gone or bound again.

        mdevctl runs without the GPU's lock.

        :returns: whether the claim was removed by this call.
        """
        gone = False
        try:
            if claim.is_mdev and claim.phase is not gpu_record.Phase.BINDING:
                with self._unfinished(claim, seconds) as current:
                    if current is not None:
                        self._vgpus.release(current)
                        gone = True
                if gone:
                    self._vgpus.undefine_mdev(claim.handle)
            with self._unfinished(claim, seconds) as current:
                if current is not None:
                    self._maker.remove(current)
                return current is not None
        finally:
            # What could not be removed has no server and no allocation any
            # more. So Placement would promise its place to the next server.
            self._cloud.publish(claim.gpu)

    @contextlib.contextmanager
    def _unfinished(self, claim: gpu_record.Claim, seconds: float | None
                    ) -> Iterator[gpu_record.Claim | None]:
        """Lock the GPUs; yield the current claim, None if gone or bound."""
        with locks.gpus(self._records.state_path, claim.gpus, seconds):
            current = self._records.claim(claim.handle)
            if (current is not None
                    and current.phase is gpu_record.Phase.BOUND):
                current = None
            yield current

    def _remove_unrecorded(self, asked: plan.Request, seconds: float
                           ) -> None:
        """Remove the mdev of a handle that no record has.

        The mdev has the handle's UUID, so it belongs to Cyborg. Its GPU
        instance is unknown and is kept. So is a vGPU of vendor VFIO, which
        has no UUID that would tell its owner.
        """
        if (asked.is_group
                or self._vgpus.vgpu_type(asked.mdev) != asked.mdev_type):
            LOG.info('Handle %s has nothing on this machine', asked.handle)
            return
        address = self._host.owner(asked.function)
        with locks.gpu(self._records.state_path, address, seconds):
            if self._records.claim(asked.handle) is not None:
                # A later bind made it.
                return
            self._vgpus.destroy_vgpu(address, asked.mdev)
            self._host.refresh_gpu(address)
        self._cloud.publish(address)
        self._vgpus.undefine_mdev(asked.handle)
        LOG.warning('Removed mdev %(handle)s, of which no record has a '
                    'claim, from GPU %(gpu)s; the GPU instance that it may '
                    'have used is kept.',
                    {'handle': asked.handle, 'gpu': address})

    def _tell_kept(self, claim: gpu_record.Claim, reason: str) -> None:
        """Log once why leftovers cannot be removed."""
        if self._kept.is_new(reason, claim.handle):
            LOG.warning(
                'Could not remove everything that handle %(handle)s has on '
                'GPU %(gpu)s: %(error)s. Each report tries again.',
                {'handle': claim.handle, 'gpu': claim.gpu, 'error': reason})
