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

"""Carrying out the steps of a change, one after the other."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.program import mig_mode
from cyborg_gpu_driver.program import privileged


class Runner:
    """Takes steps on one GPU and knows what they have made of it.

    :param machine: where they are taken.
    :param gpu: as it is before the first step, with compute instances.
    :param may_reset: whether a change of mode may reset the GPU.
    """

    def __init__(self, machine: platform.Platform, gpu: model.Gpu,
                 may_reset: bool = True):
        self.pending = False
        """Whether the GPU waits for a reset that may not be made here."""
        self._machine = machine
        self._may_reset = may_reset
        self._gpu = gpu
        self._address = str(gpu.address)
        self._live = {instance.placement: instance
                      for instance in gpu.mig.instances} if gpu.mig else {}

    def take(self, step: change.Step) -> None:
        """Take one step.

        :raises NvmlError, SysfsError, ModeBlocked: as the hardware refused
            it.
        :raises StepFailed: if the step names what is not there, or the
            driver made something else than it was asked for.
        """
        _ACTIONS[step.action](self, step)

    def _enable(self, _step):
        self._switch(True)

    def _disable(self, _step):
        self._switch(False)

    def _switch(self, enable):
        self.pending = not mig_mode.switch(self._machine, self._gpu, enable,
                                           self._may_reset)

    def _create(self, step):
        """A GPU instance at its explicit placement."""
        place = step.placement
        if step.profile is None:
            raise self._refused(f'{step}: NVML lists no such profile')
        number, start, size = privileged.create_gpu_instance(
            self._address, step.profile.profile_id, place.start, place.size)
        made = model.GpuInstance(model.Placement(start, size),
                                 step.profile.profile_id, number)
        self._live[made.placement] = made
        if made.placement != place:
            raise self._refused(f'{step}: the driver put it at '
                                f'{made.placement}')

    def _destroy(self, step):
        """A GPU instance, with what compute instances it has."""
        instance = self._instance(step)
        for part in instance.compute:
            privileged.destroy_compute_instance(
                self._address, instance.instance_id, part.compute_id)
        privileged.destroy_gpu_instance(self._address, instance.instance_id)
        del self._live[step.placement]

    def _create_compute(self, step):
        instance = self._instance(step)
        number, start, size = privileged.create_compute_instance(
            self._address, instance.profile_id, instance.instance_id,
            step.start, step.slices)
        self._set_compute(instance, (
            *instance.compute, model.ComputeInstance(start, size, number)))

    def _destroy_compute(self, step):
        instance = self._instance(step)
        for part in instance.compute:
            if part.size == step.slices and step.start in (None, part.start):
                break
        else:
            raise self._refused(f'{step}: there is none')
        privileged.destroy_compute_instance(
            self._address, instance.instance_id, part.compute_id)
        self._set_compute(instance, (
            other for other in instance.compute if other != part))

    def _instance(self, step):
        try:
            return self._live[step.placement]
        except KeyError:
            raise self._refused(f'{step}: there is no instance') from None

    def _set_compute(self, instance, parts):
        self._live[instance.placement] = dataclasses.replace(
            instance, compute=tuple(sorted(parts)))

    @staticmethod
    def _refused(reason):
        return exception.StepFailed(reason=reason)


_ACTIONS = {
    change.Action.ENABLE_MIG: Runner._enable,
    change.Action.DISABLE_MIG: Runner._disable,
    change.Action.CREATE_INSTANCE: Runner._create,
    change.Action.DESTROY_INSTANCE: Runner._destroy,
    change.Action.CREATE_COMPUTE: Runner._create_compute,
    change.Action.DESTROY_COMPUTE: Runner._destroy_compute,
}
