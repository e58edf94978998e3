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

"""Running the program as a person would, in this process."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging

from oslotest import base

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.simulator import patch


class CommandCase(base.BaseTestCase):
    """Commands on simulated hosts."""

    def setUp(self):
        super().setUp()
        # Of machines that a test itself puts under pynvml.
        stack = contextlib.ExitStack()
        stack.enter_context(patch.kept())
        self.addCleanup(stack.close)

    def run_program(self, *arguments, code=0):
        """Run it and check the exit code.

        :returns: standard output and standard error.
        """
        output, errors = io.StringIO(), io.StringIO()
        with _process(), contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(errors):
            result = main.main([str(item) for item in arguments])
        self.assertEqual(code, result, errors.getvalue())
        return output.getvalue(), errors.getvalue()

    def rows(self, *arguments):
        """What a command answers to programs."""
        return json.loads(self.run_program(*arguments, '-f', 'json')[0])

    def configure(self, text, directory):
        """A configuration file with this text; its path."""
        path = f'{directory}/cyborg.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path


@contextlib.contextmanager
def _process():
    """Undo what the end of a process undoes."""
    # cliff adds handlers to the root logger and never takes them away.
    root = logging.getLogger('')
    handlers, level = root.handlers[:], root.level
    try:
        # A command leaves its simulated machine under pynvml.
        with patch.kept():
            yield
            # No session of NVML stays open.
            if privileged._platform is not None:
                privileged._platform.nvml.reset()
            gc.collect()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
