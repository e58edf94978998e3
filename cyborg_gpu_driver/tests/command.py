# SPDX-License-Identifier: Apache-2.0

"""Run ``cyborg-gpu`` in the test process as if in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import io
import json
import logging
from collections.abc import Callable

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator.machine import machine

# Each command looks for its entry points among all installed packages, which
# do not change while tests run.
importlib.metadata.entry_points = functools.cache(
    importlib.metadata.entry_points)


class _Output(io.StringIO):
    """Captured output with the encoding of a terminal."""

    encoding = None


def run(*arguments: object, encoding: str | None = None,
        entry: Callable[[list[str]], int] = main.main
        ) -> tuple[int, str, str]:
    """Run a command and undo what the end of its process would undo.

    What the command puts under pynvml is removed again: a handle from
    another session would name another object in its library.

    :param encoding: of standard output; None allows only ASCII.
    :param entry: the function that runs the command. Functions other than
        that of ``cyborg-gpu`` have further commands.
    :returns: the exit code, standard output and standard error.
    """
    output, errors = _Output(), io.StringIO()
    output.encoding = encoding
    # cliff adds handlers to the root logger and never removes them, and a
    # command filters what every handler shows.
    root = logging.getLogger('')
    handlers, level = root.handlers[:], root.level
    before = privileged._platform
    sessions = {*gate._gates}
    root.handlers.clear()
    try:
        with machine.kept(), contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(errors):
            # Garbage collection need not visit objects older than the command.
            gc.freeze()
            code = entry([str(item) for item in arguments])
            # Leave no session of NVML open.
            for session in {*gate._gates} - sessions:
                session.reset()
            gc.collect()
    finally:
        gc.unfreeze()
        privileged._platform = before
        root.handlers[:] = handlers
        root.setLevel(level)
    return code, output.getvalue(), errors.getvalue()


def differences(code: int, output: str) -> tuple[int, list[dict]]:
    """Return what ``doctor -f json`` says apart from the installation.

    :param code: its exit code.
    :param output: its standard output, on a host without ``nova.conf``.
    :returns: the exit code that these findings alone would have, and them.
    """
    codes = {'not-examined', *(kind.value for kind in reconcile.Kind)}
    rows = [row for row in json.loads(output) if row['code'] in codes
            and 'nova.conf' not in row['message']]
    known = any(row['severity'] != 'unknown' for row in rows)
    return code and (1 if known else 2 if rows else 0), rows
