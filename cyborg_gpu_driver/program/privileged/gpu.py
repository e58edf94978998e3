# SPDX-License-Identifier: Apache-2.0

"""Privileged operations on a GPU as a whole."""

from __future__ import annotations

import contextlib

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import session as nvml_session
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import child
from cyborg_gpu_driver.program.privileged import consent
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu

_RESET_SECONDS = 120.0
"""Time limit of nvidia-smi. A reset takes seconds. If the GPU does not come
back, the driver gives up much earlier than this."""
_LATE_SECONDS = 1.0
"""How long :func:`refuse_unfinished` waits for a call that is about to end."""


def check_ended(addresses: list[str]) -> None:
    """Refuse while an earlier call about one of these functions runs.

    The caller of such a call may have given up: see
    :class:`~cyborg_gpu_driver.exception.HostUnusable` and
    :class:`~cyborg_gpu_driver.exception.NvmlNotAnswering`. The call may still
    create something. So a rollback must not read the GPU before the call has
    ended. This does not find calls of an earlier privileged process.
    """
    # If the privileged process cannot be started, nothing has changed, and
    # a rollback must not need it.
    if privsep.may_run():
        refuse_unfinished(addresses)


@privsep.entrypoint
def refuse_unfinished(addresses: list[str]) -> None:
    """Do what :func:`check_ended` does, for the calls of this process."""
    # The transport of privsep makes a tuple of a list.
    if not isinstance(addresses, (list, tuple)):
        raise exception.InvalidValue(
            what='addresses', value=addresses,
            expected='expected a list of PCI addresses')
    parsed = [model.PciAddress.parse(address) for address in addresses]
    late = (privsep.unfinished(tuple(map(str, parsed)), _LATE_SECONDS)
            or deadline.stuck(parsed))
    if late:
        raise exception.StepFailed(
            reason=f'an earlier call has not ended yet: {", ".join(late)}')


@privsep.slow_entrypoint
def set_virtual_functions(address: str, enable: bool) -> None:
    """Create all virtual functions of a GPU, or remove them.

    :raises StepFailed: if NVIDIA's sriov-manage refused it, or if the GPU
        has GPU instances: sriov-manage unbinds the driver meanwhile, and
        NVIDIA does not promise that they outlive that.
    """
    privileged.check_truth('virtual functions', enable)
    gpu = privileged_driver.nvidia_gpu(address)
    machine = privileged.machine()
    # sriov-manage does not get the lock that it needs while NVML is open.
    with machine.nvml.lent():
        has_instances = _has_instances(machine.nvml, gpu)
    if has_instances:
        raise exception.StepFailed(
            f'virtual functions of GPU {gpu}: sriov-manage may destroy '
            'the existing GPU instances')
    # sriov-manage asks the driver for unbindLock itself.
    was_persistent = consent.end_persistence(gpu)

    def wait(seconds: float) -> None:
        machine.sleep(seconds)
        # It has run "nvidia-smi -pm 1" for all GPUs (resume_services), as it
        # does after each attempt. Where the mode was off, it remains on.
        consent.end_persistence(gpu)

    try:
        vgpu.manage_functions(str(gpu), enable, machine.sriov_manage, wait)
    except exception.StepFailed as error:
        raise _refused(gpu) or error from error
    finally:
        if was_persistent:
            privileged_driver.persist(gpu)


@privsep.entrypoint
def set_mixed_sizes(address: str, enable: bool) -> None:
    """Turn mixed-size mode on or off.

    :raises NvmlError: IN_USE if the GPU has a vGPU; NOT_SUPPORTED.
    """
    privileged.check_truth('mixed-size mode', enable)
    with privileged.gpu(address) as (nvml, device):
        nvml_vgpu.set_mixed_sizes(nvml, device, enable)


@privsep.entrypoint
def set_ecc_mode(address: str, enable: bool) -> None:
    """Set a GPU's ECC mode, which takes effect when the GPU restarts.

    :raises NvmlError: NOT_SUPPORTED if the GPU has no ECC.
    """
    privileged.check_truth('ECC mode', enable)
    with privileged.gpu(address) as (nvml, device):
        nvml.call('nvmlDeviceSetEccMode', device, int(enable))


@privsep.entrypoint
def set_scheduler(address: str, policy: str, time_slice: int | None) -> None:
    """Set how vGPUs share a GPU.

    :param policy: a value of :class:`model.SchedulerPolicy`.
    :param time_slice: nanoseconds; None lets the driver choose.
    :raises NvmlError: IN_USE while a virtual machine runs on the GPU;
        INVALID_ARGUMENT for a time slice out of range; NOT_SUPPORTED.
    """
    wanted = _scheduler(policy, time_slice)
    with privileged.gpu(address) as (nvml, device):
        nvml_vgpu.set_scheduler(nvml, device, wanted, time_slice)


