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

"""Turning a GPU's MIG mode on and off, with the reset that it may take.

What NVML answers is not enough: the mode may be set and only pending. So
the mode is read again each time (nvmlDeviceGetMigMode).
"""

from __future__ import annotations

import errno

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.program import blockers
from cyborg_gpu_driver.program import privileged

LOG = logging.getLogger(__name__)

_BUSY = 'IN_USE'
_RESET_BUSY = frozenset({errno.EBUSY, errno.EAGAIN})


def switch(machine: platform.Platform, gpu: model.Gpu, enable: bool,
           may_reset: bool = True) -> bool:
    """Bring a GPU into a MIG mode.

    Ampere takes the mode at its next reset, which is made here; later
    architectures change at once.

    :param gpu: without instances, where MIG mode is to be turned off.
    :param may_reset: False leaves a mode that waits for a reset pending.
    :returns: whether the mode is current; False only if it is pending and
        ``may_reset`` is False.
    :raises ModeBlocked: naming what is in the way; the mode may be pending.
    :raises NvmlError, SysfsError: as the hardware refused it.
    """
    if _read(machine, gpu) == (enable, enable):
        return True
    status = _set(machine, gpu, enable)
    current, pending = _read(machine, gpu)
    if current == enable:
        return True
    if pending != enable or status == _BUSY:
        raise _blocked(gpu, enable, 'NVML says that the GPU is in use',
                       blockers.of_mode(machine, gpu, enable))
    if not may_reset:
        LOG.info('GPU %s waits for a reset', gpu.address)
        return False
    _reset(machine, gpu, enable)
    if _read(machine, gpu)[0] != enable:
        raise _blocked(gpu, enable,
                       'the GPU was reset and its mode is the same', ())
    return True


def put_back(machine: platform.Platform, gpu: model.Gpu, enabled: bool,
             pending: bool) -> None:
    """Bring a GPU's current and pending MIG mode back.

    :raises ModeBlocked, NvmlError, SysfsError: as :func:`switch`.
    """
    current, waiting = _read(machine, gpu)
    if current != enabled:
        switch(machine, gpu, enabled)
        current, waiting = _read(machine, gpu)
    if waiting != pending:
        _set(machine, gpu, pending)


def _read(machine, gpu):
    nvml = machine.nvml
    return nvml.mig_mode(nvml.device(gpu.address))


def _set(machine, gpu, enable):
    try:
        return privileged.set_mig_mode(str(gpu.address), enable)
    except exception.NvmlError as error:
        if error.symbol != _BUSY:
            raise
        raise _blocked(gpu, enable, str(error), blockers.of_mode(
            machine, gpu, enable)) from error
    finally:
        # The driver may detach the GPU to change it, and its handle dies.
        machine.nvml.forget(gpu.address)


def _reset(machine, gpu, enable):
    LOG.info('Resetting GPU %s', gpu.address)
    try:
        privileged.reset_gpu(str(gpu.address))
    except exception.SysfsError as error:
        if error.errno not in _RESET_BUSY:
            raise
        raise _blocked(gpu, enable, f'the GPU cannot be reset ({error})',
                       blockers.of_reset(machine, gpu)) from error
    finally:
        machine.nvml.forget(gpu.address)


def _blocked(gpu, enable, reason, found):
    if found:
        reason += '; in the way: ' + ', '.join(found)
    return exception.ModeBlocked(
        gpu=gpu.address, mode='on' if enable else 'off', reason=reason)
