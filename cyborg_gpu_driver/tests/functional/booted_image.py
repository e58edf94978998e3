# SPDX-License-Identifier: Apache-2.0

"""A deployed image: a directory tree whose units run in a root of their own.

What would be installed in the image (the interpreter, this package, the
system's libraries) comes from this machine. It is mounted into the tree, for
reading only, and nowhere else.
"""

from __future__ import annotations

import configparser
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import cyborg_gpu_driver
from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.functional import host_files

_COMMAND = 'cyborg-gpu'
_WANTS = 'etc/systemd/system/multi-user.target.wants'
_LINKS = ('bin', 'sbin', 'lib', 'lib64')
_DEVICES = ('/dev/null', '/dev/urandom')
_HARDWARE = 'var/lib/hardware.json'
_STATE = '/var/lib/cyborg/gpu'

# The last two mounts of each directory do what ProtectSystem=full does.
_ENTER = """
set -e
root=$1; shift
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$1"
    shift
done
shift
mount -t proc proc "$root/proc"
for directory in /usr /etc; do
    mount --bind "$root$directory" "$root$directory"
    mount -o remount,bind,ro "$root$directory"
done
exec chroot "$root" "$@"
"""


def obstacle() -> str:
    """Return why no image can be booted here; empty if one can."""
    if os.geteuid() != 0:
        return 'only root can change into another root'
    for program in ('unshare', 'chroot', 'mount'):
        if shutil.which(program) is None:
            return f'there is no {program}'
    if not os.path.exists(os.path.join(sys.prefix, 'bin', _COMMAND)):
        return f'{_COMMAND} is not installed in {sys.prefix}'
    tried = subprocess.run(
        ['unshare', '--mount', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'],
        capture_output=True, text=True, check=False)
    return (f'nothing can be mounted: {tried.stderr.strip()}'
            if tried.returncode else '')


class Image:
    """The tree of an image, and the simulated machine that it boots on.

    :param root: an empty directory.
    :param machine: name of a simulated host, of which two GPUs are enough.
    """

    def __init__(self, root: str, machine: str):
        self.root = root
        self._bound = _bound()
        for path in ('proc', 'tmp', 'run', 'var/lib', 'etc/cyborg', 'dev',
                     *(path.lstrip('/') for path in self._bound
                       if os.path.isdir(path))):
            os.makedirs(self.path(path), exist_ok=True)
        for device in _DEVICES:
            pathlib.Path(self.path(device)).touch()
        for name in _LINKS:
            if os.path.islink(f'/{name}'):
                os.symlink(os.readlink(f'/{name}'), self.path(name))
        if os.path.exists('/etc/ld.so.cache'):
            shutil.copy('/etc/ld.so.cache', self.path('etc'))
        self._machine = host_files.write_unprepared(
            self.path('etc/cyborg'), machine, 2)
        self.write('etc/passwd', 'root:x:0:0:root:/root:/bin/sh\n')
        self.write('etc/cyborg/cyborg.conf',
                   f'[gpu]\nsimulate = {self._machine[len(root):]}\n'
                   f'simulate_state = /{_HARDWARE}\n'
                   f'state_path = {_STATE}\n')

    def path(self, path: str) -> str:
        """Return the path, outside the image, of a path in the image."""
        return os.path.join(self.root, path.lstrip('/'))

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file into the image."""
        target = self.path(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, 'w', encoding='utf-8') as stream:
            stream.write(text)
        os.chmod(target, mode)

    def stage(self, layout: str) -> None:
        """Put a layout and the unit into the image."""
        self.write(cleaning.LAYOUT_PATH, layout)
        self.write(cleaning.UNIT_PATH, cleaning.unit_text())
        target = self.path(cleaning.WANTS_PATH)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target):
            os.symlink(f'/{cleaning.UNIT_PATH}', target)

    def hardware(self) -> simulator.Machine:
        """Return the simulated machine, so that a test can change it."""
        return simulator.Machine.load(self._machine, self.path(_HARDWARE))

    def units(self) -> dict[str, list[str]]:
        """Return the enabled units, and the command that each starts."""
        found = {}
        for name in sorted(os.listdir(self.path(_WANTS))):
            unit = configparser.ConfigParser(strict=False,
                                             interpolation=None)
            # The link's target is a path in the booted system.
            unit.read(self.path(os.readlink(self.path(
                os.path.join(_WANTS, name)))))
            found[name] = shlex.split(unit['Service']['ExecStart'])
        return found

    def start(self, *words: str) -> subprocess.Popen:
        """Run a command in the image."""
        return subprocess.Popen(
            ['unshare', '--mount', '--net', 'sh', '-c', _ENTER, 'sh',
             self.root, *self._bound, '--', *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={'PATH': f'{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin'})


def _bound():
    """Return this machine's paths in every image, none within another."""
    package = os.path.dirname(os.path.dirname(cyborg_gpu_driver.__file__))
    wanted = ['/usr', *(f'/{name}' for name in _LINKS
                        if os.path.isdir(f'/{name}')
                        and not os.path.islink(f'/{name}')),
              sys.base_prefix, sys.prefix, package]
    chosen: list[str] = []
    for path in map(os.path.abspath, wanted):
        if not any(os.path.commonpath((path, other)) == other
                   for other in chosen):
            chosen.append(path)
    return [*chosen, *_DEVICES]
