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

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import offers
from cyborg_gpu_driver.partition import planner
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program import request


@dataclasses.dataclass(frozen=True)
class BindPlan:
    """One bind: the mdev's parent and, in mode mig, the instance to cut."""

    function: model.PciAddress
    profile_id: int | None = None
    placement: model.Placement | None = None


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
    types = sorted({offer.vgpu_type_id for offer in available
                    if offer.vgpu_type_id})
    raise refusal(asked, 'no handle was reported with that function and '
                  f'type; the GPU at {gpu.address} offers '
                  + (', '.join(types) or 'no mdev types'))


def plan(gpu: model.Gpu, offer: offers.Offer,
         asked: request.Request) -> BindPlan:
    """Where the request goes on ``gpu`` as it is now.

    :raises BindRefused: if there is no room, naming what is in the way.
    """
    function = _parent(gpu, offer, asked)
    if offer.mode is not policy.Mode.MIG:
        return BindPlan(function)
    grid = geometry.Geometry(gpu.mig.profiles)
    profile = gpu.mig.profile_by_id(offer.gi_profile_id)
    start = planner.choose_start(
        grid, grid.occupancy_of(gpu.mig.instances), profile)
    if start is None:
        raise refusal(asked, f'no room for {offer.profile} beside '
                      + _instances(gpu))
    return BindPlan(function, profile.profile_id, start)


def refusal(asked: request.Request, reason: str) -> exception.BindRefused:
    """A refused bind, for the reason."""
    return exception.BindRefused(
        handle=asked.handle, asked_type=asked.mdev_type,
        address=asked.function, reason=reason)


def _parent(gpu, offer, asked):
    """The handle's own VF, or another if somebody has put an mdev on it.

    A VF holds one vGPU. Handles of profiles that never exist together may
    name the same VF, and an operator may have used one by hand; the server
    is given the mdev by its UUID, whichever VF it is on.
    """
    if offer.parents[0] == gpu.address:
        return gpu.address
    empty = [vf.address for vf in gpu.vfs if not vf.mdevs]
    if asked.function in empty:
        return asked.function
    if not empty:
        raise refusal(asked, 'every virtual function has an mdev')
    return empty[-1]


def _instances(gpu):
    names = []
    for instance in gpu.mig.instances:
        profile = gpu.mig.profile_by_id(instance.profile_id)
        names.append('{}@{}'.format(
            profile.name if profile else f'profile {instance.profile_id}',
            instance.placement.start))
    return ', '.join(names) or 'nothing (the profile fits nowhere)'
