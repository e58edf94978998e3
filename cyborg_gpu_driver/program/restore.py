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
functions, mixed-size mode and vGPU scheduler, what is bound to handles, the
checkpoint's instances and the policy's fixed vGPUs are made as far as they
are missing, in that order, which is the one that the driver takes. Nothing
is destroyed for it, so that restoring what is there already does nothing.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from collections.abc import Iterable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import apply
from cyborg_gpu_driver.program import blockers
from cyborg_gpu_driver.program import fixed
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import prepare
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program import shared
from cyborg_gpu_driver.program import steps
from cyborg_gpu_driver.program import way_back
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)

Tell = Callable[[str], object]


class Restorer:
    """Restores GPUs of one machine.

    :param applier: undoes what was under way.
    :param state_path: ``[gpu] state_path``: locks and journals.
    :param settings: the operator's policies; none of them by default.
    :param cloud: knows which GPUs have servers.
    """

    def __init__(self, machine: platform.Platform, applier: apply.Applier,
                 state_path: str,
                 settings: policies.Settings | None = None,
                 cloud: services.Services | None = None):
        self._machine = machine
        self._applier = applier
        self._state_path = state_path
        self._settings = settings or policies.Settings()
        self._cloud = cloud or services.Services()
        self._binds = journal.Journal(state_path)
        self._tools = hardware.Hardware(machine)
        self._shared = shared.SharedInstances(self._tools, self._binds)
        self._taker = prepare.StepTaker(machine, reader.HostReader(machine))
        self._fixed = fixed.FixedVgpus(machine, self._taker, state_path,
                                       self._settings)

    def restore(self, gpu: model.Gpu, saved: gpu_record.SavedLayout | None,
                tell: Tell = lambda words: None) -> apply.Status:
        """Restore one GPU.

        One part that fails keeps none of the others from being restored.

        :param gpu: of a recent snapshot.
        :param saved: its part of the checkpoint, None if it has none.
        :param tell: called with each thing that was done, for people.
        :raises ChangeFailed: if what was under way cannot be undone.
        :raises ChangeRefused: if the checkpoint is of another board, if
            the snapshot could not tell whether the GPU has MIG, or if
            something that runs is in the way.
        :raises NvmlError, SysfsError, SriovError, ModeBlocked, StepFailed,
            JournalError: as the hardware refused a mode that all the rest
            needs.
        :raises RestoreIncomplete: naming what is not there.
        """
        if saved is not None and saved.device_id != gpu.device_id:
            raise exception.ChangeRefused(
                gpu=gpu.address, reason='the checkpoint is of a board with '
                f'PCI device id {saved.device_id}, this is '
                f'{gpu.device_id}: apply a layout and make a new one')
        done: list[str] = []
        try:
            self._restore(gpu, saved, done)
        finally:
            for words in done:
                tell(words)
        return apply.Status.CHANGED if done else apply.Status.UNCHANGED

    def _restore(self, gpu, saved, done):
        if self._applier.recover(gpu):
            done.append('undo a change that was interrupted')
        failed: list[str] = []
        with locks.gpu(self._state_path, gpu.address,
                       locks.COMMAND_SECONDS):
            entries = [entry for entry in self._binds.entries(gpu.address)
                       if entry.phase is journal.Phase.BOUND]
            if saved is not None or entries:
                self._applier.read(gpu)
            gpu = self._modes(gpu, saved, entries, done, failed)
            self._bound(gpu, saved, entries, done, failed)
            if saved is not None and saved.layout.enabled:
                with _noted(failed, 'checkpoint'):
                    self._create(gpu, saved.layout.instances, done)
        made = self._fixed.make(gpu)
        done.extend(made.done)
        if made.reason:
            failed.append(made.reason)
        if failed:
            raise exception.RestoreIncomplete(gpu=gpu.address,
                                              reason='; '.join(failed))

    def _modes(self, gpu, saved, entries, done, failed):
        """MIG mode, virtual functions, mixed sizes and scheduler."""
        def wanted(now):
            return _needed(prepare.wants(self._settings, now), now, saved,
                           entries)

        if not readiness.steps(gpu, wanted(gpu)):
            return gpu
        now = self._taker.read(gpu.address)
        needed = readiness.steps(now, _needed(readiness.Wants(), now, saved,
                                              entries))
        found = blockers.of_preparing(self._machine, now, ())
        if found and needed:
            raise exception.ChangeRefused(
                gpu=gpu.address, reason='in the way: ' + ', '.join(found))
        reason = ', '.join(found) or (
            not needed and self._cloud.claimed(gpu.address))
        if reason:
            # Only the policy asks for more, and the agent sees to that as
            # soon as the GPU is idle.
            LOG.info('GPU %(gpu)s is not made ready for its policy: '
                     '%(reason)s', {'gpu': gpu.address, 'reason': reason})
            return now
        taken: list[readiness.Step] = []
        try:
            now = self._taker.take(now, wanted, taken)
        except exception.GpuDriverError as error:
            # A guest runs without its scheduler, and not without a vGPU.
            if taken[-1:] != [readiness.Step.SCHEDULER]:
                raise
            failed.append(f'{taken.pop().value}: {error}')
            now = self._taker.read(gpu.address)
        finally:
            done.extend(step.value for step in taken)
        return now

    def _bound(self, gpu, saved, entries, done, failed):
        """What is bound to handles: its instances, and its vGPUs.

        The driver puts a vGPU on any instance of its profile that has room.
        So each instance is cut only when its own vGPUs are next, and those
        with most of them come first.
        """
        laid_out = {item.bare: item for item in (
            saved.layout.instances if saved else ())}
        groups = collections.defaultdict(list)
        for entry in sorted(entries, key=lambda entry: entry.function):
            groups[entry.instance].append(entry)
        for instance, sharers in sorted(groups.items(), key=_order):
            with _noted(failed, f'GPU instance {instance}'):
                if instance is not None:
                    self._create(gpu, [laid_out.get(instance, instance)],
                                 done)
                    sharers = self._numbered(gpu, instance, sharers)
                for entry in sharers:
                    with _noted(failed, f'handle {entry.handle}'):
                        self._bind(entry, done)

    def _bind(self, entry, done):
        if self._tools.vgpu_type(entry) != entry.mdev_type:
            made, _ = self._shared.settle(self._tools.make_vgpu(entry))
            if made != entry:
                self._binds.put(made)
            done.append(f'make vGPU {entry.handle} on {entry.function}')

    def _numbered(self, gpu, instance, entries):
        """Entries with their instance's new id, in the journal too."""
        for item in self._applier.read(gpu).mig.instances:
            if spec.of(item) == instance:
                entries = [self._tools.numbered(entry, item.instance_id)
                           for entry in entries]
                self._binds.put(*entries)
        return entries

    def _create(self, gpu, instances, done):
        """Create those of ``instances`` that are missing."""
        now = self._applier.read(gpu)
        todo = way_back.steps(now, spec.MigLayout(
            True, True, tuple(instances)), ())
        runner = steps.Runner(self._machine, now)
        for step in todo:
            runner.take(step)
            done.append(str(step))


