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


"""What ``cyborg-gpu-nova-compute`` adds to Nova's libvirt driver.

Nova knows two kinds of accelerator handles: PCI, attached with
``managed='yes'``, and MDEV, for which it finds or makes a mediated device.
A vGPU on a kernel without mdev (vendor VFIO) is neither: it is a virtual
function that must stay with its driver, ``managed='no'``. Cyborg calls its
agent for MDEV handles only, so Cyborg has such a vGPU as an MDEV handle, and
the patches turn it into a PCI device.

A group of GPUs that NVLink connects has one handle of type MDEV, too. The
patches turn it into as many PCI devices, which Nova attaches as it attaches
any whole GPU.

Nova also writes domains without asking for accelerators: when it resumes
servers at the boot of the host, and when it rescues a server. The patches ask
for them there. Everything that Nova does with accelerators on a host passes
through the patched methods: ``_get_guest_config`` writes each domain, and
``_hard_reboot`` also destroys the old domain before. Everything else reaches
Nova's own methods unchanged.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova import bound
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.nova.attach import addresses

LOG = logging.getLogger(__name__)

_MARK = 'cyborg_gpu_driver_original'
_FUNCTION = 'cyborg_gpu_driver_function'


class Patches:
    """The patched methods, around Nova's own.

    :param reader: tells which handles are virtual functions.
    :param requests: reads accelerator requests where Nova did not.
    :param refuse: makes Nova's exception of the reason; raised, it fails
        what Nova is about to do.
    """

    def __init__(self, reader: handles.HandleReader,
                 requests: bound.Requests,
                 refuse: Callable[[str], Exception]):
        self._reader = reader
        self._requests = requests
        self._refuse = refuse

    def install(self, driver_class: Any) -> None:
        """Extend Nova's LibvirtDriver; extending again changes nothing."""
        for name, make in (
                ('_allocate_cyborg_mdevs', self._allocate),
                ('_get_guest_config', self._guest_config),
                ('_guest_add_accel_pci_devices', _add_devices),
                ('_hard_reboot', self._hard_reboot)):
            _replace(driver_class, name, make)

    def install_guard(self, driver_class: Any) -> None:
        """Refuse what only the patches could do, on an unknown Nova.

        Uses only what virt drivers have in common (nova/virt/driver.py).
        """
        for name in ('spawn', 'power_on', 'reboot'):
            if _takes_accel_info(driver_class, name):
                _replace(driver_class, name, self._without_functions)
        resume = 'resume_state_on_host_boot'
        if not _takes_accel_info(driver_class, resume):
            _replace(driver_class, resume, self._without_accelerators)

    def _without_functions(self, original):
        """Nova would look for an mdev, or let libvirt unbind the driver."""
        signature = inspect.signature(original)

        def guarded(*args, **kwargs):
            call = signature.bind(*args, **kwargs)
            for arq in call.arguments.get('accel_info') or ():
                if self._group(arq) is not None:
                    raise self._refuse(
                        f'request {arq["uuid"]} is for a group of GPUs, '
                        'which this release of Nova cannot attach')
                function = self._function(arq)
                if function is not None:
                    raise self._refuse(
                        f'{function} is a virtual function without mdev, '
                        'which this release of Nova cannot attach')
            return original(*args, **kwargs)
        return guarded

    def _without_accelerators(self, original):
        """Nova would start the server without its GPU."""
        signature = inspect.signature(original)

        def resume_state_on_host_boot(*args, **kwargs):
            instance = signature.bind(*args, **kwargs).arguments['instance']
            if bound.has_profile(instance):
                raise self._refuse(
                    'this release of Nova would start the server without its '
                    'accelerators. Reboot the server hard')
            return original(*args, **kwargs)
        return resume_state_on_host_boot

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
        except exception.RequestsUnknown as error:
            raise self._refuse(str(error)) from error

    def _allocate(self, original):
        """Nova is to look for, and to make, real mdevs only."""
        def _allocate_cyborg_mdevs(driver, accel_info):
            return original(driver, [
                arq for arq in accel_info if self._group(arq) is None
                and self._function(arq) is None])
        return _allocate_cyborg_mdevs

    def _guest_config(self, original):
        """The guest's handles: groups and virtual functions as PCI devices.
        """
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
        """Accelerator requests with what we attach as PCI handles.

        Copies: Nova keeps what it got from Cyborg. A group becomes one for
        each of its GPUs.
        """
        found: list[dict[str, Any]] = []
        for arq in accel_info:
            group = self._group(arq)
            if group is not None:
                LOG.info('GPUs %(gpus)s are attached as accelerator request '
                         '%(arq)s', {'gpus': ', '.join(map(str, group)),
                                     'arq': arq['uuid']})
                found.extend(addresses.as_pci(arq, address)
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
        except exception.HandleRefused as error:
            raise self._refuse(str(error)) from error

    def _function(self, arq):
        try:
            return self._reader.function(arq)
        except exception.HandleRefused as error:
            raise self._refuse(str(error)) from error


def _replace(driver_class, name, make):
    original = getattr(driver_class, name)
    if hasattr(original, _MARK):
        return
    ours = functools.wraps(original)(make(original))
    setattr(ours, _MARK, original)
    setattr(driver_class, name, ours)


def _takes_accel_info(driver_class, name):
    return 'accel_info' in inspect.signature(
        getattr(driver_class, name)).parameters


def _add_devices(original):
    """Attach our functions as Nova does, but not managed."""
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
    """Stands for a guest's configuration and keeps what is added to it."""

    def __init__(self):
        self.devices = []

    def add_device(self, device):
        self.devices.append(device)
