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

"""The GPUs that the handle of a group of GPUs names. Pure.

Cyborg gives a server one handle for each accelerator request, and a handle of
type PCI has one address. So a group has a handle of type MDEV, whose
``addresses`` are those of all its GPUs. A plain nova-compute looks for a
mediated device of type ``nvlink-2``, does not find it, and the server does
not start. Therefore a server never gets only one GPU of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import vgpu_name

MDEV = 'MDEV'
_PARTS = ('domain', 'bus', 'device', 'function')


def of_handle(arq: Mapping[str, Any]) -> model.PciAddress | None:
    """Return the function that an MDEV handle names; None if it has none.

    :param arq: a bound accelerator request, as Cyborg's API returns it.
    """
    info = arq.get('attach_handle_info')
    if arq.get('attach_handle_type') != MDEV or not isinstance(
            info, Mapping):
        return None
    domain, bus, device, function = (info.get(part) for part in _PARTS)
    try:
        return model.PciAddress.parse(f'{domain}:{bus}:{device}.{function}')
    except exception.InvalidPciAddress:
        return None


def of_group(arq: Mapping[str, Any]) -> tuple[model.PciAddress, ...] | None:
    """Return the GPUs of a group, in the order in which the guest gets them.

    :param arq: as :func:`of_handle`.
    :returns: None for a handle that does not stand for a group.
    :raises HandleRefused: if the handle does not name as many GPUs as the
        group has, each once, and the handle's own function first.
    """
    leader = of_handle(arq)
    info = arq.get('attach_handle_info')
    if not isinstance(info, Mapping) or arq.get('attach_handle_type') != MDEV:
        return None
    size = vgpu_name.group_size(info.get('asked_type', ''))
    if size is None:
        return None
    text = info.get('addresses')
    try:
        found = nvlink.from_text(text) if isinstance(text, str) else ()
    except exception.InvalidPciAddress as error:
        raise _refusal(arq, leader, str(error)) from error
    if len(found) != size or len(set(found)) != size:
        raise _refusal(arq, leader, f'it names {len(set(found))} GPUs '
                       f'instead of {size}: {text!r}')
    if found[0] != leader:
        raise _refusal(arq, leader, f'the first of its GPUs is {found[0]}')
    return found


def as_pci(arq: Mapping[str, Any], address: model.PciAddress
           ) -> dict[str, Any]:
    """Return the request with a handle of type PCI and that one address."""
    return {**arq, 'attach_handle_type': 'PCI', 'attach_handle_info': {
        **arq['attach_handle_info'],
        'domain': f'{address.domain:04x}', 'bus': f'{address.bus:02x}',
        'device': f'{address.device:02x}',
        'function': f'{address.function:x}'}}


def _refusal(arq: Mapping[str, Any], address: model.PciAddress | None,
             reason: str) -> exception.HandleRefused:
    return exception.HandleRefused(
        arq=arq.get('uuid'), address=address, reason=reason)
