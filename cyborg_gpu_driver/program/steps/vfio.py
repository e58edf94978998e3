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

"""vGPUs of NVIDIA's own VFIO driver, identified only by their function.

A virtual function is given to one tenant after another, so the driver must
prove that the vGPU on a function is unused before clearing it.
"""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import mdev
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu


def type_on(machine: platform.Platform, function: model.PciAddress
            ) -> str | None:
    """Type of the vGPU on a function (``nvidia-474``); None without one.

    :raises SysfsError, InvalidValue: if that cannot be read.
    """
    number = mdev.MdevTree(machine.sysfs).current_vgpu_type(function)
    return f'nvidia-{number}' if number else None


def instance_under(machine: platform.Platform, function: model.PciAddress
                   ) -> int | None:
    """Id of the GPU instance that a function's vGPU lies on, if any.

    :raises SysfsError: if that cannot be read.
    """
    return mdev.MdevTree(machine.sysfs).vgpu_output(function,
                                                    'gpu_instance_id')


def check_idle(machine: platform.Platform, gpu: model.Gpu,
               function: model.PciAddress) -> None:
    """Check that the vGPU on a function is unused.

    :param gpu: the GPU of the function; the vGPUs on its functions are read
        again.
    :raises VgpuInUse: if it is in use.
    :raises UsageUnknown, NvmlError, SysfsError: if that is unknown.
    """
    # Only root sees which files the processes of other users have open.
    machine = dataclasses.replace(
        machine, vfio_holders=privileged_vgpu.vfio_holders)
    usage.refuse_open(machine, function)
    if usage.may_run(machine, read_functions(machine, gpu), function):
        raise exception.VgpuInUse(
            vgpu=function, reason='NVML has a virtual machine that '
            'runs one')


def read_functions(machine: platform.Platform, gpu: model.Gpu) -> model.Gpu:
    """The GPU with the vGPUs that are on its functions now.

    :raises SysfsError: if that cannot be read.
    """
    tree = mdev.MdevTree(machine.sysfs)
    return dataclasses.replace(gpu, vfs=tuple(
        dataclasses.replace(
            vf, current_vgpu_type=tree.current_vgpu_type(vf.address),
            gpu_instance_id=tree.vgpu_output(vf.address, 'gpu_instance_id'),
            placement_id=tree.vgpu_output(vf.address, 'placement_id'))
        for vf in gpu.vfs))
