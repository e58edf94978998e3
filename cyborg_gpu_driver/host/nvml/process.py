# SPDX-License-Identifier: Apache-2.0

"""Processes that use a GPU, through NVML."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model

_COMPUTE = 'nvmlDeviceGetComputeRunningProcesses'
_GRAPHICS = 'nvmlDeviceGetGraphicsRunningProcesses'


@dataclasses.dataclass(frozen=True, order=True)
class Process:
    """A process that uses a GPU.

    The instance ids are those of the MIG device that it uses; they are None
    for the GPU as a whole.
    """

    pid: int
    instance_id: int | None = None
    compute_id: int | None = None


def processes(nvml: nvml_module.NvmlSession, device: Any,
              graphics: bool = True) -> tuple[Process, ...]:
    """Return the processes on a GPU and its instances.

    Makes one call per kind of process, or two if there are any.

    :raises NvmlError: if they cannot be read, or the driver does not tell
        them. Then the GPU may be in use.
    """
    found = set()
    for kind in (_COMPUTE, _GRAPHICS) if graphics else (_COMPUTE,):
        for entry in _entries(nvml, kind, device):
            found.add(Process(
                entry.pid, gate.known(entry.gpuInstanceId),
                gate.known(entry.computeInstanceId)))
    return tuple(sorted(found, key=lambda item: (
        item.pid, item.instance_id or 0, item.compute_id or 0)))


def _entries(nvml: nvml_module.NvmlSession, kind: str, device: Any
             ) -> Collection[Any]:
    """The processes of one kind.

    A board without graphics does not support the query for graphics. In all
    other cases no answer does not mean that there are no processes.
    """
    try:
        return nvml.call(f'{kind}_v3', device)
    except exception.NvmlError as error:
        if kind == _GRAPHICS and error.symbol == 'NOT_SUPPORTED':
            return ()
        raise


def memory(nvml: nvml_module.NvmlSession,
           addresses: Iterable[model.PciAddress], pids: Collection[int]
           ) -> int | None:
    """Return the bytes of GPU memory of processes; None if not reported.

    NVML identifies processes by their ids on the host, so in a container it
    may know none of them. For a GPU in MIG mode NVML reports the sum of the
    instances, to a caller with the privilege
    (nvmlDeviceGetComputeRunningProcesses in nvml.h).
    """
    found = None
    for address in addresses:
        with nvml.kept():
            device = nvml.device(address)
            used = {entry.pid: entry.usedGpuMemory
                    for kind in (_COMPUTE, _GRAPHICS)
                    for entry in _entries(nvml, kind, device)
                    if entry.pid in pids and entry.usedGpuMemory is not None}
        if used:
            found = (found or 0) + sum(used.values())
    return found


def smallest(nvml: nvml_module.NvmlSession,
             addresses: Iterable[model.PciAddress]) -> int | None:
    """Return the bytes of memory of the smallest GPU; None without GPUs."""
    found = []
    for address in addresses:
        with nvml.kept():
            found.append(nvml.call('nvmlDeviceGetMemoryInfo',
                                   nvml.device(address)).total)
    return min(found, default=None)


# The traces that users leave on a GPU, as NVML shows them.

_MIB = 1 << 20


def memory_mib(nvml: nvml_module.NvmlSession, device: Any
               ) -> tuple[int, int] | None:
    """Return the used memory without the driver's own, and the total.

    Some drivers do not report their own memory separately: None.
    """
    found = nvml.optional('nvmlDeviceGetMemoryInfo', device,
                          pynvml.nvmlMemory_v2)
    return found and (found.used // _MIB, found.total // _MIB)


def uncorrected_errors(nvml: nvml_module.NvmlSession, device: Any
                       ) -> int | None:
    """Uncorrected memory errors since the last reset; None without ECC."""
    return nvml.optional('nvmlDeviceGetTotalEccErrors', device,
                         pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                         pynvml.NVML_VOLATILE_ECC)
