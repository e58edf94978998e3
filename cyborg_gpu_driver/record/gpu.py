# SPDX-License-Identifier: Apache-2.0

"""The record of one GPU: all that outlives a process and a reboot. Pure.

A record has no live state of the GPU. Ids that the driver assigns are hints
to find an instance again, and are valid only in the boot that they are from.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Annotated
from typing import Any

from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.record import ledger as record_ledger


@dataclasses.dataclass(frozen=True)
class HealthRecord:
    """The health conditions of a GPU; a healthy GPU has no such record."""

    boot: str
    """Boot id of the machine when the conditions were noted."""
    uuid: str | None = None
    """UUID of the board; None if it was never read."""
    conditions: tuple[health.Condition, ...] = ()

    def in_boot(self, boot: str) -> HealthRecord:
        """The record, without what a reboot since then has cured."""
        if self.boot == boot:
            return self
        return dataclasses.replace(
            self, boot=boot,
            conditions=health.after_reset(self.conditions))

    def of_board(self, uuid: str | None) -> HealthRecord:
        """The record, emptied if it is of another board.

        :param uuid: UUID of the board; None if it is not known.
        """
        is_other = self.uuid and uuid and self.uuid != uuid
        return dataclasses.replace(
            self, uuid=uuid or self.uuid,
            conditions=() if is_other else self.conditions)


Handle = Annotated[str, vgpu_name.handle]
VgpuType = Annotated[str, vgpu_name.mdev_type]
AskedType = Annotated[str, vgpu_name.asked_type]


class Phase(enum.Enum):
    """How far a claim has come."""

    BINDING = 'binding'
    """Being created; rolled back if a process finds it at its start."""
    BOUND = 'bound'
    """Complete, and owned by the handle."""
    UNBINDING = 'unbinding'
    """Given back by Cyborg; the rest of its partition is to be removed."""


class _OfBoot:
    """A record that belongs to one boot of the machine."""

    boot: str | None
    """None if it is not known."""

    def is_past(self, boot: str) -> bool:
        """Whether the machine was restarted since."""
        return self.boot not in (None, boot)


@dataclasses.dataclass(frozen=True)
class Claim(_OfBoot):
    """The claim of one attach handle on a GPU.

    The claim is written before its partition is touched and again
    afterwards, so that the next process can finish the operation or roll it
    back. ``function`` is the function of its vGPU, which the handle names.
    The fields of the GPU instance are None for time-sliced vGPUs. Claims
    whose vGPUs share an instance have the same values in them.

    The handle of a group of GPUs has a claim on each of them. The claim on
    the first GPU says how far the bind or unbind has come: it is written
    first, removed last, and becomes bound after the others.
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
    vfio: bool = False
    """Whether the vGPU is of vendor VFIO: no mdev, and no UUID."""
    vgpu_placement: int | None = None
    """Placement id of the vGPU on a GPU of mixed sizes."""
    boot: str | None = None
    """Boot id of the machine when the instance was made. GPU instances do
    not outlive a boot, and their ids are reused (MIG User Guide). None if it
    is not known since a lost record was rebuilt."""
    fabric_partition: int | None = None
    """NVSwitch partition that is active for the claim. None if it needs none,
    or if it is not known since a lost record was rebuilt."""
    members: tuple[model.PciAddress, ...] = ()
    """The GPUs of a group; empty if the claim is on a part of a GPU."""
    repeats: int = 0
    """How often Cyborg has bound the handle again while it was bound. A
    repair that has found no request for it checks that this is unchanged."""
    since: float | None = None
    """When the bind was complete, in seconds of the epoch. None before that,
    and after a lost record was rebuilt."""
    until: float | None = None
    """When Cyborg gave the handle back; not before ``since``."""

    @property
    def gpus(self) -> tuple[model.PciAddress, ...]:
        """All GPUs that the handle has a claim on."""
        return self.members or (self.gpu,)

    @property
    def leads(self) -> bool:
        """Whether this is the claim on the handle's first or only GPU."""
        return self.gpu == self.gpus[0]

    @property
    def is_owned(self) -> bool:
        """Whether it takes one unit of what its GPU offers.

        A group counts only on its first GPU, which offers it.
        """
        return self.phase is Phase.BOUND and self.leads

    @property
    def is_group(self) -> bool:
        """Whether it is on a group of whole GPUs, and has no vGPU."""
        return bool(self.members)

    @property
    def is_mdev(self) -> bool:
        """Whether the vGPU is an mdev, which has the handle's UUID."""
        return not self.vfio and not self.is_group

    @property
    def vgpu_name(self) -> str:
        """The name of the vGPU: its function, or the mdev's UUID."""
        return str(self.function) if self.vfio else self.handle

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
        """The role that this claim gives to a GPU in mode auto."""
        return (policy.Mode.VGPU if self.placement is None
                else policy.Mode.MIG)

    def on_each(self, **changes: Any) -> tuple[Claim, ...]:
        """The claims of the handle on all of its GPUs, the first GPU's first.

        :param changes: changed fields, for all of the claims.
        """
        return tuple(dataclasses.replace(self, gpu=address, **changes)
                     for address in self.gpus)

    def is_on(self, instance: model.GpuInstance, boot: str) -> bool:
        """Whether a live instance is this claim's, by id and place.

        The id alone is not enough, because ids are reused. GPU instances do
        not outlive a boot (MIG User Guide), so the instance of a claim of an
        earlier boot is gone, whatever is in its place now.
        """
        return (not self.is_past(boot)
                and self.instance_id == instance.instance_id
                and self.instance == spec.of(instance))

    def made(self, instance: model.GpuInstance, boot: str) -> bool:
        """Whether the bind of this claim made a live instance.

        A process that died while it created an instance has not written the
        id. Then the claim's instance is the one in its place, which was free
        when the claim was written.
        """
        if self.instance_id is None and not self.is_past(boot):
            return self.instance == spec.of(instance)
        return self.is_on(instance, boot)


