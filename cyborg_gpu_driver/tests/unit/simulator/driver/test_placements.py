# SPDX-License-Identifier: Apache-2.0

"""vGPUs of several sizes on one GPU, and their placements."""

import errno

import pynvml

from cyborg_gpu_driver.host.nvml import vgpu
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator.driver import mig as driver_mig
from cyborg_gpu_driver.tests.unit.simulator import base

# The vGPU guide's tables: region of a GPU, framebuffer, placement ids.
GUIDE = {
    80: {80: '0', 40: '0 40', 20: '0 20 40 60', 16: '0 24 40 64',
         10: '0 10 20 30 40 50 60 70', 8: '0 12 20 32 40 52 60 72',
         5: '0 5 10 15 20 25 30 35 40 45 50 55 60 65 70 75',
         4: '0 6 10 16 20 26 30 36 40 46 50 56 60 66 70 76'},
    40: {40: '0', 20: '0 20', 10: '0 10 20 30', 8: '0 12 20 32',
         5: '0 5 10 15 20 25 30 35', 4: '0 6 10 16 20 26 30 36'},
    24: {24: '0', 12: '0 12', 8: '0 16', 6: '0 6 12 18', 4: '0 8 12 20',
         3: '0 3 6 9 12 15 18 21', 2: '0 4 6 10 12 16 18 22',
         1: '0 2 3 5 6 8 9 11 12 14 15 17 18 20 21 23'},
}
SUPPORTED = pynvml.nvmlDeviceGetVgpuTypeSupportedPlacements
CREATABLE = pynvml.nvmlDeviceGetVgpuTypeCreatablePlacements


class TestTables(base.MachineTestCase):
    def ids(self, name):
        """Return the placement ids of each type of a model, by size."""
        model = files.load_model(name)
        return {driver_mig.size(model, kind): ' '.join(map(
            str, driver_mig.supported(model, kind)))
                for kind in model.vgpu_types if kind.profile_id is None}

    def test_they_are_the_guides(self):
        for name, region in (('a100-80', 80), ('a100-40', 40), ('a10', 24)):
            self.assertEqual({
                size: GUIDE[region][size] for size in self.ids(name)},
                self.ids(name))
        self.assertEqual(GUIDE[80][5], self.ids('h100-80')[5])

    def test_blackwell_shares_its_slots_out_evenly(self):
        ids = self.ids('rtx-pro-6000')
        self.assertEqual('0 32 64', ids[32])
        self.assertEqual(' '.join(map(str, range(0, 96, 4))), ids[4])
        # A vGPU of 2 GiB takes three slots too.
        self.assertEqual(' '.join(map(str, range(0, 96, 3))), ids[3])
        self.assertNotIn(2, ids)

    def test_every_type_of_every_model(self):
        for name in files.model_names():
            model = files.load_model(name)
            for kind in model.vgpu_types:
                starts = driver_mig.supported(model, kind)
                if (model.placement_region is None
                        or kind.profile_id is not None):
                    self.assertEqual((), starts)
                    continue
                size = driver_mig.size(model, kind)
                self.assertTrue(starts, kind.name)
                self.assertLessEqual(len(starts), kind.max_instances)
                # All vGPUs of a size fit side by side, within the region.
                ends = [0] + [start + size for start in starts]
                self.assertTrue(all(
                    end <= start for end, start
                    in zip(ends, (*starts, model.placement_region))),
                    kind.name)


