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

"""Which role a GPU in mode auto has, and which it can take. Pure.

The current role follows only from the claims on the GPU and from what exists
on it. No second record of the role exists that could differ. A GPU on which
nothing is bound is idle, and rests in a state from which it can take every
role.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition.vgpu import types as vgpu_types

_WHOLE = policies.Mode.PASSTHROUGH
PARTITIONED = (policies.Mode.MIG, policies.Mode.VGPU)
"""Roles that a GPU takes at a bind, which Cyborg announces to the agent."""


def in_force(gpu: model.Gpu, claimed: Collection[policies.Mode]
             ) -> policies.Mode | None:
    """Return the role that a GPU has; None for an idle GPU.

    Hardware state without a claim counts too: an instance that another tool
    created also keeps the GPU in its role. Only Placement shows that a server
    has the whole GPU.

    :param claimed: the roles of the claims on the GPU.
    """
    if claimed:
        return (policies.Mode.MIG if policies.Mode.MIG in claimed
                else policies.Mode.VGPU)
    if gpu.mig is not None and gpu.mig.enabled:
        return (policies.Mode.MIG if gpu.vgpus or gpu.mig.instances
                else None)
    return policies.Mode.VGPU if gpu.vgpus else None


def resting(gpu: model.Gpu, policy: policies.Policy) -> policies.Mode:
    """Return the role in whose state an idle GPU is kept.

    Cyborg does not call the driver when a server gets a whole GPU, so a GPU
    that can be assigned as a whole is kept ready for that. A GPU takes every
    other role at a bind. A GPU that has only such roles stays as it is.
    """
    if _WHOLE in policy.roles:
        return _WHOLE
    return next((role for role in policy.roles if stands(gpu, role)),
                policy.roles[0])


def governs(policy: policies.Policy, gpu: model.Gpu) -> policies.Policy:
    """Return the policy of one mode that applies to a GPU now.

    :param policy: of any mode.
    """
    if policy.mode is not policies.Mode.AUTO:
        return policy
    return policy.in_role(in_force(gpu, ()) or resting(gpu, policy))


def stands(gpu: model.Gpu, role: policies.Mode) -> bool:
    """Whether a GPU is in the state of a role that partitions it."""
    if not gpu.visible_to_nvml or gpu.driver != drivers.NVIDIA:
        return False
    if gpu.sriov_totalvfs and not gpu.vfs:
        return False
    sliced = gpu.mig is not None and gpu.mig.enabled
    return sliced is (role is policies.Mode.MIG)


def unsupported(gpu: model.Gpu, role: policies.Mode) -> str:
    """Return why a board cannot have a role; empty if it may be able to.

    :param gpu: as read while NVML sees the GPU.
    """
    if role is policies.Mode.MIG and gpu.mig is None:
        return 'this GPU does not support MIG'
    if (role is policies.Mode.VGPU
            and not vgpu_types.of_mode(gpu, policies.Mode.VGPU)):
        return 'this GPU has no time-sliced vGPU types'
    return ''


def rules(policy: policies.Policy, role: policies.Mode, gpu: model.Gpu
          ) -> policies.Policy:
    """Return the policy of one role, with only that role's vGPU types.

    :param gpu: with the vGPU types that the GPU has in the role.
    """
    types = vgpu_types.types_of(gpu)
    return dataclasses.replace(
        policy.in_role(role),
        vgpu_types=tuple(name for name in policy.vgpu_types
                         if _may_be_of(role, name, types)),
        max_instances=tuple(item for item in policy.max_instances
                            if _may_be_of(role, item[0], types)))


def _may_be_of(role: policies.Mode, text: str,
               types: Iterable[vgpu_types.Type]) -> bool:
    """Whether neither the GPU nor its name shows that a vGPU type belongs to
    another role.
    """
    by_name = vgpu_types.Type(text, text)
    found = [kind for kind in types if kind.is_called(text)]
    if by_name.parsed is not None:
        found.append(by_name)
    return all(kind.is_mig_backed is (role is policies.Mode.MIG)
               for kind in found)
