# SPDX-License-Identifier: Apache-2.0

"""Run the plugin as DevStack does, on a directory instead of a machine."""

import os
import pathlib
import shlex
import subprocess
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests import scope

ROOT = pathlib.Path(__file__).resolve().parents[4]
PLUGIN = ROOT / 'devstack'
PHASES = ('pre-install', 'install', 'post-config', 'extra', 'test-config')
SERVICES = 'n-api,n-cpu,cyborg-api,cyborg-cond,cyborg-agent'

BIN_DIR = pathlib.Path(sys.executable).parent

SIMULATED = {'VIRT_DRIVER': 'fake', 'CYBORG_GPU_SIMULATE': 'True'}
REAL = {'VIRT_DRIVER': 'libvirt', 'CYBORG_GPU_SIMULATE': 'False'}


class PluginTest(base.BaseTestCase):
    """Tests that run the plugin in a new bash for each DevStack script."""

    def setUp(self):
        super().setUp()
        self.work = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.work / 'top').mkdir()
        self.conf = self.work / 'etc' / 'cyborg.conf'
        self.unit = self.work / 'systemd' / 'cyborg-gpu-restore.service'
        self.state = self.work / 'cyborg' / 'gpu'

    def devstack(self, mode, *phases, settings, services=SERVICES,
                 trace='xtrace', localrc='', call=()):
        """Run one script of DevStack.

        :param settings: the settings of local.conf, by name.
        :param localrc: the rest of local.conf.
        :param call: a function of the plugin to run after the phases, and
            its arguments.
        :return: a tuple for each call that the plugin made, with the
            arguments. Paths below the directory are relative to it.
        """
        (self.work / 'localrc').write_text(''.join(
            f'{name}={shlex.quote(value)}\n'
            for name, value in settings.items()) + localrc, encoding='utf-8')
        (self.work / 'record').unlink(missing_ok=True)
        self.done = subprocess.run(
            ['bash', str(pathlib.Path(__file__).with_name('devstack.sh')),
             str(PLUGIN), mode, *phases],
            capture_output=True, encoding='utf-8', check=False,
            timeout=scope.HANG,
            env={'PATH': os.environ['PATH'], 'HOME': str(self.work),
                 'LC_ALL': 'C.UTF-8', 'WORK': str(self.work),
                 'PYTHON': sys.executable, 'ENABLED_SERVICES': services,
                 'DEVSTACK_CLONE': os.environ.get('DEVSTACK_CLONE', ''),
                 'BIN_DIR': str(BIN_DIR),
                 'TRACE': trace, 'CALL': shlex.join(call)})
        text = (self.work / 'record').read_text(encoding='utf-8')
        return [tuple(line.replace(f'{self.work}/', '').split('\x1f'))
                for line in text.splitlines()]

    def stack(self, *phases, **kwargs):
        """Run stack.sh as :meth:`devstack` does; it must succeed."""
        record = self.devstack('stack', *phases or PHASES, **kwargs)
        self.assertEqual(0, self.done.returncode, self.done.stderr)
        return record

    def unstack(self, *modes, **kwargs):
        """Run unstack.sh, clean.sh, or both as clean.sh does itself."""
        record = []
        for mode in modes:
            record += self.devstack(mode, **kwargs)
            self.assertEqual(0, self.done.returncode, self.done.stderr)
        return record

    def call(self, function, *arguments):
        """Whether a function of the plugin returns true."""
        self.devstack('stack', 'pre-install', settings=SIMULATED,
                      call=(function, *arguments))
        return self.done.returncode == 0

    def configuration(self):
        """Return the text of ``cyborg.conf``."""
        return self.conf.read_text(encoding='utf-8')
