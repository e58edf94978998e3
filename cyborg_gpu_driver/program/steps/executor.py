# SPDX-License-Identifier: Apache-2.0

"""The one executor: it takes the steps that change a GPU.

Each action makes one change through a privileged function and reads back the
result from the hardware. Other modules plan, record and roll back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable
from collections.abc import Iterator

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.host.sysfs import functions
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.program.steps import vfio

LOG = logging.getLogger(__name__)

GONE = frozenset({'NOT_FOUND', 'NOT_SUPPORTED'})
"""NOT_SUPPORTED: MIG mode is off, so no instance is left (NVML guide)."""
_REFUSALS = frozenset({'INSUFFICIENT_RESOURCES', 'INVALID_ARGUMENT',
                       'NOT_SUPPORTED', 'NO_PERMISSION', 'UNINITIALIZED'})


def was_refused(error: Exception) -> bool:
    """Whether this error of NVML means that it created no GPU instance.

    An instance at the placement then belongs to another tool. After any
    other error, and after any error of the calls that follow the creation,
    an instance may exist.
    """
    return (isinstance(error, exception.NvmlError)
            and error.call.startswith('nvmlDeviceCreateGpuInstance')
            and error.symbol in _REFUSALS)


def type_of(machine: platform.Platform, vgpu: spec.VgpuSpec) -> str | None:
    """Type of the existing vGPU in the place of ``vgpu``; None without one."""
    if vgpu.uuid is None:
        return vfio.type_on(machine, vgpu.function)
    return machine.sysfs.link_name(*functions.DEVICES, vgpu.uuid, 'mdev_type')


def take(machine: platform.Platform, address: model.PciAddress,
         *steps: change.Step, gpu: model.Gpu | None = None,
         instance: model.GpuInstance | None = None,
         done: list[str] | None = None) -> Executor:
    """Take steps on one GPU, whose record has the intent already.

    :param gpu, instance: see :class:`Executor`.
    :param done: each step that was taken is appended to it, for people.
    """
    runner = Executor(machine, address, gpu, instance)
    for step in steps:
        runner.take(step)
        if done is not None:
            done.append(str(step))
    return runner


class Executor:
    """Takes steps on one GPU and knows the resulting GPU instances.

    :param gpu: the GPU before the first step, with its compute instances if
        a step is about one. None is sufficient for steps about mdevs and
        about ``instance``.
    :param instance: a live instance that was read separately.
    :param may_reset: whether a change of the MIG mode may reset the GPU.
    """

    def __init__(self, machine: platform.Platform, address: model.PciAddress,
                 gpu: model.Gpu | None = None,
                 instance: model.GpuInstance | None = None,
                 may_reset: bool = True):
        self.pending = False
        """Whether the GPU waits for a reset that ``may_reset`` forbids."""
        self._machine = machine
        self._may_reset = may_reset
        self._gpu = gpu
        self._address = str(address)
        self._live = {
            known.placement: known
            for known in (*(gpu.mig.instances if gpu and gpu.mig else ()),
                          *filter(None, [instance]))}

    def take(self, step: change.Step) -> None:
        """Take one step."""
        _ACTIONS[step.action](self, step)

    def instance(self, placement: model.Placement | None
                 ) -> model.GpuInstance:
        """The live instance at a placement."""
        found = None if placement is None else self._live.get(placement)
        if found is None:
            raise _refused(f'there is no instance at {placement}')
        return found

    def _snapshot(self) -> model.Gpu:
        if self._gpu is None:
            raise _refused(f'GPU {self._address} was not read')
        return self._gpu

    def _switch_mig(self, step: change.Step) -> None:
        self.pending = not reset.switch(
            self._machine, self._snapshot(),
            step.action is change.Action.ENABLE_MIG, self._may_reset)

    def _create_instance(self, step: change.Step) -> None:
        """Create a GPU instance at its placement, and set its scheduler.

        The scheduler is set before the first vGPU, because NVML refuses it
        while a virtual machine runs. The step continues if that fails: a
        vGPU without its scheduler is better than none.
        """
        asked = step.placement
        if step.profile is None or asked is None:
            raise _refused(f'{step}: NVML lists no such profile')
        number, start, size = privileged.create_gpu_instance(
            self._address, step.profile.profile_id, asked.start, asked.size)
        made = model.GpuInstance(model.Placement(start, size),
                                 step.profile.profile_id, number)
        if made.placement != asked:
            # No record contains an instance at this placement.
            privileged.destroy_gpu_instance(self._address, number)
            raise _refused(f'{step}: the driver put it at {made.placement}')
        self._live[asked] = made
        if step.scheduler is not None:
            scheduling = dataclasses.replace(
                step, action=change.Action.SCHEDULER)
            try:
                self._schedule(scheduling)
            except exception.GpuDriverError as error:
                LOG.warning('GPU %(gpu)s: cannot %(step)s: %(error)s', {
                    'gpu': self._address, 'step': scheduling,
                    'error': error})

    def _destroy_instance(self, step: change.Step) -> None:
        """Destroy a GPU instance and its compute instances."""
        instance = self.instance(step.placement)
        for part in instance.compute:
            with _or_gone():
                privileged.destroy_compute_instance(
                    self._address, instance.instance_id, part.compute_id)
        with _or_gone():
            privileged.destroy_gpu_instance(self._address,
                                            instance.instance_id)
        del self._live[instance.placement]

    def _create_compute(self, step: change.Step) -> None:
        instance = self.instance(step.placement)
        number, start, size = privileged.create_compute_instance(
            self._address, instance.profile_id, instance.instance_id,
            step.start, step.slices)
        self._live[instance.placement] = dataclasses.replace(
            instance, compute=tuple(sorted((
                *instance.compute,
                model.ComputeInstance(start, size, number)))))

    def _destroy_compute(self, step: change.Step) -> None:
        """Destroy one compute instance, or all if the step names none."""
        instance = self.instance(step.placement)
        if step.slices is None:
            privileged.destroy_compute_instances(self._address,
                                                 instance.instance_id)
            self._live[instance.placement] = dataclasses.replace(
                instance, compute=())
            return
        for part in instance.compute:
            if part.size == step.slices and step.start in (None, part.start):
                break
        else:
            raise _refused(f'{step}: it does not exist')
        privileged.destroy_compute_instance(
            self._address, instance.instance_id, part.compute_id)
        self._live[instance.placement] = dataclasses.replace(
            instance, compute=tuple(
                other for other in instance.compute if other != part))

    def _create_vgpu(self, step: change.Step) -> None:
        """Create a vGPU, unless it exists."""
        vgpu = _vgpu(step)
        found = type_of(self._machine, vgpu)
        if found == vgpu.type_id:
            return
        if found is not None:
            raise _refused(f'there is a vGPU of type {found}')
        function = str(vgpu.function)
        if vgpu.uuid is None:
            self._check_creatable(vgpu)
            privileged_vgpu.set_vgpu_type(
                function, vgpu_name.type_number(vgpu.type_id))
        else:
            privileged_vgpu.create_mdev(function, vgpu.type_id, vgpu.uuid)
        if vgpu.placement_id is not None:
            try:
                privileged_vgpu.set_vgpu_placement(vgpu.uuid or function,
                                                   vgpu.placement_id)
            except exception.GpuDriverError:
                # A vGPU that exists counts as complete.
                self._destroy_vgpu(step)
                raise
        found = type_of(self._machine, vgpu)
        if found != vgpu.type_id:
            raise _refused(f'the kernel created a vGPU of type {found}')

    def _check_creatable(self, vgpu: spec.VgpuSpec) -> None:
        """Check that a function can have a vGPU of this type now.

        Each vGPU of the GPU changes which types can be created.
        """
        creatable = functions.MdevTree(self._machine.sysfs).creatable_types(
            vgpu.function)
        number = vgpu_name.type_number(vgpu.type_id)
        if creatable is not None and number not in creatable:
            raise exception.VgpuNotCreatable(
                vgpu=vgpu.name or vgpu.type_id, function=vgpu.function,
                creatable=', '.join(map(str, creatable)) or 'nothing')

    def _destroy_vgpu(self, step: change.Step) -> None:
        """Remove an unused vGPU, if it exists."""
        vgpu = _vgpu(step)
        if vgpu.uuid is not None:
            if self._machine.sysfs.exists(*functions.DEVICES, vgpu.uuid):
                with _or_gone():
                    privileged_vgpu.remove_mdev(vgpu.uuid)
        elif type_of(self._machine, vgpu) == vgpu.type_id:
            vfio.check_idle(self._machine, self._snapshot(), vgpu.function)
            privileged_vgpu.set_vgpu_type(str(vgpu.function), 0)

    def _activate(self, step: change.Step) -> None:
        privileged_fabric.activate(
            _partition(step),
            None if step.vgpu is None else str(step.vgpu.function))

    def _deactivate(self, step: change.Step) -> None:
        privileged_fabric.deactivate(_partition(step))

    def _switch_functions(self, step: change.Step) -> None:
        # sriov-manage unbinds the GPU from its driver.
        with self._machine.nvml.alone():
            privileged_gpu.set_virtual_functions(
                self._address,
                step.action is change.Action.ENABLE_FUNCTIONS)

    def _mix_sizes(self, step: change.Step) -> None:
        privileged_gpu.set_mixed_sizes(
            self._address, step.action is change.Action.MIXED_ON)

    def _schedule(self, step: change.Step) -> None:
        if step.scheduler is None:
            raise _refused(f'{step}: the step names none')
        scheduler, time_slice = step.scheduler
        if step.placement is None:
            _check_scheduler(self._snapshot().scheduler, scheduler,
                             time_slice)
            privileged_gpu.set_scheduler(self._address, scheduler.value,
                                         time_slice)
            return
        instance = self.instance(step.placement)
        if instance.scheduler is not None:
            _check_scheduler(instance.scheduler, scheduler, time_slice)
        privileged_gpu.set_instance_scheduler(
            self._address, instance.instance_id, scheduler.value, time_slice)

    def _bind(self, step: change.Step) -> None:
        gpu = self._snapshot()
        if step.action is change.Action.BIND_NVIDIA:
            vfio.bind(self._machine, gpu.address, whole.NVIDIA)
            return
        if gpu.driver == whole.NVIDIA:
            reset.clear_partitions(self._machine, gpu.address)
        vfio.hand_over(self._machine, gpu)


def _check_scheduler(now: model.Scheduler | None,
                     scheduler: model.SchedulerPolicy,
                     time_slice: int | None) -> None:
    """Check that a scheduler can be set: NVML would give no reason."""
    if now is None:
        reason = 'its driver does not schedule vGPUs'
    elif scheduler not in now.supported:
        reason = (f'it does not support {scheduler.value}, only '
                  + (', '.join(item.value for item in now.supported)
                     or 'nothing else'))
    elif (time_slice is not None and now.takes_slice
          and not now.min_time_slice <= time_slice <= now.max_time_slice):
        reason = (f'a time slice of {time_slice // 1000} microseconds is '
                  f'not within {now.min_time_slice // 1000} to '
                  f'{now.max_time_slice // 1000}')
    else:
        return
    raise _refused(reason)


@contextlib.contextmanager
def _or_gone() -> Iterator[None]:
    """Accept that what has to be destroyed does not exist any more."""
    try:
        yield
    except exception.NvmlError as error:
        if error.symbol not in GONE:
            raise
    except exception.SysfsError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def _partition(step: change.Step) -> int:
    if step.fabric_partition is None:
        raise _refused(f'{step}: the step names none')
    return step.fabric_partition


def _vgpu(step: change.Step) -> spec.VgpuSpec:
    if step.vgpu is None:
        raise _refused(f'{step}: the step names none')
    return step.vgpu


def _refused(reason: str) -> exception.StepFailed:
    return exception.StepFailed(reason=reason)


_Taken = Callable[[Executor, change.Step], None]
_ACTIONS: dict[change.Action, _Taken] = {
    change.Action.BIND_NVIDIA: Executor._bind,
    change.Action.DISABLE_FUNCTIONS: Executor._switch_functions,
    change.Action.ENABLE_MIG: Executor._switch_mig,
    change.Action.DISABLE_MIG: Executor._switch_mig,
    change.Action.ENABLE_FUNCTIONS: Executor._switch_functions,
    change.Action.MIXED_ON: Executor._mix_sizes,
    change.Action.MIXED_OFF: Executor._mix_sizes,
    change.Action.SCHEDULER: Executor._schedule,
    change.Action.DESTROY_VGPU: Executor._destroy_vgpu,
    change.Action.DESTROY_COMPUTE: Executor._destroy_compute,
    change.Action.DESTROY_INSTANCE: Executor._destroy_instance,
    change.Action.CREATE_INSTANCE: Executor._create_instance,
    change.Action.CREATE_COMPUTE: Executor._create_compute,
    change.Action.CREATE_VGPU: Executor._create_vgpu,
    change.Action.ACTIVATE_PARTITION: Executor._activate,
    change.Action.DEACTIVATE_PARTITION: Executor._deactivate,
    change.Action.BIND_VFIO: Executor._bind,
}
