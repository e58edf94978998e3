# SPDX-License-Identifier: Apache-2.0

"""The parts of tools/minicloud that start no service."""

import importlib
import pathlib
import signal
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
