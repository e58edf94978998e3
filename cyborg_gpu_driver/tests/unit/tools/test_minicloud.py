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

"""The parts of tools/minicloud that start no service."""

import contextlib
import importlib
import io
import json
import pathlib
import signal
import socket
import sys

import fixtures
from oslotest import base

TOOL = pathlib.Path(__file__).resolve().parents[4] / 'tools' / 'minicloud'


def module(name):
    """Import a module of the tool, which is not part of the library."""
    if str(TOOL) not in sys.path:
        sys.path.append(str(TOOL))
    return importlib.import_module(f'minicloud_lib.{name}')


cli = module('cli')
error = module('error')
inifile = module('inifile')
processes = module('processes')
settings = module('settings')


class MinicloudCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'cloud')

    def new(self, **changes):
        return settings.Settings(**{
            'directory': self.directory, 'base_port': 24000,
            'hosts': {'gpu1': 't4x4'}, 'gpu_config': '/etc/gpu.conf',
            'secret': 'secret', **changes})


class SettingsTest(MinicloudCase):

    def test_what_was_decided_is_kept(self):
        self.new().save()
        self.assertEqual(self.new(), settings.load(self.directory))
        self.assertEqual(0o700, self.directory.stat().st_mode & 0o777)

    def test_what_is_of_others_is_left_alone(self):
        self.directory.mkdir()
        (self.directory / 'thesis.txt').touch()
        found = self.assertRaises(error.MinicloudError, settings.load,
                                  self.directory)
        self.assertIn('has files, but no minicloud', str(found))
        for text in ('', '[]', '{}', '{"format": 0}',
                     json.dumps({'format': settings.FORMAT, 'x': 1})):
            (self.directory / settings.FILE).write_text(text, 'utf-8')
            found = self.assertRaises(error.MinicloudError, settings.load,
                                      self.directory)
            self.assertIn('not the file of a minicloud', str(found))

    def test_ports_that_somebody_has_are_not_taken(self):
        with socket.socket() as other:
            other.bind((settings.ADDRESS, 0))
            other.listen()
            port = other.getsockname()[1]
            first = port - len(settings.PORTS) + 1
            found = self.assertRaises(
                error.MinicloudError, settings.new, self.directory, {},
                '/etc/gpu.conf', first)
            self.assertIn(f'--base-port {first}', str(found))
            self.assertIn(str(port), str(found))


class InifileTest(MinicloudCase):

    def test_what_is_written_is_read(self):
        path = inifile.write(self.directory / 'x.conf', {
            'DEFAULT': {'debug': False, 'hosts': ['a', 'b']},
            'gpu': {'Odd Name': 1}})
        self.assertEqual(0o600, path.stat().st_mode & 0o777)
        self.assertEqual({'DEFAULT': {'debug': 'false', 'hosts': 'a,b'},
                          'gpu': {'Odd Name': '1'}}, inifile.read(path))

    def test_no_file_of_options(self):
        self.directory.mkdir()
        path = self.directory / 'x.conf'
        for text in (b'x = 1\n', b'[a]\n\xff = 1\n', b'[a]\nx\n'):
            path.write_bytes(text)
            found = self.assertRaises(error.MinicloudError, inifile.read,
                                      path)
            self.assertIn(str(path), str(found))


class ProcessesTest(MinicloudCase):

    def setUp(self):
        super().setUp()
        self.settings = self.new()
        self.settings.save()
        self.addCleanup(processes.end, self.settings, ['service'],
                        signal.SIGKILL)

    def spawn(self, script):
        processes.spawn(self.settings, 'service', ['/bin/sh', '-c', script],
                        {})
        return processes.leader(self.settings, 'service')

    def test_all_that_a_service_started_ends_with_it(self):
        # Children outlive their parent unless the whole session is ended. This
        # parent still starts children when it is killed.
        self.spawn('for n in $(seq 200); do sleep 600 & done; wait')
        recorded = self.settings.pid_file('service').read_text('utf-8')
        processes.end(self.settings, ['service'], signal.SIGKILL)
        self.assertEqual([], processes.names(self.settings))
        self.settings.pid_file('service').write_text(recorded, 'utf-8')
        self.assertEqual([], processes.members(self.settings, 'service'))

    def test_a_number_that_is_used_again_is_nobody_of_ours(self):
        self.spawn('exec sleep 600')
        path = self.settings.pid_file('service')
        words = path.read_text('utf-8').split()
        # The same ID, started at another time: another process.
        words[21] = str(int(words[21]) - 1)
        recorded = path.read_text('utf-8')
        path.write_text(' '.join(words), 'utf-8')
        self.assertIsNone(processes.leader(self.settings, 'service'))
        path.write_text(recorded, 'utf-8')
        self.assertIsNotNone(processes.leader(self.settings, 'service'))


class CommandTest(MinicloudCase):

    def run_command(self, *arguments):
        told = io.StringIO()
        with (contextlib.redirect_stderr(told),
              contextlib.redirect_stdout(told)):
            try:
                code = cli.main([*arguments, '--directory',
                                 str(self.directory)])
            except SystemExit as ended:
                code = ended.code
        return code, told.getvalue()

    def test_no_cloud_there(self):
        for command in (['stop'], ['status'], ['log', 'nova-api'],
                        ['kill', 'nova-api']):
            code, told = self.run_command(*command)
            self.assertEqual(1, code)
            self.assertIn(f'there is no minicloud in {self.directory}',
                          told)
        # A wipe has nothing to do, which is not a failure.
        self.assertEqual(0, self.run_command('wipe')[0])

    def test_what_is_refused(self):
        made = self.new()
        made.save()
        made.log('nova-api').write_text('1\n2\n3\n', 'utf-8')
        for arguments, wanted, said in (
                (['start', '--host', 'gpu1'], 2,
                 "'gpu1' is not NAME=MACHINE"),
                *((['start', '--report-interval', text], 2,
                   f'{text!r} is not a number of seconds')
                  for text in ('0', '-1', '1.5', 'x', '')),
                (['log', 'nova'], 1, 'there are nova-api')):
            code, told = self.run_command(*arguments)
            self.assertEqual(wanted, code, arguments)
            self.assertIn(said, told)
        self.assertEqual((0, '3\n'), self.run_command(
            'log', 'nova-api', '--lines', '1'))

    def test_the_interval_of_a_cloud_does_not_change(self):
        self.new(report_interval=10).save()
        options = cli._parser().parse_args(
            ['start', '--report-interval', '20'])
        found = self.assertRaises(
            error.MinicloudError, cli._refuse_changes, options,
            settings.load(self.directory))
        self.assertIn('--report-interval: the cloud in', str(found))
