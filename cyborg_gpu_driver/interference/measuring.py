# SPDX-License-Identifier: Apache-2.0

"""Measures how applications slow each other down, step by step."""

from __future__ import annotations

import dataclasses
import os
import shlex
import tempfile
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import results

Outcome = results.Outcome

_VERBS = {Outcome.OUT_OF_MEMORY: 'ran out of memory',
          Outcome.FAILED: 'failed', Outcome.TIMED_OUT: 'took too long'}


class Runner(Protocol):
    """Runs applications on this machine or in servers of a cloud.

    :ivar gpu_memory_mib: memory of the smallest GPU; None if unknown.
    """

    gpu_memory_mib: int | None

    def runs(self, application: apps.Application,
             other: apps.Application | None, count: int
             ) -> Sequence[results.Runs]:
        """Run an application ``count`` times, one run after the other.

        :param other: the application beside it, started again each time it
            ends; None for none.
        :returns: at least one run. A run that fails is the last one, also
            if the application beside it has failed.
        """


def measure(found: results.Results, runner: Runner, path: str,
            say: Callable[[results.Step], Any] = lambda _step: None) -> None:
    """Measure the steps that have no result, and write after each.

    :param found: what was measured so far; the results are added.
    :param path: path of the file.
    :param say: called with each step before it begins.
    :raises InvalidValue: if a command cannot be started; if it fails alone,
        because then there is nothing to compare with; or if the file cannot
        be written.
    """
    known = {item.name: item for item in found.applications}
    for name, beside in found.open_steps():
        say((name, beside))
        runs = _step(found, runner, known[name],
                     known[beside] if beside is not None else None)
        # The caller says how many steps are in the file.
        _write(path, dataclasses.replace(found, runs={
            **found.runs, (name, beside): runs}).dump())
        found.runs[name, beside] = runs
        if beside is None and runs.outcome is not Outcome.MEASURED:
            raise exception.InvalidValue(
                what=f'command of {name}',
                value=shlex.join(known[name].command), expected='alone it '
                f'{_VERBS[runs.outcome]} ({runs.problem})')


def _step(found: results.Results, runner: Runner,
          application: apps.Application, other: apps.Application | None
          ) -> results.Runs:
    """Return the result of a step, which ends with the first failed run."""
    runs = runner.runs(application, other, found.warmups + found.repeats)
    last = runs[-1]
    outcome = last.outcome
    if other and outcome is Outcome.FAILED and _is_too_much(
            found, runner, application.name, other.name):
        outcome = Outcome.OUT_OF_MEMORY
    return results.Runs(
        outcome, tuple(second for one in runs[found.warmups:]
                       for second in one.seconds)
        if outcome is Outcome.MEASURED else (),
        max((one.gpu_memory_mib for one in runs
             if one.gpu_memory_mib is not None), default=None),
        last.problem)


def _is_too_much(found: results.Results, runner: Runner, *names: str) -> bool:
    """Whether two applications together need more memory than a GPU has.

    Their memory is that of the runs alone. An allocation that CUDA refuses
    never shows in the memory in use, and each program chooses its own exit
    code.
    """
    needs = [need for name in names
             if (need := found.runs[name, None].gpu_memory_mib) is not None]
    return (runner.gpu_memory_mib is not None and len(needs) == len(names)
            and sum(needs) > runner.gpu_memory_mib)


def _write(path: str, content: str) -> None:
    """Replace a file atomically: an interrupted write leaves the old one.

    :raises InvalidValue: if the file cannot be written.
    """
    directory, name = os.path.split(os.path.abspath(path))
    try:
        with tempfile.NamedTemporaryFile(
                'w', dir=directory, prefix=f'.{name}.',
                delete=False) as stream:
            try:
                stream.write(content)
                stream.flush()
                os.fchmod(stream.fileno(), 0o666 & ~_umask())
                os.fsync(stream.fileno())
                os.replace(stream.name, path)
            except BaseException:
                os.unlink(stream.name)
                raise
    except OSError as error:
        raise exception.InvalidValue(
            what='file', value=path,
            expected=f'cannot be written: {error.strerror}') from error


def _umask() -> int:
    """Return the permissions that new files of this process do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
