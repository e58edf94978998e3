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


"""What the installed Nova can do with an accelerator's handle by itself."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import importlib.util
import inspect
import os
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver.conf import policies

TESTED = (34,)
"""Major releases of Nova whose libvirt driver the contract tests ran on."""

METHODS = {
    '_allocate_cyborg_mdevs': ('self', 'accel_info'),
    '_get_guest_config': (
        'self', 'instance', 'network_info', 'image_meta', 'disk_info',
        'rescue', 'block_device_info', 'context', 'mdevs', 'accel_info',
        'share_info', 'old_guest'),
    '_guest_add_accel_pci_devices': ('self', 'guest', 'accel_info'),
}
"""Methods of Nova's LibvirtDriver that are extended, and their parameters
(nova/virt/libvirt/driver.py)."""


_FIRST_WITH_MDEVS = 34
"""Major release; see :func:`mdev_problem`."""

_ATTACH = '_guest_add_accel_pci_devices'
_DRIVER = os.path.join('virt', 'libvirt', 'driver.py')


def nova_version() -> str:
    """The installed Nova's version; ``''`` where there is none."""
    try:
        return importlib.metadata.version('nova')
    except importlib.metadata.PackageNotFoundError:
        return ''


def passes_managed_on(driver_class: Any) -> bool:
    """Whether Nova attaches an accelerator as managed or not by itself.

    Nova 34 attaches every accelerator with ``managed='yes'``. One that
    leaves it to the handle must look ``managed`` up in it, so the word is
    among the constants of the method that attaches.
    """
    method = getattr(driver_class, _ATTACH, None)
    code = getattr(_plain(method), '__code__', None)
    return code is not None and 'managed' in code.co_consts


def installed_passes_managed_on() -> bool:
    """The same of the Nova that is installed here, read and not imported.

    Importing Nova's libvirt driver would do a lot in an agent. A host whose
    Nova lives elsewhere (in a container, say) answers no.
    """
    return _asks_source(source_passes_managed_on, unknown=False)


def mdev_problem() -> str:
    """Why the Nova installed here cannot use handles of type MDEV.

    Nova 31 to 33 leave every accelerator out of a guest that has one whose
    handle is not of type PCI, and start the guest all the same. Released
    Nova 34.0.0 is the first that attaches them (nova/virt/libvirt/driver.py:
    ``_allocate_cyborg_mdevs``, and ``ah_type != 'MDEV'`` in
    ``_get_guest_config``). Development versions before it, such as
    33.1.0.dev7, count as 33: a guest without its vGPU is worse than an offer
    that is missing.

    On many GPU hosts nova-compute runs in another virtual environment or
    container. Its version cannot be read from here then, and no problem is
    reported. ``cyborg-gpu check`` asks the operator to look.

    :returns: ``''`` if Nova attaches them, or is not installed here.
    """
    version = nova_version()
    if not version or _major(version) >= _FIRST_WITH_MDEVS:
        return ''
    return (f'Nova {version} leaves accelerators with handles of type '
            'MDEV out of its guests, which start without them; Nova 34.0.0 '
            '(2026.2) is the first to attach them')


def _major(version):
    """The first number of a version; 0 if it does not start with one."""
    number = version.partition('.')[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def _asks_source(question, unknown):
    """An answer of the installed Nova's libvirt driver.

    :param unknown: the answer where it cannot be read.
    """
    found = importlib.util.find_spec('nova')
    if found is None or not found.submodule_search_locations:
        return unknown
    path = os.path.join(found.submodule_search_locations[0], _DRIVER)
    try:
        with open(path, encoding='utf-8') as stream:
            return question(stream.read())
    except (OSError, SyntaxError, ValueError):
        return unknown


def completed(settings: policies.Settings) -> policies.Settings:
    """Settings with what the installed Nova can do.

    It is only looked at where a policy has fixed vGPUs to hand out.
    """
    if not any(policy.fixed_vgpus for policy in settings.policies or ()):
        return settings
    return dataclasses.replace(
        settings, managed_handles=installed_passes_managed_on())


def source_passes_managed_on(source: str) -> bool:
    """The same of the source of Nova's libvirt driver.

    :raises SyntaxError: if it is not Python.
    """
    return any(
        isinstance(node, ast.Constant) and node.value == 'managed'
        for method in ast.walk(ast.parse(source))
        if isinstance(method, ast.FunctionDef) and method.name == _ATTACH
        for node in ast.walk(method))


def mismatch(driver_class: Any, version: str) -> str:
    """Why this Nova cannot be extended; ``''`` if it can.

    :param driver_class: Nova's LibvirtDriver.
    :param version: of Nova, such as ``34.0.0``.
    """
    major = version.partition('.')[0]
    tested = ', '.join(map(str, TESTED))
    if major not in map(str, TESTED):
        return (f'Nova {version or "of unknown version"} was not tested, '
                f'only {tested}')
    for name, expected in METHODS.items():
        method = getattr(driver_class, name, None)
        if method is None:
            return f'LibvirtDriver.{name} does not exist'
        parameters = tuple(inspect.signature(_plain(method)).parameters)
        if parameters != expected:
            return (f'LibvirtDriver.{name} takes {", ".join(parameters)} '
                    f'where {", ".join(expected)} is expected')
    return ''


def _plain(method: Callable[..., Any] | None) -> Callable[..., Any] | None:
    return method if method is None else inspect.unwrap(method)
