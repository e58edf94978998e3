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

"""NVIDIA's display functions on the PCI bus, from sysfs."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.snapshot import drivers
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.host.sysfs import files as sysfs_module

DEVICES = ('bus', 'pci', 'devices')
_NVIDIA = '10de'
_DISPLAY = ('0300', '0302')
"""VGA compatible and 3D controller (PCI Code and ID Assignment)."""
_UNREADABLE = '0000'
_VIRTUAL = re.compile(r'virtfn([0-9]{1,5})', re.ASCII)
_BRIDGE = '0680'
"""Other bridge device: the class of NVSwitches."""
_VFIO_ALIAS = re.compile(r'^alias vfio_(pci:\S+) (\S+)$', re.ASCII | re.M)
HOPPER_NVSWITCHES = frozenset(f'22a{digit:x}' for digit in range(8))
"""Device ids of the NVSwitches of Hopper (nvswitch_ls10_device_ids in
src/common/nvswitch/kernel/nvswitch.c of NVIDIA's open kernel modules). Later
NVSwitches are not PCI functions of the host."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The properties of a PCI function while it is on the bus."""

    address: model.PciAddress
    vendor_id: str
    device_id: str
    class_code: str
    subsystem_vendor_id: str | None
    subsystem_device_id: str | None
    numa_node: int | None
    physfn: model.PciAddress | None
    """The physical function of a virtual function (``physfn``)."""
    physfn_known: bool
    """False if ``physfn`` was not read: it may be a virtual function."""
    sriov_totalvfs: int
    problems: tuple[str, ...] = ()


def module_aliases() -> str:
    """Return the text of modules.alias of the running kernel; '' without it.
    """
    try:
        with open(f'/lib/modules/{os.uname().release}/modules.alias',
                  encoding='utf-8', errors='replace') as stream:
            return stream.read()
    except OSError:
        return ''


def board(sysfs: sysfs_module.Sysfs, address: model.PciAddress
          ) -> tuple[str | None, ...] | model.PciAddress:
    """Return a board's kind: its PCI ids, or its address without them.

    :raises SysfsError: if sysfs cannot be read.
    """
    ids = tuple(sysfs.read_optional(*DEVICES, str(address), name)
                for name in ('vendor', 'device', 'subsystem_vendor',
                             'subsystem_device'))
    return address if None in ids else ids


def physical_function(sysfs: sysfs_module.Sysfs, name: str
                      ) -> model.PciAddress | None:
    """Return the physical function of a virtual function.

    :param name: the PCI address of a function.
    :returns: None if it is not a virtual function.
    :raises SysfsError: if the link ``physfn`` cannot be read.
    """
    link = sysfs.link_name(*DEVICES, name, 'physfn')
    return model.PciAddress.parse(link) if link else None


class PciBus:
    """Lists the NVIDIA GPUs on the PCI bus, and caches their identities.

    A function's identity is read once and kept while the function stays
    on the bus.
    """

    def __init__(self, sysfs: sysfs_module.Sysfs):
        self._sysfs = sysfs
        self._known: dict[str, Identity | None] = {}
        self.has_nvswitches = False
        """Whether :meth:`functions` has found an NVSwitch."""

    def functions(self, problems: problems_module.Problems
                  ) -> tuple[Identity, ...]:
        """NVIDIA's functions of class 0300 and 0302, also virtual functions.

        :param problems: receives why functions may be missing. If the bus
            itself cannot be listed, the functions seen last are returned.
        """
        try:
            names = self._sysfs.listdir(*DEVICES)
        except exception.SysfsError as error:
            problems.add(f'PCI functions: {error}')
        else:
            self._look(names, problems)
        return tuple(sorted(
            (identity for identity in self._known.values() if identity),
            key=lambda identity: identity.address))

    def _look(self, names: Iterable[str], problems: problems_module.Problems
              ) -> None:
        known: dict[str, Identity | None] = {}
        for name in names:
            identity = self._known.get(name)
            # An identity that was read only in part is read again.
            if name in self._known and not (identity and identity.problems):
                known[name] = identity
                continue
            try:
                known[name] = self._identify(name)
            except exception.GpuDriverError as error:
                problems.add(f'PCI function {name}: {error}')
        self._known = known

    def _identify(self, name: str) -> Identity | None:
        """Return the identity of an NVIDIA GPU; None for other functions."""
        if self._hex(name, 'vendor') != _NVIDIA:
            return None
        class_code = self._hex(name, 'class')[:4]
        self.has_nvswitches |= class_code == _BRIDGE
        if class_code not in _DISPLAY:
            return None
        found = problems_module.Problems()
        device_id, subsystem_vendor, subsystem_device = (
            self._optional_hex(name, file, found)
            for file in ('device', 'subsystem_vendor', 'subsystem_device'))
        numa_node = totalvfs = physfn = None
        with found.noted('numa_node'):
            numa_node = self._number(name, 'numa_node')
        with found.noted('sriov_totalvfs'):
            totalvfs = self._number(name, 'sriov_totalvfs')
        physfn_known = False
        with found.noted('physfn'):
            physfn = physical_function(self._sysfs, name)
            physfn_known = True
        return Identity(
            address=model.PciAddress.parse(name), vendor_id=_NVIDIA,
            device_id=device_id or _UNREADABLE, class_code=class_code,
            subsystem_vendor_id=subsystem_vendor,
            subsystem_device_id=subsystem_device,
            numa_node=None if numa_node == -1 else numa_node,
            physfn=physfn, physfn_known=physfn_known,
            sriov_totalvfs=totalvfs or 0,
            problems=found.all())

    def _hex(self, name: str, file: str) -> str:
        return self._sysfs.read(*DEVICES, name, file).removeprefix('0x')

    def _optional_hex(self, name: str, file: str,
                      found: problems_module.Problems) -> str | None:
        with found.noted(file):
            return self._hex(name, file)
        return None

    def _number(self, name: str, file: str) -> int | None:
        return number(self._sysfs.read_optional(*DEVICES, name, file), file)

    def driver(self, address: model.PciAddress) -> str | None:
        """The kernel driver that a function is bound to.

        :raises SysfsError: if it cannot be read.
        """
        return self._sysfs.link_name(*DEVICES, str(address), 'driver')

    def vfio_driver(self, address: model.PciAddress, aliases: str) -> str:
        """The driver that gives a function to guests.

        Single boards have one of their own: the memory of a Grace board is
        not behind its BARs (nvgrace_gpu_vfio_pci in drivers/vfio/pci of
        Linux). Such a driver has an alias with the ids of its functions, and
        vfio-pci one for all functions. The alias with the fewest wildcards
        counts, as in libvirt (virPCIDeviceFindBestVFIOVariant).

        :param aliases: see :func:`module_aliases`.
        :raises SysfsError: if the function cannot be read.
        """
        name = self._sysfs.read_optional(*DEVICES, str(address), 'modalias')
        found = [(pattern.count('*'), module) for pattern, module in
                 _VFIO_ALIAS.findall(aliases)
                 if fnmatch.fnmatchcase(name or '', pattern)]
        module = min(found)[1] if found else ''
        return drivers.VFIO_PCI if module in ('', 'vfio_pci') else module

    def nvswitches(self) -> frozenset[str]:
        """Device ids of the NVSwitches of this machine.

        :raises SysfsError: if the bus cannot be listed.
        """
        return frozenset(
            self._hex(name, 'device') for name in self._sysfs.listdir(*DEVICES)
            if self._hex(name, 'vendor') == _NVIDIA
            and self._hex(name, 'class')[:4] == _BRIDGE)

    def iommu_group(self, address: model.PciAddress) -> int | None:
        """A function's IOMMU group.

        :raises SysfsError: if it cannot be read.
        """
        return number(self._sysfs.link_name(
            *DEVICES, str(address), 'iommu_group'), 'iommu_group')

    def group_members(self, group: int | None) -> tuple[str, ...]:
        """Addresses of the functions in an IOMMU group; none without group.

        :raises SysfsError: if they cannot be listed.
        """
        if group is None:
            return ()
        return tuple(self._sysfs.listdir('kernel', 'iommu_groups',
                                         str(group), 'devices'))

    def neighbours(self, address: model.PciAddress, group: int | None
                   ) -> tuple[whole.Neighbour, ...]:
        """Return the other functions in the IOMMU group of a function.

        :raises SysfsError: if they cannot be read.
        """
        return tuple(
            whole.Neighbour(name, self._hex(name, 'class')[:4],
                            self._sysfs.link_name(*DEVICES, name, 'driver'))
            for name in sorted(self.group_members(group))
            if name != str(address))

    def numvfs(self, address: model.PciAddress) -> int:
        """Return how many virtual functions are enabled.

        Counts their links ``virtfn<n>``. A read of ``sriov_numvfs`` waits for
        the lock of the device (sriov_numvfs_show in drivers/pci/iov.c, since
        commit 35ff867b7657 in Linux 5.5). The kernel holds this lock while a
        driver is unbound or bound, which may never end, and a process that
        waits for it cannot be killed.

        :raises SysfsError: if they cannot be listed.
        """
        found = map(_VIRTUAL.fullmatch,
                    self._sysfs.listdir(*DEVICES, str(address)))
        return max((int(match[1]) + 1 for match in found if match), default=0)

    def virtual_functions(self, address: model.PciAddress, numvfs: int
                          ) -> tuple[model.PciAddress, ...]:
        """Return the addresses of virtual functions, in order of their index.

        There are fewer than ``numvfs`` while they are being removed.

        :raises SysfsError: if one cannot be read.
        """
        found = []
        for index in range(numvfs):
            name = self._sysfs.link_name(
                *DEVICES, str(address), f'virtfn{index}')
            if name is None:
                break
            found.append(model.PciAddress.parse(name))
        return tuple(found)


def number(text: str | None, what: str) -> int | None:
    """Return the number in a file of sysfs; None if there was no file.

    :raises InvalidValue: if the text is not a number.
    """
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise exception.InvalidValue(
            what=what, value=text, expected='expected a number') from None
