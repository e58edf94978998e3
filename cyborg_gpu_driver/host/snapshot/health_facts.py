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


"""What a GPU reports about its own health: immutable values, no I/O."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.host.snapshot import model

UNREACHABLE = 'PCI_UNREACHABLE'
"""The PCI configuration space cannot be read."""
FATAL = 'PCI_FATAL'
"""Fatal PCIe errors (AER) since NVML was last queried."""
LANES = 'PCI_LANES'
"""The PCIe link has fewer lanes than when NVML was last queried."""
PCI = frozenset({UNREACHABLE, FATAL, LANES})


@dataclasses.dataclass(frozen=True)
class Facts:
    """The answers of one GPU at one moment; None stands for no answer.

    Temperatures are in degrees Celsius.
    """

    answered: bool = False
    """Whether the GPU gave any answer; if not, nothing is known about it."""
    lost: bool = False
    """NVML can no longer reach the GPU (GPU_IS_LOST)."""
    not_answering: bool = False
    """A call about the GPU did not return in time; no others were made."""
    reset_required: bool = False
    """NVML refuses to use the GPU before a reset (RESET_REQUIRED)."""
    ecc_uncorrected: int | None = None
    """Uncorrected ECC errors since the driver was loaded (volatile)."""
    remapped_rows: int | None = None
    """Rows of memory remapped so far (Ampere and later)."""
    remap_pending: bool | None = None
    """Whether rows wait for a reset to be remapped."""
    remap_failed: bool | None = None
    """A row could not be remapped, because no spare row is left for it."""
    retired_pending: bool | None = None
    """Whether pages wait for a reset to be retired (before Ampere)."""
    temperature: int | None = None
    slowdown_temperature: int | None = None
    shutdown_temperature: int | None = None
    thermal_slowdown: bool | None = None
    """The hardware reduces its clocks by half or more because of heat."""
    recovery_action: int | None = None
    """Action that the driver requests (nvmlDeviceGpuRecoveryAction_t); 0 is
    none. Drivers from R565 on report it (NVML's change log)."""
    by_pci: bool = False
    """NVML was not queried: only what the PCI bus reports is known."""
    pci: tuple[str, ...] = ()
    """The faults that the PCI bus reports, from :data:`PCI`."""


@dataclasses.dataclass(frozen=True)
class Event:
    """An error that the driver reported for one GPU.

    ``instance_id`` and ``compute_id`` are None if the error concerns the
    whole GPU.
    """

    address: model.PciAddress
    xid: int
    instance_id: int | None = None
    compute_id: int | None = None
