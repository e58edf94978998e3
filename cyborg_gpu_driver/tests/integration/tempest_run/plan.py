# SPDX-License-Identifier: Apache-2.0

"""The runs: which tests, with which devices, under which policies."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that a server gets instead of the plug-in's FPGA.

    :ivar resource_class: the resource class that our driver publishes for
        the minicloud's hosts (``tools/minicloud/hosts``).
    :ivar trait: a trait that our driver publishes, which the device profile
        requires.
    :ivar handle_type: Cyborg's type of the attach handle.
    :ivar providers: the number of the hosts' GPUs that have the device.
    :ivar pci_id: vendor and product of the GPU behind the device, as
        ``lspci -n`` prints them.
    """

    resource_class: str
    trait: str
    handle_type: str
    providers: int
    pci_id: str

    @property
    def groups(self) -> list[dict[str, str]]:
        """The groups of a device profile that asks for one such device."""
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
"""Whether Cyborg enforces scopes and the new defaults, by policy name."""


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
        """Name of the device profile that the lifecycle tests use."""
        return f'tempest-{self.policy}-{self.folder}-{self.device}'


def runs() -> list[Run]:
    """Return all runs.

    For each policy, the API tests run once, and the scenario tests run with
    each device. Only servers get a device. For the API tests, any device is
    as good as another.
    """
    return [Run(policy, folder, device) for policy in POLICIES
            for folder, device in (
                ('api', 'slice'),
                *(('scenario', name) for name in DEVICES))]
