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

"""A GPU of a simulated machine: its description and its current state."""

from __future__ import annotations

import os

import pynvml

from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import refusal

PERSISTENCED = state_module.Holder(812, 'nvidia-persiste')
"""The process of nvidia-persistenced, with its name as the kernel has it."""


class Gpu:
    """One GPU. Use it only within an operation on its machine."""

    def __init__(self, machine, gpu_spec: spec.Gpu):
        self.machine = machine
        self.spec = gpu_spec
        self.model = gpu_spec.model
        self.address = gpu_spec.address
        self.vf_addresses = tuple(
            _vf_address(gpu_spec, index)
            for index in range(gpu_spec.model.totalvfs))

    @property
    def state(self) -> state_module.Gpu:
        return self.machine.state.gpus[self.address]

    @property
    def bound(self) -> bool:
        """Whether the GPU is bound to NVIDIA's driver, so that NVML knows it.
        """
        return self.state.driver == 'nvidia'

    @property
    def unreachable(self) -> bool:
        """Whether the driver cannot communicate with the GPU."""
        return self.state.lost or self.state.dead or self.state.removing

    @property
    def refused(self) -> bool:
        """Whether the driver does not open the GPU.

        confComputeConstructEngine in conf_compute.c of NVIDIA's open kernel
        modules: NV_ERR_INVALID_OPERATION if confidential computing is on in
        the board, and this machine is no confidential guest itself.
        """
        return self.state.locked or self.state.confidential

    @property
    def framework(self) -> str:
        """The vGPU framework (spec.FRAMEWORKS); ``none`` unless bound."""
        return self.spec.framework if self.bound else spec.NO_FRAMEWORK

    @property
    def vgpu_on_pf(self) -> bool:
        """Whether the PF itself carries the vGPUs: no SR-IOV (Turing)."""
        return not self.model.totalvfs

    @property
    def on_switches(self) -> bool:
        """Whether the GPU's NVLinks lead to NVSwitches."""
        return any(self.machine.host.gpu(peer) is None
                   for peer in self.spec.nvlink_peers)

    def vfs(self) -> tuple[str, ...]:
        """The addresses of the virtual functions that exist now."""
        return self.vf_addresses[:self.state.vfs]

    def vgpu_functions(self) -> tuple[str, ...]:
        """The addresses of the functions that can carry a vGPU."""
        return (self.address,) if self.vgpu_on_pf else self.vfs()

    def vgpus_on(self, function: str) -> list[state_module.Vgpu]:
        return [vgpu for vgpu in self.state.vgpus
                if vgpu.function == function]

    def mig(self) -> spec.Mig:
        """The capabilities of the model in MIG mode.

        :raises Refused: NOT_SUPPORTED if the model has no MIG.
        """
        if self.model.mig is None or self.machine.host.wsl:
            raise refusal.Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.model.mig

    def busy(self) -> bool:
        """Whether processes or vGPUs use the GPU."""
        return bool(self.state.processes or self.state.vgpus)

    def held(self) -> bool:
        """Whether the driver's usage count of the GPU is not 0.

        The count is that of nv_open_device in kernel-open/nvidia/nv.c of
        NVIDIA's open kernel modules.
        """
        return self.used() or bool(
            self.bound and self.machine.state.drm_modeset)

    def used(self) -> bool:
        """As :meth:`held`, but for the module nvidia_drm."""
        state = self.state
        return bool(state.outsiders or state.processes or state.leaked
                    or state.daemon
                    or any(vgpu.guest for vgpu in state.vgpus)
                    or self.bound and self.machine.opens.held(self))

    @property
    def drm_lets_go(self) -> bool:
        """Whether an unbind makes nvidia_drm let go of the GPU.

        nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c calls
        nvidia_modeset_remove from 580.105.08 on, before it waits.
        """
        return self.machine.host.driver_since(580, 105, 8)

    def held_by_others(self) -> bool:
        """Whether anything but this process and nvidia-persistenced uses it.

        The daemon is left out because libnvidia-ml knows its socket, as
        nvidia-smi does.
        """
        return bool(
            any(holder.pid != os.getpid() for holder in self.holders()
                if holder != PERSISTENCED) or self.state.leaked
            or any(holder.hidden for holder in self.state.outsiders))

    def holders(self) -> list[state_module.Holder]:
        """Return the holders of the device node."""
        if not self.bound:
            return []
        found = [*self.machine.opens.holders(self),
                 *(holder for holder in self.state.outsiders
                   if not holder.hidden)]
        if self.state.daemon:
            found.append(PERSISTENCED)
        known = {holder.pid for holder in found}
        found += [state_module.Holder(process.pid, 'python3')
                  for process in self.state.processes
                  if process.pid not in known]
        found += [state_module.Holder(vgpu.holders[-1], 'nvidia-vgpu-mgr')
                  for vgpu in self.state.vgpus if vgpu.guest]
        if self.machine.state.drm_modeset:
            found.append(state_module.Holder(0, 'nvidia_drm'))
        return found

    def remove_node(self) -> None:
        """Remove the device node, as the driver does when it is unbound."""
        state = self.state
        state.outsiders.clear()
        state.leaked = 0
        state.locked = state.daemon = False
        self.machine.opens.remove(self)

    def harm(self, mistake: str) -> None:
        """Record a mistake that would break something on a real machine."""
        self.machine.state.damage.append(
            state_module.Damage(self.address, mistake))

    def clear(self) -> None:
        """Remove the state that does not outlive a reset."""
        self._forget_users()
        self.state.wedged.clear()
        self.state.heal()
        self.forget_settings()

    def driver_leaves(self) -> None:
        """Remove the state that does not outlive an unbind of the driver."""
        self._forget_users()
        self.state.ecc = [0, 0]
        self.state.persistence = False
        if not self.machine.host.keeps_mig:
            self.forget_mode()
        self.forget_settings()

    def forget_mode(self) -> None:
        """End MIG mode where only the driver keeps it.

        Ampere keeps the mode in its InfoROM (MIG user guide, "Enable MIG
        Mode").
        """
        if self.model.mig is not None and not self.model.mig.needs_reset:
            self.state.mig = self.state.pending = False

    def _forget_users(self):
        self.state.processes.clear()
        self.state.vgpus.clear()

    def forget_settings(self) -> None:
        """Reset the settings that the driver keeps only while it is bound."""
        if not (self.machine.host.keeps_mig
                and self.state.mig and self.state.pending):
            self.state.instances.clear()
        for instance in self.state.instances.values():
            # The driver creates it again, with the same ids.
            instance.serial = self.machine.state.number()
        self.state.heterogeneous = False
        self.state.scheduler = state_module.Scheduler()
        self.state.epoch += 1


def _vf_address(gpu, index):
    """Address of a VF; its routing id is the PF's + offset + index * stride.

    Offset and stride are the PCIe SR-IOV capability's First VF Offset and VF
    Stride.
    """
    domain, bus, rest = gpu.address.split(':')
    device, function = rest.split('.')
    identifier = ((int(bus, 16) << 8) | (int(device, 16) << 3)
                  | int(function, 16))
    identifier += gpu.model.vf_offset + index * gpu.model.vf_stride
    return (f'{domain}:{identifier >> 8:02x}:'
            f'{identifier >> 3 & 0x1f:02x}.{identifier & 7}')