def claimed(claims: Iterable[Claim]) -> frozenset[policy.Mode]:
    """The roles that a GPU in mode auto has by its claims; at most one."""
    return frozenset(claim.role for claim in claims)


def owned(claims: Iterable[Claim], begun: Collection[str] = ()
          ) -> collections.Counter[str]:
    """How many handles are bound with each profile.

    :param begun: handles that count as bound already.
    """
    return collections.Counter(
        claim.profile for claim in claims
        if claim.is_owned or claim.leads and claim.handle in begun)


@dataclasses.dataclass(frozen=True)
class FixedVgpus:
    """The fixed vGPUs that this library has created on a GPU.

    The library may remove them again. A function keeps its type through
    reboots, because Nova identifies it by its address.
    """

    types: Mapping[model.PciAddress, VgpuType] = dataclasses.field(
        default_factory=dict)
    """Virtual function to its vGPU type, ``nvidia-1145``."""
    instances: frozenset[spec.MigInstanceSpec] = frozenset()
    """The GPU instances created for them."""

    @property
    def is_empty(self) -> bool:
        return not self.types and not self.instances


@dataclasses.dataclass(frozen=True)
class SavedLayout:
    """The layout that a GPU gets again after a reboot.

    It leaves out the instances of bound handles and of fixed vGPUs, which
    are restored with them.
    """

    gpu: model.PciAddress
    device_id: str
    """Device id of the board: profile ids differ between boards."""
    vfs: bool
    """Whether the GPU has virtual functions."""
    layout: spec.MigLayout


@dataclasses.dataclass(frozen=True)
class Change(_OfBoot):
    """A change of a GPU that is under way, or was when a process died.

    ``before`` is the layout before the first change that did not finish, so
    that a rollback goes all the way back.
    """

    gpu: model.PciAddress
    before: spec.MigLayout
    steps: tuple[str, ...] = ()
    """The steps as text for people, in order."""
    at: int = 0
    """Index of the step that was about to be taken."""
    touched: tuple[spec.MigInstanceSpec, ...] = ()
    """The instances that steps create, change or destroy, without compute
    instances."""
    vgpus: tuple[spec.VgpuSpec, ...] = ()
    """The vGPUs that steps have or may have created."""
    problem: str | None = None
    """Why the rollback did not finish; None if it was not tried."""
    boot: str | None = None
    """Boot id of the machine when the change began."""

    def __str__(self) -> str:
        if self.problem:
            return f'the rollback is blocked: {self.problem}'
        step = (self.steps[self.at] if self.at < len(self.steps)
                else 'the check at the end')
        return (f'step {self.at + 1} of {len(self.steps)} ({step}) was '
                'in progress')


@dataclasses.dataclass(frozen=True)
class ReportedFacts:
    """The facts of a GPU that only NVML knows and that Cyborg compares."""

    model: str | None = None
    architecture: str | None = None
    uuid: str | None = None
    serial: str | None = None
    memory_mib: int | None = None
    compute_capability: str | None = None
    driver_branch: str | None = None


MOST_UNITS = 1024
"""More than any GPU has. Each is an attach handle in the next report."""


def _reported(known: offer.Offer) -> offer.Offer:
    if not 1 <= known.total <= MOST_UNITS:
        raise ValueError(f'total: {known.total} is not from 1 to {MOST_UNITS}')
    if known.vgpu_type_id is not None:
        vgpu_name.asked_type(known.vgpu_type_id)
    return known


