# SPDX-License-Identifier: Apache-2.0

"""Records what the agent does and finds, for the exporter.

Nothing here may prevent a bind or a report from completing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import ledger
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.record import uptime
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names

LOG = logging.getLogger(__name__)

_NEW = 20_000
"""Milliseconds in which Cyborg is asked every second for the server of a new
handle. After that only the reports ask."""


class Observer:
    """Watches one agent, whose node is :class:`cyborg_gpu_driver.node.Node`.
    """

    def __init__(self, node: Any):
        self._node = node
        self._state_path = node.state_path
        self._audit = audit.Audit(self._state_path)
        self._mutex = threading.Lock()
        """Reports and :meth:`name_new` tell what Cyborg knows."""
        self._writer = state.StateWriter(self._state_path, node.hostname)
        self.call = self._writer.timed
        """Watches a bind or an unbind. The next report writes the counts,
        because a write to the disk would make every bind slower."""
        self.event = self._writer.xid
        """Counts an error that the NVIDIA driver has reported."""

    @contextlib.contextmanager
    def report(self) -> Iterator[None]:
        """Watch a report."""
        try:
            with self._writer.timed('report'):
                yield
            self._writer.set(last_report=time.time())
        finally:
            with _harmless():
                self._look()
            with _harmless():
                reconciler = self._node.reconciler
                self._writer.found(
                    (kind.value for kind in reconciler.left),
                    (kind.value for kind in reconciler.repaired))
            with _harmless():
                self._count()
            self._write()

    def claims(self, known: reconcile.Requests | None,
               asked: float = math.inf) -> None:
        """Take over what Cyborg knows about the accelerator requests.

        The server of a handle is written into the audit record once.

        :param known: None if Cyborg did not answer.
        :param asked: when Cyborg was asked, in seconds of the epoch: the
            answer does not cover handles that were bound later.
        """
        if known is None:
            return
        with _harmless(), self._mutex:
            before = self._writer.owners
            owners = {}
            for claim in self._node.records.claims():
                request = known.of(claim.handle)
                if request is None or (claim.since or 0.0) > asked:
                    if claim.handle in before:
                        owners[claim.handle] = before[claim.handle]
                    continue
                owner = state.Owner(request.arq, request.server or '',
                                    claim.since)
                owners[claim.handle] = owner
                if owner != before.get(claim.handle):
                    self._audit.record(
                        claim.gpu, 'assigned', claim.handle,
                        {'server': owner.server, 'arq': owner.arq,
                         'since': claim.since})
            self._writer.set(owners=owners)

    def _count(self) -> None:
        """Let what servers have count up to this report.

        After a restart of the host, what was counted before it ends with the
        last report before it. Only then may this report be noted.

        :raises JournalError: if a record cannot be written. Then the time
            that runs counts with a later report.
        """
        records = store.of(self._state_path)
        now = uptime.now()
        for address, record in records.records().items():
            if record.ledger.is_past(now.boot):
                with records.gpu(address):
                    pass
        uptime.note(self._state_path, now)
        self._name()

    def name_new(self) -> None:
        """Name the projects of what servers have got in the last seconds.

        A server may be gone before the next report. Cyborg names the server
        of a handle only after the bind has answered.
        """
        now = uptime.now()
        new = [item for record in store.of(self._state_path).records().values()
               for item in record.ledger.running
               if item.project is None and item.until(now) < _NEW]
        if any(item.profile != policy.Mode.PASSTHROUGH.value for item in new):
            asked = time.time()
            self.claims(self._node.requests(), asked)
        if new:
            self._name()

    def _name(self) -> None:
        records = store.of(self._state_path)
        for address, record in records.records().items():
            projects = self._projects(record)
            if projects:
                with records.gpu(address) as draft:
                    draft.record = dataclasses.replace(
                        draft.record,
                        ledger=draft.record.ledger.named(projects))

    def _projects(self, record: gpu_record.GpuRecord
                  ) -> dict[ledger.Running, str]:
        """The projects of servers that the ledger of a GPU does not name.

        Those of vGPUs and slices need Cyborg's answers: see ``[gpu_cloud]``.

        :raises Exception: if Placement does not answer.
        """
        servers = {}
        for claim in record.claims:
            owner = state.owner_of(claim, self._writer.owners)
            if owner is not None:
                servers[claim.handle] = owner.server
        found = {}
        for item in record.ledger.running:
            if item.project is not None:
                continue
            if item.profile == policy.Mode.PASSTHROUGH.value:
                server = item.key
            elif not gpu_conf.has_cloud_user(self._node.conf):
                server = ''
            elif item.key in servers:
                server = servers[item.key]
            else:
                continue
            # Placement has the allocations of a server before its bind. A
            # server without any is deleted.
            found[item] = server and (self._node.tree.get(
                f'/allocations/{server}') or {}).get('project_id') or ''
        return found

    def _look(self) -> None:
        """Look at all GPUs of the host. A GPU that fails is left out."""
        known = {}
        for gpu in self._node.live.host().gpus:
            with _harmless():
                known[gpu.address] = self._look_at(gpu)
        self._writer.set(gpus=known)

    def _look_at(self, gpu: model.Gpu) -> state.GpuState:
        address, node = gpu.address, self._node
        reserved = {item.provider: item.reserved
                    for item in node.inventories(address)}
        owned = gpu_record.owned(node.records.claims(address))
        found = []
        for item in filter(build.reportable, node.servable(gpu)):
            # An offer whose provider is missing counts as wholly reserved.
            held = reserved.get(names.provider_uuid(
                names.provider_name(node.hostname, item)), item.total)
            found.append(state.OfferState(
                item.mode.value, item.profile, names.resource_class(item),
                item.total, item.in_use, held,
                max(0, item.total - held - owned.get(item.profile, 0)),
                item.creatable))
        return state.GpuState(node.health.unhealthy(address) is None,
                              tuple(found), *slices(gpu.mig))

    def _write(self) -> None:
        self._writer.set(
            missed_deadlines=deadline.missed(),
            stuck_calls=len(deadline.stuck()),
            unwritten=store.of(self._state_path).unwritten)
        self._writer.write()


def slices(mig: model.Mig | None) -> tuple[int | None, int | None]:
    """Return the free slices and those of the largest new GPU instance.

    The total is the slice count of the largest profile (nvml.h: sliceCount of
    nvmlGpuInstanceProfileInfo_t).

    :returns: None, None if the GPU is not in MIG mode or was not read.
    """
    if mig is None or not mig.enabled or not mig.profiles:
        return None, None
    grid = geometry.Geometry(mig.profiles)
    occupancy = grid.occupancy_of(mig.instances)
    used = sum(known.slices for known in (
        mig.profile_by_id(item.profile_id) for item in mig.instances)
        if known is not None)
    free = max(0, max(item.slices for item in mig.profiles) - used)
    return free, max((item.slices for item in mig.profiles
                      if grid.free_placements(occupancy, item)), default=0)


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except exception.GpuDriverError as error:
        LOG.debug('Some values were not passed to the exporter: %s', error)
    except Exception:
        LOG.exception('Some values were not passed to the exporter')
