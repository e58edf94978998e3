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

"""The users of a machine's GPUs, and obstacles to a reset or driver change.

These facts are read before this program opens NVML, so that the program is
not among the holders. No program is run: the presence of nvidia-smi is looked
up in PATH.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from oslo_concurrency import processutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import device_node
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.support.hardware import file_facts

_NVIDIA = '0x10de'
_DISPLAY = ('0x0300', '0x0302')
_PCI = ('bus', 'pci', 'devices')
_GROUPS = ('kernel', 'iommu_groups')
_DRM = ('modeset', 'fbdev')


def collect(seen: platform.Platform) -> dict[str, Any]:
    """Return what keeps GPUs open, and the ways to reset them.

    A fact that cannot be read is an ``error``. Process names are those of the
    kernel; process id 0 is a kernel module.
    """
    return {
        'nvidia_smi': _safely(lambda: _has_nvidia_smi(seen)),
        'fabric_manager_runs': _safely(
            lambda: device_node.fabric_manager_runs(seen)),
        'nvidia_drm': {name: _read(seen, 'module', 'nvidia_drm',
                                   'parameters', name) for name in _DRM},
        'gpus': {name: _gpu(seen, name)
                 for name in _list(seen, *_PCI) if _is_gpu(seen, name)},
    }


def _gpu(seen, name):
    group = _safely(lambda: seen.sysfs.link_name(*_PCI, name, 'iommu_group'))
    members = (_list(seen, *_GROUPS, group, 'devices')
               if isinstance(group, str) else [])
    return {
        'holders': _safely(lambda: [
            {'pid': pid, 'name': process} for pid, process in
            device_node.holders(seen, model.PciAddress.parse(name))]),
        'can_reset': seen.sysfs.exists(*_PCI, name, 'reset'),
        'reset_method': _read(seen, *_PCI, name, 'reset_method'),
        'driver_override': _read(seen, *_PCI, name, 'driver_override'),
        'iommu_group': group,
        'iommu_group_members': {member: _member(seen, member)
                                for member in members},
    }


def _member(seen, name):
    """Return a function that changes its driver together with the GPU."""
    return {'class': _read(seen, *_PCI, name, 'class'),
            'driver': _safely(
                lambda: seen.sysfs.link_name(*_PCI, name, 'driver')),
            'driver_override': _read(seen, *_PCI, name, 'driver_override')}


def _is_gpu(seen, name):
    if _read(seen, *_PCI, name, 'vendor') != _NVIDIA:
        return False
    found = _read(seen, *_PCI, name, 'class')
    # Virtual functions are not GPUs of their own.
    return (isinstance(found, str) and found.startswith(_DISPLAY)
            and not seen.sysfs.exists(*_PCI, name, 'physfn'))


def _has_nvidia_smi(seen):
    if isinstance(seen.nvidia_smi, str):
        return shutil.which(seen.nvidia_smi) is not None
    try:
        seen.nvidia_smi('--help')
    except FileNotFoundError:
        return False
    except processutils.ProcessExecutionError:
        return True
    return True


def _read(seen, *place):
    return _safely(lambda: file_facts.read(seen.sysfs, *place))


def _list(seen, *place):
    try:
        return seen.sysfs.listdir(*place)
    except exception.SysfsError:
        return []


def _safely(ask: Callable[[], Any]) -> Any:
    """Return an answer, or the error, because an error is a finding too."""
    try:
        return ask()
    except Exception as error:
        return {'error': {'type': type(error).__name__,
                          'message': str(error)}}
