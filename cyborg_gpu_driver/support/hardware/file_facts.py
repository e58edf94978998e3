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


"""The facts about a machine's NVIDIA functions in files of the kernel.

Only the files listed here are opened, because reading some files of a PCI
device wakes the device up or takes long.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.sysfs import files as sysfs

_NVIDIA = '0x10de'
_PCI = ('bus', 'pci', 'devices')
_MDEVS = ('bus', 'mdev', 'devices')
_PARENTS = ('class', 'mdev_bus')

_FUNCTION_FILES = (
    'vendor', 'device', 'class', 'revision', 'subsystem_vendor',
    'subsystem_device', 'numa_node', 'local_cpulist', 'enable',
    'driver_override', 'current_link_speed', 'current_link_width',
    'max_link_speed', 'max_link_width', 'power_state', 'reset_method',
    'sriov_totalvfs', 'sriov_numvfs', 'sriov_offset', 'sriov_stride',
    'sriov_vf_device', 'sriov_drivers_autoprobe', 'sriov_vf_total_msix',
    'aer_dev_correctable', 'aer_dev_fatal', 'aer_dev_nonfatal')
_LOCKED = frozenset({'driver_override', 'sriov_numvfs'})
"""Files that take the lock of a function. A driver that does not release the
function holds it, perhaps without end."""
_LOCKED_SECONDS = 3.0
_LINKS = ('driver', 'iommu_group', 'physfn')
_TYPE_FILES = ('name', 'description', 'available_instances', 'device_api')
_VGPU_FILES = ('creatable_vgpu_types', 'current_vgpu_type',
               'gpu_instance_id', 'placement_id', 'vgpu_params',
               'warm_update')
"""Files in a function's ``nvidia`` directory (vendor-specific VFIO)."""
_DIRECTORIES = ('mdev_supported_types', 'nvidia', 'vfio-dev', 'drm')
_MODULES = ('nvidia', 'nvidia_drm', 'nvidia_fs', 'nvidia_modeset',
            'nvidia_uvm', 'nvidia_vgpu_vfio', 'nvidia_peermem', 'nouveau',
            'mdev', 'vfio', 'vfio_iommu_type1', 'vfio_mdev', 'vfio_pci',
            'vfio_pci_core')
_WORDS = ('iommu', 'vfio', 'nvidia', 'nouveau', 'pci=', 'sriov', 'hugepage',
          'blacklist')
_PROC = ('driver', 'nvidia')
_PROC_FILES = ('version', 'params', 'registry')
_DEPTH = 6


def collect(files: sysfs.Sysfs) -> dict[str, Any]:
    """Return the facts in sysfs; a file that cannot be read is an ``error``.

    :param files: sysfs of this machine or of a simulated one.
    """
    functions = {}
    for name in _list(files, *_PCI):
        if _read(files, *_PCI, name, 'vendor') == _NVIDIA:
            functions[name] = _function(files, name)
    return {
        'functions': functions,
        'mdev_bus': _list(files, *_PARENTS),
        'mdevs': {
            name: {
                'files': _list(files, *_MDEVS, name),
                'mdev_type': _link(files, *_MDEVS, name, 'mdev_type'),
                'driver': _link(files, *_MDEVS, name, 'driver'),
                'iommu_group': _link(files, *_MDEVS, name, 'iommu_group')}
            for name in _list(files, *_MDEVS)},
        'modules': {
            name: {key: _read(files, 'module', name, key)
                   for key in ('version', 'refcnt', 'srcversion')}
            for name in _MODULES if files.exists('module', name)},
        'iommus': _list(files, 'class', 'iommu'),
        'numa_nodes': _read(files, 'devices', 'system', 'node', 'online'),
    }


def collect_system() -> dict[str, Any]:
    """Return the facts that only exist for the machine this runs on."""
    # The class reads these kernel files in the same way as sysfs.
    proc, dev = sysfs.Sysfs('/proc'), sysfs.Sysfs('/dev')
    kernel = os.uname()
    words = (_read(proc, 'cmdline') or '').split()
    return {
        'kernel': {'sysname': kernel.sysname, 'release': kernel.release,
                   'version': kernel.version, 'machine': kernel.machine},
        'command_line': [word for word in words
                         if any(part in word for part in _WORDS)],
        'root': os.geteuid() == 0,
        'driver': {
            **{name: _read(proc, *_PROC, name) for name in _PROC_FILES},
            'gpus': {name: _read(proc, *_PROC, 'gpus', name, 'information')
                     for name in _list(proc, *_PROC, 'gpus')},
            'capabilities': _tree(proc, *_PROC, 'capabilities')},
        'devices': [name for name in _list(dev)
                    if name.startswith(('nvidia', 'vfio'))],
        'device_files': {name: _list(dev, name)
                         for name in ('nvidia-caps', 'vfio')},
    }


def _function(files, name):
    function = {key: _read(files, *_PCI, name, key)
                for key in _FUNCTION_FILES}
    function.update({key: _link(files, *_PCI, name, key) for key in _LINKS})
    entries = _list(files, *_PCI, name)
    function['files'] = entries
    function['virtfns'] = {
        key: _link(files, *_PCI, name, key)
        for key in entries if key.startswith('virtfn')}
    function['directories'] = {
        key: _list(files, *_PCI, name, key)
        for key in _DIRECTORIES if key in entries}
    function['mdev_supported_types'] = {
        key: _type(files, name, key)
        for key in function['directories'].get('mdev_supported_types', [])}
    function['nvidia'] = {
        key: _read(files, *_PCI, name, 'nvidia', key)
        for key in function['directories'].get('nvidia', [])
        if key in _VGPU_FILES}
    return function


def _type(files, name, type_id):
    place = (*_PCI, name, 'mdev_supported_types', type_id)
    return {**{key: _read(files, *place, key) for key in _TYPE_FILES},
            'devices': _list(files, *place, 'devices')}


def _tree(files, *place):
    """Return a directory with the contents of its files."""
    found = {}
    for name in _list(files, *place):
        if len(place) < _DEPTH and _list(files, *place, name):
            found[name] = _tree(files, *place, name)
        else:
            found[name] = _read(files, *place, name)
    return found


def read(files: sysfs.Sysfs, *place: str) -> str | None:
    """Return the content of a file; None if there is none.

    :raises SysfsError: if it cannot be read, or not in time.
    """
    if place[-1] not in _LOCKED:
        return files.read_optional(*place)
    try:
        return files.apart(_LOCKED_SECONDS, files.read_optional,
                           *place) or None
    except TimeoutError as error:
        raise exception.SysfsError(
            action='read', path='/'.join(place), errno=errno.ETIMEDOUT,
            reason='a driver does not release the function') from error


def _read(files, *place):
    try:
        return read(files, *place)
    except exception.SysfsError as error:
        return _error(error)


def _list(files, *place):
    try:
        return files.listdir(*place)
    except exception.SysfsError:
        return []


def _link(files, *place):
    try:
        return files.link_name(*place)
    except exception.SysfsError as error:
        return _error(error)


def _error(error):
    return {'error': {'errno': error.errno, 'message': str(error)}}
