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

"""Privileged operations on a GPU as a whole.

As in :mod:`cyborg_gpu_driver.program.privileged.mig`, each checks its
arguments again and makes one change.
"""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host import device_node
from cyborg_gpu_driver.host.nvml import library as nvml_library
from cyborg_gpu_driver.host.nvml import session as nvml_session
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import nvidia_smi
from cyborg_gpu_driver.program.privileged import sriov

_PROFILE_LIMIT = 64
"""More indices of GPU instance profiles than NVML has."""


@privsep.slow_entrypoint
def enable_virtual_functions(address: str) -> None:
    """Make a GPU's virtual functions, all that it has.

    :raises SriovError: as NVIDIA's sriov-manage refused it, or because the
        GPU has GPU instances, which sriov-manage would destroy.
    """
    _manage(address, True)


@privsep.slow_entrypoint
def disable_virtual_functions(address: str) -> None:
    """Remove a GPU's virtual functions.

    :raises SriovError: as :func:`enable_virtual_functions`.
    """
    _manage(address, False)


@privsep.entrypoint
def set_mixed_sizes(address: str, enable: bool) -> None:
    """Turn mixed-size mode on or off.

    :raises NvmlError: IN_USE if the GPU has a vGPU; NOT_SUPPORTED.
    """
    if type(enable) is not bool:
        raise exception.InvalidValue(what='mixed-size mode', value=enable,
                                     expected='expected True or False')
    nvml = privileged.machine().nvml
    with nvml.kept():
        nvml_vgpu.set_mixed_sizes(
            nvml, nvml.device(model.PciAddress.parse(address)), enable)


@privsep.entrypoint
def set_ecc_mode(address: str, enable: bool) -> None:
    """Set a GPU's ECC mode, which takes effect when it starts again.

    :raises NvmlError: NOT_SUPPORTED if the GPU has no ECC.
    """
    if type(enable) is not bool:
        raise exception.InvalidValue(what='ECC mode', value=enable,
                                     expected='expected True or False')
    nvml = privileged.machine().nvml
    with nvml.kept():
        nvml.call('nvmlDeviceSetEccMode',
                  nvml.device(model.PciAddress.parse(address)), int(enable))


@privsep.entrypoint
def set_scheduler(address: str, policy: str, time_slice: int | None) -> None:
    """Set how vGPUs share a GPU.

    :param policy: a value of :class:`model.SchedulerPolicy`.
    :param time_slice: nanoseconds; None leaves it to the driver.
    :raises NvmlError: IN_USE while a virtual machine runs on the GPU;
        INVALID_ARGUMENT for a time slice out of range; NOT_SUPPORTED.
    """
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
            expected='expected nanoseconds, from 1')
    nvml = privileged.machine().nvml
    with nvml.kept():
        nvml_vgpu.set_scheduler(
            nvml, nvml.device(model.PciAddress.parse(address)), wanted,
            time_slice)


@privsep.slow_entrypoint
def reset_by_driver(address: str) -> bool:
    """Have NVIDIA's driver reset a GPU, by nvidia-smi.

    No library has a call for it. The caller has NVML alone.

    :returns: False where nvidia-smi is not installed.
    :raises GpuInUse: if somebody has it open; it was not reset.
    :raises StepFailed: with what nvidia-smi said.
    """
    gpu = privileged_driver.nvidia_gpu(address)
    privileged_driver.refuse_held(gpu)
    return nvidia_smi.reset(str(gpu), privileged.machine().nvidia_smi)


@privsep.entrypoint
def fabric_manager_runs() -> bool:
    """Whether NVIDIA's fabric manager runs; root sees all processes."""
    return device_node.fabric_manager_runs(privileged.machine())


def _manage(address: str, enable: bool) -> None:
    parsed = privileged_driver.nvidia_gpu(address)
    machine = privileged.machine()
    # The lock that sriov-manage needs is refused while NVML is open.
    with machine.nvml.lent():
        has_instances = _has_instances(machine.nvml, parsed)
    if has_instances:
        raise exception.SriovError(
            address=parsed, reason='sriov-manage would destroy the GPU '
            'instances that are there')
    privileged_driver.refuse_held(parsed)
    sriov.manage(str(parsed), enable, machine.sriov_manage)


def _has_instances(nvml: nvml_session.NvmlSession, address: model.PciAddress
                   ) -> bool:
    """Whether a GPU has a GPU instance, whoever cut it.

    Profiles are found by index, up to the INVALID_ARGUMENT at their end.
    """
    device = nvml.device(address)
    try:
        if not any(nvml.mig_mode(device)):
            return False
    except exception.NvmlError as error:
        if error.symbol in nvml_library.ABSENT:
            return False
        raise
    for index in range(_PROFILE_LIMIT):
        try:
            info = nvml.call('nvmlDeviceGetGpuInstanceProfileInfo', device,
                             index, 1)
            if nvml.gpu_instances(device, info.id):
                return True
        except exception.NvmlError as error:
            if error.symbol == 'INVALID_ARGUMENT':
                break
            if error.symbol != 'NOT_SUPPORTED':
                raise
    return False
