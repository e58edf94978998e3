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

"""What the PCI bus shows of a GPU's health, whatever its driver.

Sources, all in the kernel's documentation: ``aer_dev_fatal`` in
Documentation/ABI/testing/sysfs-bus-pci-devices-aer, ``current_link_width``
in Documentation/ABI/testing/sysfs-bus-pci. A function that is off the bus
reads as all ones (PCI Local Bus Specification, "master abort"). A function
that sleeps is woken for a read of its configuration space
(pci_config_pm_runtime_get in drivers/pci/pci.c).
"""

from __future__ import annotations

import dataclasses
import re

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import health_facts
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import files as sysfs_module
from cyborg_gpu_driver.host.sysfs import pci

_TOTAL = re.compile('TOTAL_ERR_FATAL ([0-9]+)', re.ASCII)
_ABSENT = b'\xff\xff\xff\xff'
"""First register (vendor and device id) of a function that does not answer."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A function at one moment; None where the kernel reports nothing."""

    reachable: bool | None = None
    """Whether its configuration space can be read."""
    fatal: int | None = None
    """Fatal errors since the machine was started (AER)."""
    width: int | None = None
    """PCIe lanes in use. The speed of the link is no sign of health: GPUs
    lower it while they are idle (the manual of nvidia-smi, "PCIe Generation
    and Link Width")."""


def read(sysfs: sysfs_module.Sysfs, address: model.PciAddress) -> Seen:
    """Read the state of a function. Does not raise for a hardware fault."""
    place = (*pci.DEVICES, str(address))
    try:
        config = sysfs.read_bytes(*place, 'config')
    except exception.SysfsError:
        config = None
    return Seen(
        reachable=None if not config else config[:4] != _ABSENT,
        fatal=_fatal(_optional(sysfs, *place, 'aer_dev_fatal')),
        width=_number(_optional(sysfs, *place, 'current_link_width')))


def wrong(before: Seen, now: Seen) -> tuple[str, ...]:
    """Return what is wrong with a function.

    :param before: its state when NVML last found it healthy.
    :param now: its state now.
    :returns: codes from :data:`health_facts.PCI`.
    """
    return tuple(code for code, found in (
        (health_facts.UNREACHABLE, now.reachable is False),
        (health_facts.FATAL, _grew(before.fatal, now.fatal)),
        (health_facts.LANES, _grew(now.width, before.width))) if found)


def _grew(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def _optional(sysfs: sysfs_module.Sysfs, *place: str) -> str | None:
    try:
        return sysfs.read_optional(*place)
    except exception.SysfsError:
        return None


def _fatal(text: str | None) -> int | None:
    match = _TOTAL.search(text or '')
    return _number(match[1]) if match else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
