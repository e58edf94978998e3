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


"""What the checks look at, gathered once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver.check import machine
from cyborg_gpu_driver.check import peers as peers_module
from cyborg_gpu_driver.check import placement
from cyborg_gpu_driver.check import services
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import fabric as fabric_module
from cyborg_gpu_driver.host.snapshot import migration
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.elastic import role_facts

_VGPU_MODES = (policy.Mode.VGPU, policy.Mode.MIG)


@dataclasses.dataclass(frozen=True)
class Facts:
    """A host with its services' configuration.

    None stands for what was not looked at; on a simulated machine that is
    everything beside its GPUs and the configuration.
    """

    host: model.Host
    settings: policies.Settings
    cyborg: services.Cyborg | None = None
    cyborg_problem: str = ''
    """Why that is None."""
    nova: conf_file.NovaConf | None = None
    """PCI devices and mdevs of ``nova.conf``."""
    nova_services: services.Nova | None = None
    """The rest of it; None where ``nova`` is."""
    nova_problem: str = ''
    """Why they are None."""
    remembered: Mapping[model.PciAddress, str] = dataclasses.field(
        default_factory=dict)
    """Fixed vGPUs that functions had before a reboot."""
    machine: machine.Machine | None = None
    """None if it is simulated."""
    placement: placement.Answer | None = None
    placement_conf: services.Placement | None = None
    """None where ``placement.conf`` was not read."""
    placement_conf_problem: str = ''
    """Why that is None."""
    by_role: Mapping[model.PciAddress, role_facts.FactsByRole] = (
        dataclasses.field(default_factory=dict))
    """How GPUs in mode auto were read in each of their roles."""
    fabric: fabric_module.Fabric | None = None
    """None without NVSwitches."""
    migrations: Mapping[model.PciAddress, migration.Migration] = (
        dataclasses.field(default_factory=dict))
    """Of the GPUs that make vGPUs without mdev."""
    peers: tuple[peers_module.Peer, ...] = ()
    """Hosts that servers are to be live-migrated to and from."""
    state_path: str = ''
    """``[gpu] state_path``."""
    sriov_manage: str = ''
    """``[gpu] sriov_manage``."""
    mdevctl: str = ''
    """``[gpu] mdevctl``."""

    def governed(self) -> Iterator[tuple[model.Gpu, policy.Policy]]:
        """GPUs that are offered in some mode, with their policy."""
        for gpu in self.host.gpus:
            governing = self.settings.policy_for(gpu)
            if governing and governing.mode is not policy.Mode.OFF:
                yield gpu, governing

    def with_vgpus(self) -> Iterator[tuple[model.Gpu, policy.Policy]]:
        """Those that are to carry vGPUs of either kind.

        One in mode auto that is in no such role now is as it would be.
        """
        for gpu, governing in self.governed():
            roles = [role for role in governing.modes if role in _VGPU_MODES]
            if roles:
                yield self._in_role(gpu, roles), governing

    def _in_role(self, gpu: model.Gpu, roles: Iterable[policy.Mode]
                 ) -> model.Gpu:
        for role in () if gpu.visible_to_nvml else roles:
            known = self.by_role.get(gpu.address, {}).get(role.value)
            if known is not None and not known.problem:
                return role_facts.gpu_in_role(gpu, role, known)
        return gpu

    def on(self, seen: machine.Machine) -> Facts:
        """These, on a machine that was looked at."""
        return dataclasses.replace(self, machine=seen)

    def compared(self, peers: tuple[peers_module.Peer, ...]) -> Facts:
        """These, to be compared with other hosts."""
        return dataclasses.replace(self, peers=peers)

    def asked(self, answer: placement.Answer) -> Facts:
        """These, with Placement's answer."""
        return dataclasses.replace(self, placement=answer)

    def programs(self, name: str) -> bool | None:
        """Whether a program of the machine can be run; None if that was
        not looked at.
        """
        return self.machine.programs.get(name)
