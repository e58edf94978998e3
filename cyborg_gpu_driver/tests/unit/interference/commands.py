# SPDX-License-Identifier: Apache-2.0

"""Applications for tests: scripts that leave traces in a directory."""

from __future__ import annotations

import os
import pathlib
import select

import fixtures
from oslotest import base

from cyborg_gpu_driver.interference import applications


class CommandsCase(base.BaseTestCase):
    """A test with a directory in which scripts write."""

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.log = self.directory / 'log'

    def script(self, name, text, codes=()):
        """Return a shell script that has the directory as ``$D``."""
        return applications.Application(
            name, ('sh', '-c', f'D={self.directory}; {text}'),
            frozenset(codes))

    def logging(self, name, text='true'):
        """Return a script that first writes its name."""
        return self.script(name, f'echo {name} >> $D/log; {text}')

    def logged(self):
        return self.log.read_text().split() if self.log.exists() else []

    def pids(self):
        """Return the process IDs that ``echo $$ >> $D/pids`` wrote."""
        return [int(word) for word in
                (self.directory / 'pids').read_text().split()]

    def assert_ended(self, pids):
        """Check that each process has ended, or ends within a minute."""
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            try:
                self.assertTrue(poll.poll(60000), f'{pid} runs')
            finally:
                os.close(descriptor)
