# SPDX-License-Identifier: Apache-2.0

"""What keeps a GPU from being changed, in words for people.

The driver never touches anything in use. It keeps all that this module finds,
and refuses a change that would affect it before the first step.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.record import gpu as gpu_record

_NEEDS_RESET = frozenset({'ampere'})
"""Architectures that change the MIG mode at their next reset (MIG guide)."""


def in_use(machine: platform.Platform, gpu: model.Gpu,
           claims: Iterable[gpu_record.Claim]
           ) -> dict[model.Placement, str]:
    """The users of the GPU instances in use, by placement.

    :param gpu: with its live instances.
    """
    if gpu.mig is None or not gpu.mig.instances:
        return {}
    claims = tuple(claims)
    found: dict[model.Placement, list[str]] = {
        instance.placement: [] for instance in gpu.mig.instances}
    places = {instance.instance_id: instance.placement
              for instance in gpu.mig.instances}
    for claim in claims:
        if claim.placement in found:
            found[claim.placement].append(f'bound to handle {claim.handle}')
    for process in usage.processes(machine, gpu.address):
        if process.instance_id in places:
            found[places[process.instance_id]].append(_process(process))
    running = usage.vgpus(machine, gpu)
    for name, number in running:
        if number in places:
            found[places[number]].append(f'vGPU {name}')
    _add_unplaced(gpu, found, {name for name, _ in running})
    return {place: ', '.join(reasons) for place, reasons in found.items()
            if reasons}


def of_mode(machine: platform.Platform, gpu: model.Gpu, enable: bool
            ) -> tuple[str, ...]:
    """What keeps a GPU from changing its MIG mode now, for people."""
    found = [_process(process)
             for process in usage.processes(machine, gpu.address)]
    found.extend(f'mdev {mdev.uuid} on {mdev.parent}'
                 for mdev in gpu.all_mdevs)
    found.extend(f'a vGPU on {function.address}' for function in gpu.vfs
                 if function.current_vgpu_type)
    if gpu.sriov_numvfs and (not enable
                             or gpu.architecture in _NEEDS_RESET):
        found.append(f'{gpu.sriov_numvfs} virtual functions (sriov-manage '
                     f'-d {gpu.address} removes them)')
    return tuple(found)


def of_preparing(machine: platform.Platform, gpu: model.Gpu,
                 claims: Iterable[gpu_record.Claim]) -> tuple[str, ...]:
    """What keeps a GPU from being made ready for another use, for people.

    GPU instances prevent it even if they are idle, because a change of the
    mode or of the virtual functions may destroy them. So does a vGPU, running
    or not: an unbind of the driver removes the vGPUs on the GPU itself
    (mdev_unregister_parent in drivers/vfio/mdev/mdev_core.c of the kernel),
    and a server with such a vGPU cannot start again.
    """
    found = [f'vGPU {vgpu.name} on {vgpu.function}' for vgpu in gpu.vgpus]
    if gpu.mig is not None:
        found.extend(f'GPU instance at {instance.placement}'
                     for instance in gpu.mig.instances)
    found.extend(f'bound to handle {claim.handle}' for claim in claims)
    return tuple(found) or of_running(machine, gpu)


def of_running(machine: platform.Platform, gpu: model.Gpu
               ) -> tuple[str, ...]:
    """Processes and virtual machines on a GPU, for people.

    The search for processes that have VFIO devices open takes long, so it is
    made only if nothing else was found.
    """
    if not gpu.visible_to_nvml:
        return _held(str(gpu.address))
    found = [_process(process)
             for process in usage.processes(machine, gpu.address)]
    found.extend(f'a guest with a {guest.type_id}'
                 for guest in usage.guests(machine, gpu))
    return tuple(found) or tuple(
        words for device in (*(str(function.address) for function in gpu.vfs),
                             *(mdev.uuid for mdev in gpu.all_mdevs))
        for words in _held(device))


def _held(device: str) -> tuple[str, ...]:
    """Processes that have a VFIO device open, for people."""
    return tuple(
        f'{device} is held by process {pid} '
        f'({open_files.process_name(pid)})'
        for pid in privileged_vgpu.vfio_holders(device))


def _add_unplaced(gpu: model.Gpu,
                  found: Mapping[model.Placement, list[str]],
                  placed: Container[str]) -> None:
    """Add the mdevs whose GPU instance is unknown.

    NVIDIA's driver puts an mdev on any instance of its profile that has room,
    so each of these instances may carry the mdev.
    """
    profiles = {vgpu_type.mdev_type_id: vgpu_type.gi_profile_id
                for vgpu_type in gpu.vgpu_types}
    instances = gpu.mig.instances if gpu.mig else ()
    for mdev in gpu.all_mdevs:
        profile_id = profiles.get(mdev.type_id)
        if mdev.uuid in placed or profile_id is None:
            continue
        for instance in instances:
            if (instance.profile_id == profile_id
                    and not found[instance.placement]):
                found[instance.placement].append(
                    f'mdev {mdev.uuid} may be on it')


def _process(process: nvml_process.Process) -> str:
    return f'process {process.pid} ({open_files.process_name(process.pid)})'
