# SPDX-License-Identifier: Apache-2.0


"""Reads what decides whether vGPUs can be live-migrated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import modes
from cyborg_gpu_driver.host.nvml import vgpu
from cyborg_gpu_driver.host.snapshot import domain
from cyborg_gpu_driver.host.snapshot import model

_Value = TypeVar('_Value')
_UNKNOWN = domain.Migration()


def read(machine: platform.Platform, host: model.Host
         ) -> dict[model.PciAddress, domain.Migration]:
    """Return what NVML reports about the GPUs that have vGPUs without mdev.

    Nova's PCI code live-migrates only the vGPUs of these GPUs.
    """
    return {gpu.address: _of(machine, gpu) for gpu in host.gpus
            if gpu.framework is model.Framework.VENDOR_VFIO}


@gate.series
def _of(machine: platform.Platform, gpu: model.Gpu) -> domain.Migration:
    """Return the answers of NVML about a GPU; a missing answer is None."""
    nvml = machine.nvml
    if not gpu.visible_to_nvml:
        return _UNKNOWN
    try:
        device = nvml.device(gpu.address)
    except exception.NvmlError:
        return _UNKNOWN
    ecc = _answer(lambda: modes.ecc(nvml, gpu.address))
    return domain.Migration(
        _answer(lambda: vgpu.can_migrate(nvml, device)),
        _answer(lambda: vgpu.migration_metadata(nvml, device)),
        None if ecc is None else ecc.enabled)


def _answer(ask: Callable[[], _Value]) -> _Value | None:
    with contextlib.suppress(exception.NvmlError):
        return ask()
    return None
