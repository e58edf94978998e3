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

"""Which mode a GPU is in: the operator's policies, first match wins.

Pure: :mod:`cyborg_gpu_driver.conf.policies` makes these values from the
configuration file.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import model


class Mode(enum.Enum):
    """What a GPU is for. A GPU has one mode at a time."""

    PASSTHROUGH = 'passthrough'
    """The whole GPU to one server (PCI handle)."""
    VGPU = 'vgpu'
    """Time-sliced vGPUs."""
    MIG = 'mig'
    """MIG-backed vGPUs, each instance created when it is bound."""
    NVLINK = 'nvlink'
    """Whole GPUs that NVLink connects, as a group to one server."""
    AUTO = 'auto'
    """Several of these, its roles: what the GPU becomes, the first server
    decides, and when it is idle again it may become any of them."""
    OFF = 'off'
    """Not offered at all."""


WHOLE = frozenset({Mode.PASSTHROUGH, Mode.NVLINK})
"""Modes in which servers get whole GPUs."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """One ``[gpu_policy:NAME]`` group.

    Each ``match_*`` is a tuple of alternatives; the ones that are not empty
    must all match. ``profiles`` and ``vgpu_types`` name what is enabled;
    empty ``profiles`` enables every profile that NVML lists.
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
    """vGPU types (name or mdev type) and how many of each at most."""
    fixed_vgpus: tuple[tuple[str, int], ...] = ()
    """vGPU types and how many of each to make when the agent starts, on a
    GPU of vendor VFIO that is left to Nova's own PCI code."""
    mixed_sizes: bool = False
    """Mode vgpu: whether vGPUs of several sizes may live side by side."""
    scheduler: model.SchedulerPolicy | None = None
    """How vGPUs share the GPU, or in mode mig a GPU instance; None leaves it
    as it is."""
    time_slice: int | None = None
    """Of the scheduler, in nanoseconds; None is the driver's."""
    isolated: bool = False
    """Modes vgpu and mig: whether all servers on the GPU must be of one
    project."""
    roles: tuple[Mode, ...] = ()
    """Mode auto: what an idle GPU may become."""
    nvlink_sizes: tuple[int, ...] = ()
    """Mode nvlink: how many GPUs the groups have that are offered; empty
    offers groups of every size."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """All that the GPU may be used for: its roles, or its one mode."""
        return self.roles or (self.mode,)

    def in_role(self, role: Mode) -> Policy:
        """The policy of a GPU that has taken one of its roles."""
        return dataclasses.replace(self, mode=role, roles=())

    def at_most(self, *names: str) -> int | None:
        """How many vGPUs of the type called any of ``names`` at most."""
        return next((number for name, number in self.max_instances
                     if name in names), None)

    def matches(self, gpu: model.Gpu) -> bool:
        """Whether this policy speaks of ``gpu``."""
        return all((
            not self.match_address or gpu.address in self.match_address,
            not self.match_uuid or _same_uuid(gpu.uuid, self.match_uuid),
            not self.match_model or _like(gpu, self.match_model),
            not self.match_numa_node
            or gpu.numa_node in self.match_numa_node,
        ))


def _same_uuid(uuid: str | None, wanted: Iterable[str]) -> bool:
    return uuid is not None and uuid.lower() in (
        item.lower() for item in wanted)


def _like(gpu: model.Gpu, globs: Iterable[str]) -> bool:
    names = [name.lower() for name in (gpu.model, gpu.device_id) if name]
    return any(fnmatch.fnmatchcase(name, glob.lower())
               for glob in globs for name in names)


def restricted(policy: Policy, others: frozenset[str]) -> Policy:
    """A policy without the vGPU types that are none of its mode."""
    return dataclasses.replace(
        policy,
        vgpu_types=tuple(name for name in policy.vgpu_types
                         if name not in others),
        max_instances=tuple(item for item in policy.max_instances
                            if item[0] not in others))


def automatic(gpu: model.Gpu) -> Policy:
    """The policy where none is configured: as the machine was prepared.

    A GPU in MIG mode with virtual functions was made ready for MIG-backed
    vGPUs. Every other is in passthrough mode (which
    :func:`cyborg_gpu_driver.partition.offer.offers.offers` refuses again for a
    GPU that is carved up).
    """
    sliced = gpu.mig is not None and gpu.mig.enabled and gpu.vfs
    return Policy(name='automatic',
                  mode=Mode.MIG if sliced else Mode.PASSTHROUGH)


def choose(gpu: model.Gpu, policies: tuple[Policy, ...] | None
           ) -> Policy | None:
    """The policy that governs ``gpu``.

    :param policies: in the operator's order; None if none are configured.
    :returns: None if policies are configured and none matches: the GPU is
        then not offered.
    """
    if policies is None:
        return automatic(gpu)
    return next((policy for policy in policies if policy.matches(gpu)), None)
