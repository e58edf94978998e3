# SPDX-License-Identifier: Apache-2.0

"""Read-only commands import no module that takes long to import."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import fixtures
import pynvml

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.cmd import base

# Each with its purpose. A command that needs one of them imports it itself.
HEAVY = {
    'eventlet', 'oslo_privsep',  # changing GPUs
    'openstack', 'keystoneauth1', 'requests', 'osc_lib',  # asking the cloud
    'jsonschema', 'yaml',  # reading files
    'oslo_concurrency.processutils',  # running programs
    'cyborg_gpu_driver.cloud', 'cyborg_gpu_driver.node',
    'cyborg_gpu_driver.report', 'cyborg_gpu_driver.simulator',
}
_RUN = """
import sys
sys.argv = ['cyborg-gpu', *sys.argv[1:]]
from cyborg_gpu_driver.cmd import start
try:
    start.main()
except SystemExit:
    pass
print('\\nimported:', *sys.modules)
"""


_LOG = """
import sys
import oslo_log.log
print('imported:', *sys.modules)
"""


def imported(*arguments, program=_RUN):
    """The modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, '-c', program, *arguments], capture_output=True,
        text=True, check=True, timeout=scope.HANG)
    return set(done.stdout.rpartition('imported: ')[2].split())


def heavy(modules):
    """Those of HEAVY that a command has imported and oslo.log has not.

    oslo.log 7 imports eventlet.
    """
    return HEAVY & modules - imported(program=_LOG)


class ImportsTest(base.CommandCase):

    def test_version_and_help(self):
        for option in '--version', '--help':
            modules = imported(option)
            self.assertEqual(set(), heavy(modules))
            self.assertNotIn('pynvml', modules)
            self.assertNotIn('cyborg_gpu_driver.cmd.gpu.show', modules)

    def test_the_list_of_commands_describes_each(self):
        output, _ = self.run_program('help')
        for name, entry in main.Commands(main.NAMESPACE).commands.items():
            self.assertIn(f'  {name:<13}  '
                          + entry.load().__doc__.splitlines()[0].rstrip('.'),
                          output)

    def test_a_simulated_host(self):
        # The files of a simulated host are in YAML.
        modules = imported('--simulate', 'l40sx4', 'gpu', 'list')
        self.assertIn('cyborg_gpu_driver.simulator', modules)
        self.assertEqual({'yaml', 'cyborg_gpu_driver.simulator'},
                         heavy(modules))

    def test_old_pynvml(self):
        directory = self.useFixture(fixtures.TempDir()).path
        pathlib.Path(directory, 'pynvml.py').write_text(
            pathlib.Path(pynvml.__file__).read_text().replace(
                'c_nvmlGpuFabricInfo_v3_t', 'unknown'))
        self.useFixture(fixtures.EnvironmentVariable('PYTHONPATH', directory))
        done = subprocess.run(
            [sys.executable, '-c', _RUN, 'doctor'], text=True,
            capture_output=True, check=True, timeout=scope.HANG)
        self.assertIn('needs 13.580.65 or later', done.stderr)
        self.assertNotIn('Traceback', done.stderr)
