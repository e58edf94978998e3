# SPDX-License-Identifier: Apache-2.0

"""The metrics of a GPU for monitoring: immutable values, no I/O."""

from __future__ import annotations

import dataclasses
import enum


class Quantity(enum.Enum):
    """The quantity of a value. Values are in base units."""

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
    INSTANCE_UTILIZATION = enum.auto()
    INSTANCE_SM_UTILIZATION = enum.auto()
    INSTANCE_TENSOR_UTILIZATION = enum.auto()
    INSTANCE_BANDWIDTH_UTILIZATION = enum.auto()

    # Of a vGPU that a guest runs. Labels: as Vgpu.labels has them.
    VGPU_UTILIZATION = enum.auto()
    VGPU_MEMORY_UTILIZATION = enum.auto()
    VGPU_ENCODER_UTILIZATION = enum.auto()
    VGPU_DECODER_UTILIZATION = enum.auto()
    VGPU_FRAMEBUFFER_USED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Value:
    """One value, with labels for the part of the GPU that it concerns."""

    quantity: Quantity
    value: float
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Vgpu:
    """A vGPU that a guest runs, as NVML knows it."""

    vgpu_id: int
    """NVML's id of the vGPU instance."""
    mdev: str = ''
    """UUID of its mdev; empty if vGPUs are created without mdev."""
    server: str = ''
    """UUID of the virtual machine; empty if NVML knows no UUID."""
    instance_id: int | None = None
    """Id of its GPU instance; None if the vGPU is time-sliced."""

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """GPU instance, NVML's number, mdev and server."""
        return ('' if self.instance_id is None else str(self.instance_id),
                str(self.vgpu_id), self.mdev, self.server)


@dataclasses.dataclass(frozen=True)
class Sample:
    """The metrics of one GPU, without those that it does not support."""

    uuid: str
    values: tuple[Value, ...] = ()
    vgpus: tuple[Vgpu, ...] = ()
