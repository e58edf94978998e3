# SPDX-License-Identifier: Apache-2.0

"""Reads whether vGPUs can be live-migrated."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model

_MIGRATION = 1
"""NVML_VGPU_PGPU_VIRTUALIZATION_CAP_MIGRATION, bit 0, which pynvml lacks."""


def read(machine: platform.Platform, host: model.Host
         ) -> dict[model.PciAddress, bool | None]:
    """Return whether GPUs support it by NVML; None where NVML does not say.

    Nova's PCI code live-migrates only vGPUs without mdev.
    """
    return {gpu.address: _of(machine, gpu) for gpu in host.gpus
            if gpu.framework is model.Framework.VENDOR_VFIO}


@gate.series
def _of(machine: platform.Platform, gpu: model.Gpu) -> bool | None:
    """Return what nvml.h says on pgpuVirtualizationCaps.

    The field is in nvmlVgpuPgpuMetadata_t. The driver asks the GPU's
    firmware, and answers no on KVM if its registry key
    RmEnableKvmVgpuMigration is 0 (vgpuConfigGetMigrationCap,
    src/nvidia/src/kernel/virtualization/vgpuconfigapi.c of NVIDIA's open
    kernel modules 595.45.04). Neither nvmlVgpuTypeGetCapabilities nor
    nvmlDeviceGetVgpuCapabilities reports it: their DEVICE_STREAMING is about
    how fast the data of a migration is read.
    """
    if not gpu.visible_to_nvml:
        return None
    try:
        found = machine.nvml.optional('nvmlDeviceGetVgpuMetadata',
                                      machine.nvml.device(gpu.address))
    except exception.NvmlError:
        return None
    return found and bool(found.pgpuVirtualizationCaps & _MIGRATION)
