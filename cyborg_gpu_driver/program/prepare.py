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

"""Making GPUs ready for what their policies say, as soon as they are idle.

Which steps that takes is :mod:`cyborg_gpu_driver.partition.readiness`'s to
say, from the GPU as it is. A step is taken, the GPU read again, and the
question put anew, until nothing is left to do. Nothing in use is touched:
what keeps a GPU from being made ready is named, and it stays as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import drivers
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.program import blockers
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import mig_mode
from cyborg_gpu_driver.program import patience
from cyborg_gpu_driver.program import privileged_gpu
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program import whole
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)

_HARMLESS = frozenset({readiness.Step.SCHEDULER})
"""What may be done beside vGPUs, while no virtual machine runs (the
description of nvmlDeviceSetVgpuSchedulerState)."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was done to make one GPU ready, and why not more."""

    gpu: model.PciAddress
    steps: tuple[readiness.Step, ...] = ()
    """Those that were taken, the one that failed included; of a plan,
    those that are left to do."""
    reason: str = ''
    """Why the GPU is not ready; empty if it is."""

    @property
    def has_acted(self) -> bool:
        """Whether the GPU may have changed."""
        return bool(self.steps)


class StepTaker:
    """Takes steps on the GPUs of one machine.

    :param machine: what is changed, through
        :mod:`cyborg_gpu_driver.program.privileged_gpu`.
    :param host_reader: reads what has become of a GPU.
    """

    def __init__(self, machine: platform.Platform,
                 host_reader: reader.HostReader):
        self._machine = machine
        self._reader = host_reader

    def read(self, address: model.PciAddress) -> model.Gpu:
        """A GPU as it is now.

        :raises UnknownGpu: if it is gone.
        :raises StepFailed: if not all of it can be read.
        """
        gpu = self._reader.gpu(address)
        if gpu.problems:
            raise exception.StepFailed(reason='; '.join(gpu.problems))
        return gpu

    def take(self, gpu: model.Gpu,
             wants_of: Callable[[model.Gpu], readiness.Wants],
             taken: list[readiness.Step]) -> model.Gpu:
        """Take all steps that a GPU needs. The caller holds its lock.

        :param gpu: as it is now, and idle.
        :param wants_of: what is wanted of the GPU as it then is.
        :param taken: gets each step before it is taken.
        :returns: the GPU as it is then.
        :raises StepFailed: if a step had no effect, or cannot be taken.
        :raises ModeBlocked, SriovError, NvmlError, SysfsError: as the
            hardware refused one.
        """
        while True:
            wanted = wants_of(gpu)
            left = readiness.steps(gpu, wanted)
            if not left:
                return gpu
            if left[0] in taken:
                raise exception.StepFailed(
                    reason=f'"{left[0].value}" had no effect')
            taken.append(left[0])
            LOG.info('GPU %(gpu)s: %(step)s', {'gpu': gpu.address,
                                               'step': left[0].value})
            _ACTIONS[left[0]](self._machine, gpu, wanted)
            gpu = self.read(gpu.address)


def _switch_mig(enable, machine, gpu, _wants):
    mig_mode.switch(machine, gpu, enable)


def _make_functions(machine, gpu, _wants):
    # sriov-manage takes the GPU from its driver.
    with machine.nvml.alone():
        privileged_gpu.enable_virtual_functions(str(gpu.address))


def _remove_functions(machine, gpu, _wants):
    with machine.nvml.alone():
        privileged_gpu.disable_virtual_functions(str(gpu.address))


def _bind_nvidia(machine, gpu, _wants):
    whole.bind(machine, gpu.address, drivers.NVIDIA)


def _mix_sizes(enable, _machine, gpu, _wants):
    privileged_gpu.set_mixed_sizes(str(gpu.address), enable)


def _schedule(_machine, gpu, wanted):
    scheduler, time_slice = wanted.scheduler
    _check_scheduler(gpu.scheduler, scheduler, time_slice)
    privileged_gpu.set_scheduler(str(gpu.address), scheduler.value,
                                 time_slice)


_ACTIONS = {
    readiness.Step.BIND_NVIDIA: _bind_nvidia,
    readiness.Step.REOPEN: whole.reopen,
    readiness.Step.DISABLE_FUNCTIONS: _remove_functions,
    readiness.Step.ENABLE_MIG: functools.partial(_switch_mig, True),
    readiness.Step.DISABLE_MIG: functools.partial(_switch_mig, False),
    readiness.Step.ENABLE_FUNCTIONS: _make_functions,
    readiness.Step.MIXED_ON: functools.partial(_mix_sizes, True),
    readiness.Step.MIXED_OFF: functools.partial(_mix_sizes, False),
    readiness.Step.SCHEDULER: _schedule,
    readiness.Step.BIND_VFIO: whole.hand_over,
    readiness.Step.RELEASE: whole.release,
}


