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

"""Processes that use a GPU, through NVML."""

from __future__ import annotations

import dataclasses
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import library as nvml_library
from cyborg_gpu_driver.host.nvml import session as nvml_module

_NONE = 0xffffffff
_COMPUTE = 'nvmlDeviceGetComputeRunningProcesses_v3'
_GRAPHICS = 'nvmlDeviceGetGraphicsRunningProcesses_v3'


@dataclasses.dataclass(frozen=True, order=True)
class Process:
    """A process that uses a GPU.

    The ids are those of its MIG device; None for the GPU as a whole.
    """

    pid: int
    instance_id: int | None = None
    compute_id: int | None = None


def processes(nvml: nvml_module.NvmlSession, device: Any,
              graphics: bool = True) -> tuple[Process, ...]:
    """Processes on a GPU and its instances (one call a kind; two if any).

    :param graphics: also ask for those that draw, not only compute.
    :returns: none where the driver does not tell.
    :raises NvmlError: if they cannot be read.
    """
    found = set()
    for kind in (_COMPUTE, _GRAPHICS) if graphics else (_COMPUTE,):
        try:
            entries = nvml.call(kind, device)
        except exception.NvmlError as error:
            if error.symbol in nvml_library.ABSENT:
                continue
            raise
        for entry in entries:
            found.add(Process(entry.pid, _number(entry.gpuInstanceId),
                              _number(entry.computeInstanceId)))
    return tuple(sorted(found, key=lambda item: (
        item.pid, item.instance_id or 0, item.compute_id or 0)))


def _number(value: int | None) -> int | None:
    return None if value in (None, _NONE) else value
