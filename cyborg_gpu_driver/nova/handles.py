# SPDX-License-Identifier: Apache-2.0

"""Cyborg's handles as nova-compute gets them: their devices on this host.

sysfs alone identifies a virtual function of vendor VFIO: it has
``nvidia/current_vgpu_type`` and no mdev types. The handle of a group of GPUs
names the GPUs, and sysfs shows whether they are GPUs of this host.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import os_traits

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.nova import pci_config
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report.content import names

# The GPUs that the handle of a group of GPUs names. Pure.
#
# Cyborg gives a server one handle for each accelerator request, and a handle
# of type PCI has one address. So a group has a handle of type MDEV, whose
# ``addresses`` are those of all its GPUs. A plain nova-compute looks for a
# mediated device of type ``nvlink-2``, does not find it, and the server does
# not start. Therefore a server never gets only one GPU of the group.

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
    except exception.InvalidValue:
        return None


def of_group(arq: Mapping[str, Any]) -> tuple[model.PciAddress, ...] | None:
    """Return the GPUs of a group, in the order in which the guest gets them.

    :returns: None for a handle that does not stand for a group.
    :raises BindRefused: if the handle does not name as many GPUs as the
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
    except exception.InvalidValue as error:
        raise _refusal(arq, leader, str(error)) from error
    if len(found) != size or len(set(found)) != size:
        raise _refusal(arq, leader, f'it names {len(set(found))} GPUs '
                       f'instead of {size}: {text!r}')
    if found[0] != leader:
        raise _refusal(
            arq, leader, f'the first of its GPUs is {found[0]}')
    return found


def as_pci(arq: Mapping[str, Any], address: model.PciAddress
           ) -> dict[str, Any]:
    """Return the request with a handle of type PCI and that one address."""
    return {**arq, 'attach_handle_type': 'PCI', 'attach_handle_info': {
        **arq['attach_handle_info'],
        'domain': f'{address.domain:04x}', 'bus': f'{address.bus:02x}',
        'device': f'{address.device:02x}',
        'function': f'{address.function:x}'}}


_DEVICES = ('bus', 'pci', 'devices')
_TYPE = re.compile(r'nvidia-(?P<number>[1-9]\d{0,9})', re.ASCII)
_VENDOR = '0x10de'
_DISPLAY = ('0x0300', '0x0302')


class HandleReader:
    """Finds the virtual functions and groups of GPUs that handles name."""

    def __init__(self, sysfs: pci.Sysfs):
        self._sysfs = sysfs

    def function(self, arq: Mapping[str, Any]) -> model.PciAddress | None:
        """Return the virtual function of a bound accelerator request.

        :returns: None for any other handle, which Nova attaches by itself.
        :raises BindRefused: if the function does not carry the vGPU that
            the handle stands for, so that no other vGPU is attached.
        """
        address = of_handle(arq)
        if address is None or of_group(arq) is not None:
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

        :raises BindRefused: if the handle does not name GPUs of this host.
        """
        found = of_group(arq)
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


def _refusal(arq: Mapping[str, Any], address: model.PciAddress | None,
             reason: str) -> exception.BindRefused:
    return exception.BindRefused(
        f'accelerator request {arq.get("uuid")}: virtual function {address}: '
        f'{reason}')


# The vGPUs that Nova's own PCI code hands out.

def assigned(gpu: model.Gpu, policy: policies.Policy,
             remembered: Mapping[model.PciAddress, str],
             live_migratable: bool = False) -> tuple[pci_config.Assigned, ...]:
    """Return the fixed vGPUs of one GPU, whether they exist yet or not.

    :param remembered: see :func:`cyborg_gpu_driver.partition.fixed.plan`.
    :raises InvalidConfiguration: if the GPU cannot carry what the policy says.
    """
    return tuple(
        _assigned(gpu, policy, item, live_migratable)
        for item in fixed.plan(gpu, policy, remembered).vgpus)


def _assigned(gpu: model.Gpu, policy: policies.Policy,
              assignment: Any, live_migratable: bool
              ) -> pci_config.Assigned:
    # Cyborg would give the type the same resource class and traits.
    offer = offers.Offer(
        gpu=gpu.address, policy=policy.name, mode=policy.mode,
        profile=assignment.name, total=1,
        vgpu_type_id=assignment.type_id)
    return pci_config.Assigned(
        function=assignment.function, gpu=gpu.address,
        vendor_id=gpu.vendor_id, product_id=gpu.device_id,
        type_name=assignment.name,
        resource_class=names.resource_class(offer),
        traits=tuple(trait for trait in names.traits(gpu, offer)
                     if trait != os_traits.OWNER_CYBORG),
        live_migratable=live_migratable)


# The accelerator requests of a server when Nova does not ask for them.
#
# Nova's compute manager asks Cyborg when it creates, starts, reboots or
# rebuilds a server. It does not ask when it resumes servers at the boot of the
# host or when it rescues a server (nova/compute/manager.py of Nova 34:
# ``_resume_guests_state``, ``rescue_instance``).

LOG = logging.getLogger(__name__)

_PROFILE = 'accel:device_profile'
_LIMIT = 120.0
"""Seconds that one process waits for Cyborg in total. After a power failure
cyborg-api may start later than a GPU host. Nova resumes one server after the
other, so the wait must not start again for each server."""
_PAUSE = 5.0
"""Seconds between two attempts."""


def has_profile(instance: Any) -> bool:
    """Whether the flavor of a server asks Cyborg for accelerators."""
    return bool(instance.flavor.extra_specs.get(_PROFILE))


class Requests:
    """Reads the bound accelerator requests of servers.

    :param ask: returns the requests of a server from Cyborg, by Nova's
        context and the UUID of the server.
    """

    def __init__(self, ask: Callable[[Any, str], list[dict[str, Any]]],
                 clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep):
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._left = _LIMIT

    def of(self, context: Any, instance: Any) -> list[dict[str, Any]]:
        """Return the requests that are bound to a server on its host.

        :returns: an empty list if the flavor has no device profile.
        :raises CloudError: if Cyborg does not return them, or if one of
            them is not bound to the node of the server. Its handle would be
            an address on another host.
        """
        if not has_profile(instance):
            return []
        found = self._read(context, instance.uuid)
        for arq in found:
            if arq['state'] != 'Bound' or arq['hostname'] != instance.node:
                raise exception.CloudError(
                    f'accelerators of server {instance.uuid}: request '
                    f"{arq['uuid']} is {arq['state']} on "
                    f"{arq['hostname']}, not Bound on {instance.node}")
        return found

    def _read(self, context: Any, server: str) -> list[dict[str, Any]]:
        while True:
            begun = self._clock()
            try:
                return self._ask(context, server)
            # Keystone, the network and Cyborg each have their own errors.
            except Exception as error:
                if self._left <= 0:
                    raise exception.CloudError(
                        f'accelerators of server {server}: {error}') from error
                LOG.warning(
                    'Cyborg does not return the accelerators of server '
                    '%(server)s: %(error)s. Next attempt in %(pause)d '
                    'seconds', {'server': server, 'error': error,
                                'pause': _PAUSE})
            self._sleep(_PAUSE)
            self._left -= self._clock() - begun
