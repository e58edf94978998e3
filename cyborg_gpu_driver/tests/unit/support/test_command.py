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

"""``cyborg-gpu support-bundle`` on simulated hosts."""

from __future__ import annotations

import json
import os
import pathlib
import stat
import tarfile
import threading

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.support import bundle
from cyborg_gpu_driver.support import parts
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


class BundleTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.directory, 'bundle.tar.gz')
        self.state = os.path.join(self.directory, 'state')
        log = os.path.join(self.directory, 'agent.log')
        pathlib.Path(log).write_text(_LOG)
        self.config(log)
        # Use neither the cloud of this environment nor this host's Nova.
        for name in ('OS_CLOUD', 'OS_AUTH_URL'):
            self.useFixture(fixtures.EnvironmentVariable(name))

    def config(self, log, gpu=''):
        self.conf = self.configure(_CONF.format(log=log, gpu=gpu),
                                   self.directory)

    def bundle(self, *arguments, host='t4x4', code=0):
        """Return the output, and the files of the bundle by name."""
        output, errors = self.run_program(
            '--config-file', self.conf, '--simulate', host, '--state',
            self.state, 'support-bundle', '--output', self.path, *arguments,
            code=code)
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
             'check.json', 'report.json', 'doctor.json', 'agent-log.txt'},
            set(files))
        index = json.loads(files['index.json'])
        self.assertEqual([], [name for name, part in index['parts'].items()
                              if part['failed']])
        self.assertIn('has no records', index['parts']['records']['problem'])
        self.assertIn(f'Wrote {self.path}', output)
        self.assertIn('has no records', output)
        self.assertIn('oslo.config', json.loads(
            files['versions.json'])['packages'])
        found = json.loads(files['configuration.json'])
        self.assertEqual(1, found['gpu']['nvml_timeout'])
        self.assertEqual('cyborg_gpu_driver',
                         found['in_files']['agent']['enabled_drivers'])
        self.assertEqual('(left out)',
                         found['in_files']['placement']['password'])
        self.assertEqual(4, len(json.loads(files['report.json'])['rows']))

    def test_no_secret_is_anywhere(self):
        for arguments in ((), ('--with-identifiers', '--force')):
            output, files = self.bundle(*arguments)
            for name, text in {**files, 'output': output}.items():
                for secret in SECRETS:
                    self.assertNotIn(secret, text, name)
            self.assertIn('connecting with *** and ***',
                          files['agent-log.txt'])

    def test_identifiers(self):
        _, files = self.bundle()
        uuid = '8f9b4e3a-1111-4222-8333-444455556666'
        for name, text in files.items():
            self.assertNotIn('secret-host', text, name)
            self.assertNotIn(uuid, text, name)
        self.assertIn('GPU-00000000-0000-4000-8000-', files['agent-log.txt'])
        _, files = self.bundle('--with-identifiers', '--force')
        self.assertIn('secret-host', files['report.json'])
        self.assertIn(uuid, files['agent-log.txt'])

    def test_an_existing_file_is_not_replaced(self):
        pathlib.Path(self.path).write_text('mine')
        output, _ = self.bundle(code=1)
        self.assertIn('--force', output)
        self.assertEqual('mine', pathlib.Path(self.path).read_text())
        self.bundle('--force')
        self.assertEqual(0o600, stat.S_IMODE(os.stat(self.path).st_mode))
        self.assertEqual(['agent.log', 'bundle.tar.gz', 'cyborg.conf'], sorted(
            name for name in os.listdir(self.directory)
            if not name.startswith('state')))

    def test_a_link_is_not_followed(self):
        target = os.path.join(self.directory, 'target')
        pathlib.Path(target).write_text('mine')
        os.symlink(target, self.path)
        output, _ = self.bundle('--force', code=1)
        self.assertIn('only a regular file', output)
        self.assertEqual('mine', pathlib.Path(target).read_text())

    def test_a_record_that_cannot_be_read(self):
        directory = f'{self.state}.records'
        record = store.of(directory).path(
            model.PciAddress.parse('0000:3b:00.0'))
        os.makedirs(os.path.dirname(record))
        pathlib.Path(record).write_text('{"damaged": ')
        os.mkdir(record.replace('0000:3b:', '0000:5e:'))
        _, files = self.bundle()
        records = json.loads(files['records.json'])
        self.assertEqual('{"damaged": ', records['0000:3b:00.0']['text'])
        self.assertIn('not a regular file', records['0000:5e:00.0']['error'])

    def test_a_gpu_that_hangs(self):
        machine = machine_module.Machine.load('t4x4', self.state)
        address = machine.gpus[1].address
        machine.hang_gpu(address)
        self.addCleanup(machine.hang_gpu, address, False)
        _, files = self.bundle()
        index = json.loads(files['index.json'])
        self.assertEqual([], [name for name, part in index['parts'].items()
                              if part['failed']])
        self.assertIn('no answer', files['report.json'])

    def test_wrong_policies(self):
        self.config('', gpu='policies = lost')
        _, files = self.bundle()
        index = json.loads(files['index.json'])
        self.assertIn('lost', json.loads(
            files['configuration.json'])['problem'])
        self.assertTrue(index['parts']['report']['failed'])
        self.assertIn('lost', index['parts']['report']['problem'])

    def test_an_argument_that_is_wrong(self):
        for value in ('0', '-1', 'soon', 'nan', '3601'):
            self.assertRaises(
                SystemExit, self.run_program, '--simulate', 't4x4',
                'support-bundle', '--timeout', value)


class DeadlineTest(base.CommandCase):

    def test_a_part_that_hangs_does_not_end_the_others(self):
        gone = threading.Event()
        self.addCleanup(gone.set)

        def fail():
            raise exception.HostUnusable(reason='no')

        def leave_out():
            raise parts.LeftOut('nothing there')
        found = bundle.gather({
            'hangs': gone.wait, 'fails': fail, 'absent': leave_out,
            'good': lambda: {'a': 1}}, 0.05)
        self.assertEqual(
            {'hangs': (None, True), 'fails': (None, True),
             'absent': (None, False), 'good': ({'a': 1}, False)},
            {name: (part.content, part.failed)
             for name, part in found.items()})
        self.assertIn('took longer than 0.05 s', found['hangs'].problem)
        self.assertIn('HostUnusable', found['fails'].problem)


class LogTest(base.CommandCase):

    def test_only_the_end_is_taken(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'log')
        pathlib.Path(path).write_bytes(b'x' * 10 + b'end')
        self.assertEqual(b'xend', parts._tail(path, 4))
        self.assertRaises(OSError, parts._tail, os.path.dirname(path), 4)
        os.mkfifo(f'{path}.pipe')
        self.assertRaises(OSError, parts._tail, f'{path}.pipe', 4)
