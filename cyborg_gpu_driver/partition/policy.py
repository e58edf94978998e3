# SPDX-License-Identifier: Apache-2.0

"""Which mode a GPU is in: the operator's policies, first match wins.

Pure: :mod:`cyborg_gpu_driver.conf.policies` makes these values from the
configuration file.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch

from cyborg_gpu_driver.host.snapshot import model


class Mode(enum.Enum):
    """What a GPU is for. A GPU has one mode at a time."""

    PASSTHROUGH = 'passthrough'
    """One server gets the whole GPU (PCI handle)."""
    VGPU = 'vgpu'
    """Time-sliced vGPUs."""
    MIG = 'mig'
    """MIG-backed vGPUs, each instance created when it is bound."""
    NVLINK = 'nvlink'
    """One server gets a group of whole GPUs that NVLink connects."""
    AUTO = 'auto'
    """Several of these modes, called roles. The first server decides which
    role the GPU takes. Once the GPU is idle again, it may take any role."""
    OFF = 'off'
    """Not offered at all."""


WHOLE = frozenset({Mode.PASSTHROUGH, Mode.NVLINK})
"""Modes in which servers get whole GPUs."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """One ``[gpu_policy:NAME]`` group.

    Each ``match_*`` is a tuple of alternatives. All that are not empty must
    match. ``profiles`` and ``vgpu_types`` name what is enabled. Empty
    ``profiles`` enables every profile that NVML lists.
    """

    name: str
    mode: Mode
    match_address: tuple[model.PciAddress, ...] = ()
    match_uuid: tuple[str, ...] = ()
    match_model: tuple[str, ...] = ()
    """Globs, case-insensitive, against NVML's name or the PCI device id."""
    match_numa_node: tuple[int, ...] = ()
    profiles: tuple[str, ...] = ()
    vgpu_types: tuple[str, ...] = ()
    max_instances: tuple[tuple[str, int], ...] = ()
    """vGPU types (name or mdev type), with the most vGPUs of each."""
    fixed_vgpus: tuple[tuple[str, int], ...] = ()
    """vGPU types, with how many of each the agent creates when it starts, on a
    GPU of vendor VFIO that is left to Nova's own PCI code."""
    mixed_sizes: bool = False
    """Mode vgpu: whether vGPUs of several sizes may be on the GPU together."""
    scheduler: model.SchedulerPolicy | None = None
    """How vGPUs share the GPU, or in mode mig a GPU instance. None leaves the
    scheduler as it is."""
    time_slice: int | None = None
    """Of the scheduler, in nanoseconds; None means the driver's default."""
    isolated: bool = False
    """Modes vgpu and mig: whether all servers on the GPU must belong to one
    project."""
    roles: tuple[Mode, ...] = ()
    """Mode auto: what an idle GPU may become."""
    nvlink_not_isolated: bool = False
    """Mode passthrough: whether to offer a GPU whose NVLinks may reach GPUs of
    other servers."""
    nvlink_sizes: tuple[int, ...] = ()
    """Mode nvlink: the sizes of the groups that are offered, in GPUs. Empty
    offers groups of every size."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that the GPU may have: its roles, or its one mode."""
        return self.roles or (self.mode,)

    def in_role(self, role: Mode) -> Policy:
        """Return the policy of a GPU that has taken one of its roles."""
        return dataclasses.replace(self, mode=role, roles=())

    def at_most(self, *names: str) -> int | None:
        """Return the maximum number of vGPUs of a type with these names."""
        return next((number for name, number in self.max_instances
                     if name in names), None)

    def matches(self, gpu: model.Gpu) -> bool:
        """Whether this policy applies to ``gpu``."""
        names = [name.lower() for name in (gpu.model, gpu.device_id) if name]
        return all((
            not self.match_address or gpu.address in self.match_address,
            not self.match_uuid or (gpu.uuid or '').lower() in map(
                str.lower, self.match_uuid),
            not self.match_model or any(
                fnmatch.fnmatchcase(name, glob.lower())
                for glob in self.match_model for name in names),
            not self.match_numa_node
            or gpu.numa_node in self.match_numa_node,
        ))


def automatic(gpu: model.Gpu) -> Policy:
    """Return the policy of a GPU if none is configured.

    The policy follows how the machine was prepared. A GPU in MIG mode with
    virtual functions is for MIG-backed vGPUs. Every other GPU is in
    passthrough mode, which
    :func:`cyborg_gpu_driver.partition.offer.offers.offers` then refuses for a
    GPU that is carved up.
    """
    sliced = gpu.mig is not None and gpu.mig.enabled and gpu.vfs
    return Policy(name='automatic',
                  mode=Mode.MIG if sliced else Mode.PASSTHROUGH)


def choose(gpu: model.Gpu, policies: tuple[Policy, ...] | None
           ) -> Policy | None:
    """Return the policy that governs ``gpu``.

    :param policies: in the operator's order; None if none are configured.
    :returns: None if policies are configured and none matches; the GPU is
        then not offered.
    """
    if policies is None:
        return automatic(gpu)
    return next((policy for policy in policies if policy.matches(gpu)), None)
