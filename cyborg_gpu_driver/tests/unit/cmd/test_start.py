# SPDX-License-Identifier: Apache-2.0

"""How the process starts, what it imports, and its behavior without a command.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import pathlib
import signal
import subprocess
import sys
from importlib import metadata

import fixtures
import pynvml

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.cmd import base
from cyborg_gpu_driver.tests.unit.tools import documents

_INTERRUPTED = '''
import os, signal, sys

class Interrupt:
    """Ctrl-C in the middle of an import."""

    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
sys.argv = ['cyborg-gpu', '--simulate', 'l40sx4', 'gpu', 'list']
from cyborg_gpu_driver.cmd import start
sys.exit(start.main())
'''


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


def run(program, *arguments):
    """Run a Python program in a process of its own."""
    return subprocess.run(
        [sys.executable, '-c', program, *arguments], capture_output=True,
        text=True, check=False, timeout=scope.HANG)


def imported(*arguments, program=_RUN):
    """The modules that a command has imported when it ends."""
    done = run(program, *arguments)
    return set(done.stdout.rpartition('imported: ')[2].split())


def heavy(modules):
    """Those of HEAVY that a command has imported and oslo.log has not.

    oslo.log 7 imports eventlet.
    """
    return HEAVY & modules - imported(program=_LOG)


class InterruptTest(base.CommandCase):

    def test_while_it_imports(self):
        # A module imported early, and one that the running command needs.
        for module in ('cliff', 'cyborg_gpu_driver.cmd.gpu.show'):
            done = run(_INTERRUPTED.format(module=module))
            self.assertEqual(
                (128 + signal.SIGINT, '', ''),
                (done.returncode, done.stdout, done.stderr), module)

    def test_without_standard_output(self):
        done = run('import sys\n'
                    'from cyborg_gpu_driver.cmd import start\n'
                    'sys.stdout = None\n'
                    'sys.exit(start.main())')
        self.assertEqual((1, 'cyborg-gpu: standard output is closed\n'),
                         (done.returncode, done.stderr))

    def test_the_program_starts_there(self):
        config = configparser.ConfigParser()
        config.read(documents.ROOT / 'setup.cfg')
        self.assertIn('cyborg-gpu = cyborg_gpu_driver.cmd.start:main',
                      config['entry_points']['console_scripts'].splitlines())


class NoCommandTest(base.CommandCase):

    def test_it_shows_the_help_and_no_shell(self):
        for arguments in ((), ('--simulate', 'l40sx4')):
            output, errors = self.run_program(*arguments, code=2)
            self.assertEqual('', output)
            self.assertIn('--config-file FILE', errors)
            self.assertIn('\n  layout plan\n', errors)

    def test_an_unknown_command(self):
        output, _ = self.run_program('--simulate', 'l40sx4', 'gpu', 'lost',
                                     code=2)
        self.assertIn("cyborg-gpu: 'gpu lost' is not a cyborg-gpu command",
                      output)


class VersionTest(base.CommandCase):

    def test_it_tells_builds_apart(self):
        built = metadata.distribution('cyborg_gpu_driver')
        # A package that was built outside a clone has no revision.
        revision = json.loads(
            built.read_text('pbr.json') or '{}').get('git_version')
        self.assertEqual(
            built.version + (f' ({revision})' if revision else ''),
            main.version())

    def test_it_is_printed(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertRaises(SystemExit, main.CyborgGpu().run, ['--version'])
        self.assertIn(main.version(), printed.getvalue())


class ImportsTest(base.CommandCase):
    """Read-only commands import no module that takes long to import."""

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
