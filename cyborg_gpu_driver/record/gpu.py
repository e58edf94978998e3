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

"""The record of one GPU: all that outlives a process and a reboot. Pure.

The live GPU is never here: ids that the driver gives out are hints to find
an instance again, and count only in the boot that they are from.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Annotated

from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health as health_conditions
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.partition.elastic import role_facts

Handle = Annotated[str, vgpu_name.handle]
VgpuType = Annotated[str, vgpu_name.mdev_type]
AskedType = Annotated[str, vgpu_name.asked_type]


class Phase(enum.Enum):
    """How far a claim has come."""

    BINDING = 'binding'
    """Being created; rolled back if found so at start."""
    BOUND = 'bound'
    """Complete, and owned by the handle."""
    UNBINDING = 'unbinding'
    """Given back by Cyborg; what is left of it is to be removed."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """What one attach handle has on a GPU.

    It is written before its partition is touched and again when that is
    done, so that the next process can finish it or roll it back.
    ``function`` is where its vGPU is, the one that the handle names. The
    GPU instance's fields are None for time-sliced vGPUs; claims whose vGPUs
    share an instance have the same.

    A handle that stands for a group of GPUs has a claim on each of them. That
    on the first GPU says how far the bind or unbind has come: it is written
    first and removed last, and is complete after the others.
    """

    handle: Handle
    gpu: model.PciAddress
    function: model.PciAddress
    mdev_type: AskedType
    profile: str
    phase: Phase
    profile_id: int | None = None
    placement: model.Placement | None = None
    instance_id: int | None = None
    foreign_ids: tuple[int, ...] = ()
    """Instances of the profile that were there before, never ours."""
    vfio: bool = False
    """Made by the vendor's VFIO driver: no mdev, and no UUID."""
    vgpu_placement: int | None = None
    """Placement id of the vGPU among those of mixed sizes."""
    boot: str | None = None
    """Boot id of the machine when the instance was made. GPU instances do
    not outlive a boot, and their ids are given again (MIG User Guide). None
    in records of earlier releases."""
    fabric_partition: int | None = None
    """NVSwitch partition that is active for it; None if it needs none."""
    members: tuple[model.PciAddress, ...] = ()
    """The GPUs of a group; empty where the claim is on a part of a GPU."""
    repeats: int = 0
    """How often Cyborg has bound it again while it was bound. A repair that
    has found nobody to want it compares the number."""
    since: float | None = None
    """When the bind was complete, in seconds of the epoch. None before that,
    in records of earlier releases, and where a lost record was rebuilt."""
    until: float | None = None
    """When Cyborg gave it back; not before ``since``."""

    @property
    def gpus(self) -> tuple[model.PciAddress, ...]:
        """All GPUs that the handle has a claim on."""
        return self.members or (self.gpu,)

    @property
    def leads(self) -> bool:
        """Whether this claim says how far the handle has come."""
        return self.gpu == self.gpus[0]

    @property
    def is_mdev(self) -> bool:
        """Whether the handle has an mdev, which has its UUID."""
        return not self.vfio and not self.members

    @property
    def vgpu(self) -> spec.VgpuSpec:
        """The vGPU; meaningless for a group."""
        return spec.VgpuSpec(
            self.function, self.mdev_type,
            self.handle if self.is_mdev else None, self.vgpu_placement)

    @property
    def instance(self) -> spec.MigInstanceSpec | None:
        """The GPU instance below the vGPU; None for a time-sliced one."""
        if self.placement is None or self.profile_id is None:
            return None
        return spec.MigInstanceSpec(self.placement, self.profile_id)

    @property
    def role(self) -> policy.Mode:
        """What the GPU is while it has this claim."""
        return (policy.Mode.VGPU if self.placement is None
                else policy.Mode.MIG)

    def live(self, instance_id: int | None = None) -> model.Vgpu:
        """The vGPU as a snapshot has it.

        :param instance_id: of the GPU instance below, where the driver
            tells it.
        """
        return model.Vgpu(self.function, self.mdev_type,
                          self.handle if self.is_mdev else None, instance_id)

    def is_on(self, instance: model.GpuInstance) -> bool:
        """Whether a live instance is this claim's: ids alone are reused."""
        return (self.instance_id == instance.instance_id
                and self.instance == spec.of(instance))


@dataclasses.dataclass(frozen=True)
class FixedVgpus:
    """The fixed vGPUs that this library has created on a GPU.

    It may remove them again. A function keeps its type through reboots,
    because Nova knows it by its address.
    """

    types: Mapping[model.PciAddress, VgpuType] = dataclasses.field(
        default_factory=dict)
    """Virtual function to the type that it was given, ``nvidia-1145``."""
    instances: frozenset[spec.MigInstanceSpec] = frozenset()
    """The GPU instances created for them."""

    @property
    def is_empty(self) -> bool:
        return not self.types and not self.instances


