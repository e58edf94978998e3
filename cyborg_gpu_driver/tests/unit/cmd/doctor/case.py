# SPDX-License-Identifier: Apache-2.0

"""The base class for the tests of single checks."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver.cmd.doctor.rules import finding

ERROR, WARNING, UNKNOWN = finding.Severity


class FindingCase(base.BaseTestCase):

    def check(self, wanted, words, findings):
        """Return the only finding, which must be as bad and have this text."""
        (found,) = findings
        self.assertEqual(wanted, found.severity, found)
        self.assertIn(words, f'{found.message} / {found.action}')
        self.assertTrue(found.action)
        return found

    def expect(self, check, *rows):
        """Check the only finding for each row: severity, words and facts."""
        for wanted, words, facts in rows:
            self.check(wanted, words, check(facts))

    def silent(self, check, *rows):
        """There must be no finding for each row, which is facts."""
        for facts in rows:
            self.assertEqual([], list(check(facts)))
