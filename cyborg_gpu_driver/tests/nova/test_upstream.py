# SPDX-License-Identifier: Apache-2.0


"""The patches for Nova and Cyborg fit the releases, and their tests pass."""

from __future__ import annotations

import fixtures
import testscenarios
from oslotest import base

from cyborg_gpu_driver.tests import upstream

load_tests = testscenarios.load_tests_apply_scenarios


class PatchesTest(base.BaseTestCase):

    scenarios = [
        ('nova', {'project': 'nova', 'patches': 5, 'count': 23, 'modules': (
            'nova.tests.unit.scheduler.client.test_report_deleted',
            'nova.tests.unit.scheduler.test_manager_claims',
            'nova.tests.unit.virt.libvirt.test_driver_accelerators',
            'nova.tests.unit.compute.test_compute_accelerators')}),
        ('cyborg', {'project': 'cyborg', 'patches': 3, 'count': 13, 'modules':
         ('cyborg.tests.unit.api.controllers.v2.test_devices_reserve',
          'cyborg.tests.unit.objects.test_extarq_unbind',
          'cyborg.tests.unit.agent.test_bind')}),
    ]

    def test_tests_of_the_patches(self):
        directory = self.useFixture(fixtures.TempDir()).path
        series = upstream.patches(self.project)
        upstream.copy(self.project, directory, series)
        self.assertEqual(self.patches, len(series))
        self.assertIn(f'Ran {self.count} tests', upstream.run_tests(
            directory, '', *self.modules))