@dataclasses.dataclass(frozen=True)
class SavedLayout:
    """The layout that a GPU gets again after a reboot.

    What is bound to handles, or was created for fixed vGPUs, is left out:
    it comes back with them.
    """

    gpu: model.PciAddress
    device_id: str
    """Of the board: on another one the same profile ids mean others."""
    vfs: bool
    """Whether it has virtual functions."""
    layout: spec.MigLayout


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of a GPU that is under way, or was when a process died.

    ``before`` is the GPU as it was before the first change that has not
    come to an end, so that a rollback goes all the way back.
    """

    gpu: model.PciAddress
    before: spec.MigLayout
    steps: tuple[str, ...] = ()
    """For people, in their order."""
    at: int = 0
    """Index of the step that was about to be taken."""
    touched: tuple[spec.MigInstanceSpec, ...] = ()
    """Each instance that a step was about, without compute instances."""
    vgpus: tuple[spec.VgpuSpec, ...] = ()
    """Each vGPU that a step has created, or may have."""
    problem: str | None = None
    """Why the rollback did not finish; None if it was not tried."""
    boot: str | None = None
    """Boot id of the machine when it began. None in records of earlier
    releases."""

    def __str__(self) -> str:
        if self.problem:
            return f'the rollback is blocked: {self.problem}'
        step = (self.steps[self.at] if self.at < len(self.steps)
                else 'the check at the end')
        return (f'step {self.at + 1} of {len(self.steps)} ({step}) was '
                'under way')


@dataclasses.dataclass(frozen=True)
class HealthRecord:
    """What is wrong with a GPU; a healthy one has none."""

    boot: str
    """Boot id of the machine when it was noted."""
    uuid: str | None = None
    """Of the board; None where it was never read."""
    ailments: tuple[health_conditions.Condition, ...] = ()


@dataclasses.dataclass(frozen=True)
class ReportedFacts:
    """What NVML alone knows of a GPU, and Cyborg compares."""

    model: str | None = None
    architecture: str | None = None
    uuid: str | None = None
    serial: str | None = None
    memory_mib: int | None = None


@dataclasses.dataclass(frozen=True)
class ReportedProvider:
    """A provider as it was last reported."""

    resource_class: str
    total: int
    handles: str
    """Digest of the set of attach handles."""


@dataclasses.dataclass(frozen=True)
class Reported:
    """A GPU as it was last reported to Cyborg."""

    device_id: str
    mode: str
    facts: ReportedFacts
    providers: Mapping[str, ReportedProvider]
    """By provider UUID."""


@dataclasses.dataclass(frozen=True)
class Nvlink:
    """How NVLink connects a GPU to others.

    NVML and the fabric manager tell it only while the GPUs are bound to
    NVIDIA's driver and the fabric manager runs.
    """

    boot: str
    """Boot id of the machine when ``module`` was read."""
    module: int | None = None
    """NVML's module id; None for a GPU that is on no NVSwitches."""
    groups: tuple[nvlink.Group, ...] = ()
    """All groups that the GPU is in."""


@dataclasses.dataclass(frozen=True)
class GpuRecord:
    """All that is kept of one GPU."""

    claims: tuple[Claim, ...] = ()
    claims_lost: bool = False
    """Whether a damaged record was set aside and the claims in it have to be
    found again, on the hardware and in Cyborg."""
    fixed: FixedVgpus = FixedVgpus()
    layout: SavedLayout | None = None
    """None for a GPU that no layout was applied to."""
    change: Change | None = None
    board: boards.Record | None = None
    """What NVML reported of the board when it was last asked, for as long as
    it cannot be asked."""
    sickness: HealthRecord | None = None
    """None for a GPU that is well."""
    tenancy: cleaning.Known | None = None
    """Who has a GPU in passthrough mode; None if that was never seen."""
    nvlink: Nvlink | None = None
    """None for a GPU that was never in mode nvlink."""
    reported: Reported | None = None
    """None for a GPU that Cyborg was not told of."""
    cordons: cordon.Cordons = ()
    """Why it gets no new server; at most one of each source."""
    errors: int = 0
    """Errors since the GPU was last uncordoned or its health was cleared.
    They are counted only if that may cordon it."""
    by_role: Mapping[str, role_facts.RoleFacts] = dataclasses.field(
        default_factory=dict)
    """Of a GPU in mode auto: how it was read in each of its roles."""

    @property
    def used_instances(self) -> frozenset[spec.MigInstanceSpec]:
        """The GPU instances that claims and fixed vGPUs have."""
        return self.fixed.instances | {
            claim.instance for claim in self.claims
            if claim.instance is not None}

    @property
    def owned_instances(self) -> frozenset[spec.MigInstanceSpec]:
        """The GPU instances that are explained: used, or of the layout."""
        laid_out = self.layout.layout.bare if self.layout else frozenset()
        return self.used_instances | laid_out

    def is_of(self, address: model.PciAddress) -> bool:
        """Whether every part is about the GPU at ``address``."""
        parts = (*self.claims, self.layout, self.change)
        return (all(part is None or part.gpu == address for part in parts)
                and all(address in claim.gpus for claim in self.claims))