@privsep.entrypoint
def set_instance_scheduler(address: str, instance_id: int, policy: str,
                           time_slice: int | None) -> None:
    """Set how vGPUs share a GPU instance.

    :param policy, time_slice: see :func:`set_scheduler`.
    :raises NvmlError: IN_USE while a virtual machine runs within the GPU
        instance; INVALID_ARGUMENT for a time slice out of range;
        NOT_SUPPORTED; NOT_FOUND.
    """
    privileged.check_number('instance id', instance_id, 1 << 31)
    wanted = _scheduler(policy, time_slice)
    with privileged.gpu(address) as (nvml, device):
        nvml_vgpu.set_instance_scheduler(nvml, device, instance_id, wanted,
                                         time_slice)


def _scheduler(policy: str, time_slice: int | None) -> model.SchedulerPolicy:
    """Check a scheduler and its time slice."""
    try:
        wanted = model.SchedulerPolicy(policy)
    except ValueError:
        raise exception.InvalidValue(
            what='vGPU scheduler', value=policy, expected='expected one of '
            + ', '.join(item.value for item in model.SchedulerPolicy)
        ) from None
    if time_slice is not None and (type(time_slice) is not int
                                   or not 0 < time_slice < 1 << 32):
        raise exception.InvalidValue(
            what='time slice', value=time_slice,
            expected='expected nanoseconds, at least 1')
    return wanted


@privsep.slow_entrypoint
def reset_by_driver(address: str) -> bool:
    """Let NVIDIA's driver reset a GPU, through nvidia-smi.

    No library has a call for it. The caller has exclusive use of NVML.

    nvidia-smi refuses a GPU before Ampere that NVLinks connect to others,
    unless all of them are reset at once (the manual of nvidia-smi).

    :returns: False if nvidia-smi cannot do it: it is not installed, or has
        refused it while only nvidia_drm had the GPU open, which an unbind
        ends from driver 580.105.08 on.
    :raises GpuInUse: if the GPU is in use; it was not reset.
    :raises StepFailed: with the output of nvidia-smi, or if it does not end
        in time.
    """
    gpu = privileged_driver.nvidia_gpu(address)
    privileged.machine().nvml.reset()
    try:
        child.run(_RESET_SECONDS, privileged.machine().nvidia_smi,
                  '--gpu-reset', '-i', str(gpu))
    except FileNotFoundError:
        return False
    except child.Failed as error:
        with contextlib.suppress(exception.UsageUnknown):
            if usage.only_display_uses(
                    privileged.machine(), gpu, consent.PERSISTENCED):
                return False
        raise _refused(gpu) or exception.StepFailed(
            reason=f'nvidia-smi did not reset it: {error}') from error
    return True


@privsep.entrypoint
def persist(address: str) -> None:
    """Turn persistence mode on for a GPU that is back at NVIDIA's driver.

    The caller has exclusive use of NVML.
    """
    privileged_driver.persist(privileged_driver.nvidia_gpu(address))


def _refused(gpu: model.PciAddress) -> exception.GpuInUse | None:
    """Why one of NVIDIA's programs refused a GPU, if somebody has it open.

    nvidia-persistenced is not the reason: the programs ask it to close the
    GPU ("You can leave the nvidia-persistenced service running", Fabric
    Manager User Guide on nvidia-smi -r).
    """
    try:
        found = [holder for holder in usage.holders(
            privileged.machine(), gpu) if holder[1] != consent.PERSISTENCED]
    except (exception.UsageUnknown, exception.SysfsError):
        return None
    return exception.GpuInUse(
        gpu=gpu, reason='open in ' + consent.describe(found)
    ) if found else None


@privsep.entrypoint
def fabric_manager_runs() -> bool:
    """Whether NVIDIA's fabric manager runs; only root sees all processes."""
    return usage.fabric_manager_runs(privileged.machine())


def _has_instances(nvml: nvml_session.NvmlSession, address: model.PciAddress
                   ) -> bool:
    """Whether a GPU has any GPU instance, also of another tool."""
    device = nvml.device(address)
    if not any(nvml.optional('nvmlDeviceGetMigMode', device) or ()):
        return False
    return any(found for _, found in gate.indexed(
        lambda index: nvml.gpu_instances(device, nvml.call(
            'nvmlDeviceGetGpuInstanceProfileInfo', device, index, 1).id)))
