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


"""What a GPU says of its own health: immutable values, no I/O."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.host.snapshot import model

UNREACHABLE = 'PCI_UNREACHABLE'
"""The PCI configuration space cannot be read."""
FATAL = 'PCI_FATAL'
"""Fatal PCIe errors (AER) since NVML was last asked."""
LANES = 'PCI_LANES'
"""The PCIe link has fewer lanes than when NVML was last asked."""
PCI = frozenset({UNREACHABLE, FATAL, LANES})


@dataclasses.dataclass(frozen=True)
class Facts:
    """One GPU's answers at one moment; None where it gave none.

    Temperatures are in degrees Celsius.
    """

    answered: bool = False
    """Whether it answered anything; without, nothing is known of it."""
    lost: bool = False
    """NVML cannot reach it any more (GPU_IS_LOST)."""
    not_answering: bool = False
    """A call about it has not returned in time; it was asked nothing else."""
    reset_required: bool = False
    """NVML refuses to work on it before a reset (RESET_REQUIRED)."""
    ecc_uncorrected: int | None = None
    """Uncorrected ECC errors since the driver was loaded (volatile)."""
    remapped_rows: int | None = None
    """Rows of memory remapped in its life (Ampere and later)."""
    remap_pending: bool | None = None
    """Rows wait for a reset to be remapped."""
    remap_failed: bool | None = None
    """A row could not be remapped: there is no spare left for it."""
    retired_pending: bool | None = None
    """Pages wait for a reset to be retired (before Ampere)."""
    temperature: int | None = None
    slowdown_temperature: int | None = None
    shutdown_temperature: int | None = None
    thermal_slowdown: bool | None = None
    """The hardware halves its clocks because of heat, or more."""
    recovery_action: int | None = None
    """What the driver asks for (nvmlDeviceGpuRecoveryAction_t); 0 nothing.
    Drivers from R565 on say it (NVML's change log)."""
    by_pci: bool = False
    """NVML was not asked: all is unknown but what the PCI bus says."""
    pci: tuple[str, ...] = ()
    """What the PCI bus says is wrong: of :data:`PCI`."""


@dataclasses.dataclass(frozen=True)
class Event:
    """An error that the driver told of one GPU.

    ``instance_id`` and ``compute_id`` are None where it concerns the whole
    GPU.
    """

    address: model.PciAddress
    xid: int
    instance_id: int | None = None
    compute_id: int | None = None
