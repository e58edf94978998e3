# SPDX-License-Identifier: Apache-2.0


"""What the checks read of a machine, from temporary directories."""

from __future__ import annotations

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.cmd.doctor import facts


class NamesTest(base.BaseTestCase):

    def test_libvirts_name(self):
        for short, full, wanted in (
                ('gpu1', 'gpu1.example.org', 'gpu1.example.org'),
                ('gpu1.a', 'gpu1.b', 'gpu1.a'), ('gpu1', 'other', 'gpu1'),
                ('gpu1', '', 'gpu1'),
                ('gpu1', 'localhost.localdomain', 'gpu1'),
                ('localhost', 'gpu1.example.org', 'localhost')):
            self.assertEqual(wanted, facts.Names(short, full).libvirt)


class LookTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = self.useFixture(fixtures.TempDir()).path

    def write(self, path, text='', mode=0o644):
        path = f'{self.root}/{path}'
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        os.chmod(path, mode)
        return path

    def look(self, *programs):
        return facts.read_machine(f'{self.root}/state', programs,
                                  f'{self.root}/proc', f'{self.root}/dev')

    def test_modules(self):
        self.write('proc/modules', 'nvidia 1 2 - Live 0x0\n\nnouveau 1 0\n')
        self.assertEqual({'nvidia', 'nouveau'}, self.look().modules)

    def test_devices(self):
        paths = [self.write(f'dev/{name}', mode=0o640) for name in (
            'nvidia0', 'nvidia11', 'nvidiactl')]
        self.write('dev/nvidia-uvm')
        found = self.look()
        self.assertEqual(set(paths), set(found.devices))
        self.assertEqual({0o640},
                         {node.mode for node in found.devices.values()})
        self.assertEqual({os.getuid()},
                         {node.uid for node in found.devices.values()})
        self.assertIsNone(found.mig_device)

    def test_what_grants_mig(self):
        for name in ('nvidia-cap2', 'nvidia-cap/y', 'x'):
            self.write(f'dev/nvidia-caps/{name}')
        file = self.write('proc/driver/nvidia/capabilities/mig/config')
        self.assertEqual(file, self.look().mig_device)
        self.write('proc/driver/nvidia-caps/mig-minors',
                   'monitor 2\nconfig 7\ngpu0/gi0/access 3\n')
        self.assertEqual(file, self.look().mig_device)
        node = self.write('dev/nvidia-caps/nvidia-cap7')
        self.assertEqual(node, self.look().mig_device)
        self.assertEqual({node}, set(self.look().devices))
        self.write('proc/driver/nvidia-caps/mig-minors', 'config /../x\n')
        self.assertEqual(file, self.look().mig_device)
