# SPDX-License-Identifier: Apache-2.0

"""The consent of NVIDIA's driver to the unbind of a GPU.

An unbind waits until the driver's usage count of the GPU is 0, and nobody
can interrupt it. So the driver is asked first, as NVIDIA's own programs do
(scripts/unbind_from_driver.sh of k8s-dra-driver-gpu, sriov-manage).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import child
from cyborg_gpu_driver.program.privileged import mig as privileged

# Describe what prevents a reset or unbind of a GPU, for people.
#
# The text names each holder and what the operator can do about it.

PERSISTENCED = 'nvidia-persiste'
"""The process of nvidia-persistenced."""
_REMEDIES = {
    PERSISTENCED: 'nvidia-smi could not ask it to close the GPU; install '
                  'nvidia-smi, and give a container '
                  '/run/nvidia-persistenced',
    'nv-hostengine': 'stop the unit nvidia-dcgm, or dcgm',
    'dcgm-exporter': 'stop dcgm-exporter',
    'nvsm_core': 'stop the unit nvsm',
    'nvsm': 'stop the unit nvsm',
    'nv-fabricmanage': 'it closes GPUs that nvidia-smi resets; if it does '
                       'not, stop the unit nvidia-fabricmanager',
    'nvidia_drm': 'it drives a display with modeset=1; use driver 580.105.08 '
                  'or later, or set options nvidia_drm modeset=0 in '
                  'modprobe.d and run modprobe -r nvidia_drm',
    'qemu-system-x86': 'a guest has it; delete the server, or wait until '
                       'the guest ends',
    'nvidia-smi': 'it ends by itself, unless it runs in a loop',
}
"""By process name, cut to 15 characters as in the kernel (TASK_COMM_LEN)."""


def describe(found: Iterable[tuple[int, str]]) -> str:
    """Describe what has a GPU open, and what the operator can do about it.

    :param found: process ids and names; id 0 is a kernel module.
    """
    return ', '.join(
        (f'process {pid} ({name})' if pid else f'kernel module {name}')
        + (f': {_REMEDIES[name]}' if name in _REMEDIES else '')
        for pid, name in sorted(found))


LOG = logging.getLogger(__name__)

_ATTEMPTS = 5
"""As in unbind_from_driver.sh. The driver may close a GPU a little after the
process that had it open (nvidia_close in kernel-open/nvidia/nv.c)."""
_SMI_SECONDS = 60.0
"""Time limit of nvidia-smi, which may have to initialize the GPU."""


@contextlib.contextmanager
def given(gpu: model.PciAddress) -> Iterator[None]:
    """Have the driver's consent to unbind a GPU within the block.

    The driver of vGPU hosts refuses to open the GPU until the unbind, or until
    the consent is given back after an error (nv_open_device in
    kernel-open/nvidia/nv.c).
    """
    ask(gpu)
    try:
        yield
    except exception.DriverStuck:
        # The unbind may still go on.
        raise
    except exception.GpuDriverError:
        give_back(gpu)
        raise


def end_persistence(gpu: model.PciAddress) -> bool:
    """Turn persistence mode off, so that nothing but users keeps a GPU open.

    Only nvidia-smi asks nvidia-persistenced to close the GPU. NVML ends the
    mode of the driver itself, which may be on beside the daemon
    (disableGPUPersistenceMode in k8s-dra-driver-gpu). The caller has
    exclusive use of NVML.

    :returns: whether it was on.
    """
    machine = privileged.machine()
    was_on = False
    try:
        with machine.nvml.lent():
            device = machine.nvml.device(gpu)
            was_on = bool(machine.nvml.optional(
                'nvmlDeviceGetPersistenceMode', device))
            if was_on:
                machine.nvml.call('nvmlDeviceSetPersistenceMode', device, 0)
                child.run(_SMI_SECONDS, machine.nvidia_smi, '-i', str(gpu),
                          '-pm', '0')
    except FileNotFoundError:
        LOG.warning('GPU %s: nvidia-smi is not installed, so '
                    'nvidia-persistenced cannot be asked to close it', gpu)
    except (exception.NvmlError, child.Failed) as error:
        LOG.warning('GPU %(gpu)s: persistence mode cannot be turned off: '
                    '%(error)s', {'gpu': gpu, 'error': error})
    return was_on


def users(gpu: model.PciAddress) -> str:
    """Who has a GPU open, for people, or why that is not known."""
    try:
        found = usage.holders(privileged.machine(), gpu)
    except exception.UsageUnknown as error:
        return f'who uses it is unknown ({error})'
    return ('open in ' + describe(found) if found else
            'no process has its device node open: a process may have it '
            'attached to another descriptor, or the driver has not ended a '
            'use. If this remains, restart the host')


def give_back(gpu: model.PciAddress) -> bool:
    """Let others open a GPU again; return whether they could not."""
    was_given = _has_lock(gpu) and _is_locked(gpu)
    if was_given:
        _lock(gpu, '0')
    return was_given


def ask(gpu: model.PciAddress) -> None:
    """Ask the driver for its consent, as :func:`given`."""
    machine = privileged.machine()
    machine.nvml.reset()
    for attempt in range(_ATTEMPTS):
        if attempt:
            machine.sleep(attempt)
        if not _has_lock(gpu):
            if usage.is_unused(machine, gpu):
                return
            continue
        _lock(gpu, '1')
        # A lock that is not granted is no error of the write.
        if _is_locked(gpu):
            return
    raise exception.GpuInUse(gpu=gpu, reason=users(gpu))


def _is_locked(gpu: model.PciAddress) -> bool:
    return privileged.machine().proc.read(*_place(gpu)) == '1'


def _has_lock(gpu: model.PciAddress) -> bool:
    """Whether the driver can lock a GPU; only that of vGPU hosts can.

    See nv_procfs_add_gpu in kernel-open/nvidia/nv-procfs.c.
    """
    return privileged.machine().proc.exists(*_place(gpu))


def _lock(gpu: model.PciAddress, value: str) -> None:
    """Ask for the lock with 1, or give it back with 0.

    nv_procfs_close_unbind_lock grants it if the usage count is 0. It takes
    the lock of the whole driver, so the write may take long.
    """
    machine = privileged.machine()
    try:
        machine.proc.apart(machine.driver_timeout, machine.proc.write, value,
                           *_place(gpu))
    except TimeoutError as error:
        raise exception.DriverStuck(
            address=gpu, reason='the driver did not say within '
            f'{machine.driver_timeout:g} seconds whether it is in use',
            state='it is bound to the driver as before') from error


def _place(gpu: model.PciAddress) -> tuple[str, ...]:
    return 'driver', 'nvidia', 'gpus', str(gpu), 'unbindLock'
