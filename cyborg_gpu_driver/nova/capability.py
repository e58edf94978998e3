# SPDX-License-Identifier: Apache-2.0

"""What the installed Nova can do with an accelerator's handle by itself."""

from __future__ import annotations

import importlib.metadata
import inspect
from typing import Any

TESTED = (34,)
"""Major releases of Nova whose libvirt driver the contract tests ran on."""
METHODS = {
    '_allocate_cyborg_mdevs': ('self', 'accel_info'),
    '_get_guest_config': (
        'self', 'instance', 'network_info', 'image_meta', 'disk_info',
        'rescue', 'block_device_info', 'context', 'mdevs', 'accel_info',
        'share_info', 'old_guest'),
    '_guest_add_accel_pci_devices': ('self', 'guest', 'accel_info'),
    '_hard_reboot': (
        'self', 'context', 'instance', 'network_info', 'share_info',
        'block_device_info', 'accel_info'),
}
"""Methods of Nova's LibvirtDriver that the patches extend, with their
parameters (nova/virt/libvirt/driver.py)."""
_FIRST = 34
"""The major release that first has what :func:`mdev_problem` and
:func:`quota_problem` look for."""


def nova_version() -> str:
    """Return the installed Nova's version; ``''`` if there is none."""
    try:
        return importlib.metadata.version('nova')
    except importlib.metadata.PackageNotFoundError:
        return ''


def mdev_problem() -> str:
    """Return why the installed Nova cannot use handles of type MDEV.

    If a guest has an accelerator whose handle is not of type PCI, Nova 33
    starts the guest without any of its accelerators. Nova 34.0.0 is the
    first release that attaches them (nova/virt/libvirt/driver.py:
    ``_allocate_cyborg_mdevs``, and ``ah_type != 'MDEV'`` in
    ``_get_guest_config``). Development versions before it, such as
    33.1.0.dev7, count as 33: a guest without its vGPU is worse than a missing
    offer.

    On many GPU hosts nova-compute runs in another virtual environment or
    container. Then this process cannot read its version, and reports no
    problem. ``cyborg-gpu doctor`` asks the operator to look.

    :returns: ``''`` if Nova attaches them, or is not installed here.
    """
    version = _too_old()
    return version and (
        f'Nova {version} ignores accelerators with handles of type MDEV, '
        'so servers start without them; Nova 34.0.0 (2026.2) is the first '
        'release that attaches them')


def quota_problem() -> str:
    """Return why GPU quotas have no effect in the installed Nova.

    Nova 34.0.0 is the first whose unified limits count what a device profile
    asks for (``request_spec_for_limits`` in nova/scheduler/utils.py). Nova
    33.0.2 counts the flavor's own resources only (``_get_deltas_by_flavor``
    in nova/limit/placement.py).

    :returns: ``''`` if Nova counts them, or is not installed here.
    """
    version = _too_old()
    return version and (
        f'Nova {version} does not count the GPUs of device profiles '
        'against quotas; Nova 34.0.0 (2026.2) is the first that does')


def _too_old() -> str:
    """Return the installed Nova's version if it is before 34.

    A version without a number at its start is.
    """
    version = nova_version()
    number = version.partition('.')[0]
    is_new = (number.isascii() and number.isdigit()
              and int(number) >= _FIRST)
    return '' if is_new else version


def mismatch(driver_class: Any, version: str) -> str:
    """Return why this Nova cannot be extended; ``''`` if it can."""
    major = version.partition('.')[0]
    tested = ', '.join(map(str, TESTED))
    if major not in map(str, TESTED):
        return (f'Nova {version or "of unknown version"} was not tested, '
                f'only {tested}')
    for name, expected in METHODS.items():
        method = getattr(driver_class, name, None)
        if method is None:
            return f'LibvirtDriver.{name} does not exist'
        parameters = tuple(inspect.signature(method).parameters)
        if parameters != expected:
            return (f'LibvirtDriver.{name} takes {", ".join(parameters)} '
                    f'where {", ".join(expected)} is expected')
    return ''
