# SPDX-License-Identifier: Apache-2.0

"""The first boot of a bare-metal server, and the report of its outcome."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.program.ready import apply

# The outcome of a first boot, for people and for programs.

_LINE = 'cyborg-gpu-firstboot:'
"""Start of the line that operators look for on the console."""
_REASON_MAX = 500
"""Characters of a reason in that line; the report has all of it."""
_PLAIN = re.compile(r'[\w./:,+-]+', re.ASCII)
"""A value that needs no quotes."""


class Result(enum.Enum):
    """The outcome for the layout."""

    APPLIED = 'applied'
    """Every GPU that the layout selects is as it says."""
    NO_GPU = 'no-gpu'
    NO_LAYOUT = 'no-layout'
    """No source has a layout for this server; its GPUs are unchanged."""
    UNUSABLE = 'unusable'
    """The layout is malformed, or does not suit these GPUs; they are
    unchanged."""
    FAILED = 'failed'
    """The machine prevented it. GPUs that failed are unchanged, unless their
    error says otherwise."""

    @property
    def code(self) -> int:
        """The exit code of the program."""
        return {Result.FAILED: 1, Result.UNUSABLE: 2}.get(self, 0)


@dataclasses.dataclass(frozen=True)
class GpuReport:
    """The outcome for one GPU."""

    index: int
    """Among all NVIDIA GPUs by PCI address."""
    address: str
    status: str
    """``unchanged``, ``changed``, ``skipped`` (a board without MIG),
    ``ignored`` or ``failed``."""
    wanted: str
    error: str | None = None

    def __str__(self) -> str:
        return (f'GPU {self.index} ({self.address}): {self.status}: '
                + (self.error or self.wanted))


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of a first boot."""

    result: Result
    error: str | None = None
    """What prevented the whole; GPUs have errors of their own."""
    gpus: tuple[GpuReport, ...] = ()
    source: str | None = None
    """The source of the layout."""
    layout: str | None = None
    """The layout's name."""

    def lines(self) -> Iterator[str]:
        """Return the lines for people: one per GPU, and the outcome."""
        return map(printable, self._lines())

    def _lines(self):
        yield from map(str, self.gpus)
        yield _SENTENCES[self.result].format(
            layout=self.layout, source=self.source, error=self.error)

    def summary(self) -> str:
        """Return one line for a console, with the outcome of the run.

        ``cyborg-gpu-firstboot: result=ok layout=mixed gpus=8 source=...``
        """
        failed = [gpu for gpu in self.gpus if gpu.error]
        return _line(
            not self.result.code, layout=self.layout, gpus=len(self.gpus),
            failed=len(failed) or None, source=self.source,
            reason=None if self.result is Result.APPLIED else
            '; '.join(map(str, failed)) or self.error or self.result.value)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for programs."""
        return {**dataclasses.asdict(self), 'result': self.result.value}


_SENTENCES = {
    Result.APPLIED: 'Layout {layout} of {source} is in effect.',
    Result.NO_GPU: 'There is no NVIDIA GPU, so there is nothing to do.',
    Result.NO_LAYOUT: 'No layout was found. The GPUs were not changed.',
    Result.UNUSABLE: 'Not a layout for this server: {error}. The GPUs were '
                     'not changed.',
    Result.FAILED: 'FAILED: {error}'}


def failure(error: Exception) -> str:
    """Return a :meth:`Report.summary` line for a run without a report."""
    return _line(False, reason=str(error) or repr(error))


def _line(succeeded, **values):
    """Return the line; a value with blanks becomes a string of JSON.

    The line is in ASCII, because few serial consoles show anything else.
    """
    values = {'result': 'ok' if succeeded else 'failed', **values}
    if len(values.get('reason') or '') > _REASON_MAX:
        values['reason'] = values['reason'][:_REASON_MAX] + '...'
    return ' '.join((_LINE, *(f'{name}={_value(str(value))}'
                              for name, value in values.items()
                              if value is not None)))


def _value(text):
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def printable(text: str) -> str:
    """Return text on one line, with names from outside made harmless.

    A terminal would execute control characters in such a name, and an output
    would refuse them.
    """
    return ''.join(
        letter if letter.isprintable()
        else letter.encode('unicode_escape').decode('ascii')
        for letter in text)


# The first boot of a bare-metal server: apply its layout to its GPUs.
#
# This runs at each boot, because GPU instances do not survive one, unless the
# driver has a boot configuration for them. It is safe at any time: it leaves
# alone what is already as wanted or in use.

_PAUSE = 1.0
"""Seconds between two checks for the driver."""
_DRIVER = 'nvidia'
_IGNORED = 'ignored'
_SKIPPED = 'skipped'


class FirstBoot:
    """Partitions the GPUs of one machine.

    :param server: its parts; this process makes the privileged changes.
    """

    def __init__(self, server: node.Node,
                 tell: Callable[[str], object],
                 clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], object] = time.sleep):
        self._node = server
        self._tell = tell
        self._clock = clock
        self._sleep = sleep

    def has_gpus(self) -> bool:
        """Whether there is any NVIDIA GPU, with or without a driver.

        :raises HostUnusable: if that cannot be determined.
        """
        host = self._node.reader.snapshot()
        if host.problems and not host.gpus:
            raise exception.HostUnusable(reason='; '.join(host.problems))
        return bool(host.gpus)

    def partition(self, timeout: float, found: layout_sources.Found
                  ) -> Report:
        """Apply a layout once NVIDIA's driver is ready.

        :param timeout: seconds that the driver may take.
        """
        host, lacking = self._wait(timeout)
        if host.nvml_problem:
            return Report(Result.FAILED, (
                f'the NVIDIA driver is not ready after {timeout:g} seconds: '
                f'{lacking}'))
        try:
            return self._apply(host, found)
        except exception.DocumentError as error:
            # The layout may be right for a GPU that cannot be read.
            unread = [choice.obstacle(host, gpu) for gpu in host.gpus
                      if condition.is_failed(gpu)
                      and not self._node.ignores(gpu)]
            return Report(
                Result.FAILED if any(unread)
                else Result.UNUSABLE,
                '; '.join(filter(None, (*unread, str(error)))))

    def _wait(self, timeout):
        """Return the machine, and what is missing when the time is up."""
        end, said = self._clock() + timeout, None
        while True:
            host = self._node.reader.snapshot()
            lacking = self._lacking(host)
            left = end - self._clock()
            if not lacking or left <= 0:
                return host, lacking
            if lacking != said:
                self._tell('Waiting for the NVIDIA driver, up to '
                           f'{left:.0f} seconds: {lacking}')
                said = lacking
            self._sleep(min(_PAUSE, left))
            # An open session knows only the GPUs that existed when it was
            # opened.
            self._node.platform.nvml.reset()

    def _lacking(self, host):
        """Describe what the driver is not ready for; empty if it is ready."""
        if host.nvml_problem:
            return '; '.join([host.nvml_problem, *(
                f'{gpu.address} is bound to {gpu.driver or "no driver"}'
                for gpu in host.gpus if gpu.driver != _DRIVER)])
        return ', '.join(map(_unseen_text, self._unseen(host)))

    def _unseen(self, host):
        """Return GPUs that NVIDIA's driver should have and NVML does not list.

        A GPU that is bound to another driver was assigned to it on purpose.
        """
        return [gpu for gpu in host.gpus if not gpu.visible_to_nvml
                and gpu.driver in (None, _DRIVER)
                and not self._node.ignores(gpu)]

    def _apply(self, host, found):
        gpus = choice.gpus(host)
        entry = found.entry(gpus)
        chosen = entry.chosen(gpus)
        if not chosen:
            return Report(Result.UNUSABLE, (
                f'{found.source}: entry {entry.name} matches no GPU of this '
                f'server, which has {_models(gpus)}'))
        wanted = entry.for_chosen(gpus, [
            index for index in chosen if not condition.obstacle(gpus[index])])
        outcomes = self._change(gpus, wanted)
        done = tuple(
            outcomes.get(index) or self._untouched(entry, index, gpus[index])
            for index in chosen)
        failed = [gpu.address for gpu in done if gpu.error]
        return Report(
            Result.FAILED if failed else Result.APPLIED,
            f'GPUs that do not match the layout {entry.name} of '
            f'{found.source}: '
            + ', '.join(failed) if failed else None, done)

    def _change(self, gpus, wanted: dict[int, target.Wanted]):
        """Apply the layout; return reports of the GPUs, by index."""
        chosen = [index for index in wanted
                  if not self._node.ignores(gpus[index])]
        outcomes = self._node.applier.apply_all(
            [(gpus[index], wanted[index]) for index in chosen])
        return {index: GpuReport(
            index, str(outcome.gpu),
            _SKIPPED if wanted[index].without_mig else outcome.status.value,
            str(wanted[index]),
            str(outcome.error) if outcome.error else None)
            for index, outcome in zip(chosen, outcomes, strict=True)}

    def _untouched(self, entry, index, gpu):
        """Return the report of a GPU that is ignored or unreachable."""
        if self._node.ignores(gpu):
            return GpuReport(index, str(gpu.address), _IGNORED,
                             entry.name)
        return GpuReport(
            index, str(gpu.address), apply.Status.FAILED.value, entry.name,
            f'it cannot be reached: {condition.obstacle(gpu)}')


def _unseen_text(gpu):
    return (f'NVML does not list {gpu.address}, which is bound to '
            f'{gpu.driver or "no driver"}')


def _models(gpus):
    return ', '.join(sorted({gpu.model or gpu.device_id for gpu in gpus})
                     ) or 'none that the driver lists'
