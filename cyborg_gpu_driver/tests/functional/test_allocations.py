# SPDX-License-Identifier: Apache-2.0

"""Requests for accelerators of servers that have claimed none."""

import uuid

from cyborg_gpu_driver.tests.functional import test_mig
from demo_lib import client


class AllocationTest(test_mig.OneGpuCase):

    overrides = {
        **test_mig.OneGpuCase.overrides,
        'gpu_policy:one': {
            **test_mig.OneGpuCase.overrides['gpu_policy:one'],
            'profiles': '1g.10gb'}}

    def setUp(self):
        super().setUp()
        self.slices = self.profile('CUSTOM_NVIDIA_1G_10GB')
        provider = self.cloud.placement.providers()[self.name('1g.10gb')]
        self.provider = provider['uuid']

    def steal(self):
        """Ask for a slice as a user of an old Cyborg can: without Nova."""
        server = str(uuid.uuid4())
        bindings = {arq['uuid']: {
            'hostname': self.cloud.nova.host, 'instance_uuid': server,
            'device_rp_uuid': self.provider}
            for arq in self.cloud.cyborg.create_arqs(self.slices)}
        error = self.assertRaises(client.ApiError, self.cloud.cyborg.bind,
                                  bindings)
        self.assertIn('no allocation', str(error))
        self.cloud.cyborg.delete_arqs(instance=server)

    def test_a_request_without_an_allocation_gets_nothing(self):
        self.steal()
        self.assertEqual([], self.placements())
        servers = [self.cloud.bind(self.slices) for _ in range(2)]
        bound = self.placements()
        self.steal()
        self.assertEqual(bound, self.placements())
        # The room is left for those that have an allocation.
        servers += [self.cloud.bind(self.slices) for _ in range(5)]
        self.assertEqual(7, len(self.placements()))
        for server in servers:
            self.cloud.unbind(server)
        self.report()
        self.assertEqual(self.untouched, self.everything())
