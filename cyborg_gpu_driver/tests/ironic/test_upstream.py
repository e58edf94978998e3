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


"""The patch for ironic-python-agent fits, and its tests pass."""

from __future__ import annotations

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests import upstream


class PatchesTest(base.BaseTestCase):

    def test_tests_of_the_patch(self):
        directory = self.useFixture(fixtures.TempDir()).path
        series = upstream.patches('ironic-python-agent')
        upstream.copy('ironic_python_agent', directory, series)
        self.assertEqual(1, len(series))
        self.assertIn('Ran 33 tests', upstream.run_tests(
            directory, 'from ironic_python_agent import config',
            'ironic_python_agent.tests.unit.test_inject_files'))