@contextlib.contextmanager
def _noted(failed, what):
    """Go on with what comes after, whatever fails here."""
    try:
        yield
    except exception.GpuDriverError as error:
        failed.append(f'{what}: {error}')


def _order(group):
    instance, entries = group
    return (instance is not None, -len(entries), instance or ())


def _needed(wants: readiness.Wants, gpu: model.Gpu,
            saved: gpu_record.SavedLayout | None,
            entries: Iterable[journal.Entry]) -> readiness.Wants:
    """What a GPU needs for all that is to be restored on it.

    What is bound comes first, then what is laid out, then the policy. Its
    driver is for the agent to choose, who knows of servers.

    :param wants: the policy's.
    """
    entries = tuple(entries)
    vfs = wants.vfs
    if (any(entry.function != gpu.address for entry in entries)
            or vfs is None and saved is not None and saved.vfs):
        vfs = True
    mixed = wants.mixed
    if entries and (mixed or any(entry.vgpu_placement is not None
                                 for entry in entries)):
        mixed = any(entry.vgpu_placement is not None
                    for entry in entries) or None
    scheduler = wants.scheduler
    if (mixed and scheduler
            and scheduler[0] is model.SchedulerPolicy.FIXED_SHARE):
        scheduler = None
    return readiness.Wants(_needed_mig(wants.mig, gpu, saved, entries), vfs,
                           mixed, scheduler, released=gpu.released)


def _needed_mig(wanted, gpu, saved, entries):
    """The MIG mode for what is to be restored; None leaves it."""
    if gpu.mig is None:
        return None
    if (any(entry.placement is not None for entry in entries)
            or saved is not None and saved.layout.instances):
        return True
    if entries and wanted:
        # Time-sliced vGPUs of an earlier policy, which need it off.
        return None
    if wanted is None and saved is not None and not gpu.mig.instances:
        return saved.layout.enabled
    return wanted
