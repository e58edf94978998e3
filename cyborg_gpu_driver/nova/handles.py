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


"""Cyborg's handles as nova-compute gets them: which are virtual functions.

A virtual function of vendor VFIO is told from sysfs alone: it has
``nvidia/current_vgpu_type`` and no mdev types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import files as sysfs_module

_MDEV = 'MDEV'
_DEVICES = ('bus', 'pci', 'devices')
_TYPE = re.compile(r'nvidia-(?P<number>[1-9]\d{0,9})', re.ASCII)
_PARTS = ('domain', 'bus', 'device', 'function')


class HandleReader:
    """Tells virtual functions of vendor VFIO among handles.

    :param sysfs: of this machine.
    """

    def __init__(self, sysfs: sysfs_module.Sysfs):
        self._sysfs = sysfs

    def function(self, arq: Mapping[str, Any]) -> model.PciAddress | None:
        """The virtual function that a bound accelerator request names.

        :param arq: as Cyborg's API gives it.
        :returns: None for any other handle, which is Nova's own business.
        :raises HandleRefused: if the function does not carry the vGPU that
            the handle stands for, so that nobody else's is attached.
        """
        address = _address(arq)
        if address is None:
            return None
        place = (*_DEVICES, str(address))
        try:
            current = self._sysfs.read_optional(
                *place, 'nvidia', 'current_vgpu_type')
        except exception.SysfsError as error:
            raise _refusal(arq, address, str(error)) from error
        if current is None or self._sysfs.exists(
                *place, 'mdev_supported_types'):
            return None
        asked = arq['attach_handle_info'].get('asked_type')
        wanted = _TYPE.fullmatch(asked if isinstance(asked, str) else '')
        if wanted is None:
            raise _refusal(arq, address,
                           f'{asked!r} is no vGPU type of NVIDIA')
        if current != wanted['number']:
            raise _refusal(
                arq, address, f'it has vGPU type {current} (0 is none) '
                f'instead of {wanted["number"]}')
        return address


def _address(arq):
    """The function of an MDEV handle, None if there is none to be read."""
    info = arq.get('attach_handle_info')
    if arq.get('attach_handle_type') != _MDEV or not isinstance(
            info, Mapping):
        return None
    domain, bus, device, function = (info.get(part) for part in _PARTS)
    try:
        return model.PciAddress.parse(f'{domain}:{bus}:{device}.{function}')
    except exception.InvalidPciAddress:
        return None


def _refusal(arq, address, reason):
    return exception.HandleRefused(
        arq=arq.get('uuid'), address=address, reason=reason)
