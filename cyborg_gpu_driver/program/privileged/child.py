# SPDX-License-Identifier: Apache-2.0

"""Run external programs, always with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from oslo_concurrency import processutils

Tool = str | Callable[..., str]
"""Name or path of a program, or the function of a simulated machine that is
called with the arguments instead."""


class Failed(Exception):
    """A program failed. The text says why, for people."""


def run(seconds: float, tool: Tool, *arguments: object) -> None:
    """Run a program to its end.

    :param seconds: how long the program may take. After that, it is killed
        together with the programs that it has started.
    :raises FileNotFoundError: if there is no such program.
    :raises Failed: with its output, if it ends with another code than 0; or
        if it takes too long or cannot be started.
    """
    try:
        if callable(tool):
            tool(*arguments)
        else:
            processutils.execute(tool, *arguments, timeout=seconds,
                                 on_completion=kill, preexec_fn=os.setsid)
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


def kill(process: processutils.subprocess.Popen) -> None:
    """Kill a process and those that it has started, without waiting.

    A process whose end was waited for stays as it is. If the process has
    ended, but others still write to its output, those are killed.
    """
    # poll() would let the system use the id again.
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
