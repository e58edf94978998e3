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


"""A change to one GPU, as a value that can be printed before it is made.

:mod:`cyborg_gpu_driver.partition.change.plan` creates it. Other modules carry
it out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import picture
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.change import action
from cyborg_gpu_driver.partition.change import target


@dataclasses.dataclass(frozen=True)
class Kept:
    """A live instance that is kept, and its purpose in the new layout."""

    instance: model.GpuInstance
    wanted: target.WantedInstance | None = None
    """None for an instance that stays as it is."""
    in_use: str | None = None
    """What uses the instance; None for an idle one."""


@dataclasses.dataclass(frozen=True)
class Created:
    """An instance that will be created, with its placement."""

    placement: model.Placement
    wanted: target.WantedInstance


@dataclasses.dataclass(frozen=True)
class Change:
    """The change from what a GPU is to what is wanted."""

    gpu: model.Gpu
    """The GPU as it was when the change was planned."""
    wanted: target.Wanted
    keep: tuple[Kept, ...] = ()
    """Sorted by placement, like ``destroy`` and ``create``."""
    destroy: tuple[model.GpuInstance, ...] = ()
    create: tuple[Created, ...] = ()
    steps: tuple[action.Step, ...] = ()
    """In this order each step is valid when its turn comes."""

    @property
    def is_empty(self) -> bool:
        """Whether the GPU is already as wanted."""
        return not self.steps

    def after(self) -> spec.MigLayout:
        """Return the layout that the GPU will have.

        Where a compute instance starts is an assumption: the driver decides.
        """
        stays = [
            dataclasses.replace(spec.of(item.instance), compute=_laid_out(
                item.wanted.compute)) if item.wanted and item.in_use is None
            else spec.in_full(item.instance) for item in self.keep]
        comes = [
            spec.MigInstanceSpec(item.placement,
                                 item.wanted.profile.profile_id,
                                 _laid_out(item.wanted.compute))
            for item in self.create]
        enabled = self.wanted.enabled
        return spec.MigLayout(enabled, enabled,
                              tuple(sorted((*stays, *comes))))

    def to_dict(self) -> dict[str, Any]:
        """Return the whole plan for JSON."""
        return {
            'address': str(self.gpu.address),
            'mig_enabled': self.wanted.enabled,
            'wanted': dict(self.wanted.counts),
            'keep': [{
                **self._instance(item.instance.placement,
                                 self._name(item.instance)),
                'in_use': item.in_use} for item in self.keep],
            'destroy': [self._instance(item.placement, self._name(item))
                        for item in self.destroy],
            'create': [{
                **self._instance(item.placement, item.wanted.profile.name),
                'compute': list(item.wanted.compute)}
                for item in self.create],
            'steps': [item.to_dict() for item in self.steps]}

    def lines(self, pens: picture.Pens = picture.UNICODE
              ) -> tuple[str, ...]:
        """Return the plan for people: before, the steps, after."""
        if self.is_empty:
            return (f'{self.gpu.address}: unchanged ({self.wanted})',)
        before = {item.placement: 'goes' for item in self.destroy}
        before |= {item.instance.placement: 'in use' if item.in_use
                   else 'stays' for item in self.keep}
        after = {**before, **{
            item.placement: 'new' for item in self.create}}
        return (
            f'{self.gpu.address}: will be {self.wanted}',
            ' before', *picture.lines(self.gpu, before, pens),
            *(f' {number:2}. {item}'
              for number, item in enumerate(self.steps, start=1)),
            ' after', *picture.lines(self.gpu, after, pens, self.after()))

    def _name(self, instance: model.GpuInstance) -> str:
        profile = spec.profile(self.gpu, instance.profile_id)
        return profile.name if profile else f'id {instance.profile_id}'

    @staticmethod
    def _instance(placement: model.Placement, name: str) -> dict[str, Any]:
        return {'profile': name, 'start': placement.start,
                'size': placement.size}


def _laid_out(compute: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Place compute instances of these sizes one after the other."""
    starts = itertools.accumulate(compute, initial=0)
    return tuple(zip(starts, compute, strict=False))
