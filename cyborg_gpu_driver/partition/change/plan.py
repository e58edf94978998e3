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


"""Plan the change of one GPU to what is wanted, as a whole.

Pure: takes a snapshot (with the compute instances of each GPU instance) and
returns a value that can be inspected before anything is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.partition.change import change
from cyborg_gpu_driver.partition.change import compute as compute_change
from cyborg_gpu_driver.partition.change import order as change_order
from cyborg_gpu_driver.partition.change import search as change_search
from cyborg_gpu_driver.partition.change import target
from cyborg_gpu_driver.partition.mig import geometry

_InUse = Mapping[model.Placement, str]
_NOBODY: _InUse = {}


def plan(gpu: model.Gpu, wanted: target.Wanted,
         in_use: _InUse = _NOBODY) -> change.Change:
    """Plan the change that destroys least and keeps everything in use.

    :param gpu: its current state, with its instances' compute instances.
    :param in_use: what uses the instance at a placement. Such an instance
        stays as it is; if that is impossible, there is no plan.
    :raises LayoutUnreachable: with the instance that prevents the change and
        what would fit beside it.
    """
    mig = gpu.mig
    if mig is None:
        if wanted.enabled:
            raise _unreachable(gpu, wanted, 'this GPU does not support MIG')
        return change.Change(gpu, wanted)
    if not wanted.enabled:
        return _disable(gpu, mig, wanted, in_use)
    solution = change_search.solve(
        geometry.Geometry(mig.profiles), mig.instances, in_use, wanted)
    if solution is None:
        raise _unreachable(gpu, wanted, _reason(mig, wanted, in_use))
    keep = tuple(
        change.Kept(item, choice, in_use.get(item.placement))
        for item, choice in solution.keep)
    staying = {item.instance for item in keep}
    destroy = tuple(sorted(item for item in mig.instances
                           if item not in staying))
    create = tuple(change.Created(placement, choice)
                   for placement, choice in solution.create)
    steps = change_order.steps(mig, keep, destroy, create)
    if not (mig.enabled and mig.pending):
        steps = (action.Step(action.Action.ENABLE_MIG), *steps)
    return change.Change(gpu, wanted, keep, destroy, create, steps)


def mode(gpu: model.Gpu, enabled: bool, in_use: _InUse = _NOBODY
         ) -> change.Change:
    """Plan the change of the MIG mode alone, which keeps all instances.

    Turning the mode off destroys the idle ones.

    :param gpu: with another mode, current or pending.
    :param in_use: as for :func:`plan`.
    :raises LayoutUnreachable: if an instance in use prevents the change.
    """
    wanted = target.Wanted(enabled)
    if gpu.mig is None:
        return change.Change(gpu, wanted)
    if not enabled:
        return _disable(gpu, gpu.mig, wanted, in_use)
    return dataclasses.replace(
        beside(gpu, gpu.mig, in_use),
        steps=(action.Step(action.Action.ENABLE_MIG),))


def beside(gpu: model.Gpu, mig: model.Mig, in_use: _InUse,
           destroy: tuple[model.GpuInstance, ...] = (),
           create: tuple[change.Created, ...] = ()) -> change.Change:
    """Plan a change that leaves all other instances as they are.

    :param in_use: as for :func:`plan`.
    """
    keep = tuple(change.Kept(item, in_use=in_use.get(item.placement))
                 for item in mig.instances if item not in destroy)
    return change.Change(gpu, target.Wanted(True), keep, destroy, create,
                         change_order.steps(mig, (), destroy, create))


def _disable(gpu: model.Gpu, mig: model.Mig, wanted: target.Wanted,
             in_use: _InUse) -> change.Change:
    used = [item for item in sorted(mig.instances)
            if item.placement in in_use]
    if used:
        raise _unreachable(gpu, wanted, '; '.join(
            _described(mig, item, in_use) for item in used))
    destroy = tuple(sorted(mig.instances))
    steps = change_order.steps(mig, (), destroy, ())
    if mig.enabled or mig.pending:
        steps = (*steps, action.Step(action.Action.DISABLE_MIG))
    return change.Change(gpu, wanted, destroy=destroy, steps=steps)


def _unreachable(gpu: model.Gpu, wanted: target.Wanted, reason: str
                 ) -> exception.LayoutUnreachable:
    return exception.LayoutUnreachable(
        address=gpu.address, wanted=wanted, reason=reason)


def _reason(mig: model.Mig, wanted: target.Wanted, in_use: _InUse) -> str:
    """Return why no plan exists, and what comes nearest."""
    if not change_search.fits_empty(mig, wanted):
        return ('it does not fit on this GPU even when the GPU is empty; '
                'there is room '
                'for ' + _named(change_search.largest(mig, wanted)))
    used = [item for item in sorted(mig.instances)
            if item.placement in in_use]
    blocking = _blocking(mig, used, wanted)
    part = change_search.largest(mig, wanted, used)
    return ('blocked by '
            + '; '.join(_described(mig, item, in_use) for item in blocking)
            + '; next to the instances in use there is room for '
              f'{_named(part)}')


def _blocking(mig: model.Mig, used: list[model.GpuInstance],
              wanted: target.Wanted) -> list[model.GpuInstance]:
    """Return each instance that alone prevents it; if none does, all."""
    grid = geometry.Geometry(mig.profiles)
    alone = []
    for item in used:
        others = {other.placement for other in used if other != item}
        if change_search.solve(grid, mig.instances, others, wanted):
            alone.append(item)
    return alone or [
        item for item in used if not _harmless(item, wanted)] or used


def _harmless(item: model.GpuInstance, wanted: target.Wanted) -> bool:
    """Whether an instance is a wanted one without any change."""
    return any(
        choice.profile.profile_id == item.profile_id
        and compute_change.cost(item, choice, True) is not None
        for packing in wanted.packings() for choice in packing)


def _described(mig: model.Mig, item: model.GpuInstance, in_use: _InUse) -> str:
    profile = mig.profile_by_id(item.profile_id)
    name = spec.profile_name(mig, item.profile_id)
    if profile and item.compute:
        sizes = sorted((compute.size for compute in item.compute),
                       reverse=True)
        name = str(target.WantedInstance(profile, tuple(sizes)))
    return f'{name} at {item.placement}, in use by {in_use[item.placement]}'


def _named(counts: Mapping[str, int]) -> str:
    return target.listed(counts) or 'nothing'
