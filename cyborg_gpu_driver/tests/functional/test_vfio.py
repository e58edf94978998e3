# SPDX-License-Identifier: Apache-2.0

"""vGPUs made without mdev at bind, on the released Cyborg and Placement."""

import fixtures

from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from demo_lib import nova_part

_SLICES = '0000:31:00.0'
_TIME_SLICED = '0000:b1:00.0'


class VfioCase(gpu_cloud.GpuTestCase):

    starts_reported = True
    machine = 'a100x4-vfio'
    gpu = _SLICES
    overrides = {
        'gpu': {'policies': 'slices, times'},
        'gpu_policy:slices': {'mode': 'mig', 'match_address': _SLICES,
                              'profiles': '3g.40gb, 7g.80gb'},
        'gpu_policy:times': {'mode': 'vgpu', 'match_address': _TIME_SLICED,
                             'vgpu_types': 'A100D-20C, A100D-40C'}}

    def bind(self, resource_class, gpu):
        """Create a server; check that its function carries its vGPU."""
        server = self.cloud.bind(self.profile(resource_class))
        (arq,) = server.arqs
        self.assertEqual('MDEV', arq['attach_handle_type'])
        info = arq['attach_handle_info']
        function = '{domain}:{bus}:{device}.{function}'.format(**info)
        self.assertEqual(
            [(function, int(info['asked_type'].split('-')[1]))],
            [(vgpu.function, vgpu.type_id)
             for vgpu in self.hardware(gpu).vgpus])
        return server


class BindTest(VfioCase):

    def test_a_slice_is_cut_and_given_back(self):
        self.assertEqual({'3g.40gb': (2, 0), '7g.80gb': (1, 0)},
                         self.reserved())
        server = self.bind('CUSTOM_NVIDIA_3G_40GB', _SLICES)
        self.assertEqual([(9, 4)], self.placements())
        self.assertEqual({'3g.40gb': (2, 0), '7g.80gb': (1, 1)},
                         self.reserved())
        bound = self.everything()
        self.end_agent()
        self.report()
        self.assertEqual(bound, self.everything())
        self.cloud.unbind(server)
        self.assertEqual(self.untouched, self.everything())

    def test_a_time_slice_is_made_and_given_back(self):
        self.assertEqual({'A100D-20C': (4, 0), 'A100D-40C': (2, 0)},
                         self.reserved(_TIME_SLICED))
        server = self.bind('CUSTOM_NVIDIA_A100D_40C', _TIME_SLICED)
        self.assertEqual({'A100D-20C': (4, 4), 'A100D-40C': (2, 0)},
                         self.reserved(_TIME_SLICED))
        self.cloud.unbind(server)
        self.assertEqual(self.untouched, self.everything())

    def test_a_guest_that_outlives_its_server_keeps_its_function(self):
        server = self.bind('CUSTOM_NVIDIA_A100D_40C', _TIME_SLICED)
        (vgpu,) = self.hardware(_TIME_SLICED).vgpus
        world = self.world
        world.start_guest(vgpu.function)
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(1, len(self.hardware(_TIME_SLICED).vgpus))
        world.stop_guest(vgpu.function)
        self.report()
        self.assertEqual(self.untouched, self.everything())


class DeadFunctionTest(VfioCase):

    overrides = {**VfioCase.overrides, 'gpu_policy:slices': {
        'mode': 'mig', 'match_address': _SLICES,
        'profiles': '1g.10gb, 2g.20gb'}}

    def test_only_what_may_need_it_is_closed(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.bind.binder.CAME_UP_SECONDS',
            float('inf')))
        large = self.profile('CUSTOM_NVIDIA_2G_20GB')
        stays = self.cloud.bind(large)
        small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        for _ in range(2):
            self.cloud.unbind(self.cloud.bind(small))
        closed = {'1g.10gb': (7, 7), '2g.20gb': (3, 0)}
        self.assertEqual(closed, self.reserved())
        self.report()
        self.assertEqual(closed, self.reserved())
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, small)
        self.cloud.unbind(self.cloud.bind(large))
        self.cloud.unbind(stays)
        # The GPU is idle: its functions are made anew.
        self.report()
        self.assertEqual(self.untouched['placement'],
                         self.cloud.placement.snapshot())
        self.cloud.bind(small)


class UnpatchedNovaTest(VfioCase):
    """nova-compute was started without the patches of this driver."""

    def setUp(self):
        self.machine = host_files.write_host(
            self.useFixture(fixtures.TempDir()).path, [
                {'model': 'a100-80-pcie', 'address': address, 'mig': mig,
                 'framework': 'vendor-vfio'}
                for address, mig in ((_SLICES, True), (_TIME_SLICED, False))],
            unpatched_nova=True)
        self.log = self.useFixture(fixtures.FakeLogger('cyborg_gpu_driver'))
        super().setUp()

    def test_nothing_is_offered_that_cannot_be_attached(self):
        self.assertEqual({}, self.reserved())
        self.assertEqual({}, self.reserved(_TIME_SLICED))
        self.assertIn(
            f'GPU {_SLICES}: not offered (3g.40gb, 7g.80gb): start '
            'nova-compute as cyborg-gpu-nova-compute', self.log.output)
