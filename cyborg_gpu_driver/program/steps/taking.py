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

"""Steps to a wanted state, each chosen from the GPU's current state."""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.program.steps import executor

LOG = logging.getLogger(__name__)


def take(machine: platform.Platform, host_reader: reader.HostReader,
         gpu: model.Gpu, wants_of: Callable[[model.Gpu], readiness.Wants],
         taken: list[action.Step]) -> model.Gpu:
    """Take all steps that a GPU needs. The caller holds its lock.

    :param gpu: the GPU as it is now; it is idle.
    :param wants_of: returns what is wanted of a GPU in a given state.
    :param taken: each step is appended to it before it is taken.
    :returns: the GPU after the last step.
    :raises StepFailed: if a step had no effect, or cannot be taken.
    :raises ModeBlocked, SriovError, NvmlError, SysfsError: if the hardware
        refuses a step.
    """
    while True:
        left = readiness.steps(gpu, wants_of(gpu))
        if not left:
            return gpu
        step = left[0]
        if step in taken:
            raise exception.StepFailed(reason=f'"{step}" had no effect')
        taken.append(step)
        LOG.info('GPU %(gpu)s: %(step)s', {'gpu': gpu.address, 'step': step})
        executor.Executor(machine, gpu.address, gpu).take(step)
        gpu = host_reader.complete_gpu(gpu.address)
