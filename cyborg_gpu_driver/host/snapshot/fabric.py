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

"""What the fabric manager reports about NVSwitches: values, no I/O."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model


class Mode(enum.IntEnum):
    """FABRIC_MODE in the configuration of the fabric manager.

    From the comments in fabricmanager.cfg and from "Virtualization Models"
    in the fabric manager's user guide.
    """

    BARE_METAL = 0
    """One fabric of all GPUs, or full passthrough with the NVSwitches."""
    SHARED_NVSWITCH = 1
    """Partitions of whole GPUs that are passed through."""
    VGPU = 2
    """Partitions of virtual functions with vGPUs."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A GPU of a partition, as the fabric manager describes it."""

    physical_id: int
    address: model.PciAddress | None = None
    """None on Hopper and later: the user guide ("Data Structures") says that
    the UUID and the PCI address are empty there, and that the physical id is
    the module id of NVML."""
    links: int = 0
    """Number of NVLinks that can be used in the partition."""
    line_rate: int = 0
    """Line rate of each NVLink, in MB/s."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """A set of GPUs that the fabric manager can connect."""

    partition_id: int
    members: tuple[Member, ...]
    active: bool = False
    supported: bool = True
    """False if hardware that it needs has failed."""

    @property
    def physical_ids(self) -> frozenset[int]:
        """Physical ids of its GPUs."""
        return frozenset(member.physical_id for member in self.members)

    def overlaps(self, other: Partition) -> bool:
        """Whether they have a common GPU, so that only one can be active."""
        return bool(self.physical_ids & other.physical_ids)


@dataclasses.dataclass(frozen=True)
class Fabric:
    """The NVSwitch fabric of a host, read once."""

    modules: Mapping[model.PciAddress, int]
    """NVML's module id of each GPU on the baseboard. A GPU that is not bound
    to NVIDIA's driver is missing."""
    running: bool = False
    """Whether the process nv-fabricmanager runs."""
    mode: Mode | None = None
    """None if its configuration cannot be read."""
    mode_problem: str = ''
    """Why ``mode`` is None."""
    address: str | None = None
    """Where it listens: address and port, or path; None if unknown."""
    version: str | None = None
    """Version of the installed nv-fabricmanager; None if unknown."""
    installed: bool | None = None
    """Whether nv-fabricmanager is installed; None if unknown."""
    partitions: tuple[Partition, ...] = ()
    """All partitions by id, including those that are not supported."""
    failed: tuple[str, ...] = ()
    """PCI addresses of GPUs and NVSwitches whose NVLinks have failed."""
    problem: str = ''
    """Why the partitions cannot be read."""

    def gpu(self, member: Member) -> model.PciAddress | None:
        """Return the GPU of this host that a member of a partition is.

        :returns: None if it is not known, because the GPU is not bound to
            NVIDIA's driver and NVML does not report its module id.
        """
        if member.address is not None:
            return member.address
        found = [address for address, module in self.modules.items()
                 if module == member.physical_id]
        return found[0] if len(found) == 1 else None

    def single(self, address: model.PciAddress) -> Partition | None:
        """Return the partition of only this GPU; None if there is none."""
        return next((
            partition for partition in self.partitions
            if partition.supported and len(partition.members) == 1
            and self.gpu(partition.members[0]) == address), None)