class Preparer:
    """Makes GPUs ready for their policies.

    :param taker: takes the steps.
    :param state_path: ``[gpu] state_path``: locks and journals.
    :param keeper: knows which GPUs are sick.
    :param cloud: knows which GPUs have servers.
    :param clock: seconds that only grow.
    """

    def __init__(self, machine: platform.Platform, taker: StepTaker,
                 state_path: str, settings: policies.Settings,
                 keeper: health.HealthKeeper, cloud: services.Services,
                 clock: Callable[[], float] = time.monotonic):
        self._machine = machine
        self._taker = taker
        self._state_path = state_path
        self._settings = settings
        self._health = keeper
        self._cloud = cloud
        self._binds = journal.Journal(state_path)
        self._store = store.of(state_path)
        self._patience = patience.Patience(LOG, clock)

    def wants(self, gpu: model.Gpu) -> readiness.Wants:
        """What a GPU needs; see :func:`wants`."""
        return wants(self._settings, gpu)

    def plan(self, gpu: model.Gpu) -> Outcome:
        """What is left to do on a GPU, and what is in the way.

        :param gpu: of a snapshot that was taken just now.
        """
        steps = tuple(readiness.steps(gpu, self.wants(gpu)))
        return Outcome(gpu.address, steps,
                       self._in_the_way(gpu, steps) if steps else '')

    def prepare(self, gpu: model.Gpu) -> Outcome:
        """Make one GPU ready, if it is idle; never raises.

        :param gpu: of a recent snapshot.
        """
        taken: list[readiness.Step] = []
        return self._patience.attempt(
            gpu.address, lambda: self._prepare(gpu, taken),
            lambda reason: Outcome(gpu.address, tuple(taken), reason
                                   if not taken else
                                   f'{taken[-1].value}: {reason}'))

    def _prepare(self, gpu, taken):
        if not readiness.steps(gpu, self.wants(gpu)):
            return Outcome(gpu.address)
        with locks.gpu(self._state_path, gpu.address):
            now = self._taker.read(gpu.address)
            reason = self._in_the_way(now, readiness.steps(
                now, self.wants(now)))
            if not reason:
                self._taker.take(now, self.wants, taken)
        return Outcome(gpu.address, tuple(taken), reason)

    def _in_the_way(self, gpu, steps):
        """Why the steps cannot be taken now, for people; or ``''``."""
        if gpu.problems:
            return '; '.join(gpu.problems)
        sick = self._health.sick(gpu.address)
        if readiness.Step.BIND_VFIO in steps and sick:
            return (f'it is sick ({"; ".join(sick.reasons)}); it stays with '
                    'its driver, which tells when it is well')
        try:
            if readiness.HARMLESS.issuperset(steps):
                found = whole.blockers_of(self._machine, gpu, steps)
            elif _HARMLESS.issuperset(steps):
                found = blockers.of_running(self._machine, gpu)
            else:
                found = blockers.of_preparing(
                    self._machine, gpu, self._binds.entries(gpu.address))
                if not found and self._store.read(gpu.address).change:
                    found = ('a change of its layout did not come to its '
                             'end',)
                if not found:
                    found = tuple(filter(None, [
                        self._cloud.claimed(gpu.address)]))
        except Exception as error:
            return f'it is not known whether it is idle: {error}'
        return 'in use: ' + ', '.join(found) if found else ''


def wants(settings: policies.Settings, gpu: model.Gpu) -> readiness.Wants:
    """What the operator's policy needs of a GPU.

    Where the policy is not the operator's own, a GPU is offered as it was
    found, and nothing but its driver is changed. Without ``[gpu] prepare``
    not even that is: then a GPU is at most closed.
    """
    governing = settings.policy_for(gpu)
    if governing is None:
        return readiness.Wants()
    wanted = readiness.wants(gpu, governing, settings.passthrough_driver)
    if settings.prepare and settings.policies is not None:
        return wanted
    wanted = readiness.driver_only(gpu, wanted)
    if settings.prepare:
        return wanted
    return dataclasses.replace(wanted, driver=None)


def _check_scheduler(now, scheduler, time_slice):
    """Say why a scheduler cannot be set, where NVML would only refuse.

    :raises StepFailed: if it cannot.
    """
    if now is None:
        reason = 'its driver schedules no vGPUs'
    elif scheduler not in now.supported:
        reason = (f'it cannot do {scheduler.value}, only '
                  + (', '.join(item.value for item in now.supported)
                     or 'nothing else'))
    elif (time_slice is not None
          and not now.min_time_slice <= time_slice <= now.max_time_slice):
        reason = (f'a time slice of {time_slice // 1000} microseconds is '
                  f'not within {now.min_time_slice // 1000} to '
                  f'{now.max_time_slice // 1000}')
    else:
        return
    raise exception.StepFailed(reason=reason)
