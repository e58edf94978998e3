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

"""The actions of nv-fabricmanager, with the machine held.

From the fabric manager's user guide: "Fabric Manager SDK", "Partition Life
Cycle Errors", "Resiliency" and "Interoperability with MIG". If the guide does
not name the code of a refusal, the code is the one whose text fits.
"""

from __future__ import annotations

import pynvml

from cyborg_gpu_driver.simulator.driver import drivers
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.driver import refusal
from cyborg_gpu_driver.simulator.fabric import partitions

BARE_METAL, SHARED, VGPU = range(3)
BADPARAM = -1
GENERIC_ERROR = -2
NOT_SUPPORTED = -3
UNINITIALIZED = -4
IN_USE = -7
NOT_CONFIGURED = -8


class Manager:
    """The fabric manager of a machine and the NVSwitches behind it."""

    def __init__(self, machine):
        self._machine = machine

    @property
    def state(self):
        return self._machine.state.fabric

    @property
    def _architecture(self):
        return next(gpu.model.architecture for gpu in self._machine.gpus
                    if gpu.on_switches)

    @property
    def is_ampere(self) -> bool:
        """Whether the fabric manager trains NVLinks and so knows them."""
        return self._architecture == pynvml.NVML_DEVICE_ARCH_AMPERE

    def gpu(self, physical_id: int) -> gpu_module.Gpu | None:
        """The GPU with a physical id, which is its module id."""
        host = self._machine.host
        return next((gpu for gpu in self._machine.gpus
                     if gpu.on_switches
                     and host.module(gpu.address) == physical_id), None)

    def gpus(self, partition: partitions.Partition) -> list[gpu_module.Gpu]:
        """The GPUs of a partition."""
        return [gpu for gpu in map(self.gpu, partition.gpus)
                if gpu is not None]

    # Start of the fabric manager

    def start(self, restart: bool) -> None:
        """Start the fabric manager; ``restart`` is the option ``--restart``.

        A start without the option initializes the NVSwitches: no partition
        is active.
        """
        fabric = self.state
        self._machine.state.fabric_manager = True
        fabric.starts += 1
        fabric.mode = fabric.configured
        fabric.restarted = restart and fabric.mode != BARE_METAL
        fabric.waiting = fabric.restarted
        if fabric.waiting:
            return
        for number in list(fabric.active):
            self._cut_off(number, 'fabric manager started under a guest')
        fabric.active.clear()
        if (fabric.mode == SHARED and self._architecture
                >= pynvml.NVML_DEVICE_ARCH_BLACKWELL):
            # From NVLink 5 on, GPUs have to be reset after this start
            # (NVIDIA/gpu-driver-container#909).
            for gpu in self._machine.gpus:
                gpu.state.stale = gpu.on_switches
        fabric.excluded = [
            gpu.address for gpu in self._machine.gpus
            if self.is_ampere and gpu.on_switches and (
                gpu.state.lost or gpu.state.mig
                or gpu.state.driver != drivers.NVIDIA)]

    # API of the fabric manager

    def supported(self) -> tuple[partitions.Partition, ...]:
        """The partitions of which the fabric manager can use all GPUs."""
        self._need(SHARED, VGPU)
        return tuple(item for item in self._all()
                     if not self._is_excluded(item))

    def unsupported(self) -> tuple[partitions.Partition, ...]:
        """The partitions with a GPU that the fabric manager cannot use."""
        self._need(SHARED, VGPU)
        return tuple(filter(self._is_excluded, self._all()))

    def failed(self) -> None:
        """Check that the fabric manager can report failed NVLinks.

        It cannot if it was started with ``--restart``, whatever follows
        ("Getting a List of Devices with Failed NVLinks" in the user guide).
        """
        if self.state.restarted:
            raise refusal.Refused(NOT_SUPPORTED)

    def activate(self, number: int) -> None:
        self._need(SHARED)
        self._activate(number, [])

    def activate_functions(self, number: int, functions: list[str]) -> None:
        """Activate a partition with one virtual function of each GPU.

        NVIDIA/kubevirt-gpu-device-plugin#133 found on hardware that the
        fabric manager takes no more of them than the partition has GPUs.
        """
        self._need(VGPU)
        wanted = self._found(number)
        carriers = [next((gpu for gpu in self.gpus(wanted)
                          if function in gpu.vfs()), None)
                    for function in functions]
        if (None in carriers or len(carriers) != len(wanted.gpus)
                or len(set(carriers)) != len(carriers)):
            raise refusal.Refused(BADPARAM)
        self._activate(number, functions)

    def deactivate(self, number: int) -> None:
        self._need(SHARED, VGPU)
        self._found(number)
        if str(number) not in self.state.active:
            raise refusal.Refused(UNINITIALIZED)
        self._cut_off(number, 'fabric partition deactivated under a guest')
        del self.state.active[str(number)]

    def restore(self, numbers: list[int]) -> None:
        """Accept the list of active partitions after a restart."""
        fabric = self.state
        if fabric.mode == BARE_METAL or not fabric.waiting:
            raise refusal.Refused(NOT_SUPPORTED)
        found = [self._known(number) for number in numbers]
        taken = [gpu for item in found for gpu in item.gpus]
        if len(taken) != len(set(taken)):
            raise refusal.Refused(BADPARAM)
        for number in list(fabric.active):
            if int(number) not in numbers:
                self._cut_off(number, 'fabric partition left out of the list '
                              'under a guest')
        fabric.active = {str(number): fabric.active.get(str(number), [])
                         for number in numbers}
        fabric.waiting = False

    def _activate(self, number, functions):
        wanted = self._found(number)
        if any(set(self._known(int(other)).gpus) & set(wanted.gpus)
               for other in self.state.active):
            raise refusal.Refused(IN_USE)
        if (self.is_ampere and len(wanted.gpus) > 1
                and any(gpu.state.mig for gpu in self.gpus(wanted))):
            raise refusal.Refused(GENERIC_ERROR)
        for gpu in map(self.gpu, wanted.gpus):
            if gpu is not None and gpu.state.stale:
                gpu.harm('not reset after the fabric manager has started')
        self.state.active[str(number)] = functions

    def _need(self, *modes):
        if self.state.mode not in modes:
            raise refusal.Refused(NOT_SUPPORTED)
        if self.state.waiting:
            raise refusal.Refused(NOT_CONFIGURED)

    def _all(self):
        return tuple(item for item in partitions.table(self._architecture)
                     if all(map(self.gpu, item.gpus)))

    def _known(self, number):
        for item in self._all():
            if item.number == number:
                return item
        raise refusal.Refused(BADPARAM)

    def _found(self, number):
        found = self._known(number)
        if self._is_excluded(found):
            raise refusal.Refused(BADPARAM)
        return found

    def _is_excluded(self, partition):
        return any(gpu.address in self.state.excluded
                   for gpu in self.gpus(partition))

    def _cut_off(self, number, mistake):
        """Shut down the NVLinks of a partition, which breaks its guests."""
        functions = self.state.active[str(number)]
        for gpu in self.gpus(self._known(int(number))):
            if gpu.state.guest or any(
                    vgpu.guest for vgpu in gpu.state.vgpus
                    if vgpu.function in functions):
                gpu.harm(mistake)
