# SPDX-License-Identifier: Apache-2.0

"""Comparing all records of who has which accelerator on this machine.

In each report, a difference is logged once, and repaired if the repair is
safe. GPU instances and vGPUs that no record explains are never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import binder
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.program.privileged import consent
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.ready import prepare
from cyborg_gpu_driver.program.reconcile import groups
from cyborg_gpu_driver.program.reconcile import orphans
from cyborg_gpu_driver.program.reconcile import rebuild
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

_GRACE = 300.0
_SLICED = frozenset({policy.Mode.VGPU, policy.Mode.MIG})


class Reconciler:
    """Compares the records of one machine, and repairs differences.

    A difference may be outdated. So each repair asks Cyborg again, then locks
    the GPU, and changes something only if nothing has changed since.

    :param cloud: the cloud's services; comparisons with records that they
        do not know are left out.
    :param grace: seconds that a difference must last if a bind or unbind
        under way may cause it.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: store.Store, settings: policies.Settings,
                 connections: groups.Connections, vgpus: orphans.VgpuOrphans,
                 rebuilder: rebuild.Rebuilder, binds: binder.Binder,
                 preparer: prepare.Preparer, cloud: services.Services,
                 grace: float = _GRACE,
                 clock: Callable[[], float] = time.monotonic):
        self._machine = machine
        self._connections = connections
        self._host = host
        self._records = records
        self._settings = settings
        self._vgpus = vgpus
        self._rebuilder = rebuilder
        self._binder = binds
        self._preparer = preparer
        self._cloud = cloud
        self._grace = grace
        self._clock = clock
        self._last: dict[tuple, reconcile.Difference] = {}
        """The differences that the last :meth:`look` has found, and earlier
        ones that it could not have found."""
        self._since: dict[tuple, float] = {}
        self._unrepaired = log_once.LogOnce()
        self._failure = log_once.LogOnce()
        self._named = log_once.LogOnce()
        self.left: tuple[reconcile.Kind, ...] = ()
        """The differences that the last :meth:`look` did not repair."""
        self.repaired: tuple[reconcile.Kind, ...] = ()
        """The differences that it repaired."""
        self._ways = {
            reconcile.Kind.NO_REQUEST: self._return,
            reconcile.Kind.VGPU_GONE: self._make_again,
            reconcile.Kind.INSTANCE_GONE: self._make_again,
            reconcile.Kind.NOT_RECORDED: self._record,
            reconcile.Kind.UNFINISHED: self._finish,
            reconcile.Kind.RESERVED: self._publish,
        }

    def look(self, lost: bool = False) -> None:
        """Compare, log and repair. Called for each report. Never raises.

        :param lost: whether claims were lost and must be rebuilt
            (:meth:`cyborg_gpu_driver.record.store.Store.check`).
        """
        self.repaired = ()
        self._connections.look()
        # The report of the GPUs must not depend on it.
        with self._failure.noted(
                LOG.warning, 'Could not compare the binds of this host'):
            if lost and self._rebuilder.rebuild():
                # A rebuilt claim lacks the partition of its vGPU.
                self._connections.look()
            self._follow(*self._compare())

    def _follow(self, now: Iterable[reconcile.Difference],
                compared: Mapping[model.PciAddress, desired.Facts | None]
                ) -> None:
        """Log and repair what differs now and has lasted long enough."""
        seen = {item.key: item for item in now}
        self._last = {
            key: item for key, item in self._last.items()
            if item.gpu in compared and not desired.could_find(
                compared[item.gpu], item.kind)} | seen
        found = self._due(self._last.values())
        keys = {item.key for item in found}
        self._named.keep(keys)
        self._unrepaired.keep(keys)
        for item in found:
            if self._named.is_new(item.text, item.key):
                LOG.warning('GPU %(gpu)s: %(text)s. What to do: %(remedy)s.',
                            {'gpu': item.gpu, 'text': item.text,
                             'remedy': item.remedy})
        repaired = [item for item in found
                    if item.key in seen and self._repaired(item)]
        self.repaired = tuple(item.kind for item in repaired)
        self.left = tuple(item.kind for item in found
                          if item not in repaired)

    def find(self, refresh: bool = False
             ) -> tuple[reconcile.Difference, ...]:
        """All differences now, including those that may pass.

        A GPU with a bind or unbind meanwhile is left out, and so is a GPU
        that another holder keeps locked. A GPU whose record cannot be used
        is named, and not compared.
        """
        return self._compare(refresh)[0]

    def _compare(self, refresh: bool = False
                 ) -> tuple[tuple[reconcile.Difference, ...],
                            Mapping[model.PciAddress,
                                    desired.Facts | None]]:
        """All differences now, and the facts that were compared.

        :returns: the facts of each GPU of the machine; None for a GPU that
            was not compared.
        """
        before = self._records.claims()
        if refresh:
            self._host.refresh()
        host = self._host.host()
        unknown = self._records.unknown_claims()
        gpus = [gpu for gpu in host.gpus if gpu.address not in unknown]
        marks = {gpu.address: self._host.mark(gpu.address) for gpu in gpus}
        requests = self._cloud.requests()
        usages = self._cloud.usages({gpu.address: self._host.offers(gpu)
                                     for gpu in gpus})
        compared: dict[model.PciAddress, desired.Facts | None] = (
            dict.fromkeys(gpu.address for gpu in host.gpus))
        # Without the directory, nobody has held a GPU yet. Then a diagnosis
        # creates nothing.
        path = self._records.state_path
        hold = os.path.exists(path)
        for gpu in gpus:
            with (contextlib.suppress(exception.LockTimeout),
                  locks.gpu(path, gpu.address) if hold
                  else contextlib.nullcontext()):
                claims = self._records.claims(gpu.address)
                if (marks[gpu.address] != self._host.mark(gpu.address)
                        or claims != tuple(
                            claim for claim in before
                            if claim.gpu == gpu.address)):
                    continue
                compared[gpu.address] = self._facts(
                    gpu, claims, requests, None if usages is None
                    else usages.get(gpu.address, ()))
        return (*(desired.unusable(address, why.reason, why.remedy)
                  for address, why in unknown.items()),
                *(desired.unusable(
                    address, 'its record was damaged, so it gets no new '
                    'server: earlier cordons and errors of it may be lost',
                    'see whether the GPU is in order, then "cyborg-gpu gpu '
                    f'uncordon {address}"')
                  for address in self._records.closed_by_damage()
                  if address not in unknown),
                *desired.absent(before, host),
                *(item for facts in compared.values() if facts is not None
                  for item in desired.compare(facts))), compared

    def _facts(self, gpu: model.Gpu, claims: tuple[gpu_record.Claim, ...],
               requests: reconcile.Requests | None,
               usages: tuple[reconcile.Usage, ...] | None
               ) -> desired.Facts:
        record = dataclasses.replace(self._records.read(gpu.address),
                                     claims=claims)
        governing = self._settings.policy_for(gpu)
        facts = desired.Facts(
            gpu, record, governing is not None
            and not _SLICED.isdisjoint(governing.modes), requests, usages,
            boot=self._machine.boot_id())
        lost = desired.unrequested(facts)
        return dataclasses.replace(
            facts, users=users(self._vgpus, gpu.address, lost)
            if lost else {},
            in_use=self._in_use(facts))

    def _in_use(self, facts: desired.Facts
                ) -> Mapping[model.Placement, str] | None:
        """The users of GPU instances, if some are unexplained."""
        if not facts.governed or not desired.unexplained(facts):
            return {}
        try:
            return blockers.in_use(self._machine, facts.gpu, facts.claims)
        except exception.GpuDriverError as error:
            LOG.debug('Cannot find out who uses GPU %(gpu)s: %(error)s',
                      {'gpu': facts.gpu.address, 'error': error})
            return None

    def _due(self, found: Iterable[reconcile.Difference]
             ) -> list[reconcile.Difference]:
        """The differences that have lasted long enough."""
        now = self._clock()
        self._since = {difference.key: self._since.get(difference.key, now)
                       for difference in found}
        return [difference for difference in found
                if not difference.may_pass
                or now - self._since[difference.key] >= self._grace]

    def _repaired(self, difference: reconcile.Difference) -> bool:
        """Whether a difference is repaired now."""
        if not difference.safe or difference.by_report:
            return False
        with self._unrepaired.noted(
                LOG.warning, f'GPU {difference.gpu}: could not repair '
                f'{difference.subject}', difference.key):
            done = self.repair(difference)
            LOG.info('GPU %(gpu)s: %(done)s', {'gpu': difference.gpu,
                                               'done': done})
            return True
        return False

    def repair(self, difference: reconcile.Difference) -> str:
        """Repair one difference that is safe."""
        return self._ways[difference.kind](difference)

    def _return(self, difference: reconcile.Difference) -> str:
        """Release the accelerator of a handle that Cyborg no longer has.

        Cyborg is asked before the GPU is locked, so that binds do not wait
        for its answer. Cyborg records the start of a bind before it calls
        the agent. So if no request had the handle and none was under way,
        only a later bind can have given it one. Such a bind changes the
        claim (``repeats``), or finds a claim that is being removed.
        """
        claim = self._bound(difference)
        requests = self._cloud.requests()
        if requests is None:
            raise _kept('Cyborg could not be queried again')
        if requests.of(claim.handle) is not None:
            raise _kept('an accelerator request has it now')
        if requests.unsettled:
            raise _kept('accelerator requests are in progress: '
                        + ', '.join(requests.unsettled))
        with self._locked(difference):
            self._check_unchanged(claim)
            user = users(self._vgpus, claim.gpu, (claim,)).get(
                claim.vgpu_name)
            if user:
                raise _kept(user)
            self._records.give_back(claim.handle)
        self._finish(difference)
        return f'returned {claim.profile} of handle {claim.handle}'

    def _finish(self, difference: reconcile.Difference) -> str:
        self._binder.recover()
        if self._records.claim(difference.subject) is not None:
            raise _kept('it cannot be removed yet; the log says why')
        return f'removed the leftovers of handle {difference.subject}'

    def _make_again(self, difference: reconcile.Difference) -> str:
        """Create a handle's GPU instance and vGPU again, in their places."""
        claim = self._bound(difference)
        requests = self._cloud.requests()
        if requests is None or requests.of(claim.handle) is None:
            raise _kept('no accelerator request has it')
        with self._locked(difference):
            self._check_unchanged(claim)
            try:
                done = self._preparer.restore_claim(
                    self._host.gpu(claim.gpu), claim.handle)
            finally:
                self._host.refresh_gpu(claim.gpu)
        return (f'recreated what handle {claim.handle} lacked: '
                + (', '.join(done) or 'nothing'))

    def _record(self, difference: reconcile.Difference) -> str:
        """Write the claim of a request whose vGPU exists."""
        requests = self._cloud.requests()
        request = None if requests is None else requests.of(difference.subject)
        if request is None:
            raise _kept('no accelerator request has it any more')
        with self._locked(difference):
            if self._records.claim(request.handle) is None:
                self._rebuilder.adopt(
                    self._host.gpu(difference.gpu), request)
        self._cloud.publish(difference.gpu)
        return f'recorded handle {request.handle} as bound'

    def _publish(self, difference: reconcile.Difference) -> str:
        self._cloud.publish(difference.gpu)
        return 'wrote reserved'

    def _locked(self, difference: reconcile.Difference
                ) -> contextlib.AbstractContextManager:
        return locks.gpu(self._records.state_path, difference.gpu)

    def _bound(self, difference: reconcile.Difference) -> gpu_record.Claim:
        claim = self._records.claim(difference.subject)
        if claim is None or claim.phase is not gpu_record.Phase.BOUND:
            raise _kept('it is not bound any more')
        return claim

    def _check_unchanged(self, claim: gpu_record.Claim) -> None:
        if self._records.claim(claim.handle) != claim:
            raise _kept('it was bound or unbound in the meantime')


def users(vgpus: orphans.VgpuOrphans, gpu: model.PciAddress,
          claims: tuple[gpu_record.Claim, ...]) -> dict[str, str]:
    """The users of the claims' vGPUs that are in use, or may be, by name.

    Reads no other GPUs than those of the claims, so the caller may hold the
    GPU's lock.
    """
    found = {}
    for claim in claims:
        for address in claim.members:
            there = privileged_driver.holders(str(address))
            if there:
                found[claim.vgpu_name] = (
                    f'GPU {address} is open in ' + consent.describe(there))
    names = {claim.vgpu_name for claim in claims
             if not claim.is_group}
    for item in vgpus.on(gpu):
        if item.vgpu.name in names:
            user = dataclasses.replace(item, owner=None).obstacle(None)
            if user:
                found[item.vgpu.name] = user
    return found


def _kept(reason: str) -> exception.StepFailed:
    return exception.StepFailed(reason=reason)
