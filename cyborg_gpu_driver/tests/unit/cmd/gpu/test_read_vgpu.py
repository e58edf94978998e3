# SPDX-License-Identifier: Apache-2.0

"""gpu list and gpu show for GPUs that have vGPUs."""

import uuid

from oslotest import base as oslotest_base

from cyborg_gpu_driver.cmd.gpu import show
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.cmd import base

_L40S = '0000:16:00.0'
_A100 = '0000:41:00.0'
_T4 = '0000:3b:00.0'


class VgpuCase(base.HostCase):

    gpus = 0

    def setUp(self):
        super().setUp()
        self.world = self.machine()
        self.platform = platform.open_platform(self.world)
        self.addCleanup(self.world.uninstall)

    def write_sysfs(self, text, *place):
        self.platform.sysfs.write(text, 'bus', 'pci', 'devices', *place)

    def shown(self, address):
        return self.rows_on_host('gpu', 'show', address)


class VendorTest(VgpuCase):

    host = 'l40sx4'

    def setUp(self):
        super().setUp()
        device = self.platform.nvml.device(model.PciAddress.parse(_L40S))
        nvml_vgpu.set_mixed_sizes(self.platform.nvml, device, True)
        nvml_vgpu.set_scheduler(self.platform.nvml, device,
                                model.SchedulerPolicy.EQUAL_SHARE, 2_000_000)
        before = self.shown(_L40S)
        self.type = next(item for item in before['vgpu_types']
                         if item['name'] == 'L40S-24Q')
        self.function = before['virtual_functions'][1]['address']
        self.write_sysfs(self.type['type'].removeprefix('nvidia-'),
                         self.function, 'nvidia', 'current_vgpu_type')

    def test_for_programs(self):
        shown = self.shown(_L40S)
        self.assertEqual(
            ('vendor-vfio', 'on', 'equal-share', 2_000_000,
             ['best-effort', 'equal-share', 'fixed-share'], 0),
            (shown['vgpu_framework'], shown['vgpu_mixed_sizes'],
             shown['vgpu_scheduler'], shown['vgpu_time_slice_ns'],
             shown['vgpu_schedulers'], shown['processes']))
        self.assertEqual(
            [{'name': 'L40S-24Q', 'type': self.type['type'],
              'function': self.function, 'uuid': None,
              'gpu_instance_id': None}], shown['vgpus'])
        type_now = next(item for item in shown['vgpu_types']
                        if item['name'] == 'L40S-24Q')
        self.assertEqual(
            (24, [0, 24], [24], None),
            (type_now['placement_size'], type_now['placements'],
             type_now['free_placements'], type_now['per_instance']))

    def test_functions(self):
        first, second, *_ = self.shown(_L40S)['virtual_functions']
        number = int(self.type['type'].removeprefix('nvidia-'))
        self.assertEqual((0, None), (first['current_type'],
                                     first['placement_id']))
        self.assertIn(number, first['creatable_types'])
        self.assertEqual((number, [], 0),
                         (second['current_type'], second['creatable_types'],
                          second['placement_id']))

    def test_for_people(self):
        text = self.run_on_host('gpu', 'show', _L40S)[0]
        self.assertIn(f'{self.function} L40S-24Q', text)
        self.assertIn('vgpu_mixed_sizes', text)


class MdevTest(VgpuCase):

    host = 't4x4'

    def setUp(self):
        super().setUp()
        self.uuid = str(uuid.uuid4())
        types = self.shown(_T4)['vgpu_types']
        self.type = next(item['type'] for item in types
                         if item['name'] == 'T4-8C')
        self.write_sysfs(self.uuid, _T4, 'mdev_supported_types', self.type,
                   'create')

    def test_on_the_gpu_itself(self):
        shown = self.shown(_T4)
        self.assertEqual(
            ('mdev-pf', None, []),
            (shown['vgpu_framework'], shown['vgpu_mixed_sizes'],
             shown['virtual_functions']))
        self.assertEqual(
            [{'name': 'T4-8C', 'type': self.type, 'function': _T4,
              'uuid': self.uuid, 'gpu_instance_id': None}], shown['vgpus'])
        self.assertEqual([self.uuid],
                         [mdev['uuid'] for mdev in shown['mdevs']])


class CreatableTest(VgpuCase):
    """The vGPU types that can be created as mdevs on virtual functions."""

    host = 'mixed'

    def _functions(self):
        return self.shown(_A100)['virtual_functions']

    def test_time_sliced(self):
        self.world.sriov_manage(_A100, enable=False)
        nvml = self.platform.nvml
        nvml.set_mig_mode(nvml.device(model.PciAddress.parse(_A100)), False)
        self.world.reset_gpu(_A100)
        self.world.sriov_manage(_A100)
        first, second, *_ = self._functions()
        self.assertIn(620, first['creatable_types'])
        self.write_sysfs(str(uuid.uuid4()), first['address'],
                   'mdev_supported_types', 'nvidia-620', 'create')
        first, second, *_ = self._functions()
        self.assertEqual(([], [620]), (first['creatable_types'],
                                       second['creatable_types']))


class SharedInstanceTest(VgpuCase):

    host = 'rtxpro6000x8'

    def test_scheduler_of_each_instance(self):
        nvml = self.platform.nvml
        device = nvml.device(model.PciAddress.parse(_L40S))
        for profile, start in ((14, 0), (47, 3)):
            made = nvml.create_gpu_instance(device, profile,
                                            model.Placement(start, 3))
        nvml_vgpu.set_instance_scheduler(
            nvml, device, made.instance_id,
            model.SchedulerPolicy.FIXED_SHARE, 3_000_000)
        shown = self.shown(_L40S)
        self.assertIsNone(shown['vgpu_scheduler'])
        self.assertEqual(
            [(None, None), ('fixed-share', 3_000_000)],
            [(item['vgpu_scheduler'], item['vgpu_time_slice_ns'])
             for item in shown['mig_instances']])


class NameTest(oslotest_base.BaseTestCase):

    def test_a_type_that_only_sysfs_lists(self):
        gpu = model.Gpu(
            model.PciAddress.parse(_T4), '10de', '1eb8', '0302',
            mdev_types=(model.MdevType('nvidia-231', 'T4-2B', 5),),
            mdevs=tuple(model.Mdev(uuid, model.PciAddress.parse(_T4), kind)
                        for uuid, kind in (('a', 'nvidia-231'),
                                           ('b', 'nvidia-9'))))
        self.assertEqual({'T4-2B': 1, 'nvidia-9': 1}, show.partitions(gpu))
