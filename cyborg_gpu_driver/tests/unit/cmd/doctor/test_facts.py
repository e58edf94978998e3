# SPDX-License-Identifier: Apache-2.0

"""What the doctor reads of a machine, and of the options of services."""

from __future__ import annotations

import dataclasses
import os

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor import facts

MOUNTS = """\
1 0 0:1 / / ro,relatime - overlay overlay rw
2 1 0:2 / /proc rw - proc proc rw
3 1 0:3 / /sys ro,nosuid shared:7 - sysfs sysfs rw
4 1 0:4 / /var/lib/cyborg rw - tmpfs old rw
5 1 8:1 /x /var/lib/cyborg rw master:2 - ext4 /dev/sda1 rw
6 1 8:1 /y /var/with\\040space rw - xfs /dev/sda2 rw
7
"""


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

    def look(self, state='/x'):
        return facts.read_machine(state, (), f'{self.root}/proc',
                                  f'{self.root}/dev')

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

    def test_mounts(self):
        self.write('proc/self/mountinfo', MOUNTS)
        for path, kind in (('/var/lib/cyborg/gpu', 'ext4'),
                           ('/var/lib/cyborg-2', 'overlay'),
                           ('/var/with space/x', 'xfs')):
            self.assertEqual(kind, self.look(state=path).state_mount.kind)
        self.assertEqual(facts.Mount('sysfs', True), self.look().sysfs)

    def test_namespace(self):
        link = f'{self.root}/proc/self/ns/pid'
        os.makedirs(os.path.dirname(link))
        for number, every in (4026531836, True), (4026532222, False):
            os.symlink(f'pid:[{number}]', link)
            self.assertIs(every, self.look().shows_all)
            os.unlink(link)

    def test_capabilities(self):
        self.write('proc/7/cmdline', '/venv/bin/cyborg-agent\0')
        self.write('proc/7/status', 'Uid:\t0 0 0 0\nGid:\t0 0 0 0\n'
                   'Groups:\t\nCapBnd:\t00000000a80425fb\n')
        self.assertEqual(0xa80425fb, self.look().agent.bounding)


class FileCase(base.BaseTestCase):

    def file(self, text):
        path = self.useFixture(fixtures.TempDir()).path + '/service.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path


class CyborgTest(FileCase):

    def read(self, text):
        conf = cfg.ConfigOpts()
        conf.register_opt(cfg.HostAddressOpt('host', default='short'))
        conf([], project='cyborg', default_config_files=[self.file(text)])
        return facts.cyborg(conf)

    def test_everything(self):
        self.assertEqual(
            facts.Cyborg('h.x', 'h.y', ('a', 'b'), ('r', 's'), True,
                         'sudo p', ('::', 7)),
            self.read('[DEFAULT]\nhost = h.x\n[agent]\n'
                      'resource_provider_name = h.y\n'
                      'enabled_drivers = a, b\n[keystone_authtoken]\n'
                      'service_token_roles = r,s\n[placement]\n'
                      'auth_section = other\n[cyborg_gpu_privileged]\n'
                      'helper_command = sudo p\n[api]\nhost_ip = ::\n'
                      'port = 7\n'))

    def test_credentials_and_roles(self):
        found = self.read('[placement]\nauth_type = password\n'
                          '[keystone_authtoken]\nservice_token_roles =\n')
        self.assertTrue(found.has_placement_user)
        self.assertEqual((), found.service_roles)

    def test_malformed(self):
        self.assertRaises(exception.InvalidValue, self.read,
                          '[DEFAULT]\nhost = a b\n')


class NovaTest(FileCase):

    def read(self, *texts):
        return facts.nova([self.file(text) for text in texts])

    def test_later_file_counts(self):
        found = self.read(
            '[service_user]\nsend_service_user_token = false\n'
            'auth_type = password\n',
            '[DEFAULT]\nresume_guests_state_on_host_boot = 1\n'
            '[quota]\ndriver = nova.quota.UnifiedLimitsDriver\n'
            '[service_user]\nsend_service_user_token = true\n')
        self.assertEqual((True, True, True, True),
                         dataclasses.astuple(found)[1:])

    def test_unreadable(self):
        self.assertRaises(exception.InvalidValue, facts.nova,
                          ['/nowhere/nova.conf'])
        self.assertRaises(exception.InvalidValue, self.read, 'x')
        self.assertRaises(
            exception.InvalidValue, self.read,
            '[service_user]\nsend_service_user_token = perhaps\n')
