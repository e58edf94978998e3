# SPDX-License-Identifier: Apache-2.0

"""How the process starts, and its behavior without a command."""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import signal
import subprocess
import sys
from importlib import metadata

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


def _run(program):
    """Run a Python program in a process of its own."""
    return subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True,
        check=False, timeout=scope.HANG)


class InterruptTest(base.CommandCase):

    def test_while_it_imports(self):
        # A module imported early, and one that the running command needs.
        for module in ('cliff', 'cyborg_gpu_driver.cmd.gpu.show'):
            done = _run(_INTERRUPTED.format(module=module))
            self.assertEqual(
                (128 + signal.SIGINT, '', ''),
                (done.returncode, done.stdout, done.stderr), module)

    def test_without_standard_output(self):
        done = _run('import sys\n'
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
