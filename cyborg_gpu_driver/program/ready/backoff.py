# SPDX-License-Identifier: Apache-2.0

"""Backoff: limits how often a failed attempt is repeated and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model

_PAUSE = 60.0
"""Seconds from a failed attempt at a GPU to the next attempt."""


class Backoff:
    """Attempts at one action on each GPU, and their outcomes.

    An outcome has a ``reason``, which is empty if the action succeeded.

    :param log: gets an outcome whose reason differs from the last one.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]):
        self._log = log
        self._clock = clock
        self._failed: dict[model.PciAddress, tuple[float, Any]] = {}
        self._said = log_once.LogOnce()

    def attempt(self, address: model.PciAddress, act: Callable[[], Any],
                outcome_of: Callable[[str], Any]) -> Any:
        """Try the action, unless it failed on this GPU in the last minute.

        :param act: returns an outcome, or raises if the action fails.
        :param outcome_of: makes the outcome of a failure from the reason.
        :returns: the outcome, or the outcome of the last failure.
        """
        when, outcome = self._failed.pop(address, (0.0, None))
        if outcome is not None and self._clock() < when + _PAUSE:
            self._failed[address] = when, outcome
            return outcome
        try:
            outcome = act()
        except Exception as error:
            if not isinstance(error, exception.GpuDriverError):
                # For example of oslo.privsep, if its daemon does not start.
                # The report of the GPUs must not depend on it.
                self._log.exception('GPU %s', address)
            outcome = outcome_of(str(error))
            self._failed[address] = self._clock(), outcome
        if not outcome.reason:
            self._said.over(address)
        elif self._said.is_new(outcome.reason, address):
            self._log.warning(
                'GPU %(gpu)s does not match its policy: %(reason)s',
                {'gpu': address, 'reason': outcome.reason})
        return outcome
