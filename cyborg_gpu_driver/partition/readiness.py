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

"""What a policy needs of a GPU, and the steps that bring it there. Pure.

The order is the one that works: MIG mode, then virtual functions, then
mixed-size mode and the scheduler. Enabling or disabling virtual functions
(``sriov-manage``) wipes GPU instances and puts mixed-size mode and the
scheduler back to the driver's own; the MIG mode cannot change while there
are virtual functions ("In use by another client").
"""

from __future__ import annotations

import dataclasses
import enum

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import policy as policies


class Step(enum.Enum):
    """One step towards what a policy needs; the value is for people."""
    DISABLE_FUNCTIONS = 'disable virtual functions'
    ENABLE_MIG = 'turn MIG mode on'
    DISABLE_MIG = 'turn MIG mode off'
    ENABLE_FUNCTIONS = 'enable virtual functions'
    MIXED_ON = 'turn mixed-size mode on'
    MIXED_OFF = 'turn mixed-size mode off'
    SCHEDULER = 'set the vGPU scheduler'


@dataclasses.dataclass(frozen=True)
class Wants:
    """What a policy needs of one GPU; None leaves a thing as it is."""

    mig: bool | None = None
    """MIG mode."""
    vfs: bool | None = None
    """Whether there are virtual functions."""
    mixed: bool | None = None
    """Mixed-size mode."""
    scheduler: tuple[model.SchedulerPolicy, int | None] | None = None
    """Policy and time slice in ns; a time slice of None is any."""


def wants(gpu: model.Gpu, policy: policies.Policy) -> Wants:
    """What ``policy`` needs of ``gpu``.

    Nothing of a GPU that NVML does not see: what cannot be read cannot be
    changed safely. In MIG mode NVML does not tell whether a GPU can mix
    sizes; it is taken for able until MIG mode is off.
    """
    if not gpu.visible_to_nvml or gpu.physfn is not None:
        return Wants()
    return _WANTS[policy.mode](gpu, policy)


def steps(gpu: model.Gpu, wanted: Wants) -> tuple[Step, ...]:
    """The steps from ``gpu`` as it is to what is wanted, in their order."""
    found = []
    there = bool(gpu.vfs or gpu.sriov_numvfs)
    vfs = there if wanted.vfs is None else wanted.vfs
    sliced = gpu.mig is not None and gpu.mig.enabled
    switched = wanted.mig is not None and wanted.mig is not sliced
    if there and (switched or not vfs):
        found.append(Step.DISABLE_FUNCTIONS)
        there = False
    if switched:
        found.append(Step.ENABLE_MIG if wanted.mig else Step.DISABLE_MIG)
    if vfs and not there:
        found.append(Step.ENABLE_FUNCTIONS)
    reset = Step.ENABLE_FUNCTIONS in found
    mixed = bool(gpu.mixed_sizes) and not reset
    if wanted.mixed is not None and wanted.mixed is not mixed:
        found.append(Step.MIXED_ON if wanted.mixed else Step.MIXED_OFF)
    if wanted.scheduler is not None and (
            reset or not _schedules(gpu.scheduler, *wanted.scheduler)):
        found.append(Step.SCHEDULER)
    return tuple(found)


def _off(_gpu, _policy):
    return Wants()


def _passthrough(gpu, _policy):
    return Wants(mig=_mig(gpu, False), vfs=_vfs(gpu, False))


def _vgpu(gpu, policy):
    sliced = gpu.mig is not None and gpu.mig.enabled
    mixed = None
    if gpu.mixed_sizes is not None or sliced and policy.mixed_sizes:
        mixed = policy.mixed_sizes
    return Wants(
        mig=_mig(gpu, False), vfs=_vfs(gpu, True), mixed=mixed,
        scheduler=policy.scheduler and (policy.scheduler,
                                        policy.time_slice))


def _sliced(gpu, _policy):
    if gpu.mig is None:
        return Wants()
    return Wants(mig=True, vfs=_vfs(gpu, True))


_WANTS = {
    policies.Mode.OFF: _off,
    policies.Mode.PASSTHROUGH: _passthrough,
    policies.Mode.VGPU: _vgpu,
    policies.Mode.MIG: _sliced,
}


def _mig(gpu, enabled):
    return None if gpu.mig is None else enabled


def _vfs(gpu, enabled):
    """None where there can be none, as on Turing."""
    return enabled if gpu.sriov_totalvfs else None


def _schedules(now, policy, time_slice):
    return now is not None and now.policy is policy and (
        time_slice is None or now.time_slice == time_slice)
