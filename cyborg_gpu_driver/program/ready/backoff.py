# SPDX-License-Identifier: Apache-2.0

"""Attempts to make GPUs match their policies, with a pause after a failure."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.program.steps import transaction

_PAUSE = 60.0
"""Seconds from a failed attempt at a GPU to the next attempt."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was done to one GPU, and why it does not match its policy."""

    gpu: model.PciAddress
    steps: tuple[change.Step, ...] = ()
    """The steps that were taken, including one that failed; of a plan, the
    steps that are left."""
    reason: str = ''
    """Why the GPU does not match its policy; empty if it does."""
    rolled_back: bool = False
    """Whether a change of a process that died was rolled back first."""

    @property
    def done(self) -> tuple[str, ...]:
        """What was done, for people; empty if the GPU has not changed."""
        return (*((transaction.RECOVERED,) if self.rolled_back else ()),
                *map(str, self.steps))


class Backoff:
    """Attempts at one action on each GPU, and their outcomes.

    :param log: gets an outcome whose reason differs from the last one.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]):
        self._log = log
        self._clock = clock
        self._failed: dict[model.PciAddress, tuple[float, Outcome]] = {}
        self._said = log_once.LogOnce()

    def attempt(self, address: model.PciAddress,
                act: Callable[[list[change.Step]], Outcome]) -> Outcome:
        """Try the action, unless it failed on this GPU in the last minute.

        :param act: appends each step to its argument before it is taken, and
            raises if the action fails.
        """
        when, failed = self._failed.pop(address, (0.0, None))
        if failed is not None and self._clock() < when + _PAUSE:
            self._failed[address] = when, failed
            return failed
        taken: list[change.Step] = []
        try:
            outcome = act(taken)
        except Exception as error:
            if not isinstance(error, exception.GpuDriverError):
                # For example of oslo.privsep, if its daemon does not start.
                # The report of the GPUs must not depend on it.
                self._log.exception('GPU %s', address)
            outcome = Outcome(address, tuple(taken), ': '.join(
                map(str, (*taken[-1:], error))))
            self._failed[address] = self._clock(), outcome
        if not outcome.reason:
            self._said.over(address)
        elif self._said.is_new(outcome.reason, address):
            self._log.warning(
                'GPU %(gpu)s does not match its policy: %(reason)s',
                {'gpu': address, 'reason': outcome.reason})
        return outcome
