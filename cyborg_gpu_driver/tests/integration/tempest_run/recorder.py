# SPDX-License-Identifier: Apache-2.0

"""A test result that records how each test ends."""

from __future__ import annotations

import re
import traceback
import unittest
from collections.abc import Callable
from collections.abc import Sequence

from cyborg_gpu_driver.tests.integration.tempest_run import verdict

_WHOLE_CLASS = re.compile(r'(?:setUp|tearDown)Class \((.+)\)')
"""The name that unittest reports when a whole class fails or is skipped."""


class Recorder(unittest.TestResult):
    """The result of a run. An outcome of a class counts for all its tests.

    :param there: names of the tests that are run.
    :param say: called with a line that says how a test or a class ended.
    """

    def __init__(self, there: Sequence[str], say: Callable[[str], None]):
        super().__init__()
        self._there = there
        self._say = say
        self.outcomes: dict[str, verdict.Outcome] = {}

    def addSuccess(self, test):
        self._add(test, verdict.PASSED)

    def addSkip(self, test, reason):
        self._add(test, verdict.SKIPPED, reason)

    def addError(self, test, err):
        self._add(test, verdict.FAILED,
                  ''.join(traceback.format_exception(*err)))

    def addFailure(self, test, err):
        self.addError(test, err)

    def addExpectedFailure(self, test, err):
        # An expected failure does not show that anything works.
        self.addError(test, err)

    def addUnexpectedSuccess(self, test):
        self._add(test, verdict.FAILED, 'passes, but is expected to fail')

    def _add(self, test, state, detail=''):
        shown = name(test)
        self._say(f'{shown} ... {state}')
        whole = _WHOLE_CLASS.fullmatch(shown)
        names = whole and [one for one in self._there
                           if one.rpartition('.')[0] == whole[1]]
        for one in names or [shown]:
            before = self.outcomes.get(one)
            if before is None or before.state != verdict.FAILED:
                self.outcomes[one] = verdict.Outcome(state, detail)


def name(test: unittest.TestCase) -> str:
    """Return a test's name without the attributes that testtools appends."""
    return test.id().partition('[')[0]
