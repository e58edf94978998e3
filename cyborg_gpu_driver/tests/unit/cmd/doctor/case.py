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
