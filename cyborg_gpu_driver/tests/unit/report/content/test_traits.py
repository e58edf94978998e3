# SPDX-License-Identifier: Apache-2.0


import re

import hypothesis
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests.unit.partition.offer import test_mig
from cyborg_gpu_driver.tests.unit.report import samples

CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]+', re.ASCII)


class TestTraits(base.BaseTestCase):

    def test_slice(self):
        self.assertEqual((
            'CUSTOM_GPU_ARCH_AMPERE',
            'CUSTOM_GPU_KIND_MIG',
            'CUSTOM_GPU_MEMORY_10GB',
            'CUSTOM_GPU_MODEL_A100_SXM4_80GB',
            'CUSTOM_GPU_NUMA_3',
            'CUSTOM_NVIDIA_20B2',
            'CUSTOM_NVIDIA_20B2_1G_10GB',
            'CUSTOM_NVIDIA_20B2_A100D_1_10C',
            'OWNER_CYBORG',
        ), names.traits(samples.a100(), samples.a100_offers()[0]))

    def test_vgpu_without_a_numa_node(self):
        self.assertEqual((
            'CUSTOM_GPU_ARCH_TURING',
            'CUSTOM_GPU_KIND_VGPU',
            'CUSTOM_GPU_MEMORY_2GB',
            'CUSTOM_GPU_MODEL_TESLA_T4',
            'CUSTOM_NVIDIA_1EB8',
            'CUSTOM_NVIDIA_1EB8_T4_2B',
            'OWNER_CYBORG',
        ), names.traits(samples.t4(), samples.t4_offer()))

    def test_a_vgpu_that_shares_its_instance(self):
        board = test_mig.gpu()
        offer, = offers.offers(board, test_mig.rules('DC-1-8Q'))
        self.assertEqual((
            'CUSTOM_GPU_KIND_MIG', 'CUSTOM_GPU_MEMORY_8GB',
            'CUSTOM_NVIDIA_20B2', 'CUSTOM_NVIDIA_20B2_DC_1_8Q',
            'OWNER_CYBORG'), names.traits(board, offer))
        self.assertEqual('CUSTOM_NVIDIA_DC_1_8Q',
                         names.resource_class(offer))
        self.assertEqual('host_gpu_0000:07:00.0_DC-1-8Q',
                         names.provider_name('host', offer))

    def test_isolation_is_the_policys(self):
        plain, isolated = (
            set(names.traits(samples.a100(),
                             samples.a100_offers(isolated=isolated)[0]))
            for isolated in (False, True))
        self.assertEqual({'CUSTOM_GPU_ISOLATION_PROJECT'}, isolated - plain)

    def test_unknown_facts_give_no_trait(self):
        self.assertEqual((
            'CUSTOM_GPU_KIND_PASSTHROUGH',
            'CUSTOM_NVIDIA_2235',
            'OWNER_CYBORG',
        ), names.traits(samples.whole(), samples.whole_offer()))

    def test_whole_with_everything_known(self):
        gpu = samples.whole(model='NVIDIA A40', architecture='ampere',
                            memory_mib=46068, numa_node=0)
        self.assertEqual((
            'CUSTOM_GPU_ARCH_AMPERE',
            'CUSTOM_GPU_KIND_PASSTHROUGH',
            'CUSTOM_GPU_MEMORY_48GB',
            'CUSTOM_GPU_MODEL_A40',
            'CUSTOM_GPU_NUMA_0',
            'CUSTOM_NVIDIA_2235',
            'OWNER_CYBORG',
        ), names.traits(gpu, samples.whole_offer()))

    def test_what_schedulers_ask_for(self):
        facts = {'compute_capability': '8.0', 'driver_branch': '580',
                 'pcie_root': '0000:16'}
        found = set(names.traits(samples.a100(**facts),
                                 samples.a100_offers()[0]))
        self.assertEqual(
            {'CUSTOM_GPU_COMPUTE_8_0', 'CUSTOM_GPU_DRIVER_580',
             'CUSTOM_GPU_PCIE_ROOT_0000_16'},
            found - set(names.traits(samples.a100(),
                                     samples.a100_offers()[0])))
        # The guest of a whole GPU has its own driver.
        self.assertEqual(
            {'CUSTOM_GPU_COMPUTE_8_0', 'CUSTOM_GPU_PCIE_ROOT_0000_16'},
            set(names.traits(samples.whole(**facts), samples.whole_offer()))
            - set(names.traits(samples.whole(), samples.whole_offer())))

    def test_type_name_from_sysfs_of_a_function(self):
        function = model.VirtualFunction(
            address=samples.vf(0), index=0, driver='nvidia', iommu_group=1,
            mdev_types=(model.MdevType('nvidia-699', 'A100D-1-10Q', 1),))
        gpu = samples.a100(vgpu_types=(), vfs=(function,))
        self.assertIn('CUSTOM_NVIDIA_20B2_A100D_1_10Q',
                      names.traits(gpu, samples.a100_offers()[0]))

    @hypothesis.given(strategies.text(min_size=1, max_size=400),
                      strategies.text(min_size=1, max_size=400))
    def test_always_valid(self, name, profile):
        gpu = samples.t4(model=name, architecture=name)
        for trait in names.traits(gpu, samples.t4_offer(profile=profile)):
            self.assertLessEqual(len(trait), 255)
            self.assertRegex(trait, r'\A(CUSTOM_[A-Z0-9_]+|OWNER_CYBORG)\Z')


class TestMemoryClass(base.BaseTestCase):

    def of_type(self, name, framebuffer_mib):
        gpu = samples.t4(mdev_types=(model.MdevType(
            'nvidia-231', name, 8, framebuffer_mib=framebuffer_mib),))
        return names.memory_class(gpu, samples.t4_offer(profile=name))

    def test_types(self):
        for name, framebuffer_mib, expected in (
                ('T4-2B', 2048, '2GB'),
                ('T4-2B4', 2048, '2GB'),
                ('A100-3-20C', 19968, '20GB'),
                ('A100-7-40C', 40192, '40GB'),
                ('A100-1-5CME', 4864, '5GB'),
                ('DC-1-24QNOME', 24576, '24GB'),
                ('M60-0B', 512, '512MB'),
                ('M60-0B', None, None)):
            self.assertEqual(expected, self.of_type(name, framebuffer_mib))

    def test_profile_whose_type_is_unknown(self):
        gpu = samples.a100(vgpu_types=())
        self.assertEqual('10GB', names.memory_class(
            gpu, samples.a100_offers()[0]))

    def test_whole(self):
        # What nvidia-smi shows for each size, with and without ECC, and with
        # older drivers.
        for expected, sizes in (
                ('512MB', (512,)), (None, (None,)), ('8GB', (7611, 8192)),
                ('11GB', (11264,)),
                ('16GB', (15360, 15109, 15356, 15105, 16160, 16384)),
                ('20GB', (19190, 20470)),
                ('24GB', (22731, 23028, 23034, 24564, 24576)),
                ('32GB', (30712, 32510, 32768, 32760)),
                ('40GB', (40536, 40960)),
                ('48GB', (45556, 46068, 48601, 49140)),
                ('80GB', (81559, 81920)), ('94GB', (95830,)),
                ('96GB', (97871, 97887)), ('141GB', (143771,)),
                ('180GB', (183359,)), ('269GB', (275040,))):
            for mib in sizes:
                self.assertEqual(expected, names.memory_class(
                    samples.whole(memory_mib=mib), samples.whole_offer()),
                    mib)
