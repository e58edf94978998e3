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

"""Backoff: what failed on a GPU is not tried again, nor logged, too often."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model

_PAUSE = 60.0
"""Seconds between two attempts at a GPU of which the first has failed."""


class Backoff:
    """Attempts at one thing on each GPU, and their outcomes.

    An outcome has a ``reason``, which is empty if all is well.

    :param log: what is told of an outcome that is not as the last one was.
    :param clock: seconds that only grow.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]):
        self._log = log
        self._clock = clock
        self._failed: dict[model.PciAddress, tuple[float, Any]] = {}
        self._said = log_once.LogOnce()

    def attempt(self, address: model.PciAddress, act: Callable[[], Any],
                outcome_of: Callable[[str], Any]) -> Any:
        """Try it, unless that has failed within the last minute.

        :param act: returns an outcome, or raises, which is a failure.
        :param outcome_of: makes the outcome of a failure from the reason.
        :returns: the outcome, or the one of the last failure.
        """
        when, outcome = self._failed.pop(address, (0.0, None))
        if outcome is not None and self._clock() < when + _PAUSE:
            self._failed[address] = when, outcome
            return outcome
        try:
            outcome = act()
        except Exception as error:
            if not isinstance(error, exception.GpuDriverError):
                # As of privsep, whose daemon may not start. What is
                # reported of the GPUs must not depend on it.
                self._log.exception('GPU %s', address)
            outcome = outcome_of(str(error))
            self._failed[address] = self._clock(), outcome
        if not outcome.reason:
            self._said.over(address)
        elif self._said.is_new(outcome.reason, address):
            self._log.warning(
                'GPU %(gpu)s is not as its policy says: %(reason)s',
                {'gpu': address, 'reason': outcome.reason})
        return outcome
