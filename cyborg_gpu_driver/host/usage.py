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

"""What runs on a GPU now: processes and virtual machines, by instance."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import nvml_library
from cyborg_gpu_driver.host import platform

_NONE = 0xffffffff
_KINDS = ('nvmlDeviceGetComputeRunningProcesses',
          'nvmlDeviceGetGraphicsRunningProcesses')
_ABSENT = frozenset({'NOT_SUPPORTED', 'FUNCTION_NOT_FOUND'})


@dataclasses.dataclass(frozen=True, order=True)
class Process:
    """A process that uses a GPU.

    The ids are those of its MIG device; None for the GPU as a whole.
    """

    pid: int
    instance_id: int | None = None
    compute_id: int | None = None


@dataclasses.dataclass(frozen=True, order=True)
class RunningVgpu:
    """A vGPU on a GPU instance."""

    name: str
    """The mdev's UUID, or the address of its virtual function."""
    instance_id: int


def processes(machine: platform.Platform, address: model.PciAddress
              ) -> tuple[Process, ...]:
    """Processes on a GPU and its instances (one NVML call a kind).

    :raises NvmlError: if they cannot be read.
    """
    found = set()
    device = machine.nvml.device(address)
    for kind in _KINDS:
        for entry in _optional(machine, kind, device):
            found.add(Process(entry.pid, _number(entry.gpuInstanceId),
                              _number(entry.computeInstanceId)))
    return tuple(sorted(found, key=lambda item: (
        item.pid, item.instance_id or 0, item.compute_id or 0)))


def vgpus(machine: platform.Platform, gpu: model.Gpu
          ) -> tuple[RunningVgpu, ...]:
    """vGPUs whose GPU instance is known.

    NVML knows it of those that a guest runs, sysfs (``gpu_instance_id`` of
    the virtual function) of each that the vendor's VFIO driver has made; of
    an mdev without a guest nobody tells.

    :raises NvmlError, SysfsError: if they cannot be read.
    """
    found = set()
    nvml = machine.nvml
    for vgpu in _optional(machine, 'nvmlDeviceGetActiveVgpus',
                          nvml.device(gpu.address)):
        number = nvml.call('nvmlVgpuInstanceGetGpuInstanceId', vgpu)
        if number != _NONE:
            found.add(RunningVgpu(_vgpu_name(nvml, vgpu), number))
    for function in gpu.vfs:
        if function.current_vgpu_type:
            text = machine.sysfs.read_optional(
                'bus', 'pci', 'devices', str(function.address), 'nvidia',
                'gpu_instance_id')
            if text is not None and text.isdigit():
                found.add(RunningVgpu(str(function.address), int(text)))
    return tuple(sorted(found))


def process_name(pid: int) -> str:
    """What the kernel calls a process; ``?`` if it is gone."""
    try:
        with open(f'/proc/{int(pid)}/comm', encoding='utf-8',
                  errors='replace') as stream:
            return stream.read().strip() or '?'
    except OSError:
        return '?'


def has_module(machine: platform.Platform, name: str) -> bool:
    """Whether a kernel module is loaded."""
    return machine.sysfs.exists('module', name)


def _vgpu_name(nvml, vgpu):
    try:
        return nvml_library.text(nvml.call('nvmlVgpuInstanceGetMdevUUID',
                                           vgpu)).lower()
    except exception.NvmlError as error:
        if error.symbol in _ABSENT:
            return f'{vgpu}'
        raise


def _optional(machine, call, device):
    try:
        return machine.nvml.call(call, device)
    except exception.NvmlError as error:
        if error.symbol in _ABSENT:
            return ()
        raise


def _number(value):
    return None if value in (None, _NONE) else value
