# SPDX-License-Identifier: Apache-2.0


"""The operator's part: ``cyborg-gpu`` in a separate process.

The command reads the same configuration as the agent. So it sees the same
simulated machine through the machine's state file, but not the agent's memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

_TIMEOUT = 60


class CommandFailed(Exception):
    """A command of ``cyborg-gpu`` failed; the message is its output."""


class Operator:
    """Runs commands with one configuration file."""

    def __init__(self, config_path: str):
        self._config_path = config_path

    def text(self, *command: str) -> str:
        """Return what a command prints for people.

        :raises CommandFailed: if its exit code is not 0.
        """
        finished = subprocess.run(
            [sys.executable, '-m', 'cyborg_gpu_driver.cmd.main',
             '--config-file', self._config_path, *command],
            capture_output=True, check=False, timeout=_TIMEOUT,
            encoding='utf-8', env=dict(os.environ, PYTHONIOENCODING='utf-8'))
        if finished.returncode:
            raise CommandFailed('cyborg-gpu %s: %s' % (
                ' '.join(command), finished.stderr.strip()
                or f'exit code {finished.returncode}'))
        return finished.stdout

    def data(self, *command: str):
        """Return a command's machine-readable output.

        :raises CommandFailed: as :meth:`text`.
        """
        return json.loads(self.text(*command, '-f', 'json'))

    def machine(self) -> dict[str, dict]:
        """Return what ``gpu show`` shows of every GPU, by address.

        The time when NVML told it is left out, because a whole GPU is read
        again after a server.
        """
        shown = (self.data('gpu', 'show', gpu['address'])
                 for gpu in self.data('gpu', 'list'))
        return {gpu['address']: {name: value for name, value in gpu.items()
                                 if name != 'recorded_at'} for gpu in shown}

    def map(self) -> str:
        """Return what is in use on each GPU, and by whom."""
        return self.text('gpu', 'map').rstrip('\n')
