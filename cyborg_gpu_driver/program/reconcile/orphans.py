# SPDX-License-Identifier: Apache-2.0

"""Live vGPUs, their owners, and the removal of vGPUs without an owner.

A vGPU whose owner is unknown is treated as a vGPU with an owner.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Collection

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.record import store


class Guest(enum.Enum):
    """What uses a vGPU."""
    RUNNING = 'running'
    """A virtual machine, according to NVML."""
    OPEN = 'open'
    """A process that has its VFIO device open."""
    NONE = '-'
    UNKNOWN = '?'


_USED = {Guest.RUNNING: 'a virtual machine runs on it',
         Guest.OPEN: 'its VFIO device is open'}


@dataclasses.dataclass(frozen=True)
class Found:
    """A live vGPU and what this machine knows of it."""

    gpu: model.Gpu
    vgpu: model.Vgpu
    owner: str | None = None
    """A handle and the phase of its claim, ``fixed`` or ``ignored``."""
    guest: Guest = Guest.NONE
    unknown: str = ''
    """Why the guest is unknown."""
    instance_id: int | None = None
    """GPU instance below it; None if it is unknown, as for most mdevs."""

    @property
    def on_instance(self) -> bool:
        """Whether it lies on a GPU instance: in MIG mode all vGPUs do."""
        return self.gpu.mig is not None and self.gpu.mig.enabled

    def obstacle(self, claimed: Collection[str] | None) -> str:
        """Why the vGPU must not be removed, for people; or ``''``.

        :param claimed: names of the vGPUs that accelerator requests have;
            None if Cyborg was not asked, which is no obstacle here.
        """
        if self.owner:
            return f'its owner is {self.owner}'
        if self.guest in _USED:
            return _USED[self.guest]
        if claimed is not None and self.vgpu.name in claimed:
            return 'an accelerator request has it'
        if self.guest is Guest.UNKNOWN:
            return self.unknown
        return ''

    def orphan(self, claimed: Collection[str] | None) -> bool | None:
        """Whether the vGPU has no owner; None if that is not known.

        See :meth:`obstacle`.
        """
        obstacle = self.obstacle(claimed)
        if obstacle and obstacle != self.unknown:
            return False
        return None if obstacle or claimed is None else True


class VgpuOrphans:
    """Knows the live vGPUs of one machine, and removes orphans.

    :param machine: one whose privileged changes are made in this process
        (:func:`cyborg_gpu_driver.program.privileged.mig.run_here`).
    """

    def __init__(self, machine: platform.Platform,
                 host_reader: reader.HostReader, records: store.Store,
                 settings: policies.Settings):
        self._machine = machine
        self._reader = host_reader
        self._records = records
        self._settings = settings

    def found(self) -> tuple[Found, ...]:
        """Every live vGPU, by GPU and function."""
        return tuple(found for gpu in self._reader.snapshot().gpus
                     for found in self._on(gpu))

    def on(self, address: model.PciAddress) -> tuple[Found, ...]:
        """The live vGPUs of one GPU; no other GPU is read."""
        return tuple(self._on(self._reader.gpu(address)))

    def remove(self, found: Found, claimed: Collection[str] | None
               ) -> tuple[str, ...]:
        """Remove a vGPU that has no owner, if it still exists.

        The owner and the users on this machine are read again, because the
        vGPU may have got an owner meanwhile.

        :param claimed: see :meth:`Found.obstacle`.
        :returns: what remains of the vGPU, for people.
        """
        with locks.gpu(self._records.state_path, found.gpu.address,
                       locks.COMMAND_SECONDS):
            gpu = self._reader.gpu(found.gpu.address)
            now = next((item for item in self._on(gpu)
                        if item.vgpu.name == found.vgpu.name), None)
            if now is None:
                doubts = condition.doubts(gpu)
                if doubts:
                    raise _kept(found, '; '.join(doubts))
                return ()
            if now.vgpu.type_id != found.vgpu.type_id:
                raise _kept(found, f'it was a {found.vgpu.type_id} and is '
                            f'now a {now.vgpu.type_id}')
            obstacle = now.obstacle(claimed)
            if obstacle:
                raise _kept(found, obstacle)
            left = self._remove(now)
            if not now.on_instance:
                return left
            # Another tool may have created the GPU instance below it.
            number = ('' if now.instance_id is None
                      else f' {now.instance_id}')
            return (*left, f'the GPU instance{number} below it ("cyborg-gpu '
                    'gpu show" shows it)')

    def _remove(self, found: Found) -> tuple[str, ...]:
        vgpu = spec.VgpuSpec(found.vgpu.function, found.vgpu.type_id,
                             found.vgpu.uuid)
        executor.take(self._machine, found.gpu.address, change.Step(
            change.Action.DESTROY_VGPU, vgpu=vgpu), gpu=found.gpu)
        if executor.type_of(self._machine, vgpu) is not None:
            raise _kept(found, 'the kernel has not removed it')
        if vgpu.uuid is None:
            return ()
        try:
            privileged_vgpu.undefine_mdev(vgpu.uuid)
        except exception.StepFailed as error:
            return (f'its definition, which creates it again at the next '
                    f'boot: {error}',)
        return ()

    def _on(self, gpu: model.Gpu) -> list[Found]:
        """The vGPUs of a GPU that was read just now, with their owners."""
        # The search for the holders of a file goes through all processes.
        machine = dataclasses.replace(
            self._machine,
            vfio_holders=functools.cache(privileged_vgpu.vfio_holders))
        return [self._look(machine, gpu, vgpu) for vgpu in gpu.vgpus]

    def _look(self, machine: platform.Platform, gpu: model.Gpu,
              vgpu: model.Vgpu) -> Found:
        found = Found(gpu, vgpu, self._owner(gpu, vgpu),
                      instance_id=vgpu.instance_id)
        try:
            if vgpu.uuid is None and usage.may_run(machine, gpu,
                                                   vgpu.function):
                return dataclasses.replace(found, guest=Guest.RUNNING)
            for guest in usage.guests(machine, gpu) if vgpu.uuid else ():
                # NVML may not name the mdev of a guest.
                if guest.uuid == vgpu.uuid or (
                        guest.uuid is None and guest.type_id == vgpu.type_id):
                    return dataclasses.replace(
                        found, guest=Guest.RUNNING,
                        instance_id=guest.instance_id)
            if usage.vfio_holders(machine, vgpu.uuid or vgpu.function):
                return dataclasses.replace(found, guest=Guest.OPEN)
        except exception.GpuDriverError as error:
            return dataclasses.replace(found, guest=Guest.UNKNOWN,
                                       unknown=str(error))
        return found

    def _owner(self, gpu: model.Gpu, vgpu: model.Vgpu) -> str | None:
        if self._settings.ignores(gpu):
            return 'ignored'
        for claim in self._records.claims(gpu.address):
            if claim.vgpu_name == vgpu.name:
                return f'{claim.handle} ({claim.phase.value})'
        if vgpu.function in self._records.read(gpu.address).fixed.types:
            return 'fixed'
        return None


def _kept(found: Found, reason: str) -> exception.ChangeRefused:
    return exception.ChangeRefused(
        f'vGPU {found.vgpu.name} was not removed: {reason}')
