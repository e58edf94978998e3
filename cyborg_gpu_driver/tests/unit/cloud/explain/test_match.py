# SPDX-License-Identifier: Apache-2.0
"""Matching all groups of a request to one compute node at once."""

from oslotest import base

from cyborg_gpu_driver.cloud import explain
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.tests.unit.cloud.explain import explain_clouds as clouds


class AssignmentTest(base.BaseTestCase):

    def fits(self, wanted, *nodes, **has):
        return explain.assignment(
            wanted, clouds.tree(*nodes, **has)) is not None

    def test_each_group_takes_one_provider(self):
        one = clouds.node(has=clouds.inventory(1))
        other = clouds.node(has=clouds.inventory(1), gpu=clouds.OTHER_GPU)
        two = clouds.profile(clouds.wish(), clouds.wish())
        self.assertFalse(self.fits(two, one))
        self.assertTrue(self.fits(two, one, other))
        self.assertTrue(self.fits(two, clouds.node(
            has=clouds.inventory(2))))
        self.assertFalse(self.fits(clouds.profile(clouds.wish(count=2)),
                                   one, other))

    def test_the_pickiest_gets_what_only_it_can_use(self):
        wanted = clouds.profile(
            clouds.wish(), clouds.wish(), clouds.wish(
                required=[clouds.H100]))
        nodes = [clouds.node(has=clouds.inventory(1), gpu=f'0000:0{bus}:00.0',
                             traits=[clouds.H100] if bus == 1 else [])
                 for bus in (1, 2, 3)]
        self.assertTrue(self.fits(wanted, *nodes))
        self.assertFalse(self.fits(wanted, *nodes[:2]))

    def test_the_largest_amount_counts_for_all_groups_together(self):
        two = clouds.profile(clouds.wish(), clouds.wish())
        self.assertFalse(self.fits(two, clouds.node(
            has=clouds.inventory(4, max_unit=1))))

    def test_isolated_groups(self):
        groups = (clouds.wish(), clouds.wish())
        wanted = clouds.flavor(groups, {'group_policy': 'isolate'})
        self.assertFalse(self.fits(wanted, clouds.node()))
        self.assertTrue(self.fits(wanted, clouds.node(), clouds.node(
            gpu=clouds.OTHER_GPU)))

    def test_many_groups_that_are_one_too_many_end_soon(self):
        nodes = [clouds.node(has=clouds.inventory(1), gpu=f'0000:{bus}:00.0')
                 for bus in range(10, 50)]
        wanted = clouds.profile(*[clouds.wish()] * 40)
        self.assertTrue(self.fits(wanted, *nodes))
        self.assertFalse(self.fits(wanted, *nodes[:39]))


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
