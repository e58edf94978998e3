# SPDX-License-Identifier: Apache-2.0

"""vGPUs of NVIDIA's own VFIO driver, identified only by their function.

A virtual function is given to one tenant after another, so the driver must
prove that the vGPU on a function is unused before clearing it.
"""

from __future__ import annotations

import dataclasses
import time

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import health as host_health
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.fabric import reader as fabric
from cyborg_gpu_driver.host.nvml import modes
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.host.sysfs import functions
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu


def type_on(machine: platform.Platform, function: model.PciAddress
            ) -> str | None:
    """Type of the vGPU on a function (``nvidia-474``); None without one."""
    number = functions.MdevTree(machine.sysfs).current_vgpu_type(function)
    return f'nvidia-{number}' if number else None


def instance_under(machine: platform.Platform, function: model.PciAddress
                   ) -> int | None:
    """Id of the GPU instance that a function's vGPU lies on, if any."""
    return functions.MdevTree(machine.sysfs).vgpu_output(function,
                                                         'gpu_instance_id')


def check_idle(machine: platform.Platform, gpu: model.Gpu,
               function: model.PciAddress) -> None:
    """Check that the vGPU on a function is unused.

    :param gpu: the GPU of the function; the vGPUs on its functions are read
        again.
    """
    # Only root sees which files the processes of other users have open.
    machine = dataclasses.replace(
        machine, vfio_holders=privileged_vgpu.vfio_holders)
    usage.refuse_open(machine, function)
    if usage.may_run(machine, read_functions(machine, gpu), function):
        raise exception.GpuInUse(
            f'the vGPU {function} is in use: NVML has a virtual machine '
            'that runs one')


def read_functions(machine: platform.Platform, gpu: model.Gpu) -> model.Gpu:
    """The GPU with the vGPUs that are on its functions now."""
    tree = functions.MdevTree(machine.sysfs)
    return dataclasses.replace(gpu, vfs=tuple(
        dataclasses.replace(
            vf, current_vgpu_type=tree.current_vgpu_type(vf.address),
            gpu_instance_id=tree.vgpu_output(vf.address, 'gpu_instance_id'),
            placement_id=tree.vgpu_output(vf.address, 'placement_id'))
        for vf in gpu.vfs))


# Handing a whole GPU over: its record, and the driver to which it is bound.
#
# The nvidia driver does not release a GPU that is in use: its remove callback
# waits until the last use ends (nv_pci_remove_helper in
# kernel-open/nvidia/nv-pci.c of NVIDIA's open kernel modules). libvirt
# triggers that callback when it binds a GPU to vfio-pci for a server. So this
# module reads, records and closes a GPU, and binds it to vfio-pci, before a
# server can request it.

def hand_over(machine: platform.Platform, gpu: model.Gpu) -> None:
    """Bind a GPU to vfio-pci, after recording what NVML reports of it.

    :param gpu: of a complete snapshot that was taken just now.
    :raises StepFailed: if NVML says that it is unhealthy.
    """
    if gpu.driver == whole.NVIDIA:
        _keep(machine, gpu)
    bind(machine, gpu.address, whole.VFIO_PCI)


def bind(machine: platform.Platform, address: model.PciAddress,
         driver: str) -> None:
    """Bind a GPU to another driver, after this library has closed NVML."""
    with machine.nvml.alone():
        privileged_driver.bind(str(address), driver)
    record = machine.records.board(address)
    if driver == whole.NVIDIA and record is not None and record.persistence:
        with machine.nvml.alone():
            privileged_gpu.persist(str(address))


def roll_back(machine: platform.Platform, gpu: model.Gpu) -> bool:
    """Let a GPU be opened if a hand-over died just before the unbind.

    From its consent on, the driver opens the GPU for nobody until the unbind
    (:mod:`cyborg_gpu_driver.program.privileged.consent`). A GPU that was never
    handed over is not touched: a tool of the operator may be about to unbind
    it. The caller holds the GPU's lock.
    """
    if not was_cut_off(machine, gpu):
        return False
    with machine.nvml.alone():
        return privileged_driver.reopen(str(gpu.address))


def was_cut_off(machine: platform.Platform, gpu: model.Gpu) -> bool:
    """Whether the hand-over of a GPU may have died."""
    return (gpu.driver == whole.NVIDIA and not gpu.visible_to_nvml
            and machine.records.board(gpu.address) is not None)


def _keep(machine: platform.Platform, gpu: model.Gpu) -> None:
    """Record what NVML and PCI report of a GPU."""
    now = time.time()
    facts = host_health.read(machine.nvml, gpu.address)
    if not facts.answered:
        raise exception.StepFailed(reason='NVML does not return its health')
    verdict = health.judge(health.seen((), facts, now))
    if verdict.is_unhealthy:
        raise exception.StepFailed(
            reason='it is unhealthy: ' + '; '.join(verdict.reasons))
    with machine.nvml.kept():
        persistence = machine.nvml.optional(
            'nvmlDeviceGetPersistenceMode', machine.nvml.device(gpu.address))
        at_once, later = modes.kept(machine.nvml, gpu.address)
        module, on_switches = fabric.baseboard(machine, gpu.address)
    seen = host_health.read_pci(machine.sysfs, gpu.address)
    machine.records.keep_board(gpu.address, gpu_record.of(
        gpu, machine.boot_id(), now, machine.nvml.driver_version(),
        health=gpu_record.Health(verdict.state.value, verdict.reasons, now),
        persistence=bool(persistence), module=module, on_switches=on_switches,
        modes=dataclasses.replace(at_once, ecc=later.ecc),
        link_width=seen.width, aer_fatal=seen.fatal, bound_from=gpu.driver))
