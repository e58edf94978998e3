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

"""A simulated machine: NVIDIA GPUs with their driver, seen from two sides.

``machine.library`` is NVML's C library, ``machine.os`` the kernel's sysfs;
both work on one state. What else happens to a machine (a reboot, a process,
a GPU that falls off the bus) is a method here.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
from collections.abc import Iterator

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import gpu as gpu_module
from cyborg_gpu_driver.simulator import library
from cyborg_gpu_driver.simulator import patch
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import sriov
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator import store
from cyborg_gpu_driver.simulator import sysfs
from cyborg_gpu_driver.simulator import vgpu as rules

names = files.names
_FIRST_PID = 100000
_OFF_THE_BUS = 79
_KEPT_XIDS = 99


class Machine:
    """One simulated machine, as one process sees it.

    :param host: what it is made of.
    :param state: file that keeps its state, which processes may share; None
        keeps it in memory.

    ``calls`` counts calls by C symbol and ``faults`` makes things fail,
    both in this process alone.
    """

    def __init__(self, host: spec.Host, state: str | None = None):
        self.host = host
        self.faults = faults.Faults()
        self.calls: collections.Counter[str] = collections.Counter()
        self._allowed = True
        self._store = store.Store(host, state)
        self.gpus = tuple(gpu_module.Gpu(self, gpu) for gpu in host.gpus)
        self._by_address = {gpu.address: gpu for gpu in self.gpus}
        self.library = library.Library(self)
        self.os = sysfs.SimulatedOs(self)
        self._patches: list[patch.Patch] = []

    @classmethod
    def load(cls, name_or_path: str, state: str | None = None) -> Machine:
        """The machine of that name (see :func:`names`) or file.

        :raises SimulationError: if there is none, or its file or the state
            file cannot be used.
        """
        machine = cls(files.load(name_or_path), state)
        # Makes the state file, so that a bad place for it shows here.
        with machine.operation(write=True):
            return machine

    @property
    def privileged(self) -> bool:
        """Whether this process is root: who may write the state file is.

        Setting it False takes root away, and :attr:`reads_instances`.
        """
        return self._allowed and self._store.writable

    @privileged.setter
    def privileged(self, allowed: bool) -> None:
        self._allowed = allowed

    @property
    def reads_instances(self) -> bool:
        """Whether NVIDIA's capability ``mig/config`` can be read here.

        It shows GPU instances; that it lets them be made too is left out.
        """
        return self._allowed

    @property
    def state(self) -> state_module.State:
        """The state, to be used within :meth:`operation`."""
        return self._store.state

    @contextlib.contextmanager
    def operation(self, write: bool = False) -> Iterator[None]:
        """Hold the machine; nothing else happens to it meanwhile."""
        with self._store.operation(write):
            yield

    def install(self) -> Machine:
        """Put :attr:`library` under pynvml in this process."""
        self._patches.append(patch.Patch(self).apply())
        return self

    def uninstall(self) -> None:
        """Give pynvml back what it had before :meth:`install`."""
        self._patches.pop().undo()

    def __enter__(self) -> Machine:
        return self.install()

    def __exit__(self, *details: object) -> None:
        self.uninstall()

    def gpu(self, address: str) -> gpu_module.Gpu:
        """The GPU at an address, written as in sysfs.

        :raises SimulationError: if there is none.
        """
        try:
            return self._by_address[str(address)]
        except KeyError:
            raise exception.SimulationError(
                name=self.host.name,
                reason=f'no GPU at {address}; there are '
                       + ', '.join(self._by_address)) from None

    def reset_calls(self) -> None:
        """Let :attr:`calls` count from zero."""
        with self.operation():
            self.calls.clear()

    def reset_gpu(self, address: str) -> None:
        """Reset a GPU, as ``nvidia-smi --gpu-reset``.

        A pending MIG mode becomes current; instances and handles are gone.

        :raises OSError: EBUSY while processes, vGPUs or VFs use it.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if gpu.busy() or gpu.state.vfs:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            gpu.clear()
            gpu.state.mig = gpu.state.pending

    def reboot(self) -> None:
        """Start the machine again.

        Instances, vGPUs and VFs are gone; MIG mode stays on Ampere only.
        Lost GPUs are back. NVML sessions and handles are dead.
        """
        with self.operation(write=True):
            self.state.boot += 1
            self.state.starts += 1
            for gpu in self.gpus:
                state = gpu.state
                gpu.clear()
                state.driver = gpu.spec.driver
                state.lost = False
                state.vfs = 0
                if gpu.model.mig is not None:
                    state.pending = (state.pending
                                     and gpu.model.mig.needs_reset)
                    state.mig = state.pending

    def sriov_manage(self, address: str, enable: bool = True,
                     count: int | None = None) -> None:
        """Make or remove virtual functions, as NVIDIA's sriov-manage.

        It unbinds the GPU from its driver meanwhile, so that handles die.

        Idle GPU instances are wiped, mixed-size mode and the scheduler's
        setting forgotten. A GPU that is already as wanted is left alone.

        :param address: a GPU's, or ``ALL``, which skips those without
            SR-IOV.
        :param count: how many; None for all that the model has.
        :raises OSError: EBUSY while anything uses the GPU, ENODEV if it is
            not bound to NVIDIA's driver or has no SR-IOV.
        """
        gpus = self.gpus if address == 'ALL' else (self.gpu(address),)
        with self.operation(write=True):
            for gpu in gpus:
                with self._tool('sriov-manage', gpu.address):
                    try:
                        sriov.manage(gpu, enable, count)
                    except OSError as error:
                        if (address != 'ALL'
                                or error.errno != errno.ENODEV):
                            raise

    def define_mdev(self, uuid: str) -> None:
        """Let mdevctl have an mdev on file, as Nova (libvirt) does.

        That outlives the mdev, and reboots.
        """
        with self.operation(write=True):
            if uuid not in self.state.defined:
                self.state.defined.append(uuid)

    def undefine_mdev(self, uuid: str) -> None:
        """Take an mdev from mdevctl's files, as ``mdevctl undefine``.

        :raises OSError: ENODEV if it is not there, or what a fault of the
            name ``mdevctl`` says.
        """
        with self.operation(write=True), self._tool('mdevctl'):
            if uuid not in self.state.defined:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            self.state.defined.remove(uuid)

    @property
    def defined_mdevs(self) -> tuple[str, ...]:
        """UUIDs of the mdevs that mdevctl has on file."""
        with self.operation():
            return tuple(self.state.defined)

    @contextlib.contextmanager
    def _tool(self, name, address=None):
        """One run of a program, which is counted and may have a fault."""
        self.calls[name] += 1
        fault = self.faults.symbol(name, address)
        if fault is None or fault.after:
            yield
        if fault:
            raise OSError(fault.code, os.strerror(fault.code))

    def bind_driver(self, address: str, driver: str | None) -> None:
        """Bind a GPU to another kernel driver; None unbinds it.

        :raises OSError: EBUSY while anything uses the GPU.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if gpu.busy() or gpu.state.vfs:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            gpu.clear()
            gpu.state.driver = driver

    def lose_gpu(self, address: str) -> None:
        """Let a GPU fall off the bus: NVML answers GPU_IS_LOST for it."""
        with self.operation(write=True):
            self.gpu(address).state.lost = True
            self.raise_xid(address, _OFF_THE_BUS)

    def find_gpu(self, address: str) -> None:
        """Bring a lost GPU back as it was."""
        with self.operation(write=True):
            self.gpu(address).state.lost = False

    def set_remapped_rows(self, address: str, corrected: int = 0,
                          uncorrected: int = 0, pending: bool = False,
                          failed: bool = False) -> None:
        """Let a GPU's memory have faults (nvmlDeviceGetRemappedRows)."""
        with self.operation(write=True):
            self.gpu(address).state.remapped = [
                corrected, uncorrected, int(pending), int(failed)]

    def raise_xid(self, address: str, xid: int | None,
                  instance: int | None = None,
                  compute: int | None = None) -> None:
        """Let the driver tell of an error to whoever waits for events.

        :param xid: None for a double-bit error of the memory's ECC.
        :param instance: id of the GPU instance that it is limited to.
        :param compute: id of the compute instance in that.
        """
        with self.operation(write=True):
            state = self.state
            state.xids = [*state.xids[-_KEPT_XIDS:], state_module.Xid(
                state.number(), self.gpu(address).address, xid, instance,
                compute)]

    def set_health(self, address: str, **facts: int | None) -> None:
        """Change what a GPU answers about its health.

        :param facts: ``celsius``; ``uncorrected`` ECC errors since the
            driver was loaded; ``recovery``, what the driver asks for
            (NVML_GPU_RECOVERY_ACTION_*), None if it is too old to say.
        """
        with self.operation(write=True):
            state = self.gpu(address).state
            state.ecc[1] = facts.pop('uncorrected', state.ecc[1])
            state.celsius = facts.pop('celsius', state.celsius)
            state.recovery = facts.pop('recovery', state.recovery)
        if facts:
            raise exception.SimulationError(
                name=self.host.name, reason=f'no such fact: {min(facts)}')

    @property
    def boot_id(self) -> str:
        """What is another one after each start of the machine."""
        with self.operation():
            return f'{self.host.name} {self.state.starts}'

    def unload_library(self, code: int = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
                       ) -> None:
        """Take NVML away; the GPUs stay as they are.

        :param code: what nvmlInit answers from now on:
            NVML_ERROR_LIBRARY_NOT_FOUND or NVML_ERROR_DRIVER_NOT_LOADED.
        """
        with self.operation(write=True):
            self.state.nvml = code
            self.state.boot += 1

    def load_library(self) -> None:
        """Bring NVML back; sessions must be opened anew."""
        with self.operation(write=True):
            self.state.nvml = pynvml.NVML_SUCCESS

    def add_process(self, address: str, pid: int,
                    instance: int | None = None,
                    compute: int | None = None) -> None:
        """Let a process use a GPU, or one of its instances."""
        gpu = self.gpu(address)
        with self.operation(write=True):
            if instance is not None:
                found = gpu.state.instances.get(instance)
                if found is None or (compute is not None
                                     and compute not in found.compute):
                    raise exception.SimulationError(
                        name=self.host.name,
                        reason=f'{address} has no such instance '
                               f'({instance}, {compute})')
            gpu.state.processes.append(state_module.Process(
                pid=pid, instance=instance, compute=compute))

    def remove_process(self, pid: int) -> None:
        """Let a process end, on every GPU."""
        with self.operation(write=True):
            for gpu in self.gpus:
                gpu.state.processes = [
                    process for process in gpu.state.processes
                    if process.pid != pid]

    def start_guest(self, vgpu: str) -> int:
        """Let a virtual machine run on a vGPU, which then cannot go.

        :param vgpu: an mdev's UUID, or the address of a function.
        :returns: id of the virtual machine's process.
        :raises OSError: if the virtual machine does not boot because of the
            placement that was wished for in ``vgpu_params``: EINVAL if the
            type cannot have it, EBUSY if another vGPU is in its place.
        """
        with self.operation(write=True):
            gpu, found = self._vgpu(vgpu)
            if not found.guest:
                rules.start_guest(gpu, found,
                                  _FIRST_PID + self.state.number())
            return found.holders[-1]

    def stop_guest(self, vgpu: str) -> None:
        """Let the virtual machine that runs on a vGPU end."""
        with self.operation(write=True):
            found = self._vgpu(vgpu)[1]
            if found.guest:
                found.guest = False
                found.holders.pop()

    def open_vfio(self, vgpu: str, pid: int) -> None:
        """Let a process open a vGPU's VFIO device, without a guest yet."""
        with self.operation(write=True):
            self._vgpu(vgpu)[1].holders.insert(0, pid)

    def close_vfio(self, vgpu: str, pid: int) -> None:
        """Let a process close a vGPU's VFIO device."""
        with self.operation(write=True):
            self._vgpu(vgpu)[1].holders.remove(pid)

    def vfio_holders(self, address: str) -> tuple[int, ...]:
        """Processes that have the VFIO device of a function open."""
        with self.operation():
            return tuple(pid for gpu in self.gpus
                         for vgpu in gpu.vgpus_on(str(address))
                         for pid in vgpu.holders)

    def _vgpu(self, name):
        for gpu in self.gpus:
            for vgpu in gpu.state.vgpus:
                if str(name) in (vgpu.uuid, vgpu.function):
                    return gpu, vgpu
        raise exception.SimulationError(
            name=self.host.name, reason=f'there is no vGPU {name}')
