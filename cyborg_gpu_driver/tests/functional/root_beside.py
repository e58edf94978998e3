# SPDX-License-Identifier: Apache-2.0

"""An operator who is root, beside an agent that is not.

Run by :mod:`cyborg_gpu_driver.tests.functional.unprivileged`.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files

_OTHER = '0000:0f:00.0'
_3G = 9


class Root:
    """An operator who acts as root while the tests run as another user."""

    def __init__(self, directory, machine):
        self._hardware = os.path.join(directory, 'hardware.json')
        self._machine = machine
        self._mine, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            self._mine.close()
            self._serve(theirs)
            os._exit(0)
        theirs.close()

    def world(self, act, *arguments):
        """Call a method of the simulated machine."""
        return self._ask('_change', act, *arguments)

    def command(self, *arguments):
        """Run ``cyborg-gpu``; return its exit code and its output."""
        return self._ask('_run', *arguments)

    def _ask(self, *what):
        self._mine.send(what)
        return self._mine.recv()

    def _serve(self, connection):
        while True:
            try:
                name, *arguments = connection.recv()
            except EOFError:
                return
            connection.send(getattr(self, name)(*arguments))

    def _change(self, act, *arguments):
        getattr(simulator.Machine.load(self._machine, self._hardware), act)(
            *arguments)

    def _run(self, *arguments):
        done = subprocess.run(
            [sys.executable, '-m', 'cyborg_gpu_driver.cmd.main',
             *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class BesideTest(gpu_cloud.GpuTestCase):
    """An agent without privileges, and an operator who is root."""

    overrides = {'gpu': {'policies': 'slices'},
                 'gpu_policy:slices': {'mode': 'mig', 'match_address':
                                       gpu_cloud.GpuTestCase.gpu,
                                       'profiles': '3g.40gb'}}

    def setUp(self):
        super().setUp()
        self.slices = self.profile('CUSTOM_NVIDIA_3G_40GB')

    def as_root(self, *arguments, expected=0):
        """Run a command as root.

        :param expected: its exit code; None for any.
        """
        code, said = self.root.command(
            '--config-file', self.cloud.cloud.config_path, *arguments)
        if expected is not None:
            self.assertEqual(expected, code, said)
        for place, directories, files in os.walk(self.state_path):
            for name in (*directories, *files):
                path = os.path.join(place, name)
                self.assertEqual(os.geteuid(), os.stat(path).st_uid, path)

    def use_and_return(self):
        """Check that a server can come and go and leaves nothing."""
        server = self.cloud.bind(self.slices)
        self.assertEqual(1, len(self.mdevs()))
        self.cloud.unbind(server)
        self.assertEqual({}, self.mdevs())
        self.report()
        self.assertEqual(self.untouched, self.everything())

    def test_root_is_there_first(self):
        """Root creates the records, their directories and the locks."""
        for name in ('locks', 'gpus'):
            shutil.rmtree(os.path.join(self.state_path, name),
                          ignore_errors=True)
        path = os.path.join(self.state_path, 'audit.jsonl')
        if os.path.exists(path):
            os.unlink(path)
        layouts = os.path.join(self.state_path, 'layouts.yaml')
        with open(layouts, 'w', encoding='utf-8') as stream:
            stream.write('{version: v1, mig-configs: {a: [{devices: [0], '
                         'mig-enabled: true, mig-devices: {}}]}}')
        self.as_root('layout', 'apply', '-f', layouts)
        self.as_root('layout', 'checkpoint')
        self.end_agent()
        self.use_and_return()

    def test_root_makes_the_journal_again(self):
        server = self.cloud.bind(self.slices)
        before = self.journal()
        host_files.damage(self.state_path, self.gpu)
        self.end_agent()
        self.as_root('doctor', '--repair', expected=1)
        # Only the audit record has the time of the bind.
        self.assertEqual([{**entry, 'since': None} for entry in before],
                         self.journal())
        # The GPU stays closed until somebody has looked at it.
        self.as_root('gpu', 'uncordon', self.gpu)
        self.report()
        self.cloud.unbind(server)
        self.use_and_return()

    def test_a_gpu_that_does_not_answer_the_daemon(self):
        self.root.world('hang_gpu', self.gpu)
        self.addCleanup(self.root.world, 'hang_gpu', self.gpu, False)
        for _ in range(2):
            error = self.assertRaises(
                exception.NvmlNotAnswering, privileged.create_gpu_instance,
                self.gpu, _3G, 0, 4)
            self.assertIn(f'GPU {self.gpu} does not answer', str(error))
        made, *_ = privileged.create_gpu_instance(_OTHER, _3G, 0, 4)
        privileged.destroy_gpu_instance(_OTHER, made)
