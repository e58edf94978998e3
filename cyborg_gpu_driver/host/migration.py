# SPDX-License-Identifier: Apache-2.0


"""Reads whether vGPUs can be live-migrated."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import vgpu
from cyborg_gpu_driver.host.snapshot import model


def read(machine: platform.Platform, host: model.Host
         ) -> dict[model.PciAddress, bool | None]:
    """Return whether GPUs support it by NVML; None where NVML does not say.

    Nova's PCI code live-migrates only vGPUs without mdev.
    """
    return {gpu.address: _of(machine, gpu) for gpu in host.gpus
            if gpu.framework is model.Framework.VENDOR_VFIO}


@gate.series
def _of(machine: platform.Platform, gpu: model.Gpu) -> bool | None:
    if not gpu.visible_to_nvml:
        return None
    try:
        return vgpu.can_migrate(machine.nvml, machine.nvml.device(gpu.address))
    except exception.NvmlError:
        return None
