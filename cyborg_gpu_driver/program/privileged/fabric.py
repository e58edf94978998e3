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

"""Privileged calls to NVIDIA's fabric manager.

As in :mod:`cyborg_gpu_driver.program.privileged.mig`, each operation checks
its arguments again and makes one change. The fabric manager's socket may be
accessible only to root (FM_CMD_UNIX_SOCKET_PATH).
"""

from __future__ import annotations

import contextlib

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import config
from cyborg_gpu_driver.host.fabric import reader
from cyborg_gpu_driver.host.snapshot import fabric
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged

_LIMIT = 1 << 31


@privsep.entrypoint
def own_partition(address: str) -> int | None:
    """The partition that has only one given GPU.

    :param address: the GPU's address.
    :returns: None if the GPU is not on NVSwitches.
    :raises StepFailed: if the fabric manager has no such partition, or runs
        in another mode than the one for vGPUs.
    :raises FabricError: if the fabric manager cannot be asked.
    :raises NvmlError: if NVML does not report the GPU's NVLinks.
    """
    gpu = model.PciAddress.parse(address)
    machine = privileged.machine()
    with privileged.gpu(address):
        module = reader.module_on_switches(machine, gpu)
    if module is None:
        return None
    mode = config.read(machine.fabric_config).mode
    if mode is not fabric.Mode.VGPU:
        raise exception.StepFailed(
            reason=f'GPU {gpu} is on NVSwitches and FABRIC_MODE of the '
            f'fabric manager is {mode.value}: CUDA would not start in the '
            'guest; FABRIC_MODE=2 is needed')
    found = fabric.Fabric({gpu: module},
                          partitions=machine.fabric.partitions()).single(gpu)
    if found is None:
        raise exception.StepFailed(
            reason=f'the fabric manager has no partition for GPU {gpu} alone')
    return found.partition_id


@privsep.entrypoint
def activate(partition_id: int, function: str) -> None:
    """Activate the partition of one GPU for the vGPU on a function.

    A partition that is active already was left by a removed vGPU, and is
    deactivated first.

    :raises FabricError: if the fabric manager refused it.
    """
    privileged.check_number('fabric partition', partition_id, _LIMIT)
    address = privileged.nvidia_function(function)
    session = privileged.machine().fabric
    if partition_id in _active(session.partitions()):
        session.deactivate(partition_id)
    session.activate_with_functions(partition_id, [address])


@privsep.entrypoint
def activate_whole(partition_id: int) -> None:
    """Activate a partition whose GPUs a server gets as whole GPUs.

    A partition that is active is not touched: its server may run.

    :raises FabricError: if the fabric manager refused it.
    :raises StepFailed: if the partition is not active afterwards.
    """
    privileged.check_number('fabric partition', partition_id, _LIMIT)
    session = privileged.machine().fabric
    if partition_id in _active(session.partitions()):
        return
    session.activate(partition_id)
    if partition_id not in _active(session.partitions()):
        raise exception.StepFailed(
            reason=f'the fabric manager accepted partition {partition_id} '
            'but has not activated it; see its log')


@privsep.entrypoint
def partitions() -> list[tuple[int, list[tuple[int, str | None]], bool, bool]]:
    """All partitions, including those that are not supported.

    :returns: for each partition its number, the physical ids and addresses
        of its GPUs, whether it is active and whether it is supported.
    :raises FabricError: if they cannot be read.
    """
    session = privileged.machine().fabric
    return [(item.partition_id,
             [(member.physical_id,
               None if member.address is None else str(member.address))
              for member in item.members], item.active, item.supported)
            for item in (*session.partitions(), *session.unsupported())]


def read_partitions() -> tuple[fabric.Partition, ...]:
    """The result of :func:`partitions` as :class:`fabric.Partition` objects.

    :raises FabricError: if they cannot be read.
    """
    return tuple(
        fabric.Partition(number, tuple(
            fabric.Member(physical_id,
                          address and model.PciAddress.parse(address))
            for physical_id, address in members), active, supported)
        for number, members, active, supported in partitions())


@privsep.entrypoint
def give_list(partition_ids: list[int]) -> None:
    """Tell a fabric manager that was started with ``--restart`` which
    partitions are active.

    :raises FabricError: if the fabric manager refused it.
    """
    for partition_id in partition_ids:
        privileged.check_number('fabric partition', partition_id, _LIMIT)
    privileged.machine().fabric.restore(partition_ids)


@privsep.entrypoint
def deactivate(partition_id: int) -> None:
    """Deactivate a partition; does nothing if it is not active.

    :raises FabricError: if the fabric manager refused it.
    """
    privileged.check_number('fabric partition', partition_id, _LIMIT)
    session = privileged.machine().fabric
    try:
        if partition_id in _active(session.partitions()):
            session.deactivate(partition_id)
    except exception.FabricError as error:
        # The fabric manager was started in another mode, which ends all
        # partitions.
        if error.symbol != 'NOT_SUPPORTED':
            raise


@privsep.entrypoint
def restore(owners: list[tuple[int, str]], idle: list[str]) -> list[str]:
    """Activate the partitions of owners, and deactivate those without owner.

    A fabric manager that was started with ``--restart`` waits for the list
    of active partitions. One that was started without it has none.

    :param owners: partitions with the functions of their vGPUs.
    :param idle: addresses of GPUs without a vGPU: a partition that has only
        one of them has no owner.
    :returns: what was done, for people.
    :raises FabricError: if the fabric manager refused it.
    """
    wanted = {}
    for partition_id, function in owners:
        privileged.check_number('fabric partition', partition_id, _LIMIT)
        wanted[partition_id] = privileged.nvidia_function(function)
    unused = [model.PciAddress.parse(address) for address in idle]
    machine = privileged.machine()
    session = machine.fabric
    done = []
    try:
        found = session.partitions()
    except exception.FabricError as error:
        if error.symbol != 'NOT_CONFIGURED':
            raise
        session.restore(wanted)
        done.append('gave the fabric manager the list of active partitions')
        found = session.partitions()
    active = _active(found)
    for partition_id, carrier in wanted.items():
        if partition_id not in active:
            session.activate_with_functions(partition_id, [carrier])
            done.append(f'activated partition {partition_id} for the vGPU on '
                        f'{carrier}')
    if not active <= set(wanted):
        board = fabric.Fabric(_modules(machine, unused), partitions=found)
        for address in unused:
            item = board.single(address)
            if item and item.active and item.partition_id not in wanted:
                session.deactivate(item.partition_id)
                done.append(f'deactivated partition {item.partition_id}: GPU '
                            f'{address} has no vGPU')
    return done


def _modules(machine: platform.Platform, addresses: list[model.PciAddress]
             ) -> dict[model.PciAddress, int]:
    """Module ids of those GPUs that are known to be on NVSwitches."""
    found = {}
    for address in addresses:
        with contextlib.suppress(exception.NvmlError):
            module = reader.module_on_switches(machine, address)
            if module is not None:
                found[address] = module
    return found


def _active(found: tuple[fabric.Partition, ...]) -> set[int]:
    return {item.partition_id for item in found if item.active}
