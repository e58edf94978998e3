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


"""The facts that the checks examine, gathered once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver.check import machine as machine_module
from cyborg_gpu_driver.check import peers as peers_module
from cyborg_gpu_driver.check import placement as placement_module
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

    None means that the fact was not gathered. On a simulated machine, only
    the GPUs and the configuration are gathered. A check runs only with the
    facts that :mod:`cyborg_gpu_driver.check.run` says it needs.
    """

    host: model.Host
    settings: policies.Settings
    cyborg: services.Cyborg | None = None
    cyborg_problem: str = ''
    """Why ``cyborg`` is None."""
    nova: conf_file.NovaConf | None = None
    """The PCI devices and mdevs that ``nova.conf`` configures."""
    nova_services: services.Nova | None = None
    """The other options of ``nova.conf``; None if ``nova`` is None."""
    nova_problem: str = ''
    """Why ``nova`` and ``nova_services`` are None."""
    remembered: Mapping[model.PciAddress, str] = dataclasses.field(
        default_factory=dict)
    """The fixed vGPUs that virtual functions had before a reboot."""
    machine: machine_module.Machine | None = None
    """None if the machine is simulated."""
    placement: placement_module.Answer | None = None
    placement_conf: services.Placement | None = None
    """None if ``placement.conf`` was not read."""
    placement_conf_problem: str = ''
    """Why ``placement_conf`` is None."""
    by_role: Mapping[model.PciAddress, role_facts.FactsByRole] = (
        dataclasses.field(default_factory=dict))
    """The facts about each GPU in mode auto, as read in each of its roles."""
    fabric: fabric_module.Fabric | None = None
    """None without NVSwitches."""
    migrations: Mapping[model.PciAddress, migration.Migration] = (
        dataclasses.field(default_factory=dict))
    """Migration facts of the GPUs that make vGPUs without mdev."""
    peers: tuple[peers_module.Peer, ...] = ()
    """The hosts that servers migrate live to and from."""
    state_path: str = ''
    """``[gpu] state_path``."""
    sriov_manage: str = ''
    """Path of NVIDIA's script."""
    mdevctl: str = ''
    """Name of the program."""

    def governed(self) -> Iterator[tuple[model.Gpu, policy.Policy]]:
        """The GPUs that are offered in some mode, with their policies."""
        for gpu in self.host.gpus:
            governing = self.settings.policy_for(gpu)
            if governing and governing.mode is not policy.Mode.OFF:
                yield gpu, governing

    def with_vgpus(self) -> Iterator[tuple[model.Gpu, policy.Policy]]:
        """The governed GPUs that may carry vGPUs, with or without MIG.

        A GPU in mode auto that has no such role now appears as it would be in
        one.
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

    def on(self, seen: machine_module.Machine) -> Facts:
        """Return these facts with those of the machine."""
        return dataclasses.replace(self, machine=seen)

    def compared(self, peers: tuple[peers_module.Peer, ...]) -> Facts:
        """Return these facts with the hosts to compare with."""
        return dataclasses.replace(self, peers=peers)

    def asked(self, answer: placement_module.Answer) -> Facts:
        """Return these facts with Placement's answer."""
        return dataclasses.replace(self, placement=answer)

    def programs(self, name: str) -> bool | None:
        """Whether the machine can run a program; None if that was not
        examined.
        """
        assert self.machine is not None
        return self.machine.programs.get(name)
