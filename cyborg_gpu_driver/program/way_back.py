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

"""The steps from how a GPU is to how it was. Pure."""

from __future__ import annotations

from collections.abc import Collection

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import spec


def steps(gpu: model.Gpu, before: spec.MigLayout,
          touched: Collection[spec.MigInstanceSpec]
          ) -> tuple[change.Step, ...]:
    """What brings back an earlier layout.

    Instances are recreated where they were, with the compute instances that
    they had; ids and UUIDs cannot be brought back. An instance that is in
    neither and was not touched is somebody else's and stays. The MIG mode
    is the caller's business: ``gpu`` is in the mode that ``before`` needs.

    :param gpu: as it is now, with compute instances.
    :param touched: the instances that the change may have created,
        destroyed or given other compute instances.
    """
    live = {spec.of(instance): instance for instance in gpu.mig.instances}
    wanted = {item.bare: item for item in before.instances}
    away: list[change.Step] = []
    anew: list[change.Step] = []
    for place, instance in sorted(live.items()):
        if place not in touched:
            continue
        if place not in wanted:
            away.append(_step(gpu, change.Action.DESTROY_INSTANCE, place))
            continue
        had = set(wanted[place].compute)
        has = {(part.start, part.size) for part in instance.compute}
        away.extend(_compute(gpu, change.Action.DESTROY_COMPUTE, place,
                             has - had))
        anew.extend(_compute(gpu, change.Action.CREATE_COMPUTE, place,
                             had - has))
    for place, item in sorted(wanted.items()):
        if place not in live:
            anew.append(_step(gpu, change.Action.CREATE_INSTANCE, place))
            anew.extend(_compute(gpu, change.Action.CREATE_COMPUTE, place,
                                 item.compute))
    return (*away, *anew)


def differences(gpu: model.Gpu, before: spec.MigLayout,
                touched: Collection[spec.MigInstanceSpec]) -> tuple[str, ...]:
    """What is still not as it was, for people; empty if all is back."""
    found = []
    mig = spec.layout_of(gpu)
    for what, is_now, was in (('MIG mode', mig.enabled, before.enabled),
                              ('pending MIG mode', mig.pending,
                               before.pending)):
        if is_now != was:
            found.append(f'{what} was {_mode(was)} and is {_mode(is_now)}')
    if gpu.mig is not None:
        found.extend(f'still to do: {step}'
                     for step in steps(gpu, before, touched))
    return tuple(found)


def _step(gpu, action, place, **compute):
    return change.Step(action=action, placement=place.placement,
                       profile=gpu.mig.profile_by_id(place.profile_id),
                       **compute)


def _compute(gpu, action, place, parts):
    return [_step(gpu, action, place, slices=size, start=start)
            for start, size in sorted(parts)]


def _mode(enabled):
    return 'on' if enabled else 'off'
