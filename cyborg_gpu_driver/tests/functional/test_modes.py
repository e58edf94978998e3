# SPDX-License-Identifier: Apache-2.0

"""Whole GPUs, vGPUs and MIG slices side by side on one host."""

from cyborg_gpu_driver.simulator.driver import mig
from cyborg_gpu_driver.tests.functional import gpu_cloud
from demo_lib import client
from demo_lib import nova_part

T4 = '0000:3b:00.0'
A100 = '0000:41:00.0'
H100 = '0000:81:00.0'
A40 = '0000:c1:00.0'


class MixedTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    machine = 'mixed'
    overrides = {
        'gpu': {'policies': 'desktops,slices,rest'},
        'gpu_policy:desktops': {'mode': 'vgpu', 'match_model': '*T4*',
                                'vgpu_types': 'T4-4C,T4-8C'},
        'gpu_policy:slices': {'mode': 'mig', 'match_model': '*A100*',
                              'profiles': '1g.10gb,3g.40gb'},
        'gpu_policy:rest': {'mode': 'passthrough'}}

    def test_what_is_reported(self):
        names = {name for name in self.cloud.placement.providers()
                 if name != gpu_cloud.HOST}
        self.assertEqual(
            {self.name('T4-4C', T4), self.name('T4-8C', T4),
             self.name('1g.10gb', A100), self.name('3g.40gb', A100),
             self.name('passthrough', H100), self.name('passthrough', A40)},
            names)
        traits = self.cloud.placement.traits(
            self.cloud.provider(self.name('3g.40gb', A100))['uuid'])
        self.assertLessEqual(
            {'OWNER_CYBORG', 'CUSTOM_NVIDIA_20B2', 'CUSTOM_GPU_ARCH_AMPERE',
             'CUSTOM_GPU_NUMA_0', 'CUSTOM_GPU_MEMORY_40GB',
             'CUSTOM_GPU_COMPUTE_8_0', 'CUSTOM_GPU_DRIVER_550',
             'CUSTOM_GPU_PCIE_ROOT_0000_00',
             'CUSTOM_GPU_MODEL_A100_SXM4_80GB'}, set(traits))
        self.assertEqual(4, len(self.cloud.cyborg.devices()))
        # Placement has no class for a profile that the policy leaves out.
        error = self.assertRaises(
            client.ApiError, self.cloud.bind,
            self.profile('CUSTOM_NVIDIA_7G_80GB'))
        self.assertIn('No such resource class', str(error))

    def test_whole_gpus_by_trait_until_none_is_left(self):
        h100 = self.profile('PGPU', 'h100', CUSTOM_GPU_ARCH_HOPPER='required')
        server = self.cloud.bind(h100)
        (arq,) = server.arqs
        self.assertEqual('PCI', arq['attach_handle_type'])
        self.assertEqual(
            {'domain': '0000', 'bus': '81', 'device': '00', 'function': '0'},
            arq['attach_handle_info'])
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, h100)
        # The GPU that NVML has never seen has the traits of its PCI ids.
        other = self.cloud.bind(self.profile(
            'PGPU', 'a40', CUSTOM_GPU_MODEL_A40='required',
            CUSTOM_GPU_MEMORY_48GB='required',
            CUSTOM_GPU_COMPUTE_8_6='required'))
        self.assertEqual('c1', other.arqs[0]['attach_handle_info']['bus'])
        self.cloud.unbind(server)
        self.cloud.unbind(other)
        self.assertEqual(self.untouched, self.everything())

    def test_vgpu_types_exclude_each_other(self):
        small = self.profile('CUSTOM_NVIDIA_T4_4C')
        large = self.profile('CUSTOM_NVIDIA_T4_8C')
        servers = [self.cloud.bind(small)]
        self.assertEqual({'T4-4C': (4, 0), 'T4-8C': (2, 2)},
                         self.reserved(T4))
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, large)
        servers += [self.cloud.bind(small) for _ in range(3)]
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, small)
        self.assertEqual(4, len(self.mdevs(T4)))
        self.assertEqual({T4}, {function for function, _
                                in self.mdevs(T4).values()})
        self.report()
        for server in servers:
            self.cloud.unbind(server)
        self.assertEqual({'T4-4C': (4, 0), 'T4-8C': (2, 0)},
                         self.reserved(T4))
        self.cloud.unbind(self.cloud.bind(large))
        self.assertEqual(self.untouched, self.everything())


class ChangedTest(gpu_cloud.GpuTestCase):
    """A policy offers less, while a server has what it no longer offers."""

    machine = 'mixed'
    gpu = A100
    overrides = {
        'gpu': {'policies': 'slices'},
        'gpu_policy:slices': {'mode': 'mig', 'match_address': A100,
                              'profiles': '1g.10gb,3g.40gb'}}

    def test_what_stays_on_offer_is_counted_on(self):
        large = self.cloud.bind(self.profile('CUSTOM_NVIDIA_3G_40GB'))
        small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        self.change_policy('slices', profiles=['1g.10gb'])
        self.report()
        # Nothing of the withdrawn profile is free, and of the others what
        # fits beside it.
        self.assertEqual({'1g.10gb': (7, 3), '3g.40gb': (2, 2)},
                         self.reserved())
        other = self.cloud.bind(small)
        world = self.world
        with world.operation(write=True):
            number = mig.create(world.gpu(A100), 14)
        self.report()
        self.assertEqual((7, 5), self.reserved()['1g.10gb'])
        self.assertEqual((2, 2), self.reserved()['3g.40gb'])
        # A bind does not offer the withdrawn profile again either.
        self.cloud.unbind(self.cloud.bind(small))
        self.assertEqual((2, 2), self.reserved()['3g.40gb'])
        with world.operation(write=True):
            mig.destroy(world.gpu(A100), number)
        self.cloud.unbind(large)
        self.cloud.unbind(other)
        self.report()
        self.assertEqual({'1g.10gb': (7, 0)}, self.reserved())
