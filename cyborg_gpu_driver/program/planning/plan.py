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

"""What a bind will do, decided before anything is touched. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.mig import geometry
from cyborg_gpu_driver.partition.mig import score
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.partition.vgpu import placement as vgpu_placement
from cyborg_gpu_driver.partition.vgpu import types as vgpu_types
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program.planning import request


@dataclasses.dataclass(frozen=True)
class BindPlan:
    """One bind: the function for its vGPU, and in mode mig its instance."""

    function: model.PciAddress
    profile_id: int | None = None
    placement: model.Placement | None = None
    """Of the GPU instance."""
    instance_id: int | None = None
    """Of an instance of ours that others are on; None where one is to be
    created."""
    vgpu_placement: int | None = None
    """Placement id among vGPUs of mixed sizes."""


def held(gpu: model.Gpu, entries: Sequence[journal.Entry]
         ) -> tuple[offers.Held, ...]:
    """Which vGPUs lie on which GPU instances of ours.

    Of vendor VFIO the driver tells. Of an mdev it does not: that one is
    taken to be where the journal has it, because the driver fills the
    instances of a profile in an order of its own, and how many vGPUs there
    are on all of them stays the same.

    :param entries: the journal's of the GPU.
    """
    told = {function.address for function in gpu.vfs
            if function.gpu_instance_id is not None}
    ours = {instance.instance_id: instance.placement
            for instance in _ours(gpu, entries)}
    found = [offers.Held(entry.placement, entry.mdev_type)
             for entry in entries
             if entry.placement is not None and entry.function not in told]
    found.extend(offers.Held(ours[vgpu.instance_id], vgpu.type_id)
                 for vgpu in gpu.vgpus if vgpu.instance_id in ours)
    return tuple(found)


def find_offer(gpu: model.Gpu, available: tuple[offers.Offer, ...],
               asked: request.Request) -> offers.Offer:
    """The offer that a request is about.

    :param available: what the GPU's policy offers.
    :raises BindRefused: if no handle of this GPU has that function and
        type, or its offer cannot be served now.
    """
    for offer in available:
        if (offer.vgpu_type_id == asked.mdev_type
                and asked.function in offer.parents):
            if offer.problem:
                raise refusal(asked, offer.problem)
            return offer
    if gpu.problems and not gpu.visible_to_nvml:
        raise refusal(asked, f'the GPU at {gpu.address} cannot be read: '
                      + '; '.join(gpu.problems))
    types = sorted({offer.vgpu_type_id for offer in available
                    if offer.vgpu_type_id})
    raise refusal(asked, 'no handle was reported with that function and '
                  f'type; the GPU at {gpu.address} offers '
                  + (', '.join(types) or 'no vGPU types'))


def plan(gpu: model.Gpu, available: Sequence[offers.Offer],
         offer: offers.Offer, asked: request.Request,
         entries: Sequence[journal.Entry], share: bool = True) -> BindPlan:
    """Where the request goes on ``gpu`` as it is now.

    :param available: all that is offered on the GPU, ``offer`` among it.
    :param entries: the journal's of the GPU.
    :param share: whether an instance that is there may be used.
    :raises BindRefused: if there is no room, naming what is in the way.
    """
    function = _parent(gpu, asked, entries)
    if offer.mode is not policy.Mode.MIG:
        return BindPlan(function, vgpu_placement=_placement_id(
            gpu, available, offer, asked, entries))
    shared = _shared(gpu, offer, entries) if share else None
    if shared is not None:
        return BindPlan(function, shared.profile_id, shared.placement,
                        shared.instance_id)
    mig = gpu.mig
    profile = spec.profile(gpu, offer.gi_profile_id)
    if mig is None or profile is None:
        raise refusal(asked, 'the GPU has no such profile now')
    grid = geometry.Geometry(mig.profiles)
    start = score.choose_start(
        grid, grid.occupancy_of((*mig.instances,
                                 *_unfinished(mig, entries))), profile)
    if start is None:
        raise refusal(asked, f'no room for {offer.profile} next to '
                      + _instances(mig))
    return BindPlan(function, profile.profile_id, start)


def refusal(asked: request.Request, reason: str) -> exception.BindRefused:
    """A refused bind, for the reason."""
    return exception.BindRefused(
        handle=asked.handle, asked_type=asked.mdev_type,
        address=asked.function, reason=reason)


def _parent(gpu: model.Gpu, asked: request.Request,
            entries: Iterable[journal.Entry]) -> model.PciAddress:
    """The function that the handle names, which has to be empty.

    Nova looks for the vGPU there and nowhere else
    (:mod:`cyborg_gpu_driver.partition.vgpu.functions`). A virtual function
    holds one vGPU. One that a guest would not let go of at its unbind is
    still its handle's in the journal.

    :raises BindRefused: if the virtual function is not free.
    """
    if asked.function == gpu.address:
        return gpu.address
    owner = next((entry.handle for entry in entries
                  if entry.function == asked.function), None)
    if owner is not None:
        raise refusal(asked, 'that virtual function carries a vGPU of handle '
                      f'{owner}')
    there = [vgpu.name for vgpu in gpu.vgpus
             if vgpu.function == asked.function]
    if there:
        raise refusal(asked, f'that virtual function carries vGPU {there[0]} '
                      'that this driver did not make')
    return asked.function


def _shared(gpu: model.Gpu, offer: offers.Offer,
            entries: Sequence[journal.Entry]) -> model.GpuInstance | None:
    """The fullest instance of ours with room for one more vGPU.

    An instance takes vGPUs of one framebuffer size. What somebody else has
    created is not ours to fill.
    """
    if offer.per_instance < 2:
        return None
    sizes = {kind.type_id: kind.framebuffer_mib
             for kind in vgpu_types.types_of(gpu)}
    there = collections.defaultdict(list)
    for vgpu in held(gpu, entries):
        there[vgpu.placement].append(sizes.get(vgpu.type_id))
    return max(
        (instance for instance in _ours(gpu, entries)
         if instance.profile_id == offer.gi_profile_id
         and len(there[instance.placement]) < offer.per_instance
         and set(there[instance.placement]) <= {offer.framebuffer_mib}),
        key=lambda instance: (len(there[instance.placement]),
                              instance.placement), default=None)


def _unfinished(mig: model.Mig, entries: Iterable[journal.Entry]
                ) -> list[spec.MigInstanceSpec]:
    """Instances that are being made or removed, whatever is there now.

    One whose id is not known yet is known by its place alone.
    """
    live = {spec.of(instance) for instance in mig.instances}
    return [entry.instance for entry in entries
            if entry.instance is not None
            and entry.phase is not journal.Phase.BOUND
            and entry.instance not in live]


def _ours(gpu: model.Gpu, entries: Iterable[journal.Entry]
          ) -> list[model.GpuInstance]:
    """The live instances that the journal has; ids alone are reused."""
    return [instance for instance in (gpu.mig.instances if gpu.mig else ())
            if any(entry.is_on(instance) for entry in entries)]


def _placement_id(gpu: model.Gpu, available: Iterable[offers.Offer],
                  offer: offers.Offer, asked: request.Request,
                  entries: Iterable[journal.Entry]) -> int | None:
    """Where on a GPU of mixed sizes; None where the driver sees to that.

    What was promised before is spoken for, also while no guest runs on it
    and NVML may call it free.
    """
    if not gpu.mixed_sizes:
        return None
    known = {kind.mdev_type_id: kind for kind in gpu.vgpu_types}
    taken = [model.Placement(entry.vgpu_placement,
                             known[entry.mdev_type].placement_size or 0)
             for entry in entries
             if entry.vgpu_placement is not None
             and entry.mdev_type in known]
    chosen = vgpu_placement.choose(
        [known[other.vgpu_type_id] for other in available
         if other.vgpu_type_id in known and not other.problem],
        known[offer.vgpu_type_id or ''], taken)
    if chosen is None:
        raise refusal(asked, f'no placement is left for {offer.profile} '
                      f'among {len(gpu.vgpus)} vGPUs of mixed sizes')
    return chosen


def _instances(mig: model.Mig) -> str:
    names = []
    for instance in mig.instances:
        profile = mig.profile_by_id(instance.profile_id)
        names.append('{}@{}'.format(
            profile.name if profile else f'profile {instance.profile_id}',
            instance.placement.start))
    return ', '.join(names) or 'nothing (the profile fits nowhere)'
