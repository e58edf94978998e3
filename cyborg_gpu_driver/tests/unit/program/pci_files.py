# SPDX-License-Identifier: Apache-2.0

"""A directory that behaves like the PCI part of the kernel's sysfs."""

import errno
import os
import threading

from cyborg_gpu_driver.tests import scope


class PciFiles:
    """PCI functions as files below a directory, which react to writes.

    An instance replaces :mod:`os` in ``host.sysfs.Sysfs``. As in the kernel,
    an unbind first removes the link to the driver. Until the driver lets go,
    whatever needs the lock of a function waits.

    :param refuses: drivers that refuse every function.
    :param hangs_at: name of a file at which a driver does not let go.
    """

    listdir = staticmethod(os.listdir)
    readlink = staticmethod(os.readlink)
    stat = staticmethod(os.stat)

    def __init__(self, root, refuses=(), hangs_at=None):
        self.root = str(root)
        self.written = []
        self.refuses = refuses
        self.hangs_at = hangs_at
        self.lets_go = threading.Event()
        self.lets_go.set()
        self._names = {}
        for name in ('nvidia', 'vfio-pci', 'nvgrace_gpu_vfio_pci',
                     'snd_hda_intel', 'mlx5_core'):
            for file in ('bind', 'unbind'):
                self.file(f'bus/pci/drivers/{name}/{file}')
        self.file('bus/pci/drivers_probe')

    def file(self, path, text=''):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='ascii') as stream:
            stream.write(text)

    def function(self, address, driver, group=41, vendor='0x10de',
                 kind='0x030200', **files):
        """Add a function to the bus."""
        place = f'bus/pci/devices/{address}'
        for name, text in {'vendor': vendor, 'class': kind, 'reset': '',
                           'driver_override': '(null)', **files}.items():
            self.file(f'{place}/{name}', text)
        if driver:
            self.link(f'{place}/driver', f'../../drivers/{driver}')
        if group is not None:
            self.link(f'{place}/iommu_group', f'../../groups/{group}')
            self.file(f'kernel/iommu_groups/{group}/devices/{address}')

    def link(self, path, target):
        path = os.path.join(self.root, path)
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(target, path)

    def driver(self, address):
        try:
            return os.path.basename(os.readlink(os.path.join(
                self.root, 'bus/pci/devices', address, 'driver')))
        except FileNotFoundError:
            return None

    def open(self, path, flags):
        descriptor = os.open(path, flags)
        self._names[descriptor] = os.path.relpath(path, self.root)
        return descriptor

    def close(self, descriptor):
        self._names.pop(descriptor)
        os.close(descriptor)

    def read(self, descriptor, limit):
        if self._names[descriptor].endswith('/driver_override'):
            self._wait_for_the_lock()
        return os.read(descriptor, limit)

    def write(self, descriptor, data):
        path = self._names[descriptor]
        text = data.decode().strip()
        self.written.append((path.removeprefix('bus/pci/'), text))
        *_, owner, name = path.split('/')
        if name == self.hangs_at:
            self.lets_go.clear()
        if name == 'unbind':
            os.unlink(os.path.join(self.root, 'bus/pci/devices', text,
                                   'driver'))
        self._wait_for_the_lock()
        if name == 'bind':
            self._bind(text, owner)
        elif name == 'drivers_probe':
            self._bind(text, 'snd_hda_intel')
        elif name == 'driver_override':
            os.ftruncate(descriptor, 0)
            os.write(descriptor, data.strip() or b'(null)')
        return len(data)

    def _wait_for_the_lock(self):
        if not self.lets_go.wait(scope.HANG):
            raise AssertionError('this would wait forever')

    def _bind(self, address, driver):
        if driver in self.refuses:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self.link(f'bus/pci/devices/{address}/driver',
                  f'../../drivers/{driver}')
