# SPDX-License-Identifier: Apache-2.0


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