class MixedTestCase(base.MachineTestCase):
    """Time-sliced vGPUs of an A100 with 40 GB or 80 GB."""

    gpu = '0000:07:00.0'
    vf = '0000:07:00.4'

    def setUp(self):
        super().setUp()
        self.machine.sriov_manage(self.gpu, enable=False)
        pynvml.nvmlDeviceSetMigMode(self.at(self.gpu), 0)
        self.machine.reset_gpu(self.gpu)
        self.machine.sriov_manage(self.gpu)
        self.vfs = self.machine.gpu(self.gpu).vfs()

    def mix(self, on=1):
        pynvml.nvmlDeviceSetVgpuHeterogeneousMode(self.at(self.gpu), on)

    def mixes(self):
        return pynvml.nvmlDeviceGetVgpuHeterogeneousMode(self.at(self.gpu))

    def ids(self, function, type_id, *version):
        # With the layout of C: pynvml 13.580 has two fields of version 1 in
        # the wrong order.
        found = vgpu.PlacementList.from_buffer(
            function(self.at(self.gpu), type_id, *version))
        return found.placement_size, found.placement_ids[:found.count]


class TestMode(MixedTestCase):

    def test_not_with_fixed_shares(self):
        state = pynvml.c_nvmlVgpuSchedulerSetState_t()
        state.schedulerPolicy = 3
        pynvml.nvmlDeviceSetVgpuSchedulerState(self.at(self.gpu), state)
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, self.mix)
        state.schedulerPolicy = 1
        pynvml.nvmlDeviceSetVgpuSchedulerState(self.at(self.gpu), state)
        self.mix()


class TestPlacements(MixedTestCase):

    def test_creatable_ones_follow(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, CREATABLE,
                         self.device(), 459)
        self.mix()
        self.assertEqual((8, [0, 12, 20, 32]), self.ids(CREATABLE, 459))
        self.create_mdev(self.vf, 457)
        self.assertEqual((8, [12, 20, 32]), self.ids(CREATABLE, 459))
        self.create_mdev(self.vfs[1], 461, base.OTHER_UUID)
        self.assertEqual((8, [12]), self.ids(CREATABLE, 459))
        self.assertEqual((40, []), self.ids(CREATABLE, 462))

    def test_drivers_before_565_know_one_version(self):
        self.assertEqual('550', self.machine.host.driver_version[:3])
        for function, arguments in ((SUPPORTED, (0, 2)), (CREATABLE, (2,))):
            self.assert_code(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                             function, self.device(), 459, *arguments)


class TestWishes(MixedTestCase):
    """``vgpu-placement-id`` in an mdev's parameters."""

    def setUp(self):
        super().setUp()
        self.mix()
        self.create_mdev(self.vf, 457)
        self.create_mdev(self.vfs[1], 457, base.OTHER_UUID)

    def wish(self, uuid, text):
        self.sysfs.write(text, 'bus', 'mdev', 'devices', uuid, 'nvidia',
                         'vgpu_params')

    def placed(self, uuid):
        """Start a guest; return its vGPU's placement id from NVML."""
        self.machine.start_guest(uuid)
        vgpu = pynvml.nvmlDeviceGetActiveVgpus(self.at(self.gpu))[-1]
        return pynvml.nvmlVgpuInstanceGetPlacementId(vgpu)

    def assert_no_boot(self, code, uuid):
        error = self.assertRaises(OSError, self.machine.start_guest, uuid)
        self.assertEqual(code, error.errno)
        self.assertEqual([], pynvml.nvmlDeviceGetActiveVgpus(
            self.at(self.gpu)))

    def test_a_wish_takes_its_place_at_once(self):
        self.wish(base.UUID, 'frame_rate_limiter=0,vgpu-placement-id=36\n')
        self.assertEqual((20, []), self.ids(CREATABLE, 461))
        self.assertEqual((8, [12, 20]), self.ids(CREATABLE, 459))
        self.assertEqual(36, self.placed(base.UUID))

    def test_one_that_cannot_be(self):
        for text in ('5', '40', 'x', '-6'):
            self.wish(base.UUID, f'vgpu-placement-id={text}')
            self.assert_no_boot(errno.EINVAL, base.UUID)
        self.wish(base.UUID, 'vgpu-placement-id=6')
        self.assert_no_boot(errno.EBUSY, base.UUID)
