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

"""Turning a GPU's MIG mode on and off, with the reset that it may need.

NVML's answer is not sufficient: the mode may be set and only pending. So
the mode is read again each time (nvmlDeviceGetMigMode).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import reset

LOG = logging.getLogger(__name__)

_BUSY = 'IN_USE'
_RESTART = 'RESET_REQUIRED'
_REASONS = (exception.GpuInUse, exception.NvmlHeld, exception.StepFailed,
            exception.DriverError, exception.UsageUnknown)
"""Why a GPU is neither changed nor reset."""


def switch(machine: platform.Platform, gpu: model.Gpu, enable: bool,
           may_reset: bool = True) -> bool:
    """Turn a GPU's MIG mode on or off.

    nvmlDeviceSetMigMode unbinds or resets the GPU if the mode needs that to
    take effect, as on Ampere. Its activation status is IN_USE if the GPU
    could not be unbound because it is not idle, and RESET_REQUIRED if this
    machine cannot reset the GPU (nvml.h). If the mode is only pending after
    the call, this function resets the GPU.

    :param gpu: without GPU instances if MIG mode is turned off.
    :param may_reset: False leaves a mode that waits for a reset pending.
    :returns: whether the mode is current; False only if it is pending and
        ``may_reset`` is False.
    :raises ModeBlocked: naming what is in the way; the mode may be pending.
    :raises NvmlError, SysfsError: if the hardware refuses the mode.
    """
    if _read(machine, gpu) == (enable, enable):
        return True
    try:
        with machine.nvml.alone():
            return _switch(machine, gpu, enable, may_reset)
    except _REASONS as error:
        raise _blocked(gpu, enable, str(error), ()) from error


def _switch(machine: platform.Platform, gpu: model.Gpu, enable: bool,
            may_reset: bool) -> bool:
    """As :func:`switch`; the caller has exclusive use of NVML."""
    status = _set(machine, gpu, enable)
    current, pending = _read(machine, gpu)
    if current == enable:
        return True
    if pending != enable:
        raise _blocked(gpu, enable, f'NVML answered {status}',
                       blockers.of_mode(machine, gpu, enable))
    if not may_reset:
        LOG.info('GPU %s waits for a reset', gpu.address)
        return False
    if status == _RESTART:
        raise _blocked(gpu, enable, 'the mode takes effect when this machine '
                       'is restarted, because it cannot reset its GPUs', ())
    machine.nvml.reset()
    try:
        reset.once(machine, gpu.address)
    except _REASONS:
        # A pending mode would take effect at any later reset.
        with contextlib.suppress(exception.NvmlError):
            _set(machine, gpu, current)
        raise
    if _read(machine, gpu)[0] != enable:
        raise _blocked(gpu, enable,
                       'the GPU was reset, but its mode is the same', ())
    return True


def put_back(machine: platform.Platform, gpu: model.Gpu, enabled: bool,
             pending: bool) -> None:
    """Restore a GPU's current and pending MIG mode.

    :raises ModeBlocked, NvmlError, SysfsError: as :func:`switch`.
    """
    current, waiting = _read(machine, gpu)
    if current != enabled:
        switch(machine, gpu, enabled)
        current, waiting = _read(machine, gpu)
    if waiting != pending:
        with machine.nvml.alone():
            _set(machine, gpu, pending)


@gate.series
def _read(machine: platform.Platform, gpu: model.Gpu) -> tuple[bool, bool]:
    nvml = machine.nvml
    return nvml.mig_mode(nvml.device(gpu.address))


def _set(machine: platform.Platform, gpu: model.Gpu, enable: bool) -> str:
    try:
        return privileged.set_mig_mode(str(gpu.address), enable)
    except exception.NvmlError as error:
        if error.symbol != _BUSY:
            raise
        raise _blocked(gpu, enable, str(error), blockers.of_mode(
            machine, gpu, enable)) from error
    finally:
        # NVIDIA's driver may unbind the GPU; NVML's handle is then invalid.
        machine.nvml.forget(gpu.address)


def _blocked(gpu: model.Gpu, enable: bool, reason: str,
             found: Iterable[str]) -> exception.ModeBlocked:
    if found:
        reason += '; blocked by ' + ', '.join(found)
    return exception.ModeBlocked(
        gpu=gpu.address, mode='on' if enable else 'off', reason=reason)
