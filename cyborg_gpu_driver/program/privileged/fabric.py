# SPDX-License-Identifier: Apache-2.0

"""Privileged calls to NVIDIA's fabric manager.

The fabric manager's socket may be accessible only to root
(FM_CMD_UNIX_SOCKET_PATH).
"""

from __future__ import annotations

from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host.fabric import config
from cyborg_gpu_driver.host.fabric import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged

_LIMIT = 1 << 31


@privsep.entrypoint
def own_partition(address: str) -> int | None:
    """The partition that has only one given GPU.

    :returns: None if the GPU is not on NVSwitches.
    :raises StepFailed: if the fabric manager has no such partition, or runs
        in another mode than the one for vGPUs.
    """
    gpu = model.PciAddress.parse(address)
    machine = privileged.machine()
    with privileged.gpu(address):
        module = reader.module_on_switches(machine, gpu)
    if module is None:
        return None
    mode = config.read(machine.fabric_config).mode
    if mode is not model.FabricMode.VGPU:
        raise exception.StepFailed(
            reason=f'GPU {gpu} is on NVSwitches and FABRIC_MODE of the '
            f'fabric manager is {mode.value}: CUDA would not start in the '
            'guest; FABRIC_MODE=2 is needed')
    found = model.Fabric({gpu: module},
                         partitions=machine.fabric.partitions()).single(gpu)
    if found is None:
        raise exception.StepFailed(
            reason=f'the fabric manager has no partition for GPU {gpu} alone')
    return found.partition_id


def takes_whole_gpu(gpu: model.Gpu, mdev_type: str) -> bool:
    """Whether a vGPU takes the whole GPU, so that it can have its NVLinks.

    The NVLinks belong to one virtual function ("vGPU Virtualization Model" in
    the fabric manager's user guide).
    """
    return any(kind.max_instances == 1 and kind.gi_profile_id is None
               for kind in gpu.vgpu_types if kind.mdev_type_id == mdev_type)


def partition_of_vgpu(gpu: model.Gpu, mdev_type: str) -> int | None:
    """The partition that a vGPU needs before its guest starts.

    :returns: None if it needs none.
    """
    if not takes_whole_gpu(gpu, mdev_type):
        return None
    return own_partition(str(gpu.address))


@privsep.entrypoint
def activate(partition_id: int, function: str | None = None) -> None:
    """Activate a partition: of one GPU for a vGPU, or of whole GPUs.

    A partition of a vGPU that is active already was left by a removed vGPU,
    and is deactivated first. One of whole GPUs is not touched, because its
    server may run.

    :param function: the function of the vGPU; None for whole GPUs.
    """
    privileged.check_number('fabric partition', partition_id, _LIMIT)
    address = (None if function is None
               else privileged.nvidia_function(function))
    session = privileged.machine().fabric
    is_active = partition_id in active_of(session.partitions())
    if address is not None:
        if is_active:
            session.deactivate(partition_id)
        session.activate_with_functions(partition_id, [address])
    elif not is_active:
        session.activate(partition_id)
        if partition_id not in active_of(session.partitions()):
            raise exception.StepFailed(
                reason='the fabric manager accepted partition '
                f'{partition_id} but has not activated it; see its log')


@privsep.entrypoint
def partitions(unsupported: bool
               ) -> list[tuple[int, list[tuple[int, str | None]], bool, bool]]:
    """All partitions.

    :returns: for each partition its number, the physical ids and addresses
        of its GPUs, whether it is active and whether it is supported.
    """
    session = privileged.machine().fabric
    found = session.partitions()
    return [(item.partition_id,
             [(member.physical_id,
               None if member.address is None else str(member.address))
              for member in item.members], item.active, item.supported)
            for item in (*found, *(session.unsupported() if unsupported
                                   else ()))]


def read_partitions(unsupported: bool = False
                    ) -> tuple[model.FabricPartition, ...]:
    """The result of :func:`partitions` as :class:`fabric.Partition` objects.
    """
    return tuple(
        model.FabricPartition(number, tuple(
            model.FabricMember(physical_id,
                               address and model.PciAddress.parse(address))
            for physical_id, address in members), active, supported)
        for number, members, active, supported in partitions(unsupported))


@privsep.entrypoint
def give_list(partition_ids: list[int]) -> None:
    """Tell a fabric manager that was started with ``--restart`` which
    partitions are active.
    """
    for partition_id in partition_ids:
        privileged.check_number('fabric partition', partition_id, _LIMIT)
    privileged.machine().fabric.restore(partition_ids)


@privsep.entrypoint
def deactivate(partition_id: int) -> None:
    """Deactivate a partition; does nothing if it is not active."""
    privileged.check_number('fabric partition', partition_id, _LIMIT)
    session = privileged.machine().fabric
    try:
        if partition_id in active_of(session.partitions()):
            session.deactivate(partition_id)
    except exception.FabricError as error:
        # The fabric manager was started in another mode, which ends all
        # partitions.
        if error.symbol != 'NOT_SUPPORTED':
            raise


def active_of(found: Iterable[model.FabricPartition]) -> set[int]:
    """The numbers of the active partitions."""
    return {item.partition_id for item in found if item.active}
