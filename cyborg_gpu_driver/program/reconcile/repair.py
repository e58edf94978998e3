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

"""Safe repairs of differences.

A difference may be outdated. So each repair asks Cyborg again, then locks
the GPU, and changes something only if nothing has changed since.
"""

from __future__ import annotations

import contextlib
import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import binder
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.planning import differences
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import holders
from cyborg_gpu_driver.program.ready import restore
from cyborg_gpu_driver.program.reconcile import orphans
from cyborg_gpu_driver.program.reconcile import rebuild


class Repairer:
    """Carries out repairs on one machine.

    :param host: the last snapshot of the machine.
    :param restorer: creates what a claim lacks.
    :param records: the journal.
    :param keeper: knows who uses a vGPU.
    :param rebuilder: writes the entries of requests that have none.
    :param binds: finishes interrupted binds and unbinds.
    :param state_path: where the locks are.
    :param cloud: knows the accelerator requests, and publishes.
    """

    def __init__(self, host: live.LiveHost, restorer: restore.Restorer,
                 records: journal.Journal, keeper: orphans.Keeper,
                 rebuilder: rebuild.Rebuilder, binds: binder.Binder,
                 state_path: str, cloud: services.Services):
        self._host = host
        self._restorer = restorer
        self._journal = records
        self._keeper = keeper
        self._rebuilder = rebuilder
        self._binder = binds
        self._state_path = state_path
        self._cloud = cloud
        self._ways = {
            reconcile.Kind.NO_REQUEST: self._return,
            reconcile.Kind.VGPU_GONE: self._make_again,
            reconcile.Kind.INSTANCE_GONE: self._make_again,
            reconcile.Kind.NOT_RECORDED: self._record,
            reconcile.Kind.UNFINISHED: self._finish,
            reconcile.Kind.RESERVED: self._publish,
        }

    def repair(self, difference: reconcile.Difference) -> str:
        """Repair one difference that is safe.

        :returns: what was done, for people.
        :raises GpuDriverError: saying why it could not be repaired.
        """
        return self._ways[difference.kind](difference)

    def _return(self, difference: reconcile.Difference) -> str:
        """Release the accelerator of a handle that Cyborg no longer has.

        Cyborg is asked before the GPU is locked, so that binds do not wait
        for its answer. Cyborg records the start of a bind before it calls
        the agent. So if no request had the handle and none was under way,
        only a later bind can have given it one. Such a bind changes the
        entry (``repeats``), or finds an entry that is being removed.
        """
        entry = self._entry(difference)
        claims = self._cloud.requests()
        if claims is None:
            raise _kept('Cyborg could not be queried again')
        if claims.of(entry.handle) is not None:
            raise _kept('an accelerator request has it now')
        if claims.unsettled:
            raise _kept('accelerator requests are in progress: '
                        + ', '.join(claims.unsettled))
        with self._locked(difference):
            self._check_unchanged(entry)
            user = users(self._keeper, entry.gpu, (entry,)).get(
                differences.vgpu_name(entry))
            if user:
                raise _kept(user)
            self._journal.give_back(entry.handle)
        self._finish(difference)
        return f'returned {entry.profile} of handle {entry.handle}'

    def _finish(self, difference: reconcile.Difference) -> str:
        self._binder.recover()
        if self._journal.get(difference.subject) is not None:
            raise _kept('it cannot be removed yet; the log says why')
        return f'removed the leftovers of handle {difference.subject}'

    def _make_again(self, difference: reconcile.Difference) -> str:
        """Create a handle's GPU instance and vGPU again, in their places."""
        entry = self._entry(difference)
        claims = self._cloud.requests()
        if claims is None or claims.of(entry.handle) is None:
            raise _kept('no accelerator request has it')
        with self._locked(difference):
            self._check_unchanged(entry)
            try:
                done = self._restorer.restore_claim(
                    self._host.gpu(entry.gpu), entry.handle)
            finally:
                self._host.refresh_gpu(entry.gpu)
        return (f'recreated what handle {entry.handle} lacked: '
                + (', '.join(done) or 'nothing'))

    def _record(self, difference: reconcile.Difference) -> str:
        """Write the entry of a request whose vGPU exists."""
        claims = self._cloud.requests()
        claim = None if claims is None else claims.of(difference.subject)
        if claim is None:
            raise _kept('no accelerator request has it any more')
        with self._locked(difference):
            if self._journal.get(claim.handle) is None:
                self._rebuilder.adopt(
                    self._host.gpu(difference.gpu), claim)
        self._cloud.publish(difference.gpu)
        return f'recorded handle {claim.handle} as bound'

    def _publish(self, difference: reconcile.Difference) -> str:
        self._cloud.publish(difference.gpu)
        return 'wrote reserved'

    def _locked(self, difference: reconcile.Difference
                ) -> contextlib.AbstractContextManager:
        return locks.gpu(self._state_path, difference.gpu)

    def _entry(self, difference: reconcile.Difference) -> journal.Entry:
        entry = self._journal.get(difference.subject)
        if entry is None or entry.phase is not journal.Phase.BOUND:
            raise _kept('it is not bound any more')
        return entry

    def _check_unchanged(self, entry: journal.Entry) -> None:
        if self._journal.get(entry.handle) != entry:
            raise _kept('it was bound or unbound in the meantime')


def users(keeper: orphans.Keeper, gpu: model.PciAddress,
          entries: tuple[journal.Entry, ...]) -> dict[str, str]:
    """The users of the entries' vGPUs that are in use, or may be, by name.

    Reads no other GPUs than those of the entries, so the caller may hold the
    GPU's lock.
    """
    found = {}
    for entry in entries:
        for address in entry.members:
            there = privileged_driver.holders(str(address))
            if there:
                found[differences.vgpu_name(entry)] = (
                    f'GPU {address} is open in ' + holders.describe(there))
    names = {differences.vgpu_name(entry) for entry in entries
             if not entry.members}
    for item in keeper.on(gpu):
        if item.vgpu.name in names:
            user = dataclasses.replace(item, owner=None).obstacle(None)
            if user:
                found[item.vgpu.name] = user
    return found


def _kept(reason: str) -> exception.StepFailed:
    return exception.StepFailed(reason=reason)
