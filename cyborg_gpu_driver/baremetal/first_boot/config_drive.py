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

"""The config drive: a small file system that the cloud gives to a server.

Nova's documentation, "Config drives": ISO 9660 or VFAT, labelled config-2.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno as errno_codes
import os
import re
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal.first_boot import layout_sources

DOCUMENTS = ('openstack', 'latest')

BY_LABEL = '/dev/disk/by-label'
"""The directory in which udev names block devices by their label."""
TYPES = ('iso9660', 'vfat')

_LABELS = ('config-2', 'CONFIG-2')
"""On VFAT the label has capitals."""
_MOUNTS = '/proc/self/mountinfo'
_ESCAPE = re.compile(r'\\([0-7]{3})')
_FLAGS = 1 | 2 | 4 | 8
"""MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC (sys/mount.h)."""
_NOFOLLOW = 8
"""UMOUNT_NOFOLLOW (sys/mount.h)."""
_OTHER_TYPE = frozenset({errno_codes.EINVAL, errno_codes.ENODEV})
"""The device, or the kernel, has no such file system."""


@contextlib.contextmanager
def opened(by_label: str = BY_LABEL, types: Sequence[str] = TYPES
           ) -> Iterator[str | None]:
    """Yield the directory of the config drive's files; None without a drive.

    If the drive is mounted, this is its mount point. Otherwise the drive is
    mounted read-only in a temporary directory, as long as the context lasts.

    :param types: file systems to try.
    :raises LayoutSourceError: if it cannot be mounted.
    """
    device = next((path for path in (os.path.join(by_label, label)
                                     for label in _LABELS)
                   if os.path.exists(path)), None)
    if device is None:
        yield None
        return
    mounted = _mount_point(device)
    if mounted is not None:
        yield mounted
        return
    with contextlib.ExitStack() as stack:
        try:
            directory = os.path.join(stack.enter_context(
                tempfile.TemporaryDirectory(prefix='cyborg-gpu-')),
                'config-drive')
            os.mkdir(directory, 0o700)
        except OSError as error:
            raise exception.LayoutSourceError(
                source=device, reason=f'cannot be mounted: {error}'
            ) from error
        _mount(device, directory, types)
        stack.callback(_call, 'umount2', device, directory.encode(),
                       _NOFOLLOW)
        yield directory


def read(directory: str, name: str) -> str | None:
    """Return a document of a config drive; None if it has none of the name.

    :param directory: of the drive's files.
    :raises LayoutSourceError: if it cannot be read.
    """
    return layout_sources.read_file(os.path.join(directory, *DOCUMENTS,
                                                 name))


def _mount_point(device):
    """Return where the whole of a block device is mounted; None if nowhere.

    Fields of a line (proc(5)): id of the mount, id of its parent mount,
    device, directory of the file system, mount point.
    """
    number = os.stat(device).st_rdev
    wanted = [f'{os.major(number)}:{os.minor(number)}', '/']
    with open(_MOUNTS, encoding='utf-8', errors='surrogateescape') as lines:
        for line in lines:
            fields = line.split(' ')
            if fields[2:4] == wanted:
                return _ESCAPE.sub(lambda match: chr(int(match[1], 8)),
                                   fields[4])
    return None


def _mount(device, directory, types):
    for name in types:
        try:
            _call('mount', device, device.encode(), directory.encode(),
                  name.encode(), _FLAGS, None)
            return
        except exception.LayoutSourceError as error:
            if getattr(error.__cause__, 'errno', None) not in _OTHER_TYPE:
                raise
    raise exception.LayoutSourceError(
        source=device, reason='cannot be mounted: it is not '
        + ' or '.join(types) + ', or the kernel does not know that')


def _call(name, device, *arguments):
    """Call a function of the C library."""
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, name)
    # Flags of mount(2) are long.
    call.argtypes = {'mount': [ctypes.c_char_p] * 3
                     + [ctypes.c_ulong, ctypes.c_void_p],
                     'umount2': [ctypes.c_char_p, ctypes.c_int]}[name]
    if call(*arguments):
        error = OSError(ctypes.get_errno(),
                        os.strerror(ctypes.get_errno()))
        raise exception.LayoutSourceError(
            source=device, reason=f'{name}: {error.strerror}') from error
