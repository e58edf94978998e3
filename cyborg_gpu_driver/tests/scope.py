# SPDX-License-Identifier: Apache-2.0

"""How much the tests try: enough for a change, or everything.

``tools/test all`` sets ``CYBORG_GPU_TESTS=all``. Then each sweep takes every
step, and each property is tried on its full number of examples. Without it, a
sweep takes its first and last step and each fifth between them, and a property
is tried on a sixth of its examples, the same ones in each run.
"""

import os
import unittest

import hypothesis

#: Whether everything is tried.
ALL = os.environ.get('CYBORG_GPU_TESTS') == 'all'

#: Seconds after which a test stops to wait for what never comes. It is far
#: longer than anything takes, however slow the machine is.
HANG = 600


def only_in_all(test):
    """Leave a test, or the tests of a class, to ``tools/test all``.

    Another test must show the same behaviour on one case in each run.
    """
    return unittest.skipUnless(ALL, 'tools/test all runs it')(test)


def some(steps):
    """Return the steps of a sweep that are tried.

    :param steps: an iterable, in the order of the sweep.
    :returns: a list: all steps in ``tools/test all``, otherwise the first,
        the last, and each fifth between them.
    """
    steps = list(steps)
    if ALL or len(steps) <= 2:
        return steps
    return [*steps[:-1:5], steps[-1]]


def first(*cases):
    """Return a list of the first case, or of all in ``tools/test all``."""
    return list(cases if ALL else cases[:1])


def examples(number):
    """Return how many examples of a property are tried, of a full number."""
    return number if ALL else max(1, number // 6)


# A test must not fail because the machine is busy.
_UNHURRIED = {'deadline': None,
              'suppress_health_check': [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile('all', **_UNHURRIED)
hypothesis.settings.register_profile(
    'some', max_examples=examples(100), derandomize=True, database=None,
    **_UNHURRIED)
hypothesis.settings.load_profile('all' if ALL else 'some')
