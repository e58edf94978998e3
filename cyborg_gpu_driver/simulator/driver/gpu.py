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

"""A GPU of a simulated machine: what it is and how it is now."""

from __future__ import annotations

import os

import pynvml

from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import refusal


class Gpu:
    """One GPU, used within an operation on its machine."""

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
        """Whether NVIDIA's driver has it, so that NVML knows it."""
        return self.state.driver == 'nvidia'

    @property
    def unreachable(self) -> bool:
        """Whether its driver cannot talk to it."""
        return self.state.lost or self.state.dead or self.state.removing

    @property
    def framework(self) -> str:
        """How it makes vGPUs, as spec.FRAMEWORKS; none unless bound."""
        return self.spec.framework if self.bound else spec.NO_FRAMEWORK

    @property
    def vgpu_on_pf(self) -> bool:
        """Whether vGPUs lie on the GPU itself: no SR-IOV (Turing)."""
        return not self.model.totalvfs

    @property
    def on_switches(self) -> bool:
        """Whether its NVLinks lead to NVSwitches."""
        return any(self.machine.host.gpu(peer) is None
                   for peer in self.spec.nvlink_peers)

    def vfs(self) -> tuple[str, ...]:
        """Addresses of the virtual functions that there are now."""
        return self.vf_addresses[:self.state.vfs]

    def vgpu_functions(self) -> tuple[str, ...]:
        """Functions that can carry a vGPU."""
        return (self.address,) if self.vgpu_on_pf else self.vfs()

    def vgpus_on(self, function: str) -> list[state_module.Vgpu]:
        return [vgpu for vgpu in self.state.vgpus
                if vgpu.function == function]

    def mig(self) -> spec.Mig:
        """What the model can do in MIG mode.

        :raises Refused: NOT_SUPPORTED if it has no MIG.
        """
        if self.model.mig is None or self.machine.host.wsl:
            raise refusal.Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.model.mig

    def busy(self) -> bool:
        """Whether anything but an idle driver uses it."""
        return bool(self.state.processes or self.state.vgpus)

    def held(self) -> bool:
        """Whether anything has its device node open."""
        return bool(self.state.outsiders or self.state.processes
                    or any(vgpu.guest for vgpu in self.state.vgpus)
                    or self.bound and (self.machine.state.drm_modeset
                                       or self.machine.opens.held(self)))

    def held_by_others(self) -> bool:
        """Whether anything but this process has its device node open."""
        return self.held() and any(holder.pid != os.getpid()
                                   for holder in self.holders())

    def holders(self) -> list[state_module.Holder]:
        """Who has its device node open."""
        if not self.bound:
            return []
        found = [*self.machine.opens.holders(self), *self.state.outsiders]
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
        """Remove the device node, as the driver does that leaves it."""
        self.state.outsiders.clear()
        self.machine.opens.remove(self)

    def harm(self, mistake: str) -> None:
        """Record what has broken something on a real machine."""
        self.machine.state.damage.append(
            state_module.Damage(self.address, mistake))

    def clear(self) -> None:
        """Forget all that does not outlive a reset."""
        self._forget_users()
        self.state.heal()
        self.forget_settings()

    def driver_leaves(self) -> None:
        """Forget all that does not outlive the driver.

        Hopper and later forget MIG mode; Ampere keeps it in its InfoROM
        (MIG user guide, "Enable MIG Mode").
        """
        self._forget_users()
        self.state.ecc = [0, 0]
        if self.model.mig is not None and not self.model.mig.needs_reset:
            self.state.mig = self.state.pending = False
        self.forget_settings()

    def _forget_users(self):
        self.state.instances.clear()
        self.state.processes.clear()
        self.state.vgpus.clear()

    def forget_settings(self) -> None:
        """Forget what the driver knows only until it leaves the GPU."""
        self.state.heterogeneous = False
        self.state.scheduler = state_module.Scheduler()
        self.state.epoch += 1


def _vf_address(gpu, index):
    """Routing id of a VF: the PF's plus offset plus index * stride.

    The PCIe SR-IOV capability's First VF Offset and VF Stride.
    """
    domain, bus, rest = gpu.address.split(':')
    device, function = rest.split('.')
    identifier = ((int(bus, 16) << 8) | (int(device, 16) << 3)
                  | int(function, 16))
    identifier += gpu.model.vf_offset + index * gpu.model.vf_stride
    return (f'{domain}:{identifier >> 8:02x}:'
            f'{identifier >> 3 & 0x1f:02x}.{identifier & 7}')
