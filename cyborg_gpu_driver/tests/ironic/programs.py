# SPDX-License-Identifier: Apache-2.0

"""The only programs that the agent finds. They touch no disk and no power.

``parted`` and ``mount`` present a directory to the agent as the deployed
image.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil

DISK = '/dev/nowhere'
"""No device has this name."""
# Started by the agent's generic hardware manager, or by the conductor.
_SILENT = ('iscsistart', 'lsblk', 'mdadm', 'modprobe', 'sync', 'udevadm')
_PARTED = """\
echo 'BYT;'
echo '{disk}:65536MiB:scsi:512:512:gpt:A disk:;'
echo '1:1.00MiB:501MiB:500MiB:fat32::boot;'
echo '2:501MiB:65535MiB:65034MiB:ext4::;'
"""
# A symbolic link to the image replaces the mount point.
_MOUNT = """\
test "$1" = {partition} || {{ echo 'unknown filesystem type' >&2; exit 32; }}
{rmdir} "$2" && {ln} -s {image} "$2"
"""
_UMOUNT = """\
test -L "$1" || exit 0
{rm} "$1" && {mkdir} "$1"
"""


def write(directory: pathlib.Path, image: pathlib.Path,
          disk: str | pathlib.Path = DISK,
          partition: str | pathlib.Path = f'{DISK}2') -> None:
    """Write all the programs into a directory.

    :param image: directory with the content of the partition.
    :param partition: the second one of the disk.
    """
    real = {name: shutil.which(name, path=os.defpath)
            for name in ('ln', 'mkdir', 'rm', 'rmdir')}
    scripts = {**dict.fromkeys(_SILENT, ''),
               'parted': _PARTED.format(disk=disk),
               'mount': _MOUNT.format(partition=shlex.quote(str(partition)),
                                      image=shlex.quote(str(image)), **real),
               'umount': _UMOUNT.format(**real)}
    for name, script in scripts.items():
        path = directory / name
        path.write_text(f'#!/bin/sh\n{script}', encoding='ascii')
        path.chmod(0o755)
