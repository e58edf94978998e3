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

"""The outcome of a class is the outcome of each of its tests."""

import unittest

from oslotest import base

from cyborg_gpu_driver.tests.integration.tempest_run import recorder
from cyborg_gpu_driver.tests.integration.tempest_run import verdict


class TestRecorder(base.BaseTestCase):

    def run_class(self, **members):
        """Run a class with ``test_1`` and ``test_2``; return their states."""
        def passes(self):
            pass

        subject = type('Subject', (unittest.TestCase,),
                       {'test_1': passes, 'test_2': passes, **members})
        tests = [subject('test_1'), subject('test_2')]
        self.said = []
        notes = recorder.Recorder([recorder.name(test) for test in tests],
                                  self.said.append)
        unittest.TestSuite(tests).run(notes)
        self.details = ' '.join(outcome.detail for outcome
                                in notes.outcomes.values())
        return {name.rpartition('.')[2]: outcome.state
                for name, outcome in notes.outcomes.items()}

    def test_each_by_itself(self):
        def fails(self):
            self.fail('on purpose')

        self.assertEqual(
            {'test_1': verdict.PASSED, 'test_2': verdict.FAILED},
            self.run_class(test_2=fails))
        self.assertIn('on purpose', self.details)
        self.assertTrue(self.said[0].endswith(
            'Subject.test_1 ... passed'))

    def test_skips_itself(self):
        def skips(self):
            self.skipTest('not here')

        self.assertEqual(
            {'test_1': verdict.SKIPPED, 'test_2': verdict.PASSED},
            self.run_class(test_1=skips))
        self.assertEqual('not here', self.details.strip())

    def test_expected_to_fail(self):
        @unittest.expectedFailure
        def fails(self):
            self.fail('as ever')

        @unittest.expectedFailure
        def passes(self):
            pass

        self.assertEqual(
            {'test_1': verdict.FAILED, 'test_2': verdict.FAILED},
            self.run_class(test_1=fails, test_2=passes))

    def test_class_skips(self):
        def skip(cls):
            raise unittest.SkipTest('none here')

        self.assertEqual(
            {'test_1': verdict.SKIPPED, 'test_2': verdict.SKIPPED},
            self.run_class(setUpClass=classmethod(skip)))

    def test_class_fails(self):
        def fail(cls):
            raise ValueError('no credentials')

        self.assertEqual(
            {'test_1': verdict.FAILED, 'test_2': verdict.FAILED},
            self.run_class(setUpClass=classmethod(fail)))
        self.assertIn('no credentials', self.details)

    def test_class_fails_after_its_tests(self):
        def fail(cls):
            raise ValueError('left behind')

        self.assertEqual(
            {'test_1': verdict.FAILED, 'test_2': verdict.FAILED},
            self.run_class(tearDownClass=classmethod(fail)))

    def test_names_are_without_attributes(self):
        class Subject(unittest.TestCase):
            def id(self):
                return 'module.Subject.test_1[gate,id-1]'

            def test_1(self):
                pass

        self.assertEqual('module.Subject.test_1',
                         recorder.name(Subject('test_1')))
