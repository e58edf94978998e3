# SPDX-License-Identifier: Apache-2.0

"""The hooks into cyborg-agent: two functions of Cyborg that are replaced.

Cyborg calls a driver to discover devices and never to bind them. For a
handle of type MDEV, cyborg-agent calls two functions of its in-tree GPU
driver instead, and looks them up in their module each time. This driver
replaces those two, and nothing else of Cyborg, while it is loaded. A contract
test watches both sides.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from oslo_utils import importutils

MODULE = 'cyborg.accelerator.drivers.gpu.utils'
FUNCTIONS = {
    'create_mdev_privileged': ('pci_addr', 'mdev_type', 'ah_uuid'),
    'remove_mdev_privileged': ('physical_device', 'mdev_type', 'medv_uuid'),
}
"""The functions and parameters on which the hooks rely."""

_MARK = 'cyborg_gpu_driver_original'


def mismatch() -> str:
    """Why the hooks do not fit the installed Cyborg; ``''`` if they do."""
    module = importutils.try_import(MODULE)
    if module is None:
        return f'{MODULE} cannot be imported'
    for name, expected in FUNCTIONS.items():
        function = getattr(module, name, None)
        if function is None:
            return f'{MODULE}.{name} does not exist'
        parameters = tuple(inspect.signature(
            _unwrapped(original(name))).parameters)
        if parameters != expected:
            return (f'{MODULE}.{name} takes {", ".join(parameters)} where '
                    f'{", ".join(expected)} is expected')
    return ''


def install(bind: Callable[[str, str, str], Any],
            unbind: Callable[[str, str, str], Any]) -> None:
    """Have the agent call ``bind`` and ``unbind`` for MDEV handles.

    A second call replaces the functions of the first.
    """
    module = importutils.import_module(MODULE)
    for name, ours in (('create_mdev_privileged', bind),
                       ('remove_mdev_privileged', unbind)):
        replacement = _wrap(ours)
        setattr(replacement, _MARK, original(name))
        setattr(module, name, replacement)


def remove() -> None:
    """Put Cyborg's own functions back."""
    module = importutils.import_module(MODULE)
    for name in FUNCTIONS:
        setattr(module, name, original(name))


def original(name: str) -> Callable[..., Any]:
    """Cyborg's own function of that name."""
    function = getattr(importutils.import_module(MODULE), name)
    return getattr(function, _MARK, function)


def _unwrapped(function):
    """The function behind an oslo.privsep entry point."""
    if isinstance(function, functools.partial):
        return function.args[0]
    return function


def _wrap(function):
    def call(pci_addr, mdev_type, uuid):
        return function(pci_addr, mdev_type, uuid)
    return call
