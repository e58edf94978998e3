# SPDX-License-Identifier: Apache-2.0

"""The base class for the tests of single checks."""

from __future__ import annotations

from oslotest import base


class FindingCase(base.BaseTestCase):

    def check(self, wanted, words, findings):
        """Return the only finding, which must be as bad and have this text."""
        (found,) = findings
        self.assertEqual(wanted, found.severity, found)
        self.assertIn(words, f'{found.message} / {found.action}')
        self.assertTrue(found.action)
        return found

    def none(self, findings):
        """There must be no finding."""
        self.assertEqual([], list(findings))
