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

"""The first boot of a bare-metal server: apply its layout to its GPUs.

This runs at each boot, because GPU instances do not survive one. It is safe
at any time: it leaves alone what is already as wanted or in use.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.baremetal.first_boot import layout_sources
from cyborg_gpu_driver.baremetal.first_boot import report as reports
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.partition.change import target
from cyborg_gpu_driver.program.ready import apply

_PAUSE = 1.0
"""Seconds between two checks for the driver."""
_DRIVER = 'nvidia'
_IGNORED = 'ignored'
_SKIPPED = 'skipped'


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of the partitioning; :mod:`.report` has the rest."""

    result: reports.Result
    error: str | None = None
    gpus: tuple[reports.GpuReport, ...] = ()


class FirstBoot:
    """Partitions the GPUs of one machine.

    :param server: its parts; this process makes the privileged changes.
    :param tell: called with progress messages for people.
    :param clock: a monotonic clock, in seconds.
    :param sleep: waits for a number of seconds.
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

    def partition(self, found: layout_sources.Found, timeout: float,
                  others: Iterable[layout_sources.Found] = ()) -> Outcome:
        """Apply a layout once NVIDIA's driver is ready.

        :param timeout: seconds that the driver may take.
        :param others: layouts of other sources. They must agree, because it
            is unknown which of two different layouts is the intended one.
        """
        host, lacking = self._wait(timeout)
        if host.nvml_problem:
            return Outcome(reports.Result.FAILED, (
                f'the NVIDIA driver is not ready after {timeout:g} seconds: '
                f'{lacking}'))
        try:
            return self._apply(host, found, others)
        except exception.LayoutError as error:
            # The layout may be right for a GPU that cannot be read.
            unread = [choice.obstacle(host, gpu) for gpu in host.gpus
                      if condition.is_failed(gpu)
                      and not self._node.ignores(gpu)]
            return Outcome(
                reports.Result.FAILED if any(unread)
                else reports.Result.UNUSABLE,
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

    def _apply(self, host, found, others):
        gpus = choice.gpus(host)
        entry = found.entry(gpus)
        for other in others:
            if found.differs(other, gpus):
                return Outcome(reports.Result.UNUSABLE, (
                    f'the layout {found.layout} of {found.source} differs '
                    f'from the layout {other.layout} of {other.source}: '
                    'remove one of them'))
        chosen = entry.chosen(gpus)
        if not chosen:
            return Outcome(reports.Result.UNUSABLE, (
                f'{found.source}: entry {entry.name} matches no GPU of this '
                f'server, which has {_models(gpus)}'))
        wanted = entry.for_chosen(gpus, [
            index for index in chosen if not condition.obstacle(gpus[index])])
        outcomes = self._change(gpus, wanted)
        done = tuple(
            outcomes.get(index) or self._untouched(entry, index, gpus[index])
            for index in chosen)
        failed = [gpu.address for gpu in done if gpu.error]
        return Outcome(
            reports.Result.FAILED if failed else reports.Result.APPLIED,
            f'GPUs that do not match the layout {entry.name} of '
            f'{found.source}: '
            + ', '.join(failed) if failed else None, done)

    def _change(self, gpus, wanted: dict[int, target.Wanted]):
        """Apply the layout; return reports of the GPUs, by index."""
        chosen = [index for index in wanted
                  if not self._node.ignores(gpus[index])]
        outcomes = self._node.applier.apply_all(
            [(gpus[index], wanted[index]) for index in chosen])
        return {index: reports.GpuReport(
            index, str(outcome.gpu),
            _SKIPPED if wanted[index].without_mig else outcome.status.value,
            str(wanted[index]),
            str(outcome.error) if outcome.error else None)
            for index, outcome in zip(chosen, outcomes, strict=True)}

    def _untouched(self, entry, index, gpu):
        """Return the report of a GPU that is ignored or unreachable."""
        if self._node.ignores(gpu):
            return reports.GpuReport(index, str(gpu.address), _IGNORED,
                                     entry.name)
        return reports.GpuReport(
            index, str(gpu.address), apply.Status.FAILED.value, entry.name,
            f'it cannot be reached: {condition.obstacle(gpu)}')


def _unseen_text(gpu):
    return (f'NVML does not list {gpu.address}, which is bound to '
            f'{gpu.driver or "no driver"}')


def _models(gpus):
    return ', '.join(sorted({gpu.model or gpu.device_id for gpu in gpus})
                     ) or 'none that the driver lists'
