# SPDX-License-Identifier: Apache-2.0

"""An offer, and what all kinds of offers have in common. Pure."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition import spec

PASSTHROUGH = policies.Mode.PASSTHROUGH.value
"""The profile of a GPU that one server gets as a whole."""

LEFT_TO_NOVA = 'fixed_vgpus: Nova assigns these vGPUs'
NO_FUNCTIONS = ('no virtual functions; they will be enabled when the GPU is '
                'idle')


@dataclasses.dataclass(frozen=True)
class Held:
    """A vGPU that is known to lie on a GPU instance.

    The driver does not report the GPU instance of an mdev. For mdevs the
    records of the GPUs are the source.
    """

    instance: spec.MigInstanceSpec
    """The GPU instance."""
    type_id: str
    """The vGPU's type, ``nvidia-474``."""
    exists: bool = True
    """Whether the instance exists. If not, it is not created yet, or was
    lost at a reboot, and an instance in its place belongs to another tool."""


@dataclasses.dataclass(frozen=True)
class Situation:
    """The parts of an elastic GPU's record that its offers depend on."""

    claimed: frozenset[policies.Mode] = frozenset()
    """The roles of the claims on it."""
    by_role: roles.FactsByRole = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Offer:
    """One thing that can be requested from one GPU, and how much there is.

    ``total`` and ``parents`` depend on the GPU and the policy, never on what
    is in use, because Cyborg cannot withdraw a handle. ``in_use`` counts
    everything that exists, whatever created it. ``creatable`` is never more
    than ``total`` minus ``in_use``.
    """

    gpu: model.PciAddress
    policy: str
    """The policy's name; empty in :func:`possible_offers`."""
    mode: policies.Mode
    profile: str
    """``passthrough``, a GPU instance profile (1g.10gb), or a vGPU type
    (T4-2B)."""
    total: int
    in_use: int = 0
    creatable: int = 0
    """How many more could be created now, if nothing else is created."""
    gi_profile_id: int | None = None
    vgpu_type_id: str | None = None
    """The mdev type, ``nvidia-474``."""
    parents: tuple[model.PciAddress, ...] = ()
    """Functions that the handles name: the GPU itself, or ``total`` VFs."""
    framework: model.Framework = model.Framework.NONE
    """How one is created; NONE for a whole GPU."""
    per_instance: int = 1
    """How many vGPUs one GPU instance holds, if the offer needs one."""
    framebuffer_mib: int = 0
    """Of its vGPU type; a GPU instance holds vGPUs of one size only."""
    isolated: bool = False
    """Whether all servers on the GPU must belong to one project."""
    members: tuple[model.PciAddress, ...] = ()
    """Of a group of GPUs: all of them."""
    board: str = ''
    """Of a group of GPUs: their model."""
    problem: str = ''
    """Why this cannot be offered now; empty if it can."""
    busy: str = ''
    """Why none can be created for the moment, although it can be offered, for
    example because processes of the machine use the GPU. Empty otherwise."""
    withdrawn: bool = False
    """Whether the GPU offered it before and does not any more."""
    function: model.PciAddress | None = None
    """Of what Cyborg's own driver offered: the GPU or a VF. ``profile`` is
    its resource class then."""

    @property
    def lasting(self) -> Offer:
        """The part that the attach handles depend on."""
        return Offer(
            self.gpu, '', self.mode, self.profile, self.total,
            vgpu_type_id=self.vgpu_type_id,
            parents=tuple(sorted(self.parents)), members=self.members,
            board=self.board, withdrawn=self.withdrawn,
            function=self.function)


def nothing(gpu: model.Gpu, policy: policies.Policy, profile: str,
            problem: str) -> Offer:
    """Return an offer of none, for what a policy names and a GPU lacks."""
    return Offer(gpu=gpu.address, policy=policy.name, mode=policy.mode,
                 profile=profile, total=0, problem=problem)


def no_function_left(policy: policies.Policy) -> str:
    """Return why an offer has no handle: others use all functions."""
    return ('every virtual function is reserved for another type: use fewer '
            f'types in policy {policy.name}, or limit them with max_instances')


def unreported(gpu: model.Gpu, policy: policies.Policy) -> str:
    """Return why Cyborg cannot bind vGPUs of this GPU; or ``''``."""
    if fixed.is_left(gpu, policy):
        return LEFT_TO_NOVA
    if gpu.framework is not model.Framework.NONE:
        return ''
    if gpu.sriov_totalvfs and not gpu.vfs:
        return NO_FUNCTIONS
    return 'the kernel driver of this GPU does not support vGPUs'
