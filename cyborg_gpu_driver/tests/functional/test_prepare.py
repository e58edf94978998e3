# SPDX-License-Identifier: Apache-2.0

"""GPUs that become what their policy says, as soon as they are idle."""

from cyborg.common import exception as cyborg_exception

from cyborg_gpu_driver.tests.functional import gpu_cloud


class PrepareCase(gpu_cloud.GpuTestCase):

    overrides = {
        'gpu': {'policies': 'one,rest'},
        'gpu_policy:one': {'mode': 'passthrough',
                           'match_address': '0000:07:00.0'},
        'gpu_policy:rest': {'mode': 'off'}}

    def govern(self, **options):
        """Change the policy and restart the agent."""
        self.change_policy('one', **options)
        self.report()

    def is_now(self):
        """Return the MIG mode and the number of virtual functions."""
        state = self.hardware()
        return state.mig, state.vfs

    def labels(self):
        return set(self.reserved())


class WholeTest(PrepareCase):

    def test_a_server_that_has_it_is_waited_for(self):
        server = self.cloud.bind(self.profile('PGPU'))
        self.govern(mode='mig', profiles=['1g.10gb', '3g.40gb'])
        self.assertEqual((False, 0), self.is_now())
        self.assertEqual({'passthrough'}, self.labels())
        self.cloud.unbind(server)
        self.report()
        self.assertEqual((True, 20), self.is_now())
        self.assertIn('1g.10gb', self.labels())
        self.assertNotIn('passthrough', self.labels())
        self.cloud.unbind(self.cloud.bind(self.profile(
            'CUSTOM_NVIDIA_3G_40GB')))
        self.govern(mode='passthrough', profiles=[])
        self.assertEqual((False, 0), self.is_now())
        self.assertEqual({'passthrough'}, self.labels())

    def test_placement_that_does_not_answer_keeps_it_as_it_is(self):
        self.driver._conf.set_override(
            'endpoint_override', 'http://127.0.0.1:9', group='placement')
        self.addCleanup(self.driver._conf.clear_override,
                        'endpoint_override', group='placement')
        for _ in range(2):
            try:
                self.govern(mode='mig')
            except cyborg_exception.CyborgException:
                pass
        self.assertEqual((False, 0), self.is_now())


class SlicedTest(PrepareCase):

    starts_reported = True
    overrides = {**PrepareCase.overrides, 'gpu_policy:one': {
        'mode': 'mig', 'match_address': '0000:07:00.0',
        'profiles': '1g.10gb, 3g.40gb'}}

    def test_a_slice_in_use_keeps_the_mode(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_3G_40GB'))
        placements = self.placements()
        self.govern(mode='vgpu', profiles=[], vgpu_types=['A100DX-8C'])
        self.assertEqual((True, 20), self.is_now())
        self.assertEqual(placements, self.placements())
        self.cloud.unbind(server)
        self.report()
        self.assertEqual((False, 20), self.is_now())
        self.assertEqual({'A100DX-8C'}, self.labels())