ReportedOffer = Annotated[offer.Offer, _reported]


@dataclasses.dataclass(frozen=True)
class Reported:
    """A GPU as it was last reported to Cyborg."""

    device_id: str
    mode: str
    facts: ReportedFacts
    providers: Mapping[str, ReportedOffer]
    """By provider UUID."""

    @property
    def is_whole(self) -> bool:
        """Whether a server can have the GPU alone, as a whole."""
        return self.mode in (policy.Mode.PASSTHROUGH.value,
                             policy.Mode.AUTO.value)


@dataclasses.dataclass(frozen=True)
class Nvlink:
    """How NVLink connects a GPU to other GPUs.

    NVML and the fabric manager tell this only while the GPUs are bound to
    NVIDIA's driver and the fabric manager runs.
    """

    boot: str
    """Boot id of the machine when ``module`` was read."""
    module: int | None = None
    """NVML's module id; None for a GPU without NVSwitches."""
    groups: tuple[nvlink.Group, ...] = ()
    """All groups that the GPU is in."""


@dataclasses.dataclass(frozen=True)
class GpuRecord:
    """All that is kept of one GPU."""

    claims: tuple[Claim, ...] = ()
    claims_lost: bool = False
    """Whether a damaged record was set aside, and its claims have to be
    rebuilt from the hardware and Cyborg."""
    fixed: FixedVgpus = FixedVgpus()
    layout: SavedLayout | None = None
    """None for a GPU that no layout was applied to."""
    change: Change | None = None
    board: boards.Record | None = None
    """NVML's last answers about the board, used while NVML cannot be asked."""
    health: HealthRecord | None = None
    """None for a healthy GPU."""
    tenancy: cleaning.Known | None = None
    """Who has a GPU in passthrough mode; None if that was never seen."""
    nvlink: Nvlink | None = None
    """None for a GPU that was never in mode nvlink."""
    reported: Reported | None = None
    """None for a GPU that was not reported to Cyborg."""
    cordons: cordon.Cordons = ()
    """Why the GPU gets no new server; at most one cordon of each source."""
    errors: int = 0
    """Errors since the GPU was last uncordoned or its health was cleared.
    They are counted only if that may cordon it."""
    by_role: Mapping[str, roles.RoleFacts] = dataclasses.field(
        default_factory=dict)
    """For a GPU in mode auto: what was read of it in each of its roles."""
    ledger: record_ledger.Ledger = record_ledger.Ledger()
    """How long servers have had the GPU or its parts. The store counts at
    each write."""

    @property
    def assigned(self) -> dict[str, str]:
        """The profiles that servers have, by handle, or server if whole.

        A group counts on its first GPU.
        """
        found = {claim.handle: claim.profile for claim in self.claims
                 if claim.is_owned}
        if (self.tenancy is not None
                and self.tenancy.state is cleaning.State.USED):
            found.update(dict.fromkeys(self.tenancy.tenants,
                                       policy.Mode.PASSTHROUGH.value))
        return found

    @property
    def situation(self) -> offer.Situation:
        """What the record of a GPU in mode auto says about its roles."""
        return offer.Situation(claimed(self.claims), self.by_role)

    @property
    def providers(self) -> frozenset[str]:
        """UUIDs of the GPU's providers that were reported to Cyborg."""
        return frozenset(self.reported.providers if self.reported else ())

    @property
    def owned_instances(self) -> frozenset[spec.MigInstanceSpec]:
        """The GPU instances of claims, fixed vGPUs and the layout."""
        laid_out = self.layout.layout.bare if self.layout else frozenset()
        return self.fixed.instances | laid_out | {
            claim.instance for claim in self.claims
            if claim.instance is not None}

    @property
    def has_server(self) -> bool:
        """Whether a server has the GPU, or a part of it."""
        return bool(self.claims) or (
            self.tenancy is not None
            and self.tenancy.state is cleaning.State.USED)

    @property
    def awaits_reset(self) -> bool:
        """Whether a GPU that is offered as a whole is not clean yet.

        In another mode, its last server as a whole does not matter.
        """
        return (self.tenancy is not None and self.tenancy.state.awaits_reset
                and self.reported is not None and self.reported.is_whole)

    def with_claims(self, claims: Iterable[Claim]) -> GpuRecord:
        """The record with claims, which replace those of the same handles."""
        by_handle = {claim.handle: claim for claim in (*self.claims, *claims)}
        return dataclasses.replace(self, claims=tuple(by_handle.values()))

    def is_of(self, address: model.PciAddress) -> bool:
        """Whether every part belongs to the GPU at ``address``."""
        parts = (*self.claims, self.layout, self.change)
        return (all(part is None or part.gpu == address for part in parts)
                and all(address in claim.gpus for claim in self.claims))
