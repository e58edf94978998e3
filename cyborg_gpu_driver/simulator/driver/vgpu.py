# SPDX-License-Identifier: Apache-2.0

"""The driver's rules for vGPUs: what can be created where, and creation."""

from __future__ import annotations

import errno
import os
import re

from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.driver import mig

_FIRST_ID = 3251634000
_FIRST_GROUP = 1000
_PARAM = r'[\w.-]+=[^\s,=]+'
_PARAMS = re.compile(rf'{_PARAM}(, *{_PARAM})*')


def available(gpu: gpu_module.Gpu, kind: spec.VgpuType,
              function: str) -> int:
    """How many vGPUs of a type a function can still carry."""
    if (gpu.framework == spec.NO_FRAMEWORK or gpu.unreachable
            or function not in gpu.vgpu_functions()):
        return 0
    if not gpu.vgpu_on_pf and gpu.vgpus_on(function):
        return 0
    room = _room(gpu, kind)
    return room if gpu.vgpu_on_pf else min(room, 1)


def _room(gpu, kind):
    same = sum(vgpu.type_id == kind.type_id for vgpu in gpu.state.vgpus)
    if kind.profile_id is not None:
        # Without MIG mode there are no GPU instances.
        return min(kind.max_instances - same,
                   sum(_instance_room(gpu, kind, instance_id)
                       for instance_id in gpu.state.instances))
    if gpu.state.mig:
        return 0
    if gpu.state.heterogeneous:
        return len(mig.free(gpu, kind))
    others = [gpu.model.vgpu_type(vgpu.type_id) for vgpu in gpu.state.vgpus]
    # One size at a time: a PF that carries vGPUs itself takes only more of
    # the same type; virtual functions take types with the same framebuffer.
    if any(other != kind if gpu.vgpu_on_pf
           else other.framebuffer_mib != kind.framebuffer_mib
           for other in others):
        return 0
    return max(0, kind.max_instances - len(others))


def _instance_room(gpu, kind, instance_id):
    """How many vGPUs of a type a GPU instance can still hold.

    A GPU instance holds vGPUs of one framebuffer size, and none while a
    process runs in it. The simulator lacks the mixed-size mode of GPU
    instances (nvmlGpuInstanceSetVgpuHeterogeneousMode).
    """
    if (gpu.state.instances[instance_id].profile_id != kind.profile_id
            or any(process.instance == instance_id
                   for process in gpu.state.processes)):
        return 0
    held = [gpu.model.vgpu_type(vgpu.type_id) for vgpu in gpu.state.vgpus
            if vgpu.instance == instance_id]
    if any(other.framebuffer_mib != kind.framebuffer_mib for other in held):
        return 0
    return max(0, kind.per_instance - len(held))


def create(gpu: gpu_module.Gpu, kind: spec.VgpuType, function: str,
           uuid: str | None) -> state_module.Vgpu:
    """Create a vGPU on a function.

    A MIG-backed vGPU takes the GPU instance of its profile that has room and
    the lowest id. This need not be the one that was created last.
    """
    if available(gpu, kind, function) < 1:
        raise faults.Unavailable()
    instance = None
    if kind.profile_id is not None:
        instance = min(
            instance_id for instance_id in gpu.state.instances
            if _instance_room(gpu, kind, instance_id))
    vgpu = state_module.Vgpu(
        vgpu_id=_FIRST_ID + gpu.machine.state.number(),
        type_id=kind.type_id, function=function, uuid=uuid,
        instance=instance, placement=_first_placement(gpu, kind, instance))
    gpu.state.vgpus.append(vgpu)
    return vgpu


def iommu_group(vgpu: state_module.Vgpu) -> int:
    """Return the number of an mdev's IOMMU group, which it has alone."""
    return _FIRST_GROUP + vgpu.vgpu_id - _FIRST_ID


def remove_mdev(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu) -> None:
    """Remove an mdev, as a write to its file ``remove`` does.

    mdev_device_remove in drivers/vfio/mdev/mdev_core.c of Linux does not
    refuse to remove an mdev in use. It leads to vfio_unregister_group_dev in
    drivers/vfio/vfio_main.c, which asks the user to give the device up (QEMU
    unplugs it from the guest), and waits until it is closed.
    """
    if not vgpu.holders:
        gpu.state.vgpus.remove(vgpu)
        return
    if not vgpu.removing:
        vgpu.removing = True
        gpu.harm(f'mdev {vgpu.uuid} removed while a process has it open')
    raise faults.Waits()


def _first_placement(gpu, kind, instance):
    """The placement that the driver chooses if none is requested."""
    if gpu.state.heterogeneous:
        return mig.free(gpu, kind)[0]
    taken = {vgpu.placement for vgpu in gpu.state.vgpus
             if vgpu.instance == instance}
    return next(number for number in range(len(taken) + 1)
                if number not in taken)


def set_params(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu,
               text: str) -> None:
    """Set plugin parameters from a text written to ``vgpu_params``.

    :param text: ``name=value[,name=value]``, which replaces the former
        parameters; a single space removes them. Names and values are not
        checked before a guest starts.
    """
    if vgpu.holders:
        raise OSError(errno.EBUSY, '')
    text = text.rstrip('\n')
    if _PARAMS.fullmatch(text) is None and not text.isspace():
        raise OSError(errno.EINVAL, '')
    vgpu.params = text.strip()
    if gpu.state.heterogeneous:
        mig.settle(gpu, vgpu)


def start_guest(gpu: gpu_module.Gpu, vgpu: state_module.Vgpu,
                pid: int) -> None:
    """Start a virtual machine, with this process id, on a vGPU."""
    mig.check(gpu, vgpu)
    if vgpu.function in gpu.state.wedged:
        gpu.harm(f'a guest on the dead function {vgpu.function}')
    vgpu.guest = True
    vgpu.holders.append(pid)


# The effect of NVIDIA's sriov-manage on a GPU.

def manage(gpu: gpu_module.Gpu, enable: bool, count: int | None,
           unless_open: bool = False) -> None:
    """Create or remove the virtual functions of a GPU.

    A GPU that already has virtual functions, or none, as requested does not
    change. Otherwise the driver is unbound for a moment: handles die, and the
    state that only the driver keeps is lost.

    :param count: how many; None for all that the model has.
    :param unless_open: refuse while a process has the GPU open, as the
        script must: it requests the driver's unbindLock
        (nv_procfs_close_unbind_lock in kernel-open/nvidia/nv-procfs.c of
        NVIDIA's open kernel modules).
    """
    total = gpu.model.totalvfs
    if not gpu.bound or not total:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    if enable == bool(gpu.state.vfs):
        return
    if gpu.busy() or unless_open and gpu.held():
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    wanted = total if count is None else min(count, total)
    gpu.state.vfs = wanted if enable else 0
    gpu.state.returned = True
    gpu.state.wedged.clear()
    gpu.forget_settings()
