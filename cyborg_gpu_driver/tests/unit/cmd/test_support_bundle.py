# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu support-bundle`` on simulated hosts."""

from __future__ import annotations

import json
import os
import pathlib
import stat
import tarfile

import fixtures
from oslotest import base as test_base

from cyborg_gpu_driver.cmd import support_bundle
from cyborg_gpu_driver.tests.unit.cmd import base

SECRETS = ('Rabbit-Pw', 'other%40Pw', 'other@Pw', 'Db/Pw', 'PlacementPw',
           'memcacheKey', 'gAAAAToken', 'nobodyKnows')
_CONF = """
[DEFAULT]
transport_url = rabbit://c:Rabbit-Pw@10.0.0.1,c:other%40Pw@h2:5672/
log_file = {log}
host = secret-host
[database]
connection = mysql+pymysql://c:Db/Pw@db/cyborg
[keystone_authtoken]
memcache_secret_key = memcacheKey
[placement]
password = PlacementPw
region_name = RegionOne
[agent]
enabled_drivers = cyborg_gpu_driver
[gpu]
nvml_timeout = 1
{gpu}
"""
_LOG = """connecting with Rabbit-Pw and other@Pw
got X-Auth-Token: gAAAAToken of secret-host
http://user:nobodyKnows@proxy/ GPU-8f9b4e3a-1111-4222-8333-444455556666
"""


class BundleTest(base.HostCase):

    host = 't4x4'
    gpus = 0

    def setUp(self):
        super().setUp()
        self.path = f'{self.directory}/bundle.tar.gz'
        self.log(self.write('agent.log', _LOG))
        # Use neither the cloud of this environment nor this host's Nova.
        for name in ('OS_CLOUD', 'OS_AUTH_URL'):
            self.useFixture(fixtures.EnvironmentVariable(name))

    def log(self, path, gpu=''):
        self.configure(_CONF.format(log=path, gpu=gpu), self.directory)

    def bundle(self, code=0):
        """Return the output, and the files of the bundle by name."""
        output, errors = self.run_on_host('support-bundle', '--output',
                                          self.path, code=code)
        if code:
            return output + errors, {}
        with tarfile.open(self.path) as archive:
            self.assertEqual({0o600}, {item.mode for item in archive})
            return output, {
                os.path.basename(item.name):
                archive.extractfile(item).read().decode() for item in archive}

    def test_what_it_has(self):
        output, files = self.bundle()
        self.assertEqual(0o600, stat.S_IMODE(os.stat(self.path).st_mode))
        self.assertEqual(
            {'index.json', 'versions.json', 'configuration.json',
             'doctor.json', 'agent-log.txt'}, set(files))
        self.assertEqual({}, json.loads(files['index.json'])['missing'])
        self.assertIn(f'Wrote {self.path}', output)
        self.assertIn('oslo.config', json.loads(
            files['versions.json'])['packages'])
        found = json.loads(files['configuration.json'])
        self.assertEqual(1, found['gpu']['nvml_timeout'])
        self.assertEqual(['cyborg_gpu_driver'],
                         found['in_files']['agent']['enabled_drivers'])
        self.assertEqual('(left out)',
                         found['in_files']['placement']['password'])
        self.assertIn('severity',
                      json.loads(files['doctor.json'])['rows'][0])

    def test_no_secret_is_anywhere(self):
        output, files = self.bundle()
        for name, text in {**files, 'output': output}.items():
            for secret in SECRETS:
                self.assertNotIn(secret, text, name)
        self.assertIn('connecting with *** and ***', files['agent-log.txt'])

    def test_an_existing_file_or_link_is_not_replaced(self):
        pathlib.Path(self.path).write_text('mine')
        self.assertIn('File exists; give another path',
                      self.bundle(code=1)[0])
        self.assertEqual('mine', pathlib.Path(self.path).read_text())
        os.unlink(self.path)
        os.symlink(f'{self.directory}/target', self.path)
        self.assertIn('File exists', self.bundle(code=1)[0])
        self.assertNotIn('target', os.listdir(self.directory))

    def test_a_record_that_cannot_be_read(self):
        record = self.damage_record('0000:3b:00.0', '{"damaged": ')
        os.mkdir(record.replace('0000:3b:', '0000:5e:'))
        _, files = self.bundle()
        self.assertEqual('{"damaged": ', files[os.path.basename(record)])
        ((name, problem),) = json.loads(
            files['index.json'])['missing'].items()
        self.assertIn('5e:00.0', name)
        self.assertIn('not a regular file', problem)

    def test_a_gpu_that_hangs(self):
        machine = self.machine()
        address = machine.gpus[1].address
        machine.hang_gpu(address)
        self.addCleanup(machine.hang_gpu, address, False)
        _, files = self.bundle()
        self.assertEqual({}, json.loads(files['index.json'])['missing'])
        self.assertIn('no answer', files['doctor.json'])

    def test_wrong_policies(self):
        self.log('', gpu='policies = lost')
        _, files = self.bundle()
        missing = json.loads(files['index.json'])['missing']
        self.assertIn('lost', json.loads(
            files['configuration.json'])['problem'])
        self.assertIn('lost', missing['doctor.json'])
        self.assertIn('log_file', missing['agent-log.txt'])


class LogTest(base.CommandCase):

    def test_only_the_end_is_taken(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'log')
        pathlib.Path(path).write_bytes(b'x' * 10 + b'end')
        self.assertEqual('xend', support_bundle._tail(path, 4))
        self.assertRaises(OSError, support_bundle._tail,
                          os.path.dirname(path), 4)
        os.mkfifo(f'{path}.pipe')
        self.assertRaises(OSError, support_bundle._tail, f'{path}.pipe', 4)


_URL = 'rabbit://cyborg:first/pw@10.0.0.1,cyborg:second@h2:5672/'


class SecretsTest(test_base.BaseTestCase):

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


class RedactorTest(test_base.BaseTestCase):

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
