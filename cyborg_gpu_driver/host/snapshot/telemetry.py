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

"""What monitoring reads of a GPU at work: immutable values, no I/O."""

from __future__ import annotations

import dataclasses
import enum


class Quantity(enum.Enum):
    """What a value is of. Values are in base units."""

    # Of a GPU.
    UTILIZATION = enum.auto()
    MEMORY_UTILIZATION = enum.auto()
    MEMORY = enum.auto()
    MEMORY_USED = enum.auto()
    TEMPERATURE = enum.auto()
    MEMORY_TEMPERATURE = enum.auto()
    POWER = enum.auto()
    POWER_LIMIT = enum.auto()
    ENERGY = enum.auto()
    CLOCK = enum.auto()
    """Label: ``sm`` or ``memory``."""
    ECC_ERRORS = enum.auto()
    """Label: ``corrected`` or ``uncorrected``."""
    REMAPPED_ROWS = enum.auto()
    """Label: ``correctable`` or ``uncorrectable``."""
    REMAP_PENDING = enum.auto()
    REMAP_FAILED = enum.auto()
    LINK_UP = enum.auto()
    """Label: number of the NVLink."""
    LINK_ERRORS = enum.auto()
    """Label: the kind of error."""
    PCIE_SENT = enum.auto()
    PCIE_RECEIVED = enum.auto()
    PCIE_REPLAYS = enum.auto()

    # Of a GPU instance. Label: its id.
    INSTANCE_MEMORY = enum.auto()
    INSTANCE_MEMORY_USED = enum.auto()

    # Of a vGPU that a guest runs. Labels: as Vgpu.labels has them.
    VGPU_UTILIZATION = enum.auto()
    VGPU_MEMORY_UTILIZATION = enum.auto()
    VGPU_ENCODER_UTILIZATION = enum.auto()
    VGPU_DECODER_UTILIZATION = enum.auto()
    VGPU_FRAMEBUFFER_USED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Value:
    """One value, and what of the GPU it is about."""

    quantity: Quantity
    value: float
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Vgpu:
    """A vGPU that a guest runs, as NVML knows it."""

    vgpu_id: int
    """NVML's vGPU instance."""
    mdev: str = ''
    """Its UUID; empty where vGPUs are made without mdev."""
    server: str = ''
    """UUID of the virtual machine; empty where NVML knows no UUID."""
    instance_id: int | None = None
    """Id of the GPU instance below; None if it is time-sliced."""

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """GPU instance, NVML's number, mdev and server."""
        return ('' if self.instance_id is None else str(self.instance_id),
                str(self.vgpu_id), self.mdev, self.server)


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one GPU answered. What it does not support is not in it."""

    uuid: str
    values: tuple[Value, ...] = ()
    vgpus: tuple[Vgpu, ...] = ()
