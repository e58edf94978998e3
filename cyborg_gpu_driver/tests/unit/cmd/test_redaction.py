# SPDX-License-Identifier: Apache-2.0

"""What is removed from texts before others read them."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver.cmd import support_bundle

_URL = 'rabbit://cyborg:first/pw@10.0.0.1,cyborg:second@h2:5672/'


class SecretsTest(base.BaseTestCase):

    def test_names(self):
        for name in ('password', 'transport_url', 'connection', 'api_key',
                     'memcache_secret_key', 'auth_token', 'slave_connection',
                     'rabbit_password', 'key', 'credential_file'):
            self.assertTrue(support_bundle.is_secret(name), name)
        for name in ('enabled_drivers', 'policies', 'log_file', 'keystone',
                     'monkey', 'service_token_roles',
                     'service_token_roles_required', 'token_cache_time',
                     'send_service_user_token', 'connection_recycle_time',
                     'connection_debug'):
            self.assertFalse(support_bundle.is_secret(name), name)
            self.assertEqual(
                [], list(support_bundle.of_option(name, ['service'])))

    def test_of_an_option(self):
        self.assertEqual(
            ['first/pw', 'second', _URL],
            list(support_bundle.of_option('transport_url', [_URL])))
        self.assertEqual(['hunter22'],
                         list(support_bundle.of_option(
                             'password', ['hunter22'])))
        self.assertEqual(
            [], list(support_bundle.of_option('log_file', ['/x'])))
        self.assertEqual([], list(support_bundle.of_option(
            'endpoint_override', ['http://h:80/v1'])))


class RedactorTest(base.BaseTestCase):

    def text(self, text, secrets=()):
        return support_bundle.Redactor(secrets).of(text)

    def test_known_secrets_wherever_they_are(self):
        self.assertEqual('a***b *** c', self.text(
            'ahunter2b hunter2longer c', ['hunter2', 'hunter2longer']))

    def test_passwords_that_nobody_knows(self):
        for text in (_URL, f'connect to {_URL} failed',
                     "'mysql+pymysql://u:first/pw@db/cyborg?x=second'"):
            found = self.text(text, ['second'])
            self.assertNotIn('first', found)
            self.assertNotIn('second', found)
        for text in ('X-Auth-Token: gAAAAsecret',
                     '"admin_pass": "gAAAAsecret"',
                     "{'X-Subject-Token': 'gAAAAsecret'}",
                     'Authorization: Bearer gAAAAsecret',
                     'password=gAAAAsecret'):
            self.assertNotIn('gAAAAsecret', self.text(text), text)

    def test_what_is_no_secret_stays(self):
        for text in ('GPU 0000:41:00.0 is lost', 'http://h:80/v1 and a@b',
                     'nvmlDeviceGetUUID', ''):
            self.assertEqual(text, self.text(text))

    def test_documents(self):
        self.assertEqual(
            {'***': ['***', 1, None, True, {'a': 'x***'}]},
            support_bundle.Redactor(['hunter2']).of(
                {'hunter2': ('hunter2', 1, None, True, {'a': 'xhunter2'})}))
