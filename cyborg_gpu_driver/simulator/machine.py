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
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator import store
from cyborg_gpu_driver.simulator import sysfs

names = files.names


class Machine:
    """One simulated machine, as one process sees it.

    :param host: what it is made of.
    :param state: file that keeps its state, which processes may share; None
        keeps it in memory.

    ``calls`` counts calls by C symbol and ``faults`` makes things fail,
    both in this process alone. ``privileged`` False takes root away.
    """

    def __init__(self, host: spec.Host, state: str | None = None):
        self.host = host
        self.faults = faults.Faults()
        self.calls: collections.Counter[str] = collections.Counter()
        self.privileged = True
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

        :param address: a GPU's, or ``ALL``.
        :param count: how many; None for all that the model has.
        :raises OSError: EBUSY while anything uses the GPU, ENODEV if it is
            not bound to NVIDIA's driver or has no SR-IOV.
        """
        gpus = self.gpus if address == 'ALL' else (self.gpu(address),)
        with self.operation(write=True):
            for gpu in gpus:
                fault = self.faults.symbol('sriov-manage', gpu.address)
                if fault:
                    raise OSError(fault.code, os.strerror(fault.code))
                total = gpu.model.totalvfs
                if not gpu.bound or not total or self.host.wsl:
                    if address == 'ALL':
                        continue
                    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
                if gpu.busy() or gpu.state.instances:
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
                wanted = total if count is None else min(count, total)
                gpu.state.vfs = wanted if enable else 0
                gpu.state.heterogeneous = False
                gpu.state.epoch += 1

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

    def start_guest(self, vgpu: str) -> None:
        """Let a virtual machine hold a vGPU, which cannot go until then.

        :param vgpu: an mdev's UUID, or the address of a function.
        """
        self._set_guest(vgpu, True)

    def stop_guest(self, vgpu: str) -> None:
        """Let the virtual machine that holds a vGPU end."""
        self._set_guest(vgpu, False)

    def _set_guest(self, name, held):
        with self.operation(write=True):
            for gpu in self.gpus:
                for vgpu in gpu.state.vgpus:
                    if str(name) in (vgpu.uuid, vgpu.function):
                        vgpu.guest = held
                        return
        raise exception.SimulationError(
            name=self.host.name, reason=f'there is no vGPU {name}')
