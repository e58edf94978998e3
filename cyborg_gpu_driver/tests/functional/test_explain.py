# SPDX-License-Identifier: Apache-2.0
"""What stands in a request's way, on the released Cyborg and Placement."""

from cyborg.api import app as cyborg_app

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.osc import explain
from cyborg_gpu_driver.tests.functional import explain_case
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running

SLICE, THIRD = explain_case.SLICE, explain_case.THIRD


class ExplainTest(explain_case.ExplainCase):

    def test_it_schedules(self):
        found = self.explain('--device-profile', self.profile(SLICE), code=0)
        self.assertTrue(found['schedulable'])
        self.assertEqual('Schedulable: 1 of 1 hosts can take it now.',
                         found['verdict'])

    def test_a_full_gpu_names_the_servers_of_other_profiles(self):
        whole = self.profile('CUSTOM_NVIDIA_7G_80GB')
        self.boot(self.profile(THIRD), 'trainer')
        found = self.reasons('--device-profile', whole)
        self.assertEqual({'RESERVED_SIBLING'}, set(found))
        self.assertIn('trainer (using 3g.40gb)', found['RESERVED_SIBLING'])

    def test_no_provider_takes_a_request_of_its_own(self):
        whole = self.profile('CUSTOM_NVIDIA_7G_80GB')
        self.boot(self.profile(SLICE), 'one')
        self.boot(self.profile(THIRD), 'two')
        # Placement's answer, and the summary of the host.
        # The providers of Cyborg, and those of the host.
        expected = {'allocation_candidates': 2, 'resource_providers': 2}
        self.assertEqual(expected, self.asked(
            explain.ExplainRequest, '--device-profile', whole, code=1))
        self.assertEqual(expected, self.asked(
            explain.ExplainRequest, '--device-profile', whole, '--host',
            gpu_cloud.HOST, code=1))
        self.assertIn('two (using 3g.40gb)', self.reasons(
            '--device-profile', whole)['RESERVED_SIBLING'])

    def test_an_unhealthy_gpu(self):
        self.world.set_remapped_rows(
                self.gpu, uncorrected=1, pending=True)
        self.report()
        found = self.reasons('--device-profile', self.profile(SLICE))
        self.assertEqual({'RESERVED_UNHEALTHY'}, set(found))
        self.assertIn('REMAP', found['RESERVED_UNHEALTHY'])

    def test_a_provider_of_which_cyborg_knows_nothing(self):
        placement, root = self.cloud.placement, self.cloud.cloud.root_provider
        stale = 'f6d0a1c2-34f6-4c7e-9b8a-001122334455'
        placement.post('/resource_providers', {
            'name': f'{gpu_cloud.HOST}_gpu_0000:ff:00.0_A30-4-24C',
            'uuid': stale, 'parent_provider_uuid': root})
        placement.put('/resource_classes/CUSTOM_NVIDIA_A30_4_24C')
        placement.put(f'/resource_providers/{stale}/inventories', {
            'resource_provider_generation': 0,
            'inventories': {'CUSTOM_NVIDIA_A30_4_24C': {'total': 1}}})
        placement.put(f'/resource_providers/{stale}/traits', {
            'resource_provider_generation': 1, 'traits': ['OWNER_CYBORG']})
        profile = self.profile('CUSTOM_NVIDIA_A30_4_24C')
        found = self.explain('--device-profile', profile)
        (host,) = found['hosts']
        self.assertEqual((True, False), (host['scheduled'],
                                         host['accepted']))
        self.assertEqual({'STALE_PROVIDER'},
                         set(self.reasons('--device-profile', profile)))

    def test_without_nova_the_rest_is_told(self):
        cloud = self.useFixture(services.Services({
            'accelerator': cyborg_app.load_app(),
            'placement': services.forwarded(
                self.cloud.placement.url, 'admin')})).cloud
        self.openstack = running.Openstack(cloud)
        found = self.explain('--device-profile', self.profile(SLICE), code=0)
        self.assertIn('compute services', [
            item.split(':')[0] for item in found['unchecked']])


class OtherUserTest(explain_case.ExplainCase):

    roles = ('member',)

    def test_who_sees_a_part_is_not_answered(self):
        self.assertIn('role admin', str(self.assertRaises(
            exception.CloudError, self.openstack.run,
            explain.ExplainRequest, '--device-profile', self.profile(SLICE))))
