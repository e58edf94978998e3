# SPDX-License-Identifier: Apache-2.0


"""The patches that ``cyborg-gpu-nova-compute`` adds to Nova's libvirt driver.

Nova knows two kinds of accelerator handles: PCI, attached with
``managed='yes'``, and MDEV, for which Nova finds or creates a mediated device.
A vGPU on a kernel without mdev (vendor VFIO) is neither: it is a virtual
function that must keep its driver, ``managed='no'``. Cyborg calls its agent
only for MDEV handles. So such a vGPU has an MDEV handle in Cyborg, and the
patches turn it into a PCI device.

A group of GPUs that NVLink connects has one handle of type MDEV, too. The
patches turn it into one PCI device per GPU. Nova attaches them like any whole
GPU.

Nova also writes domains without asking Cyborg for accelerators: when it
resumes servers at the boot of the host, and when it rescues a server. In
these cases the patches ask Cyborg. All that Nova does with accelerators on a
host passes through the patched methods: ``_get_guest_config`` writes each
domain, and ``_hard_reboot`` first destroys the old domain. Everything else
reaches Nova's own methods unchanged.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova import handles

LOG = logging.getLogger(__name__)

_FUNCTION = 'cyborg_gpu_driver_function'


class Patches:
    """The patched methods, which wrap Nova's own.

    :param reader: finds handles of virtual functions and of groups of GPUs.
    :param refuse: returns an exception of Nova with the reason; raising it
        fails the operation of Nova.
    """

    def __init__(self, reader: handles.HandleReader,
                 requests: handles.Requests,
                 refuse: Callable[[str], Exception]):
        self._reader = reader
        self._requests = requests
        self._refuse = refuse

    def install(self, driver_class: Any) -> None:
        """Extend Nova's LibvirtDriver."""
        for name, make in (
                ('_allocate_cyborg_mdevs', self._allocate),
                ('_get_guest_config', self._guest_config),
                ('_guest_add_accel_pci_devices', _add_devices),
                ('_hard_reboot', self._hard_reboot)):
            original = getattr(driver_class, name)
            setattr(driver_class, name,
                    functools.wraps(original)(make(original)))

    def _hard_reboot(self, original):
        """Read the requests before Nova destroys the old domain."""
        signature = inspect.signature(original)

        def _hard_reboot(*args, **kwargs):
            call = signature.bind(*args, **kwargs)
            if call.arguments.get('accel_info') is None:
                call.arguments['accel_info'] = self._omitted(call.arguments)
            return original(*call.args, **call.kwargs)
        return _hard_reboot

    def _omitted(self, arguments):
        try:
            return self._requests.of(
                arguments['context'], arguments['instance'])
        except exception.CloudError as error:
            raise self._refuse(str(error)) from error

    def _allocate(self, original):
        """Let Nova look for, and create, real mdevs only."""
        def _allocate_cyborg_mdevs(driver, accel_info):
            return original(driver, [
                arq for arq in accel_info if self._group(arq) is None
                and self._function(arq) is None])
        return _allocate_cyborg_mdevs

    def _guest_config(self, original):
        """Pass groups and virtual functions to Nova as PCI devices."""
        signature = inspect.signature(original)

        def _get_guest_config(driver, *args, **kwargs):
            call = signature.bind(driver, *args, **kwargs)
            found = call.arguments.get('accel_info')
            if found is None:
                found = self._omitted(call.arguments)
                # Nova's callers add the mdevs of the requests themselves.
                mdevs = list(call.arguments.get('mdevs') or ())
                call.arguments['mdevs'] = mdevs + [
                    mdev for mdev in driver._allocate_cyborg_mdevs(found)
                    if mdev not in mdevs]
            if found:
                call.arguments['accel_info'] = self._as_pci(found)
            return original(*call.args, **call.kwargs)
        return _get_guest_config

    def _as_pci(self, accel_info: Iterable[dict[str, Any]]
                ) -> list[dict[str, Any]]:
        """Return accelerator requests with PCI handles for Nova to attach.

        Changed requests are copies: Nova keeps what it got from Cyborg. A
        group becomes one request for each of its GPUs.
        """
        found: list[dict[str, Any]] = []
        for arq in accel_info:
            group = self._group(arq)
            if group is not None:
                LOG.info('GPUs %(gpus)s are attached as accelerator request '
                         '%(arq)s', {'gpus': ', '.join(map(str, group)),
                                     'arq': arq['uuid']})
                found.extend(handles.as_pci(arq, address)
                             for address in group)
                continue
            function = self._function(arq)
            if function is not None:
                arq = {**arq, 'attach_handle_type': 'PCI',
                       _FUNCTION: str(function)}
            found.append(arq)
        return found

    def _group(self, arq):
        try:
            return self._reader.group(arq)
        except exception.BindRefused as error:
            raise self._refuse(str(error)) from error

    def _function(self, arq):
        try:
            return self._reader.function(arq)
        except exception.BindRefused as error:
            raise self._refuse(str(error)) from error


def _add_devices(original):
    """Attach the vGPUs' virtual functions as Nova does, but not managed."""
    def _guest_add_accel_pci_devices(driver, guest, accel_info):
        for arq in accel_info:
            if _FUNCTION not in arq:
                original(driver, guest, [arq])
                continue
            collected = _Collected()
            original(driver, collected, [arq])
            for device in collected.devices:
                device.managed = 'no'
                guest.add_device(device)
                LOG.info('vGPU on virtual function %(function)s is '
                         'attached as accelerator request %(arq)s',
                         {'function': arq[_FUNCTION], 'arq': arq['uuid']})
    return _guest_add_accel_pci_devices


class _Collected:
    """A stand-in for a guest's configuration that collects its devices."""

    def __init__(self):
        self.devices = []

    def add_device(self, device):
        self.devices.append(device)
