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

"""vGPUs that are made when the agent starts and then left to Nova.

For GPUs of vendor VFIO, unless Nova takes their virtual functions from
Cyborg (``[gpu] nova_vfio_handles``). The same function has the same type
after a reboot and under another policy that still wants that type.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import mdev
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program import blockers
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import patience
from cyborg_gpu_driver.program import prepare
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.program import privileged_vgpu
from cyborg_gpu_driver.program import vfio
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

_UNREADY = frozenset(readiness.Step) - {readiness.Step.SCHEDULER}
"""Steps before which no fixed vGPU can be there."""


@dataclasses.dataclass(frozen=True)
class Made:
    """What was done about the fixed vGPUs of one GPU."""

    gpu: model.PciAddress
    done: tuple[str, ...] = ()
    """For people."""
    reason: str = ''
    """Why not all is as the policy says; empty if it is."""

    @property
    def has_acted(self) -> bool:
        """Whether the GPU has changed."""
        return bool(self.done)


class FixedVgpus:
    """Makes and removes fixed vGPUs.

    :param taker: reads GPUs.
    :param state_path: ``[gpu] state_path``: locks and records.
    :param clock: seconds that only grow.
    """

    def __init__(self, machine: platform.Platform, taker: prepare.StepTaker,
                 state_path: str, settings: policies.Settings,
                 clock: Callable[[], float] = time.monotonic):
        self._machine = machine
        self._taker = taker
        self._state_path = state_path
        self._settings = settings
        self._tree = mdev.MdevTree(machine.sysfs)
        self._store = store.of(state_path)
        self._binds = journal.Journal(state_path)
        self._making = patience.Patience(LOG, clock)
        self._releasing = patience.Patience(LOG, clock)

    def plan(self, gpu: model.Gpu) -> Made:
        """What is left to do on a GPU; changes nothing.

        :param gpu: of a snapshot that was taken just now.
        """
        if not self._settings.prepare or self._settings.ignores(gpu):
            return Made(gpu.address)
        try:
            record = self._store.read(gpu.address).fixed
            words = [f'remove {record.types[function]} from {function}'
                     for function in self._unwanted(gpu, record)]
            governing = self._ready_policy(gpu)
            if governing is not None:
                words += [f'make {item.name} on {item.function}'
                          for item in _missing(gpu, fixed.plan(
                              gpu, governing, record.types))]
        except exception.GpuDriverError as error:
            return Made(gpu.address, reason=str(error))
        return Made(gpu.address, tuple(words))

    def release(self, gpu: model.Gpu) -> Made:
        """Remove what is ours, not wanted any more and not in use.

        Never raises.

        :param gpu: of a recent snapshot.
        """
        return self._releasing.attempt(
            gpu.address, lambda: self._release(gpu),
            lambda reason: Made(gpu.address, reason=reason))

    def make(self, gpu: model.Gpu) -> Made:
        """Make what the policy wants, if the GPU is ready for it.

        Never raises. Where not all of it can be made, nothing of it is.

        :param gpu: of a recent snapshot.
        """
        return self._making.attempt(
            gpu.address, lambda: self._make(gpu),
            lambda reason: Made(gpu.address, reason=reason))

    def _policy(self, gpu):
        """The policy whose fixed vGPUs are to be on a GPU, None if none."""
        governing = self._settings.policy_for(gpu)
        if (self._settings.policies is None or self._settings.vfio_handles
                or governing is None or not governing.fixed_vgpus):
            return None
        return governing

    # Away with what is not wanted

    def _release(self, gpu):
        record = self._store.read(gpu.address).fixed
        if (not self._settings.prepare or self._settings.ignores(gpu)
                or record.is_empty
                or not (self._unwanted(gpu, record)
                        or self._is_left_over(gpu, record))):
            return Made(gpu.address)
        with locks.gpu(self._state_path, gpu.address):
            now = self._taker.read(gpu.address)
            record = self._store.read(gpu.address).fixed
            unwanted = self._unwanted(now, record)
            done, kept = [], []
            for function in unwanted:
                try:
                    vfio.check_idle(self._machine, now, function)
                    privileged_vgpu.set_vgpu_type(str(function), 0)
                    done.append(f'remove {record.types[function]} from '
                                f'{function}')
                except exception.GpuDriverError as error:
                    kept.append(str(error))
            record = self._without(self._taker.read(gpu.address), record,
                                   done)
            self._store.put(gpu.address, fixed=record)
            return Made(gpu.address, tuple(done), '; '.join(kept))

    def _unwanted(self, gpu, record):
        """Functions that carry what is ours and is to go."""
        bound = {entry.function
                 for entry in self._binds.entries(gpu.address)}
        ours = {vf.address: record.types[vf.address] for vf in gpu.vfs
                if vf.address in record.types
                and vf.address not in bound
                and f'nvidia-{vf.current_vgpu_type}'
                == record.types[vf.address]}
        if not ours:
            return ()
        if self._in_the_way(gpu, ours):
            return tuple(sorted(ours))
        return fixed.surplus(gpu, self._policy(gpu), ours)

    def _is_left_over(self, gpu, record):
        """Whether there is only an end of a release that was killed.

        Its vGPUs are gone and their instances are not.
        """
        return (bool(record.instances) and self._policy(gpu) is None
                and not any(vf.current_vgpu_type for vf in gpu.vfs
                            if vf.address in record.types))

    def _in_the_way(self, gpu, ours):
        """Whether nothing but what is ours keeps a GPU from changing."""
        wants = prepare.wants(self._settings, gpu)
        if _UNREADY.isdisjoint(readiness.steps(gpu, wants)):
            return False
        return not (
            any(vgpu.function not in ours for vgpu in gpu.vgpus)
            or self._binds.entries(gpu.address)
            or blockers.of_running(self._machine, gpu))

    def _without(self, gpu, record, done):
        """The record of what is still ours; unused instances go.

        What a policy still wants stays remembered while it is away.
        """
        wanted = self._policy(gpu) is not None
        carried = {vf.address: f'nvidia-{vf.current_vgpu_type}'
                   for vf in gpu.vfs if vf.current_vgpu_type}
        types = {function: type_id for function, type_id
                 in record.types.items()
                 if carried.get(function) == type_id or (
                     wanted and function not in carried)}
        instances = set(record.instances)
        if not wanted:
            instances &= set(map(
                spec.of, gpu.mig.instances if gpu.mig else ()))
        used = blockers.in_use(self._machine, gpu,
                               self._binds.entries(gpu.address))
        for instance in gpu.mig.instances if gpu.mig else ():
            if (spec.of(instance) in instances
                    and instance.placement not in used):
                # A guest may have left some.
                privileged.destroy_compute_instances(str(gpu.address),
                                                     instance.instance_id)
                privileged.destroy_gpu_instance(str(gpu.address),
                                                instance.instance_id)
                instances.discard(spec.of(instance))
                done.append(f'destroy GPU instance at {instance.placement}')
        return gpu_record.FixedVgpus(types, frozenset(instances))

    # What is wanted

    def _ready_policy(self, gpu):
        """The policy to make vGPUs by; None if there is nothing to make."""
        if (not self._settings.prepare
                or gpu.framework is not model.Framework.VENDOR_VFIO
                or not _UNREADY.isdisjoint(readiness.steps(
                    gpu, prepare.wants(self._settings, gpu)))):
            return None
        return self._policy(gpu)

    def _make(self, gpu):
        governing = self._ready_policy(gpu)
        if governing is None:
            return Made(gpu.address)
        record = self._store.read(gpu.address).fixed
        if not _missing(gpu, fixed.plan(gpu, governing, record.types)):
            return Made(gpu.address)
        with locks.gpu(self._state_path, gpu.address):
            now = self._taker.read(gpu.address)
            record = self._store.read(gpu.address).fixed
            planned = fixed.plan(now, governing, record.types)
            missing = _missing(now, planned)
            if not missing:
                return Made(gpu.address)
            self._store.put(gpu.address, fixed=gpu_record.FixedVgpus(
                {**record.types, **{
                    item.function: f'nvidia-{item.type_id}'
                    for item in missing}},
                record.instances | frozenset(planned.instances)))
            done = _Undoable()
            try:
                self._carry_out(now, planned.instances, missing, done)
            except Exception as error:
                left = done.undo()
                if not left:
                    self._store.put(gpu.address, fixed=record)
                raise exception.ChangeFailed(
                    gpu=gpu.address, step='making fixed vGPUs',
                    reason=error, outcome='what was made is undone'
                    if not left else 'not undone: ' + '; '.join(left)
                ) from error
            return Made(gpu.address, tuple(done.words))

    def _carry_out(self, gpu, instances, missing, done):
        """Instances, then types: one without an instance is EIO."""
        for item in instances:
            self._create(gpu.address, item, done)
        for item in sorted(missing, key=lambda item: _size(gpu, item)):
            self._make_one(item, gpu, done)

    def _create(self, address, item, done):
        place = where = item.placement

        def back():
            nvml = self._machine.nvml
            with nvml.kept():
                found = nvml.gpu_instances(nvml.device(address),
                                           item.profile_id)
            for live in found:
                if live.placement == where:
                    privileged.destroy_gpu_instance(str(address),
                                                    live.instance_id)

        done.add(f'create GPU instance at {place}', back)
        try:
            _, start, size = privileged.create_gpu_instance(
                str(address), item.profile_id, place.start, place.size)
        except exception.NvmlError as error:
            if hardware.was_refused(error):
                # What is there now is somebody else's.
                done.forget_last()
            raise
        where = model.Placement(start, size)
        if where != place:
            raise exception.StepFailed(
                reason=f'a GPU instance was asked for at {place}, the '
                f'driver put it at {where}')

    def _make_one(self, item, gpu, done):
        function = str(item.function)
        # What can be made changes with each vGPU of the GPU.
        creatable = self._tree.creatable_types(item.function) or ()
        if item.type_id not in creatable:
            raise exception.StepFailed(
                reason=f'the driver makes no {item.name} on {function} now, '
                'only ' + (', '.join(map(str, creatable)) or 'nothing'))

        def back():
            if vfio.type_on(self._machine, item.function) is not None:
                privileged_vgpu.set_vgpu_type(function, 0)

        done.add(f'make {item.name} on {function}', back)
        privileged_vgpu.set_vgpu_type(function, item.type_id)
        if item.placement_id is not None:
            privileged_vgpu.set_vgpu_placement(function, item.placement_id)
        found = vfio.type_on(self._machine, item.function)
        if found != f'nvidia-{item.type_id}':
            raise exception.StepFailed(
                reason=f'{function} was to carry {item.name} and carries '
                f'{found}')
        if (self._policy(gpu).mode is policy.Mode.MIG
                and vfio.instance_under(self._machine,
                                        item.function) is None):
            raise exception.StepFailed(
                reason=f'{item.name} on {function} lies on no GPU instance')


class _Undoable:
    """What one run has done, to be undone in reverse."""

    def __init__(self):
        self.words = []
        self._back = []

    def add(self, words, back):
        self.words.append(words)
        self._back.append(back)

    def forget_last(self):
        """What was added last has not happened."""
        self.words.pop()
        self._back.pop()

    def undo(self):
        """Undo all; what could not be undone, for people."""
        left = []
        for words, back in zip(reversed(self.words), reversed(self._back)):
            try:
                back()
            except exception.GpuDriverError as error:
                left.append(f'{words} ({error})')
        return left


def _missing(gpu, planned):
    carried = {vf.address: vf.current_vgpu_type for vf in gpu.vfs}
    return [item for item in planned.assignments
            if carried.get(item.function) != item.type_id]


def _size(gpu, item):
    """Sorts the largest first, which have the fewest places."""
    return (-next((kind.framebuffer_mib for kind in gpu.vgpu_types
                   if kind.type_id == item.type_id), 0), item.function)
