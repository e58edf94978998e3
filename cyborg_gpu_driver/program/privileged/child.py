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
from collections.abc import Callable

from oslo_concurrency import processutils

Tool = str | Callable[..., str]
"""Name or path of a program, or what a simulated machine has in its place,
which is called with the arguments."""


class Failed(Exception):
    """A program did not do its work; the text says why, for people."""


def run(seconds: float, tool: Tool, *arguments: object) -> None:
    """Run a program to its end.

    :param seconds: how long it may take. One that takes longer is killed,
        with the programs that it has started.
    :raises FileNotFoundError: if there is no such program.
    :raises Failed: with what it said, if it ends with another code than 0,
        takes longer, or cannot be started.
    """
    try:
        if callable(tool):
            tool(*arguments)
        else:
            processutils.execute(tool, *arguments, timeout=seconds,
                                 on_completion=_kill, preexec_fn=os.setsid)
    except FileNotFoundError:
        raise
    except processutils.subprocess.TimeoutExpired as error:
        raise Failed(f'{tool} did not end within {seconds:g} s and was '
                     'killed') from error
    except OSError as error:
        raise Failed(f'{tool} cannot be run ({error})') from error
    except processutils.ProcessExecutionError as error:
        raise Failed(f'{error.stdout or ""}{error.stderr or ""}'.strip()
                     ) from error


def _kill(process: processutils.subprocess.Popen) -> None:
    """Kill what has not ended, without waiting for it."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
