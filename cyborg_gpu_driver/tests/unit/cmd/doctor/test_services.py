# SPDX-License-Identifier: Apache-2.0


"""Options of cyborg.conf and nova.conf, from files."""

from __future__ import annotations

import dataclasses

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor import facts


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
