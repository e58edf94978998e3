# SPDX-License-Identifier: Apache-2.0
"""What a deleted server leaves in a real Cyborg, and its removal."""

from __future__ import annotations

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import orphan
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'


class OrphanTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.openstack = running.Openstack(
            connection.Cloud(self.admin, 'admin'))

    def test_a_server_that_was_deleted_while_cyborg_was_down(self):
        server = self.boot(self.flavor_of(_SLICE))
        self.cloud.kill('cyborg-api')
        self.addCleanup(self.cloud.restart, 'cyborg-api')
        self.delete(server)
        self.cloud.restart('cyborg-api')
        (left,) = self.openstack.rows(
            orphan.CleanOrphan, '--dry-run', code=1)
        self.assertEqual(('request-of-gone-server', server.id),
                         (left['Kind'], left['Server']))
        self.assertIn('roles admin and service', self.openstack.run(
            orphan.CleanOrphan, '--yes', '--older-than', '0', code=1)[1])
        nova = running.Openstack(
            connection.Cloud(self.cloud.connect('nova'), 'nova'))
        nova.run(orphan.CleanOrphan, '--yes', '--older-than', '0')
        self.assert_nothing_left()
