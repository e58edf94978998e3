# SPDX-License-Identifier: Apache-2.0

"""The steps that change a GPU: one vocabulary for all planners.

A step is a value. It can be printed before it is executed, and is written to
the GPU's record during the execution. The executor is
:mod:`cyborg_gpu_driver.program.steps.executor`.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import target


class Action(enum.Enum):
    """The kind of a step: a value for programs, and words for people."""

    words: str

    def __new__(cls, value: str, words: str) -> Action:
        """Make a member whose value is the first of its two parts."""
        action = object.__new__(cls)
        action._value_, action.words = value, words
        return action

    BIND_NVIDIA = 'bind-nvidia', 'bind it to nvidia'
    DISABLE_FUNCTIONS = (
        'disable-virtual-functions', 'disable virtual functions')
    """``sriov-manage -d``."""
    ENABLE_MIG = 'enable-mig', 'turn MIG mode on'
    """nvmlDeviceSetMigMode(1)."""
    DISABLE_MIG = 'disable-mig', 'turn MIG mode off'
    """nvmlDeviceSetMigMode(0)."""
    ENABLE_FUNCTIONS = 'enable-virtual-functions', 'enable virtual functions'
    """``sriov-manage -e``."""
    MIXED_ON = 'enable-mixed-sizes', 'turn mixed-size mode on'
    MIXED_OFF = 'disable-mixed-sizes', 'turn mixed-size mode off'
    SCHEDULER = 'set-scheduler', 'set the vGPU scheduler'
    DESTROY_VGPU = 'destroy-vgpu', 'destroy vGPU'
    DESTROY_COMPUTE = 'destroy-compute-instance', 'destroy compute instance'
    DESTROY_INSTANCE = 'destroy-instance', 'destroy instance'
    CREATE_INSTANCE = 'create-instance', 'create instance'
    """nvmlDeviceCreateGpuInstanceWithPlacement."""
    CREATE_COMPUTE = 'create-compute-instance', 'create compute instance'
    CREATE_VGPU = 'create-vgpu', 'create vGPU'
    ACTIVATE_PARTITION = (
        'activate-nvswitch-partition', 'activate NVSwitch partition')
    """fmActivateFabricPartitionWithVFs for a vGPU, or
    fmActivateFabricPartition for whole GPUs."""
    DEACTIVATE_PARTITION = (
        'deactivate-nvswitch-partition', 'deactivate NVSwitch partition')
    BIND_VFIO = 'bind-vfio', 'bind it to vfio-pci'


@dataclasses.dataclass(frozen=True)
class Step:
    """One step. It names a GPU instance by its placement, never by its id,
    because an instance that an earlier step creates has no id yet.
    """

    action: Action
    profile: model.GpuInstanceProfile | None = None
    """None if the step concerns no GPU instance, or if NVML lists no such
    profile."""
    placement: model.Placement | None = None
    """Of the GPU instance; None if the step concerns none."""
    slices: int | None = None
    """Of the compute instance; None if the step concerns none."""
    start: int | None = None
    """Position of the compute instance in its GPU instance, in compute
    slices; with None the driver chooses it."""
    vgpu: spec.VgpuSpec | None = None
    """None if the step concerns no vGPU."""
    fabric_partition: int | None = None
    """NVSwitch partition of the vGPU, or without a vGPU of whole GPUs; None
    if the step concerns none."""
    scheduler: tuple[model.SchedulerPolicy, int | None] | None = None
    """Policy and time slice in ns, for ``SCHEDULER``, and for a
    ``CREATE_INSTANCE`` whose vGPUs share the instance. A time slice of None
    means any."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without values that do not apply."""
        values = {
            'action': self.action.value,
            'profile': self.profile and self.profile.name,
            'start': self.placement and self.placement.start,
            'size': self.placement and self.placement.size,
            'compute_slices': self.slices, 'compute_start': self.start,
            'vgpu': self.vgpu and self.vgpu.type_id,
            'function': self.vgpu and str(self.vgpu.function)}
        return {key: value for key, value in values.items()
                if value is not None}

    def __str__(self) -> str:
        words = [self.action.words]
        if self.action is Action.SCHEDULER and self.placement is not None:
            words.append('of')
        if self.slices is not None:
            words.append(f'{self.slices}c')
            if self.start is not None:
                words.append(f'at slice {self.start}')
            words.append('in')
        if self.placement is not None:
            name = self.profile.name if self.profile else 'unknown profile'
            words.append(f'{name} at {self.placement}')
        if self.fabric_partition is not None:
            words.append(str(self.fabric_partition))
            if self.vgpu is not None:
                words.append('of')
        if self.vgpu is not None:
            words.append(str(self.vgpu))
        return ' '.join(words)


# A change to one GPU, as a value that can be printed before it is made.
#
# :mod:`cyborg_gpu_driver.partition.plan` creates it. Other modules carry
# it out.

@dataclasses.dataclass(frozen=True)
class Kept:
    """A live instance that stays as it is."""

    instance: model.GpuInstance
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
    steps: tuple[Step, ...] = ()
    """In this order each step is valid when its turn comes."""

    @property
    def is_empty(self) -> bool:
        """Whether the GPU is already as wanted."""
        return not self.steps

    def after(self) -> spec.MigLayout:
        """Return the layout that the GPU will have.

        Where a compute instance starts is an assumption: the driver decides.
        """
        stays = [spec.in_full(item.instance) for item in self.keep]
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

    def lines(self) -> tuple[str, ...]:
        """Return the plan for people: what stays, and the steps."""
        if self.is_empty:
            return (f'{self.gpu.address}: unchanged ({self.wanted})',)
        stays = [f' {self._name(item.instance)} at {item.instance.placement} '
                 + ('is in use' if item.in_use else 'stays')
                 for item in self.keep]
        return (
            f'{self.gpu.address}: will be {self.wanted}', *stays,
            *(f' {number:2}. {item}'
              for number, item in enumerate(self.steps, start=1)))

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


def steps(mig: model.Mig, destroy: Iterable[model.GpuInstance],
          create: Iterable[Created]) -> tuple[Step, ...]:
    """Return the steps between two changes of mode."""
    return tuple(itertools.chain(
        *(_destruction(mig, instance) for instance in destroy),
        *map(_creation, create)))


def _destruction(mig: model.Mig, instance: model.GpuInstance
                 ) -> Iterator[Step]:
    profile = mig.profile_by_id(instance.profile_id)
    for compute in instance.compute:
        yield Step(Action.DESTROY_COMPUTE, profile, instance.placement,
                   compute.size, compute.start)
    yield Step(Action.DESTROY_INSTANCE, profile, instance.placement)


def _creation(item: Created) -> Iterator[Step]:
    profile = item.wanted.profile
    yield Step(Action.CREATE_INSTANCE, profile, item.placement)
    for slices in item.wanted.compute:
        yield Step(Action.CREATE_COMPUTE, profile, item.placement, slices)
