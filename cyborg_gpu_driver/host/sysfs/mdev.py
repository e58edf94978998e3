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

"""vGPUs as sysfs shows them: mdev types, live mdevs, vendor VFIO.

Documentation/driver-api/vfio-mediated-device.rst of the kernel describes
the mdev files. NVIDIA's vGPU guide describes the ``nvidia/`` directory of a
virtual function, for kernels without mdev.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import files as sysfs_module
from cyborg_gpu_driver.host.sysfs import pci

DEVICES = ('bus', 'mdev', 'devices')
"""The mdevs of the machine in sysfs, by UUID."""
_TYPES = 'mdev_supported_types'
_MAX_INSTANCE = re.compile(r'\bmax_instance=(\d{1,9})\b', re.ASCII)
_FRAMEBUFFER = re.compile(r'\bframebuffer=(\d{1,9})M\b', re.ASCII)
_CREATABLE = re.compile(r'\s*(\d{1,9})\s*(?::|$)', re.ASCII)
_NUMBER = re.compile(r'\d{1,10}', re.ASCII)
_NONE = frozenset({0xffff, 0xffffffff})
"""NVML's numbers for no placement and for no GPU instance (nvml.h)."""


class MdevTree:
    """Reads mdev types and mdevs, and caches what does not change.

    A type's name and description belong to the GPU's driver; they are read
    once for a GPU, not once for each of its virtual functions.
    """

    def __init__(self, sysfs: sysfs_module.Sysfs):
        self._sysfs = sysfs
        self._types: dict[model.PciAddress, dict[str, model.MdevType]] = {}
        self._listed: dict[model.PciAddress, tuple[str, ...]] = {}

    def forget(self, gpu: model.PciAddress) -> None:
        """Read everything about a GPU's types again."""
        self._types.pop(gpu, None)

    def forget_function(self, function: model.PciAddress) -> None:
        """List a function's types again."""
        self._listed.pop(function, None)

    def types(self, gpu: model.PciAddress, function: model.PciAddress
              ) -> tuple[model.MdevType, ...]:
        """The mdev types of a function, without their availability.

        :param gpu: the GPU that the function belongs to.
        :raises SysfsError: if they cannot be read.
        """
        if function not in self._listed:
            names = tuple(sorted(self._sysfs.listdir(
                *pci.DEVICES, str(function), _TYPES), key=_type_number))
            if not names:
                # The driver may yet publish them: look again next time.
                return ()
            self._listed[function] = names
        known = self._types.setdefault(gpu, {})
        for name in self._listed[function]:
            if name not in known:
                known[name] = self._describe(function, name)
        return tuple(known[name] for name in self._listed[function])

    def available(self, function: model.PciAddress,
                  types: tuple[model.MdevType, ...]
                  ) -> tuple[model.MdevType, ...]:
        """Return ``types`` with how many more a function can take now.

        :raises SysfsError, InvalidValue: if one cannot be read.
        """
        return tuple(
            dataclasses.replace(mdev_type, available=pci.number(
                self._sysfs.read(*pci.DEVICES, str(function), _TYPES,
                                 mdev_type.type_id, 'available_instances'),
                'available_instances'))
            for mdev_type in types)

    def live(self, problems: problems_module.Problems
             ) -> Mapping[model.PciAddress, tuple[model.Mdev, ...]]:
        """Return every mdev of the machine, by its parent.

        :param problems: receives what could not be read.
        """
        found = collections.defaultdict(list)
        with problems.noted('mdevs'):
            for uuid in self._sysfs.listdir(*DEVICES):
                with problems.noted(f'mdev {uuid}'):
                    mdev = self._mdev(uuid)
                    if mdev is not None:
                        found[mdev.parent].append(mdev)
        return {parent: tuple(sorted(mdevs))
                for parent, mdevs in found.items()}

    def _mdev(self, uuid: str) -> model.Mdev | None:
        """One mdev; None if it is gone or its parent is no PCI function."""
        place = self._sysfs.link_parts(*DEVICES, uuid)
        type_id = self._sysfs.link_name(*DEVICES, uuid, 'mdev_type')
        if len(place) < 2 or type_id is None:
            return None
        try:
            parent = model.PciAddress.parse(place[-2])
        except exception.InvalidPciAddress:
            return None
        return model.Mdev(uuid=uuid, parent=parent, type_id=type_id)

    def current_vgpu_type(self, function: model.PciAddress) -> int | None:
        """Type of the vGPU on a function of vendor VFIO; 0 for no vGPU.

        :returns: None if the function has no such file.
        :raises SysfsError, InvalidValue: if it cannot be read.
        """
        return pci.number(self._sysfs.read_optional(
            *pci.DEVICES, str(function), 'nvidia', 'current_vgpu_type'),
            'current_vgpu_type')

    def creatable_types(self, function: model.PciAddress
                        ) -> tuple[int, ...] | None:
        """vGPU types that can be created on a function of vendor VFIO now.

        :returns: None if the function has no such file.
        NVIDIA shows the table with a line "ID : vGPU Name" (vGPU software
        documentation) and without it (README of kubevirt-gpu-device-plugin).
        Only the ids are needed. Lines without one are ignored.

        :raises SysfsError: if it cannot be read.
        """
        text = self._sysfs.read_optional(
            *pci.DEVICES, str(function), 'nvidia', 'creatable_vgpu_types')
        if not text:
            return None if text is None else ()
        return tuple(sorted({int(match[1]) for match
                             in map(_CREATABLE.match, text.splitlines())
                             if match}))

    def vgpu_output(self, function: model.PciAddress, name: str
                    ) -> int | None:
        """Return a number of the vGPU on a function of vendor VFIO.

        :param name: ``gpu_instance_id`` or ``placement_id``.
        :returns: None if the driver reports none, by whatever word, or there
            is no vGPU (ENXIO).
        :raises SysfsError: if it cannot be read.
        """
        text = self._sysfs.read_optional(
            *pci.DEVICES, str(function), 'nvidia', name)
        if text is None or not _NUMBER.fullmatch(text):
            return None
        value = int(text)
        return None if value in _NONE else value

    def _describe(self, function: model.PciAddress, type_id: str
                  ) -> model.MdevType:
        place = (*pci.DEVICES, str(function), _TYPES, type_id)
        words = self._sysfs.read(*place, 'name').split()
        description = self._sysfs.read_optional(*place, 'description') or ''
        return model.MdevType(
            type_id=type_id, name=words[-1] if words else type_id,
            available=None,
            max_instances=_find(_MAX_INSTANCE, description),
            framebuffer_mib=_find(_FRAMEBUFFER, description))


def _find(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


def _type_number(type_id: str) -> tuple[int, str]:
    """Sort ``nvidia-63`` before ``nvidia-222``."""
    number = type_id.rpartition('-')[2]
    return (int(number) if _NUMBER.fullmatch(number) else 0, type_id)
