# SPDX-License-Identifier: Apache-2.0

"""The verdict on a run, given the tests that are known not to pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.tests.integration.tempest_run import known

PASSED = 'passed'
SKIPPED = 'skipped'
FAILED = 'failed'


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a test ended.

    :ivar state: ``PASSED``, ``SKIPPED`` or ``FAILED``.
    :ivar detail: why the test was skipped, or the traceback of a failure.
    """

    state: str
    detail: str = ''


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on one run.

    :ivar passed: names of the tests that passed.
    :ivar skipped: our reasons for the tests that were skipped, by test name.
    :ivar problems: what is wrong, by test name; empty if all is well.
    """

    passed: tuple[str, ...]
    skipped: Mapping[str, str]
    problems: dict[str, str]


def judge(there: Iterable[str], outcomes: Mapping[str, Outcome],
          named: Mapping[str, known.Named]) -> Verdict:
    """Judge a run.

    :param there: names of all tests that the plug-in has for the run.
    :param outcomes: the outcomes of the tests that were run, by name.
    :param named: the tests that are known not to pass.
    """
    passed = []
    skipped = {}
    problems = dict.fromkeys(set(named) - set(there),
                             'is named, but there is no such test')
    for test in sorted({*there, *outcomes}):
        problem = _problem(outcomes.get(test), named.get(test))
        if problem is not None:
            problems[test] = problem
        elif test in named:
            skipped[test] = named[test].reason
        else:
            passed.append(test)
    return Verdict(tuple(passed), skipped, problems)


def _problem(outcome, named):
    if outcome is None:
        return None if named and not named.asked else 'was not run'
    if outcome.state == FAILED:
        return outcome.detail
    if outcome.state == SKIPPED and not named:
        return f'skips itself, which is not named: {outcome.detail}'
    if outcome.state == PASSED and named:
        return f'passes, but is named: {named.reason}'
    return None
