# SPDX-License-Identifier: Apache-2.0

"""An upstream test that fails or skips itself is always reported."""

import unittest

from oslotest import base

from cyborg_gpu_driver.tests.integration.tempest_run import known


class Tests(unittest.TestCase):

    def passes(self):
        """Do nothing."""

    def fails(self):
        self.fail()

    @unittest.skip('why')
    def skips(self):
        """Never run."""

    @unittest.expectedFailure
    def should_fail(self):
        self.fail()


class TestProblems(base.BaseTestCase):

    def test_each(self):
        for name, is_known, count in (
                ('passes', False, 0), ('passes', True, 1),
                ('skips', True, 0), ('skips', False, 1),
                ('fails', False, 1), ('should_fail', False, 1)):
            test, result = Tests(name), unittest.TestResult()
            test.run(result)
            self.assertEqual(count, len(known.problems(
                result, {test.id()} if is_known else set())), name)
