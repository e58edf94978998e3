# SPDX-License-Identifier: Apache-2.0


"""Play a change without a GPU, and check each step against the rules."""

import dataclasses

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import geometry

Action = change.Action


class Refused(AssertionError):
    """A GPU would not carry out a step."""


def with_compute(gpu, layouts=None):
    """The GPU with compute instances in every GPU instance.

    :param layouts: sizes by start of the GPU instance; by default one
        compute instance fills it.
    """
    layouts = layouts or {}
    instances = []
    for item in gpu.mig.instances:
        slices = gpu.mig.profile_by_id(item.profile_id).slices
        sizes = layouts.get(item.placement.start, (slices,))
        instances.append(dataclasses.replace(
            item, compute=end_to_end(sizes)))
    return dataclasses.replace(gpu, mig=dataclasses.replace(
        gpu.mig, instances=tuple(instances)))


def end_to_end(sizes):
    """Compute instances of those sizes, one after the other."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return tuple(
        model.ComputeInstance(start, size, number)
        for number, (start, size) in enumerate(zip(starts, sizes)))


def made(planned):
    """The GPU as NVML would show it after the change."""
    if planned.gpu.mig is None:
        return planned.gpu
    layout = planned.after()
    return dataclasses.replace(planned.gpu, mig=dataclasses.replace(
        planned.gpu.mig, enabled=layout.enabled, pending=layout.pending,
        instances=tuple(
            model.GpuInstance(
                item.placement, item.profile_id, number,
                compute=tuple(
                    model.ComputeInstance(start, size, index)
                    for index, (start, size) in enumerate(item.compute)))
            for number, item in enumerate(layout.instances))))


def play(planned, in_use=()):
    """Carry out the steps.

    :returns: (MIG mode, {(profile id, placement): sorted sizes}).
    :raises Refused: at the first step that is not valid.
    """
    mig = planned.gpu.mig
    grid = geometry.Geometry(mig.profiles)
    there = {(item.profile_id, item.placement):
             [(compute.start, compute.size) for compute in item.compute]
             for item in mig.instances}
    mode = mig.enabled
    for step in planned.steps:
        if step.action in (Action.ENABLE_MIG, Action.DISABLE_MIG):
            if there:
                raise Refused(f'{step} with instances')
            mode = step.action is Action.ENABLE_MIG
            continue
        if not mode or step.placement in in_use:
            raise Refused(f'{step}: mode off or in use')
        _play(grid, there, step)
    return mode, {key: sorted(size for _start, size in compute)
                  for key, compute in there.items()}


def _play(grid, there, step):
    profile_id = step.profile.profile_id
    key = profile_id, step.placement
    if step.action is Action.CREATE_INSTANCE:
        if step.placement not in grid.free_placements(
                geometry.Occupancy(tuple(there)), step.profile):
            raise Refused(f'{step}: no room among {sorted(there)}')
        there[key] = []
    elif key not in there:
        raise Refused(f'{step}: there is none')
    elif step.action is Action.DESTROY_INSTANCE:
        if there.pop(key):
            raise Refused(f'{step} with compute instances')
    elif step.action is Action.DESTROY_COMPUTE:
        there[key].remove((step.start, step.slices))
    else:
        start = _free(there[key], step.slices, step.profile.slices)
        there[key].append((start, step.slices))


def _free(compute, slices, room):
    for start in (*range(0, room - slices + 1, slices),
                  *range(room - slices + 1)):
        if all(other + size <= start or start + slices <= other
               for other, size in compute):
            return start
    raise Refused(f'no {slices} free slices of {room} beside {compute}')
