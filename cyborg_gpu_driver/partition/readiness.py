# SPDX-License-Identifier: Apache-2.0

"""What a policy needs of a GPU, and the steps to get there. Pure.

Only this order works: NVIDIA's driver, MIG mode, virtual functions, then
mixed-size mode and the scheduler, or the driver for guests. Enabling or
disabling virtual functions (``sriov-manage``) may delete the GPU instances,
because it unbinds the driver, and resets mixed-size mode and the scheduler to
the driver's defaults. The MIG mode cannot change while virtual functions exist
("In use by another client"). In MIG mode each GPU instance that vGPUs share
has its own scheduler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterator

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy as policies

Action = change.Action


HARMLESS = frozenset({Action.BIND_VFIO})
"""Steps that take nothing from a shut-off server that has the GPU. The server
needs them to start again."""


@dataclasses.dataclass(frozen=True)
class Wants:
    """What a policy needs of one GPU; None leaves a setting as it is."""

    mig: bool | None = None
    """MIG mode."""
    vfs: bool | None = None
    """Whether there are to be virtual functions."""
    mixed: bool | None = None
    """Mixed-size mode."""
    scheduler: tuple[model.SchedulerPolicy, int | None] | None = None
    """Policy and time slice in ns; a time slice of None means any. In MIG mode
    this is the scheduler of each GPU instance that vGPUs share."""
    driver: str | None = None
    """``nvidia``, or ``vfio-pci`` for any driver that serves guests."""


def wants(gpu: model.Gpu, policy: policies.Policy) -> Wants:
    """Return what ``policy`` needs of ``gpu``.

    For a GPU that NVML does not see, only the driver matters: a setting that
    cannot be read cannot be changed safely. A GPU returns to nvidia only if
    this library took it from there. In MIG mode NVML does not report whether
    a GPU can mix sizes, so the GPU is assumed to be able until MIG mode is
    off.
    """
    if gpu.physfn is not None:
        return Wants()
    if policy.mode in policies.WHOLE:
        return _passthrough(gpu)
    if policy.mode is policies.Mode.OFF:
        return Wants()
    if not gpu.visible_to_nvml:
        return Wants(driver=gpu.bound_from)
    scheduler = policy.scheduler and (policy.scheduler, policy.time_slice)
    if policy.mode is policies.Mode.VGPU:
        mixed = None
        if gpu.mixed_sizes is not None or policy.mixed_sizes and (
                gpu.mig is not None and gpu.mig.enabled):
            mixed = policy.mixed_sizes
        return Wants(mig=_mig(gpu, False), vfs=_vfs(gpu, True), mixed=mixed,
                     scheduler=scheduler)
    return Wants() if gpu.mig is None else Wants(
        mig=True, vfs=_vfs(gpu, True), scheduler=scheduler)


def driver_only(gpu: model.Gpu, wanted: Wants) -> Wants:
    """Return what is wanted if nothing but the driver may be changed."""
    return Wants() if carved_up(gpu) else Wants(driver=wanted.driver)


def carved_up(gpu: model.Gpu) -> str:
    """Return why a GPU is not whole now; empty if it is."""
    if gpu.physfn is not None:
        return f'a virtual function of {gpu.physfn}'
    if gpu.mig is not None and gpu.mig.enabled:
        return 'partitioned: MIG mode is on'
    if gpu.vgpus:
        return f'partitioned: it has {len(gpu.vgpus)} vGPU(s)'
    if gpu.vfs or gpu.sriov_numvfs:
        return (f'partitioned: {len(gpu.vfs) or gpu.sriov_numvfs} virtual '
                'function(s) enabled')
    return ''


def steps(gpu: model.Gpu, wanted: Wants) -> tuple[change.Step, ...]:
    """Return the ordered steps from the state of ``gpu`` to what is wanted."""
    if wanted.driver == whole.NVIDIA and gpu.driver != whole.NVIDIA:
        return (change.Step(Action.BIND_NVIDIA),)
    modes = _modes(gpu, wanted)
    hand = (wanted.driver == whole.VFIO_PCI
            and not whole.is_vfio(gpu.driver))
    return (*map(change.Step, modes), *_schedulers(gpu, wanted, modes),
            *([change.Step(Action.BIND_VFIO)] if hand else ()))


def actions(gpu: model.Gpu, wanted: Wants) -> tuple[Action, ...]:
    """Return the actions of :func:`steps`."""
    return tuple(step.action for step in steps(gpu, wanted))


def instance_scheduler(gpu: model.Gpu, wanted: Wants, profile_id: int | None
                       ) -> tuple[model.SchedulerPolicy, int | None] | None:
    """Return the scheduler that a GPU instance of a profile needs.

    :returns: policy and time slice in ns; None if the instance needs no
        scheduler of its own, because vGPUs do not share it in time.
    """
    shared = any((kind.per_instance or 0) > 1 for kind in gpu.vgpu_types
                 if kind.gi_profile_id == profile_id)
    return wanted.scheduler if shared else None


def _modes(gpu: model.Gpu, wanted: Wants) -> list[Action]:
    """Return the actions that change a GPU as a whole, except its driver."""
    found = []
    there = bool(gpu.vfs or gpu.sriov_numvfs)
    vfs = there if wanted.vfs is None else wanted.vfs
    sliced = gpu.mig is not None and gpu.mig.enabled
    switched = wanted.mig is not None and wanted.mig is not sliced
    if there and (switched or not vfs):
        found.append(Action.DISABLE_FUNCTIONS)
        there = False
    if switched:
        found.append(Action.ENABLE_MIG if wanted.mig else Action.DISABLE_MIG)
    if vfs and not there:
        found.append(Action.ENABLE_FUNCTIONS)
    reset = Action.ENABLE_FUNCTIONS in found
    mixed = bool(gpu.mixed_sizes) and not reset
    if wanted.mixed is not None and wanted.mixed is not mixed:
        found.append(Action.MIXED_ON if wanted.mixed else Action.MIXED_OFF)
    return found


def _schedulers(gpu: model.Gpu, wanted: Wants, modes: Collection[Action]
                ) -> Iterator[change.Step]:
    """Yield the steps that set schedulers, which follow the mode changes."""
    if wanted.scheduler is None:
        return
    reset = Action.ENABLE_FUNCTIONS in modes
    if gpu.mig is not None and (
            gpu.mig.enabled if wanted.mig is None else wanted.mig):
        # No GPU instance is left after the modes change.
        for instance in () if modes else gpu.mig.instances:
            scheduler = instance_scheduler(gpu, wanted, instance.profile_id)
            if scheduler and not _schedules(instance.scheduler, *scheduler):
                yield change.Step(
                    Action.SCHEDULER,
                    gpu.mig.profile_by_id(instance.profile_id),
                    instance.placement, scheduler=scheduler)
    elif reset or not _schedules(gpu.scheduler, *wanted.scheduler):
        yield change.Step(Action.SCHEDULER, scheduler=wanted.scheduler)


def _passthrough(gpu: model.Gpu) -> Wants:
    if gpu.driver is None:
        # A GPU without a driver is not in use.
        return Wants(driver=whole.VFIO_PCI)
    if gpu.driver != whole.NVIDIA or not gpu.visible_to_nvml:
        # A driver other than NVIDIA's may drive a console; the operator
        # decides about it.
        return Wants()
    return Wants(mig=_mig(gpu, False), vfs=_vfs(gpu, False),
                 driver=whole.VFIO_PCI)


def _mig(gpu: model.Gpu, enabled: bool) -> bool | None:
    return None if gpu.mig is None else enabled


def _vfs(gpu: model.Gpu, enabled: bool) -> bool | None:
    """Return None if the GPU cannot have functions, as on Turing."""
    return enabled if gpu.sriov_totalvfs else None


def _schedules(now: model.Scheduler | None, policy: model.SchedulerPolicy,
               time_slice: int | None) -> bool:
    return now is not None and now.policy is policy and (
        time_slice is None or not now.takes_slice
        or now.time_slice == time_slice)
