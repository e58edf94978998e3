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

"""Comparing all records of who has which accelerator on this machine.

In each report, a difference is logged once, and repaired if the repair is
safe. GPU instances and vGPUs that no record explains are never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.planning import differences
from cyborg_gpu_driver.program.reconcile import fabric
from cyborg_gpu_driver.program.reconcile import nvlink
from cyborg_gpu_driver.program.reconcile import orphans
from cyborg_gpu_driver.program.reconcile import rebuild
from cyborg_gpu_driver.program.reconcile import repair
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.record import unknown_claims

LOG = logging.getLogger(__name__)

_GRACE = 300.0
_SLICED = frozenset({policy.Mode.VGPU, policy.Mode.MIG})


class Reconciler:
    """Compares the records of one machine.

    :param machine: the platform that is read.
    :param host: the last snapshot of the machine.
    :param records: the journal.
    :param settings: the operator's policies.
    :param state_path: ``[gpu] state_path``.
    :param keeper: knows who uses a vGPU.
    :param rebuilder: rebuilds a lost journal.
    :param repairer: repairs differences.
    :param cloud: the cloud's services; comparisons with records that they
        do not know are left out.
    :param grace: seconds that a difference must last if a bind or unbind
        under way may cause it.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: journal.Journal, settings: policies.Settings,
                 state_path: str, keeper: orphans.Keeper,
                 rebuilder: rebuild.Rebuilder, repairer: repair.Repairer,
                 cloud: services.Services, grace: float = _GRACE,
                 clock: Callable[[], float] = time.monotonic):
        self._machine = machine
        self._fabric = fabric.FabricKeeper(machine, host, records,
                                           state_path)
        self._nvlink = nvlink.NvlinkKeeper(machine, host, records,
                                           state_path, self._fabric)
        self._host = host
        self._journal = records
        self._settings = settings
        self._state_path = state_path
        self._keeper = keeper
        self._rebuilder = rebuilder
        self._repairer = repairer
        self._cloud = cloud
        self._grace = grace
        self._clock = clock
        self._store = store.of(state_path)
        self._last: dict[tuple, reconcile.Difference] = {}
        """The differences that the last :meth:`look` has found, and earlier
        ones that it could not have found."""
        self._since: dict[tuple, float] = {}
        self._unrepaired = log_once.LogOnce()
        self._failure = log_once.LogOnce()
        self._named: dict[tuple, reconcile.Difference] = {}
        self._count = 0
        self.left: tuple[reconcile.Kind, ...] = ()
        """The differences that the last :meth:`look` did not repair."""
        self.repaired: tuple[reconcile.Kind, ...] = ()
        """The differences that it repaired."""

    def look(self, lost: bool = False) -> None:
        """Compare, log and repair. Called for each report. Never raises.

        :param lost: whether the journal was lost and must be rebuilt
            (:meth:`cyborg_gpu_driver.program.journal.Journal.check`).
        """
        self.repaired = ()
        self._fabric.look()
        self._nvlink.look()
        try:
            if lost and self._rebuilder.rebuild():
                # A rebuilt claim lacks the partition of its vGPU.
                self._fabric.look()
            now, compared = self._compare()
        except Exception as error:
            # The report of the GPUs must not depend on it.
            if self._failure.is_new(str(error)):
                LOG.warning('Could not compare the binds of this host: %s',
                            error,
                            exc_info=not isinstance(
                                error, exception.GpuDriverError))
            return
        self._failure.over()
        seen = {item.key: item for item in now}
        self._last = {
            key: item for key, item in self._last.items()
            if item.gpu in compared and not differences.could_find(
                compared[item.gpu], item.kind)} | seen
        found = self._due(self._last.values())
        self._name(found)
        repaired = [item for item in found
                    if item.key in seen and self._repaired(item)]
        self.repaired = tuple(item.kind for item in repaired)
        self.left = tuple(item.kind for item in found
                          if item not in repaired)
        self._tell_count(len(self.left))

    def find(self, refresh: bool = False
             ) -> tuple[reconcile.Difference, ...]:
        """All differences now, including those that may pass.

        A GPU with a bind or unbind meanwhile is left out, and so is a GPU
        that another holder keeps locked. A GPU whose record cannot be used
        is named, and not compared.

        :param refresh: whether to read the machine first.
        :raises JournalError: if locks cannot be used at all.
        """
        return self._compare(refresh)[0]

    def _compare(self, refresh: bool = False
                 ) -> tuple[tuple[reconcile.Difference, ...],
                            Mapping[model.PciAddress,
                                    differences.Facts | None]]:
        """All differences now, and the facts that were compared.

        :param refresh: as in :meth:`find`.
        :returns: the facts of each GPU of the machine; None for a GPU that
            was not compared.
        """
        before = self._journal.entries()
        if refresh:
            self._host.refresh()
        host = self._host.host()
        unknown = unknown_claims.of(self._state_path)
        gpus = [gpu for gpu in host.gpus if gpu.address not in unknown]
        marks = {gpu.address: self._host.mark(gpu.address) for gpu in gpus}
        claims = self._cloud.requests()
        usages = self._cloud.usages({gpu.address: self._host.offers(gpu)
                                     for gpu in gpus})
        compared: dict[model.PciAddress, differences.Facts | None] = (
            dict.fromkeys(gpu.address for gpu in host.gpus))
        for gpu in gpus:
            with contextlib.suppress(exception.LockTimeout), \
                    locks.gpu(self._state_path, gpu.address):
                entries = self._journal.entries(gpu.address)
                if (marks[gpu.address] != self._host.mark(gpu.address)
                        or entries != tuple(
                            entry for entry in before
                            if entry.gpu == gpu.address)):
                    continue
                compared[gpu.address] = self._facts(
                    gpu, entries, claims, None if usages is None
                    else usages.get(gpu.address, ()))
        return (*(differences.unusable(address, why.reason, why.remedy)
                  for address, why in unknown.items()),
                *(differences.unusable(
                    address, 'its record was damaged, so it gets no new '
                    'server: earlier cordons and errors of it may be lost',
                    'see whether the GPU is in order, then "cyborg-gpu gpu '
                    f'uncordon {address}"')
                  for address in self._journal.closed_by_damage()
                  if address not in unknown),
                *differences.absent(before, host),
                *differences.earlier(self._cloud.earlier(host)),
                *(item for facts in compared.values() if facts is not None
                  for item in differences.compare(facts))), compared

    def _facts(self, gpu: model.Gpu, entries: tuple[journal.Entry, ...],
               claims: reconcile.Claims | None,
               usages: tuple[reconcile.Usage, ...] | None
               ) -> differences.Facts:
        record = dataclasses.replace(self._store.read(gpu.address),
                                     claims=entries)
        facts = differences.Facts(gpu, record, self._governs(gpu), claims,
                                  usages, boot=self._machine.boot_id())
        lost = differences.unrequested(facts)
        return dataclasses.replace(
            facts, users=repair.users(self._keeper, gpu.address, lost)
            if lost else {},
            in_use=self._in_use(facts))

    def _governs(self, gpu: model.Gpu) -> bool:
        """Whether to report what no record explains on a GPU."""
        governing = self._settings.policy_for(gpu)
        if governing is None or not _SLICED.intersection(governing.modes):
            return False
        return (gpu.framework is not model.Framework.VENDOR_VFIO
                or self._settings.vfio_handles
                or bool(governing.fixed_vgpus))

    def _in_use(self, facts: differences.Facts
                ) -> Mapping[model.Placement, str] | None:
        """The users of GPU instances, if some are unexplained."""
        if not facts.governed or not differences.unexplained(facts):
            return {}
        try:
            return blockers.in_use(self._machine, facts.gpu, facts.entries)
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
        """Whether a difference is repaired, now or by the report."""
        if not difference.safe:
            return False
        if difference.by_report:
            return difference.kind is reconcile.Kind.RESERVED
        try:
            done = self._repairer.repair(difference)
        except Exception as error:
            if self._unrepaired.is_new(str(error), difference.key):
                LOG.warning('GPU %(gpu)s: could not repair %(subject)s: '
                            '%(error)s', {'gpu': difference.gpu,
                                          'subject': difference.subject,
                                          'error': error})
            return False
        LOG.info('GPU %(gpu)s: %(done)s', {'gpu': difference.gpu,
                                           'done': done})
        return True

    def _name(self, found: Iterable[reconcile.Difference]) -> None:
        """Log new differences; one that recurs is new."""
        for difference in found:
            before = self._named.get(difference.key)
            if before is None or before.text != difference.text:
                LOG.warning('GPU %(gpu)s: %(text)s. What to do: %(remedy)s.',
                            {'gpu': difference.gpu, 'text': difference.text,
                             'remedy': difference.remedy})
        self._named = {difference.key: difference for difference in found}
        self._unrepaired.keep(self._named)

    def _tell_count(self, count: int) -> None:
        if count == self._count:
            return
        self._count = count
        if count:
            LOG.warning('%d differences on this host; "cyborg-gpu doctor" '
                        'shows them', count)
        else:
            LOG.info('There are no differences on this host any more')
