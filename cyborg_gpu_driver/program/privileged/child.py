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

"""Programs of others, none of which is waited for without a limit."""

from __future__ import annotations

import contextlib
import os
import signal

from oslo_concurrency import processutils

Failed = processutils.ProcessExecutionError
"""The program ended with another code than 0."""


def run(seconds: float, *command: str) -> None:
    """Run a program to its end.

    :param seconds: how long it may take. One that takes longer is killed,
        with the programs that it has started.
    :param command: the program and its arguments.
    :raises FileNotFoundError: if there is no such program.
    :raises TimeoutError: if it took longer.
    :raises OSError: if it cannot be started.
    :raises Failed: with its code and what it said.
    """
    try:
        processutils.execute(*command, timeout=seconds, on_completion=_kill,
                             preexec_fn=os.setsid)
    except processutils.subprocess.TimeoutExpired as error:
        raise TimeoutError(f'it did not end within {seconds:g} s and was '
                           'killed') from error


def _kill(process: processutils.subprocess.Popen) -> None:
    """Kill what has not ended, without waiting for it."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def words(error: processutils.ProcessExecutionError) -> str:
    """What a program said that failed."""
    return f'{error.stdout or ""}{error.stderr or ""}'.strip()
