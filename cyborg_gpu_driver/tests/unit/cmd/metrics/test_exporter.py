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

"""``cyborg-gpu exporter``."""

import os
import socket
from unittest import mock

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.metrics import exporter
from cyborg_gpu_driver.tests.unit.cmd import base


class ExporterTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.directory, 'gpus.prom')

    def refusal(self, *arguments):
        return self.run_program(
            '--config-file', os.devnull, 'exporter', '--state-path',
            self.directory, *arguments, code=1)[1]

    def test_a_file_for_node_exporter(self):
        self.run_program('--config-file', os.devnull, 'exporter',
                         '--state-path', self.directory, '--textfile',
                         self.path)
        with open(self.path, encoding='utf-8') as stream:
            self.assertIn('cyborg_gpu_exporter_build_info', stream.read())
        self.assertEqual(['gpus.prom'], os.listdir(self.directory))

    def test_with_values_of_the_hardware(self):
        self.run_program('--simulate', 'l40sx4', 'exporter', '--nvml',
                         '--textfile', self.path)
        with open(self.path, encoding='utf-8') as stream:
            text = stream.read()
        self.assertEqual(4, text.count('\ncyborg_gpu_power_watts{'))
        # GDDR memory has no temperature sensor of its own.
        self.assertNotIn('\ncyborg_gpu_memory_temperature_celsius{', text)

    def test_with_the_servers_of_libvirt(self):
        self.run_program('--simulate', 'l40sx4', 'exporter', '--libvirt',
                         '--textfile', self.path)
        self.assertEqual(['gpus.prom'], os.listdir(self.directory))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.domains.MODULE', 'no_such_module'))
        self.assertIn('python3-libvirt', self.refusal(
            '--libvirt', '--textfile', self.path))

    def test_a_disk_that_is_full_for_a_while(self):
        """Later writes are retried; an error in the first ends the command.
        """
        rounds, away = [], f'{self.directory}.away'

        def sleep(seconds):
            self.assertEqual(30, seconds)
            rounds.append(os.path.exists(self.path))
            if len(rounds) == 1:
                os.rename(self.directory, away)
            elif len(rounds) == 3:
                os.rename(away, self.directory)
                os.unlink(self.path)
            elif len(rounds) == 4:
                raise KeyboardInterrupt

        # Other threads sleep too.
        self.useFixture(fixtures.MonkeyPatch(
            f'{exporter.__name__}.time', mock.Mock(sleep=sleep)))
        _, errors = self.run_program(
            '--simulate', 'l40sx4', 'exporter', '--textfile', self.path,
            '--interval', '30')
        self.assertEqual([True, False, False, True], rounds)
        self.assertEqual(1, errors.count('cannot be written'))

    def test_mistakes_are_named(self):
        self.assertIn('.prom', self.refusal('--textfile', 'gpus.txt'))
        self.assertIn('--textfile', self.refusal(
            '--textfile', os.path.join(self.directory, 'no', 'x.prom')))
        self.assertIn('--web-config', self.refusal('--web-config',
                                                   self.path))
        self.assertIn('it needs --textfile', self.refusal('--interval', '5'))
        self.assertIn('has no effect with --textfile', self.refusal(
            '--textfile', self.path, '--web-config', '/nowhere'))
        for text in ('0', 'x', '86401'):
            self.assertRaises(SystemExit, self.run_program, 'exporter',
                              '--textfile', self.path, '--interval', text)
        taken = socket.create_server(('127.0.0.1', 0))
        self.addCleanup(taken.close)
        self.assertIn('--listen', self.refusal(
            '--listen', f'127.0.0.1:{taken.getsockname()[1]}'))

    def test_addresses(self):
        for text, expected in (('127.0.0.1:9836', ('127.0.0.1', 9836)),
                               (':1', ('', 1)), ('[::1]:2', ('::1', 2))):
            self.assertEqual(expected, exporter.address(text))
        for text in ('9836', 'host', 'host:', 'host:x', '::1:2', ':65536',
                     'host:\u0661'):
            self.assertRaises(exception.InvalidValue, exporter.address, text)
