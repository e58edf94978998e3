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


"""Cyborg's handles as nova-compute gets them: their devices on this host.

sysfs alone identifies a virtual function of vendor VFIO: it has
``nvidia/current_vgpu_type`` and no mdev types. The handle of a group of GPUs
names the GPUs, and sysfs shows whether they are GPUs of this host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import files as sysfs_module
from cyborg_gpu_driver.nova.attach import addresses

_DEVICES = ('bus', 'pci', 'devices')
_TYPE = re.compile(r'nvidia-(?P<number>[1-9]\d{0,9})', re.ASCII)
_VENDOR = '0x10de'
_DISPLAY = ('0x0300', '0x0302')


class HandleReader:
    """Finds the virtual functions and groups of GPUs that handles name.

    :param sysfs: sysfs of this machine.
    """

    def __init__(self, sysfs: sysfs_module.Sysfs):
        self._sysfs = sysfs

    def function(self, arq: Mapping[str, Any]) -> model.PciAddress | None:
        """Return the virtual function of a bound accelerator request.

        :param arq: as Cyborg's API returns it.
        :returns: None for any other handle, which Nova attaches by itself.
        :raises HandleRefused: if the function does not carry the vGPU that
            the handle stands for, so that no other vGPU is attached.
        """
        address = addresses.of_handle(arq)
        if address is None or addresses.of_group(arq) is not None:
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
                           f'{asked!r} is not an NVIDIA vGPU type')
        if current != wanted['number']:
            raise _refusal(
                arq, address, f'it has vGPU type {current} (0 is none) '
                f'instead of {wanted["number"]}')
        return address

    def group(self, arq: Mapping[str, Any]
              ) -> tuple[model.PciAddress, ...] | None:
        """Return the GPUs of a bound accelerator request for a group.

        :param arq: as Cyborg's API returns it.
        :returns: None for any other handle.
        :raises HandleRefused: if the handle does not name GPUs of this host.
        """
        found = addresses.of_group(arq)
        for address in found or ():
            place = (*_DEVICES, str(address))
            try:
                vendor = self._sysfs.read_optional(*place, 'vendor')
                kind = self._sysfs.read_optional(*place, 'class') or ''
                is_function = self._sysfs.exists(*place, 'physfn')
            except exception.SysfsError as error:
                raise _refusal(arq, address, str(error)) from error
            if (vendor != _VENDOR or not kind.startswith(_DISPLAY)
                    or is_function):
                raise _refusal(arq, address,
                               'it is not an NVIDIA GPU of this host')
        return found


def _refusal(arq, address, reason):
    return exception.HandleRefused(
        arq=arq.get('uuid'), address=address, reason=reason)
