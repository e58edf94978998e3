# SPDX-License-Identifier: Apache-2.0
"""The query for candidates that a request becomes."""

from oslotest import base

from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.tests.unit.cloud.explain import explain_clouds as clouds


class QueryTest(base.BaseTestCase):

    def test_the_question(self):
        wanted = clouds.flavor(
            (clouds.wish(required=[clouds.A100]),
             clouds.wish('PGPU', 2, forbidden=[clouds.H100])), disk=10)
        self.assertEqual({
            'limit': '1000', 'group_policy': 'none', 'in_tree': 'root',
            'root_required': 'COMPUTE_ACCELERATORS,!COMPUTE_STATUS_DISABLED',
            'resources': 'DISK_GB:10,MEMORY_MB:512,VCPU:1',
            'resourcesdevice_profile_0': f'{clouds.SLICE}:1',
            'requireddevice_profile_0': clouds.A100,
            'resourcesdevice_profile_1': 'PGPU:2',
            'requireddevice_profile_1': f'!{clouds.H100}',
        }, wanted.query('root'))
        self.assertEqual({'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 10,
                          clouds.SLICE: 1, 'PGPU': 2}, wanted.totals)

    def test_a_profile_alone_is_kept_to_a_host_group_by_group(self):
        query = clouds.profile(clouds.wish()).query('root')
        self.assertEqual('root', query['in_treedevice_profile_0'])
        self.assertNotIn('in_tree', query)

    def test_extra_specs_that_are_not_considered_are_named(self):
        flavor = request.Flavor('f', 1, extra_specs={
            'hw:tpm_version': '2.0', 'hw:cpu_policy': 'mixed'})
        self.assertEqual(('hw:cpu_policy', 'hw:tpm_version'),
                         request.make(flavor, None, ()).ignored)
