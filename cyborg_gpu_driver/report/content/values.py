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


"""What is reported to Cyborg, as plain values.

They mirror Cyborg's driver objects (``cyborg/objects/driver_objects``)
field by field and hold the exact strings that Cyborg stores and compares.
No value may change when servers come and go: Cyborg identifies handles by
``attach_info``, devices by ``cpid_info``, deployables by name and attributes
by key, and acts on every difference.
"""

from __future__ import annotations

import dataclasses
import json

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.report.content import names

DRIVER_NAME = 'cyborg_gpu_driver'
DEVICE_TYPE = 'GPU'
CPID_TYPE = 'PCI'
PCI = 'PCI'
MDEV = 'MDEV'

INFO_MAX = 255
"""Characters in Cyborg's columns attach_info, cpid_info, vendor, model."""


@dataclasses.dataclass(frozen=True)
class ReportedHandle:
    """One attach handle: what one server gets."""

    attach_type: str
    """PCI (a whole function) or MDEV (Cyborg calls the agent at bind)."""
    attach_info: str
    """Flat JSON object of strings, keys sorted; read by Nova."""
    address: model.PciAddress
    """The function in ``attach_info``: the GPU, or one of its VFs."""

    @property
    def asked_type(self) -> str | None:
        """The vGPU type with which Cyborg calls the agent at bind."""
        return json.loads(self.attach_info).get('asked_type')


@dataclasses.dataclass(frozen=True)
class ReportedDeployable:
    """One offer: one resource provider with one resource class."""

    name: str
    gpu: model.PciAddress
    mode: policy.Mode
    profile: str
    resource_class: str
    traits: tuple[str, ...]
    handles: tuple[ReportedHandle, ...]
    driver_name: str = DRIVER_NAME

    @property
    def num_accelerators(self) -> int:
        """The inventory's total: one for each handle, never 0."""
        return len(self.handles)

    @property
    def provider_uuid(self) -> str:
        return names.provider_uuid(self.name)

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """Cyborg's attributes: ``rc`` and one key for each trait.

        Cyborg compares attributes by key, so a trait's key is made from the
        trait. With numbered keys, traits would be lost when one is added or
        removed.
        """
        return (('rc', self.resource_class),
                *((f'trait_{trait}', trait) for trait in self.traits))


@dataclasses.dataclass(frozen=True)
class ReportedDevice:
    """One GPU.

    A device with ``stub`` set tells Cyborg not to change what it knows of
    that GPU.
    """

    address: model.PciAddress
    vendor: str
    model: str
    std_board_info: str
    vendor_board_info: str
    cpid_info: str
    deployables: tuple[ReportedDeployable, ...] = ()
    stub: bool = False
    busy: str = ''
    """Why some deployables are not available now, for example because
    processes of the machine use the GPU; empty otherwise."""
    busy_names: frozenset[str] = dataclasses.field(
        default=frozenset(), compare=False)
    """Names of the deployables that are not available for that reason."""
    type: str = DEVICE_TYPE
    cpid_type: str = CPID_TYPE
