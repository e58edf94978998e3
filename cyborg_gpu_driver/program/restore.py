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

"""After a reboot or a crash: all that is needed is there again.

What was under way is undone; then, on each GPU, MIG mode, virtual
functions, the checkpoint's instances and what is bound to handles are made
as far as they are missing. Nothing is destroyed for it, so that restoring
what is there already does nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.program import apply
from cyborg_gpu_driver.program import arrangement
from cyborg_gpu_driver.program import checkpoint
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import locks
from cyborg_gpu_driver.program import mig_mode
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.program import steps
from cyborg_gpu_driver.program import way_back

LOG = logging.getLogger(__name__)


class Restorer:
    """Restores GPUs of one machine.

    :param applier: undoes what was under way.
    :param state_path: ``[gpu] state_path``: locks and journals.
    """

    def __init__(self, machine: platform.Platform, applier: apply.Applier,
                 state_path: str):
        self._machine = machine
        self._applier = applier
        self._state_path = state_path
        self._binds = journal.Journal(state_path)
        self._tools = hardware.Hardware(machine)

    def restore(self, gpu: model.Gpu, saved: checkpoint.Saved | None
                ) -> apply.Status:
        """Restore one GPU.

        :param gpu: of a recent snapshot.
        :param saved: its part of the checkpoint, None if it has none.
        :raises ChangeFailed: if what was under way cannot be undone.
        :raises ChangeRefused: if the checkpoint is of another board, or
            the snapshot could not tell whether the GPU has MIG.
        :raises NvmlError, SysfsError, ModeBlocked, JournalError: as the
            hardware refused something; what was made before stays.
        """
        if saved is not None and saved.device_id != gpu.device_id:
            raise exception.ChangeRefused(
                gpu=gpu.address, reason='the checkpoint is of a board with '
                f'PCI device id {saved.device_id}, this is '
                f'{gpu.device_id}: apply a layout and make a new one')
        changed = self._applier.recover(gpu)
        with locks.gpu(self._state_path, gpu.address):
            entries = [entry for entry in self._binds.entries(gpu.address)
                       if entry.phase is journal.Phase.BOUND]
            if saved is not None or entries:
                self._applier.read(gpu)
                changed |= self._mode(gpu, saved, entries)
                changed |= self._functions(gpu, saved, entries)
                changed |= self._instances(gpu, saved, entries)
                changed |= self._bound(gpu, entries)
        return apply.Status.CHANGED if changed else apply.Status.UNCHANGED

    def _mode(self, gpu, saved, entries):
        if gpu.mig is None:
            return False
        now = self._applier.read(gpu)
        enabled = _needs_mig(saved, entries)
        if now.mig.enabled == enabled:
            return False
        if not enabled and (saved is None or now.mig.instances):
            return False
        return mig_mode.switch(self._machine, gpu, enabled)

    def _functions(self, gpu, saved, entries):
        """Virtual functions, which must be there before any instance."""
        needed = (saved is not None and saved.vfs) or any(
            entry.function != gpu.address for entry in entries)
        if not needed or gpu.sriov_numvfs:
            return False
        privileged.enable_virtual_functions(str(gpu.address))
        self._machine.nvml.forget(gpu.address)
        return True

    def _instances(self, gpu, saved, entries):
        if gpu.mig is None:
            return False
        now = self._applier.read(gpu)
        todo = way_back.steps(now, _needed(saved, entries), ())
        runner = steps.Runner(self._machine, now)
        for step in todo:
            runner.take(step)
        return bool(todo)

    def _bound(self, gpu, entries):
        """The instances' new ids into the journal, and the mdevs."""
        changed = False
        ids = {(item.profile_id, item.placement): item.instance_id
               for item in (self._applier.read(gpu).mig.instances
                            if gpu.mig else ())}
        for entry in entries:
            number = ids.get((entry.profile_id, entry.placement))
            if entry.placement is not None and number != entry.instance_id:
                entry = dataclasses.replace(entry, instance_id=number)
                self._binds.put(entry)
            if self._tools.mdev_type(entry.handle) is None:
                self._tools.make_mdev(entry)
                changed = True
        return changed


def _needs_mig(saved: checkpoint.Saved | None,
               entries: Iterable[journal.Entry]) -> bool:
    return (saved is not None and saved.arranged.enabled
            or any(entry.placement is not None for entry in entries))


def _needed(saved, entries):
    """Instances that must be there: the checkpoint's and those of binds."""
    cuts = {cut.place: cut for cut in (saved.arranged.cuts if saved else ())}
    for entry in entries:
        if entry.placement is not None:
            place = entry.profile_id, entry.placement
            cuts.setdefault(place, arrangement.Cut(
                entry.placement, entry.profile_id))
    return arrangement.Arrangement(True, True, tuple(sorted(cuts.values())))
