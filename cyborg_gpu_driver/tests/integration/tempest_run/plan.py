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

"""What is run: which devices, under which policies, which tests."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Device:
    """What a server gets in place of the plug-in's FPGA.

    :ivar resource_class: as our driver publishes it for the minicloud's
        hosts (``tools/minicloud/hosts``).
    :ivar trait: another thing that it publishes, to be required.
    :ivar handle_type: of the attach handle, as Cyborg names it.
    :ivar providers: how many of the hosts' GPUs have it.
    :ivar pci_id: vendor and product of the GPU behind it, as ``lspci -n``
        prints them.
    """

    resource_class: str
    trait: str
    handle_type: str
    providers: int
    pci_id: str

    @property
    def groups(self) -> list[dict[str, str]]:
        """Of a device profile that asks for one."""
        return [{f'resources:{self.resource_class}': '1',
                 f'trait:{self.trait}': 'required'}]


DEVICES = {
    'whole': Device('PGPU', 'CUSTOM_GPU_KIND_PASSTHROUGH', 'PCI', 2,
                    '10de:1eb8'),
    'slice': Device('CUSTOM_NVIDIA_1G_10GB', 'CUSTOM_GPU_KIND_MIG', 'MDEV', 4,
                    '10de:20b2'),
    'vgpu': Device('CUSTOM_NVIDIA_A100_8C', 'CUSTOM_GPU_KIND_VGPU', 'MDEV', 2,
                   '10de:20f1'),
}

POLICIES = {'legacy': False, 'new': True}
"""Whether Cyborg enforces scopes and the new defaults, by a name for it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One folder of the plug-in's tests, in one process.

    :ivar policy: key of :data:`POLICIES`.
    :ivar folder: ``api`` or ``scenario``.
    :ivar device: key of :data:`DEVICES`.
    """

    policy: str
    folder: str
    device: str

    @property
    def profile(self) -> str:
        """Name of the device profile that the lifecycle tests take."""
        return f'tempest-{self.policy}-{self.folder}-{self.device}'


def runs() -> list[Run]:
    """All of them: the API once for each policy, servers with each device.

    Only a server is given a device; to the API one is as good as another.
    """
    return [Run(policy, folder, device) for policy in POLICIES
            for folder, device in (
                ('api', 'slice'),
                *(('scenario', name) for name in DEVICES))]
