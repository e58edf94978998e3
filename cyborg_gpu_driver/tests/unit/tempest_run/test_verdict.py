# SPDX-License-Identifier: Apache-2.0

"""An upstream test that fails or does not run is always reported."""

from oslotest import base

from cyborg_gpu_driver.tests.integration.tempest_run import known
from cyborg_gpu_driver.tests.integration.tempest_run import verdict

PASSED = verdict.Outcome(verdict.PASSED)
SKIPPED = verdict.Outcome(verdict.SKIPPED, 'not here')
FAILED = verdict.Outcome(verdict.FAILED, 'traceback')
SKIPS_ITSELF = known.Named('no guest')
LEFT_OUT = known.Named('no guest', asked=False)


class TestJudge(base.BaseTestCase):

    def test_all_is_well(self):
        found = verdict.judge(
            ['a', 'b', 'c'], {'a': PASSED, 'b': SKIPPED},
            {'b': SKIPS_ITSELF, 'c': LEFT_OUT})
        self.assertEqual(('a',), found.passed)
        self.assertEqual({'b': 'no guest', 'c': 'no guest'}, found.skipped)
        self.assertEqual({}, found.problems)

    def test_each_problem(self):
        """Of the test a: is it there, its outcome, and as what it is named."""
        for expected, there, outcome, named in (
                ('traceback', True, FAILED, None),
                ('traceback', True, FAILED, SKIPS_ITSELF),
                # For example, a module that cannot be imported.
                ('traceback', False, FAILED, None),
                ('skips itself, which is not named: not here', True, SKIPPED,
                 None),
                ('was not run', True, None, None),
                ('was not run', True, None, SKIPS_ITSELF),
                ('passes, but is named: no guest', True, PASSED,
                 SKIPS_ITSELF),
                ('is named, but there is no such test', False, None,
                 LEFT_OUT)):
            found = verdict.judge(
                ['a'] if there else [], {'a': outcome} if outcome else {},
                {'a': named} if named else {})
            self.assertEqual({'a': expected}, found.problems)
            self.assertNotIn('a', (*found.passed, *found.skipped))
