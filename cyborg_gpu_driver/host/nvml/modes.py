# SPDX-License-Identifier: Apache-2.0

"""Modes of a GPU that outlive its tenant, and its place in the fabric.

ECC mode is in the board's InfoROM and takes effect at the next reset
(nvmlDeviceSetEccMode in nvml.h). On Ampere, so is MIG mode (MIG User Guide,
"Enable MIG Mode"). In NVML, confidential computing is a mode of the system
that NVML only reports; NVIDIA's gpu-admin-tools set it through PCI (their
README, "--set-cc-mode").

In a rack such as GB200 NVL72, NVLinks lead from machine to machine. GPUs reach
each other through them if they are in the same cluster and clique
(nvmlGpuFabricInfo_t in NVML's reference; NVIDIA/k8s-test-infra, guide
"Topograph").
"""

from __future__ import annotations

import ctypes
import dataclasses
import uuid

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import session as nvml_session
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.snapshot import model

_FABRIC_VERSIONS = (3, 2)
"""Versions of the structure of :func:`fabric_info`, newest first. Driver 615
deprecates version 3 and has another function for version 4, with a clique for
each type (NVML API Reference, changes between v610 and v615)."""

OFF = 'off'
ON = 'on'
DEVTOOLS = 'devtools'


@dataclasses.dataclass(frozen=True)
class Ecc:
    """Whether ECC is on now, and whether it is after the next reset."""

    enabled: bool
    pending: bool


def ecc(nvml: nvml_session.NvmlSession, address: model.PciAddress
        ) -> Ecc | None:
    """Return the ECC mode of a GPU; None if the GPU has no ECC."""
    modes = nvml.optional('nvmlDeviceGetEccMode', nvml.device(address))
    return modes and Ecc(*(mode == pynvml.NVML_FEATURE_ENABLED
                           for mode in modes))


def kept(nvml: nvml_session.NvmlSession, address: model.PciAddress
         ) -> tuple[gpu_record.Modes, gpu_record.Modes]:
    """Return the modes of a GPU that outlive a guest: now, and after a reset.
    """
    device = nvml.device(address)
    memory = ecc(nvml, address)
    try:
        slices = nvml.mig_mode(device)
    except exception.NvmlError as error:
        if error.symbol != 'NOT_SUPPORTED':
            raise
        slices = (False, False)
    # NVML's answer is that of any GPU which its driver has, perhaps another.
    # Boards before Hopper do not have the mode (is_cc_query_supported in
    # gpu-admin-tools).
    has_mode = ((nvml.optional('nvmlDeviceGetArchitecture', device) or 0)
                >= pynvml.NVML_DEVICE_ARCH_HOPPER)
    mode = confidential_computing(nvml) if has_mode else None
    return (
        gpu_record.Modes(memory.enabled if memory else None, slices[0], mode),
        gpu_record.Modes(memory.pending if memory else None, slices[1], mode))


def confidential_computing(nvml: nvml_session.NvmlSession) -> str | None:
    """Return the mode of all GPUs: off, on, devtools; None if not known."""
    state = nvml.optional('nvmlSystemGetConfComputeState')
    if state is None:
        return None
    if state.devToolsMode == pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_ON:
        return DEVTOOLS
    return ON if (state.ccFeature
                  == pynvml.NVML_CC_SYSTEM_FEATURE_ENABLED) else OFF


def fabric_info(version: int) -> ctypes.Structure | None:
    """Argument of nvmlDeviceGetGpuFabricInfoV; None if pynvml has none."""
    made = getattr(pynvml, f'c_nvmlGpuFabricInfo_v{version}_t', None)
    return made and made()


def clique(nvml: nvml_session.NvmlSession, address: model.PciAddress
           ) -> str | None:
    """Return the clique of a GPU: UUID of its cluster, a dot and a number.

    :returns: None if the GPU's NVLinks do not leave the machine, or its
        registration with the fabric is not completed or has failed. The
        status is valid only after the registration is completed
        (nvmlGpuFabricInfo_t in NVML's reference).
    """
    device = nvml.device(address)
    found = None
    for version in _FABRIC_VERSIONS:
        asked = fabric_info(version)
        if asked is None:
            continue
        try:
            if nvml.optional('nvmlDeviceGetGpuFabricInfoV', device,
                             ctypes.byref(asked)) is None:
                return None
        except exception.NvmlError as error:
            # The driver is older than this version of the structure.
            if error.symbol != 'ARGUMENT_VERSION_MISMATCH':
                raise
            continue
        found = asked
        break
    if (found is None
            or found.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
            or found.status != pynvml.NVML_SUCCESS
            or not any(found.clusterUuid)):
        return None
    return f'{uuid.UUID(bytes=bytes(found.clusterUuid))}.{found.cliqueId}'
