# SPDX-License-Identifier: Apache-2.0


import errno
import os
import re

import fixtures
import pynvml
from oslotest import base as oslo_base

from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import functions
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.tests.unit.host import base

_1G = 19

class VgpuCase(base.SimulatedTestCase):
    """L40S with virtual functions; none has a vGPU."""

    MACHINE = 'l40sx4'
    GPUS = 2

    def make(self, name, number):
        function = self.gpu().vfs[number].address
        self.set_vgpu(function, self.type(name).type_id)
        return function


class MixedSizesTest(VgpuCase):

    def test_all_is_free_on_an_idle_gpu_and_costs_no_call(self):
        self.mix()
        self.gpu()
        self.calls()
        for item in self.gpu().vgpu_types:
            self.assertEqual(item.placements, item.free_placements)
        self.assertNotIn('nvmlDeviceGetVgpuTypeCreatablePlacements',
                         self.calls())

    def test_what_is_free_beside_vgpus(self):
        self.mix()
        self.make('L40S-24Q', 0)
        self.gpu()
        self.calls()
        types = self.gpu().vgpu_types
        self.assertEqual(
            len({item.framebuffer_mib for item in types}),
            self.calls()['nvmlDeviceGetVgpuTypeCreatablePlacements'])
        for item in types:
            self.assertEqual(
                tuple(start for start in item.placements if start >= 24),
                item.free_placements, item.name)

    def test_what_cannot_be_read_is_said_and_not_guessed(self):
        self.mix()
        self.make('L40S-24Q', 0)
        self.machine.faults.fail('nvmlDeviceGetVgpuTypeCreatablePlacements',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        gpu = self.gpu()
        self.assertIn('vGPU placements', gpu.problems[0])
        self.assertEqual({None}, {item.free_placements
                                  for item in gpu.vgpu_types})


class UnreadableTest(VgpuCase):

    def test_what_cannot_be_read_is_said_and_hides_no_gpu(self):
        for call, said, field in (
                ('nvmlDeviceGetVgpuHeterogeneousMode', 'mixed-size mode',
                 'mixed_sizes'),
                ('nvmlDeviceGetVgpuSchedulerState', 'vGPU scheduler',
                 'scheduler'),
                ('nvmlDeviceGetGraphicsRunningProcesses_v3', 'processes',
                 None)):
            self.machine.faults.fail(call, pynvml.NVML_ERROR_UNKNOWN,
                                     times=None)
            gpu = self.gpu()
            self.assertIn(said, gpu.problems[0])
            self.assertTrue(gpu.visible_to_nvml)
            self.assertIsNone(field and getattr(gpu, field))
            self.machine.faults.clear()


class SchedulerTest(VgpuCase):

    def test_calls_of_a_snapshot(self):
        self.gpu()
        self.calls()
        self.gpu()
        calls = self.calls()
        self.assertLessEqual(sum(calls.values()), 2 * 8 + 1, calls)
        self.assertNotIn('nvmlDeviceGetVgpuSchedulerCapabilities', calls)
        self.assertNotIn('nvmlDeviceGetVgpuCapabilities', calls)
        self.assertEqual(2, calls['nvmlDeviceGetVgpuSchedulerState'])
        self.assertEqual(2, calls['nvmlDeviceGetVgpuHeterogeneousMode'])


class InstanceSchedulerTest(VgpuCase):

    MACHINE = 'rtxpro6000x8'

    def setUp(self):
        super().setUp()
        for profile, start in ((14, 0), (47, 3)):
            self.number = self.nvml.create_gpu_instance(
                self.device(), profile, model.Placement(start, 3)).instance_id

    def schedulers(self):
        gpu = self.gpu()
        self.assertIsNone(gpu.scheduler)
        return [instance.scheduler for instance in gpu.mig.instances]

    def test_each_snapshot_says_how_it_is_now(self):
        plain, shared = self.schedulers()
        self.assertIsNone(plain)
        self.assertIs(model.SchedulerPolicy.BEST_EFFORT, shared.policy)
        self.assertEqual(tuple(model.SchedulerPolicy), shared.supported)
        nvml_vgpu.set_instance_scheduler(
            self.nvml, self.device(), self.number,
            model.SchedulerPolicy.FIXED_SHARE, 2_000_000)
        _, shared = self.schedulers()
        self.assertEqual(
            (model.SchedulerPolicy.FIXED_SHARE, 2_000_000),
            (shared.policy, shared.time_slice))

    def test_driver_that_says_no_capabilities_in_mig_mode(self):
        self.machine.faults.fail(
            'nvmlDeviceGetVgpuSchedulerCapabilities',
            pynvml.NVML_ERROR_NOT_SUPPORTED, times=None)
        _, shared = self.schedulers()
        self.assertEqual((model.SchedulerPolicy.BEST_EFFORT, ()),
                         (shared.policy, shared.supported))

    def test_that_the_driver_does_not_have(self):
        self.machine.faults.fail('nvmlGpuInstanceGetVgpuSchedulerState',
                                 pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                                 times=None)
        self.assertEqual([None, None], self.schedulers())
        self.assertEqual((), self.gpu().problems)

    def test_that_cannot_be_read(self):
        self.machine.faults.fail('nvmlGpuInstanceGetVgpuSchedulerState',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        self.assertEqual([None, None], self.schedulers())
        self.assertIn('vGPU scheduler', self.gpu().problems[0])


class ProcessTest(VgpuCase):

    def test_counted_once_each(self):
        self.assertEqual(0, self.gpu().processes)
        for pid in (4711, 4712, 4711):
            self.machine.add_process(str(self.first), pid)
        self.assertEqual(2, self.gpu().processes)
        self.machine.remove_process(4712)
        self.assertEqual(1, self.gpu().processes)
        self.assertEqual(0, self.gpu(self.addresses[1]).processes)

    def test_on_instances(self):
        self.use('dgx-a100-80')
        for _ in range(2):
            made = self.cut(self.first, _1G)
            self.machine.add_process(str(self.first), 4711,
                                     made.instance_id)
            self.assertEqual(1, self.gpu().processes)

    def absent(self, *names, code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        for name in names:
            self.machine.faults.fail(
                f'nvmlDeviceGet{name}', code, times=None)
        gpu = self.gpu()
        self.machine.faults.clear()
        return gpu.processes, bool(gpu.problems)

    def test_a_driver_that_does_not_tell_is_not_taken_for_idle(self):
        for names in (('*RunningProcesses_v*',),
                      ('ComputeRunningProcesses_v*',),
                      ('GraphicsRunningProcesses_v*',)):
            self.assertEqual((0, True), self.absent(*names), names)
        self.assertEqual((0, True), self.absent(
            'Compute*_v*', code=pynvml.NVML_ERROR_NOT_SUPPORTED))

    def test_a_board_without_graphics(self):
        self.assertEqual((0, False), self.absent(
            'Graphics*_v*', code=pynvml.NVML_ERROR_NOT_SUPPORTED))


class VendorTest(VgpuCase):
    """Virtual functions of vendor VFIO."""

    def _creatable(self, **how):
        return [vf.creatable_types for vf in self.gpu(**how).vfs]

    def _asked(self, **how):
        """Functions of the L40S, or A100, whose list a snapshot reads."""
        real, asked = self.machine.os.open, []

        def recorded(path, *args):
            if re.search('/0000:(16|41):.*/creatable_vgpu_types', path):
                asked.append(path.split('/')[-3])
            return real(path, *args)

        self.machine.os.open = recorded
        self.reader.snapshot(**how)
        self.machine.os.open = real
        return asked

    def test_others_change_with_each_vgpu_and_its_own_function_is_full(self):
        self.make('L40S-24Q', 1)
        size = self.type('L40S-24Q').framebuffer_mib
        same = tuple(sorted(item.type_id for item in self.gpu().vgpu_types
                            if item.framebuffer_mib == size))
        for how in ({}, {'detail': True}):
            first, second, *others = self._creatable(**how)
            self.assertEqual((same, ()), (first, second))
            self.assertEqual({same}, set(others))

    def test_one_function_speaks_for_all(self):
        self.assertEqual(1, len(self._asked()))
        function = self.make('L40S-24Q', 0)
        self.assertEqual(1, len(self._asked()))
        self.assertNotIn(str(function), self._asked())
        count = len(self.gpu().vfs)
        self.assertEqual(count - 1, len(self._asked(detail=True)))

    def test_what_lies_below_a_vgpu(self):
        self.use('rtxpro6000x8')
        kind = self.type('DC-1-8Q')
        made = self.cut(self.first, kind.gi_profile_id)
        for number in (3, 7):
            self.make('DC-1-8Q', number)
        gpu = self.gpu()
        self.assertEqual(
            [(made.instance_id, 0), (made.instance_id, 1), (None, None)],
            [(gpu.vfs[number].gpu_instance_id, gpu.vfs[number].placement_id)
             for number in (3, 7, 4)])
        self.assertEqual({made.instance_id},
                         {vgpu.instance_id for vgpu in gpu.vgpus})

    def test_list_that_cannot_be_read_is_another_functions_to_tell(self):
        first, second = [vf.address for vf in self.gpu().vfs[:2]]
        before = self._creatable()
        self.machine.faults.fail_read(f'*/{first}/nvidia/creatable*',
                                      errno.EIO, times=None)
        gpu = self.gpu()
        self.assertEqual((), gpu.problems)
        self.assertIn(str(first), gpu.vfs[0].problem)
        self.assertTrue(self.log.about(f'Virtual function {first}'))
        self.assertEqual((None, 0), (gpu.vfs[0].creatable_types,
                                     gpu.vfs[0].current_vgpu_type))
        self.assertEqual([''], [*{vf.problem for vf in gpu.vfs[1:]}])
        self.assertEqual(before[1:], self._creatable()[1:])
        self.assertIs(model.Framework.VENDOR_VFIO, gpu.framework)

    def test_output_that_cannot_be_read(self):
        self.make('L40S-24Q', 0)
        self.machine.faults.fail_read('*/nvidia/placement_id', errno.EIO,
                                      times=None)
        gpu = self.gpu()
        self.assertEqual((), gpu.problems)
        self.assertIn('placement_id', gpu.vfs[0].problem)
        self.assertEqual(1, len(gpu.vgpus))

    def test_a_gpu_none_of_whose_functions_can_be_read(self):
        self.machine.faults.fail_read('*/nvidia/current_vgpu_type', errno.EIO,
                                      times=None)
        self.assertIn('current_vgpu_type', self.gpu().problems[0])


class FileTest(oslo_base.BaseTestCase):
    """The files of vendor VFIO, whatever they contain."""

    function = model.PciAddress(0, 0x16, 0, 4)

    def setUp(self):
        super().setUp()
        root = self.useFixture(fixtures.TempDir()).path
        self.place = os.path.join(root, 'bus/pci/devices',
                                  str(self.function), 'nvidia')
        os.makedirs(self.place)
        self.tree = functions.MdevTree(pci.Sysfs(root))

    def _write(self, name, text):
        with open(os.path.join(self.place, name), 'w',
                  encoding='utf-8') as stream:
            stream.write(text)

    def _creatable(self, text):
        self._write('creatable_vgpu_types', text)
        return self.tree.creatable_types(self.function)

    def test_lists(self):
        for text, expected in (
                ('', ()), ('\n', ()), ('ID    : vGPU Name\n', ()),
                ('ID    : vGPU Name\n1148  : NVIDIA L40S-2B\n'
                 '1145  : NVIDIA L40S-1B\n', (1145, 1148)),
                ('ID : vGPU Name\n7:T4-1Q\n', (7,)),
                # As in the README of kubevirt-gpu-device-plugin.
                ('560   : NVIDIA A40-4Q\n', (560,)),
                ('1145\n1146 :\n', (1145, 1146)),
                ('ID    : vGPU Name\n\n1145  : NVIDIA L40S-1B\n', (1145,)),
                ('ID : Name\nL40S-1B\n', ()),
                ('ID    : vGPU Name\n0x10 : NVIDIA L40S-1B\n', ())):
            self.assertEqual(expected, self._creatable(text), text)

    def test_outputs(self):
        for text, expected in (
                ('0\n', 0), ('3\n', 3), ('65535', None),
                ('4294967295\n', None), ('N/A', None), ('-1', None),
                ('', None)):
            self._write('placement_id', text)
            self.assertEqual(expected, self.tree.vgpu_output(
                self.function, 'placement_id'), text)
        self.assertIsNone(self.tree.vgpu_output(self.function,
                                                'gpu_instance_id'))
