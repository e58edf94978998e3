# SPDX-License-Identifier: Apache-2.0

"""How time-sliced vGPUs share a GPU."""

import ctypes

import pynvml

from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.simulator import base

BEST, EQUAL, FIXED = 1, 2, 3
GRAPHICS = 1
DEFAULT, DISABLE, ENABLE = 0, 1, 2


class TestScheduler(base.MachineTestCase):
    host = 'l40sx4'
    gpu = '0000:16:00.0'
    vf = '0000:16:00.4'

    def set(self, policy, arr=DISABLE, time_slice=None, arr_data=None,
            device=None):
        wanted = pynvml.c_nvmlVgpuSchedulerSetState_t()
        wanted.schedulerPolicy, wanted.enableARRMode = policy, arr
        if time_slice is not None:
            wanted.schedulerParams.vgpuSchedData.timeslice = time_slice
        if arr_data is not None:
            data = wanted.schedulerParams.vgpuSchedDataWithARR
            data.avgFactor, data.frequency = arr_data
        pynvml.nvmlDeviceSetVgpuSchedulerState(
            device or self.at(self.gpu), wanted)

    def state(self):
        found = pynvml.nvmlDeviceGetVgpuSchedulerState(self.at(self.gpu))
        data = found.schedulerParams
        return (found.schedulerPolicy, found.arrMode,
                data.vgpuSchedData.timeslice if found.arrMode == DISABLE
                else (data.vgpuSchedDataWithARR.avgFactor,
                      data.vgpuSchedDataWithARR.timeslice))

    def make_vgpu(self):
        self.sysfs.write('1145', 'bus', 'pci', 'devices', self.vf, 'nvidia',
                         'current_vgpu_type')

    def test_out_of_range(self):
        for policy, *arguments in (
                (0,), (4,), (EQUAL, 3), (EQUAL, DISABLE, 999999),
                (EQUAL, DISABLE, 30000001), (EQUAL, ENABLE, None, (61, 0)),
                (EQUAL, ENABLE, None, (0, 62)),
                # A time slice, but adaptive round robin takes a factor.
                (EQUAL, DEFAULT, 5000000)):
            self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.set,
                             policy, *arguments)
        self.assertEqual(BEST, self.state()[0])

    def test_not_without_root_nor_fixed_shares_of_mixed_sizes(self):
        pynvml.nvmlDeviceSetVgpuHeterogeneousMode(self.at(self.gpu), 1)
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, self.set, FIXED)
        self.set(EQUAL)
        self.machine.privileged = False
        self.assert_code(pynvml.NVML_ERROR_NO_PERMISSION, self.set, BEST)
        self.assertEqual(EQUAL, self.state()[0])

    def test_not_in_mig_mode_nor_without_vgpus(self):
        for host, address in (('dgx-a100-80', '0000:07:00.0'),
                              ('mixed', '0000:81:00.0')):
            with machine_module.Machine.load(host):
                pynvml.nvmlInit()
                device = self.at(address)
                self.assert_code(
                    pynvml.NVML_ERROR_NOT_SUPPORTED,
                    pynvml.nvmlDeviceGetVgpuSchedulerState, device)
                self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, self.set,
                                 EQUAL, device=device)

    def test_not_under_a_guest(self):
        self.make_vgpu()
        self.set(EQUAL)
        self.machine.start_guest(self.vf)
        self.assert_code(pynvml.NVML_ERROR_IN_USE, self.set, FIXED)
        self.machine.stop_guest(self.vf)
        self.set(FIXED)

    def test_it_goes_with_the_driver(self):
        def rebind():
            for driver in ('vfio-pci', 'nvidia'):
                self.machine.bind_driver(self.gpu, driver)
        for change in (
                lambda: self.machine.sriov_manage(self.gpu, enable=False),
                lambda: self.machine.reset_gpu(self.gpu), rebind,
                lambda: self.machine.sriov_manage(self.gpu)):
            self.set(EQUAL)
            change()
            self.assertEqual(BEST, self.state()[0])


class TestInstanceScheduler(base.MachineTestCase):
    """A GPU instance that several vGPUs share."""

    host = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    shared = 47
    """1g.24gb+gfx; DC-1-8Q shares it with two others."""

    def setUp(self):
        super().setUp()
        self.instance = self.make(self.shared)

    def make(self, profile, start=0, size=3):
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            self.at(self.gpu), profile,
            ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size)))

    def set(self, policy, time_slice=None, instance=None):
        wanted = pynvml.c_nvmlVgpuSchedulerState_v1_t()
        wanted.version = pynvml.nvmlVgpuSchedulerState_v1
        wanted.engineId = GRAPHICS
        wanted.schedulerPolicy, wanted.enableARRMode = policy, DISABLE
        if time_slice is not None:
            wanted.schedulerParams.vgpuSchedData.timeslice = time_slice
        pynvml.nvmlGpuInstanceSetVgpuSchedulerState(
            instance or self.instance, wanted)

    def state(self, instance=None):
        found = pynvml.c_nvmlVgpuSchedulerStateInfo_v1_t()
        found.version = pynvml.nvmlVgpuSchedulerStateInfo_v1
        found.engineId = GRAPHICS
        pynvml.nvmlGpuInstanceGetVgpuSchedulerState(
            instance or self.instance, found)
        return (found.schedulerPolicy,
                found.schedulerParams.vgpuSchedData.timeslice)

    def make_vgpu(self):
        """Make a DC-1-8Q on the only instance; return its function."""
        function = '0000:16:00.2'
        number = next(kind.type_id for kind
                      in self.machine.gpu(self.gpu).model.vgpu_types
                      if kind.name == 'DC-1-8Q')
        self.sysfs.write(str(number), 'bus', 'pci', 'devices', function,
                         'nvidia', 'current_vgpu_type')
        return function

    def test_each_instance_has_its_own(self):
        other = self.make(self.shared, 3)
        self.assertEqual((BEST, 0), self.state())
        self.set(EQUAL, time_slice=5000000)
        self.assertEqual((EQUAL, 5000000), self.state())
        self.assertEqual((BEST, 0), self.state(other))
        self.set(FIXED, instance=other)
        self.assertEqual((FIXED, 2000000), self.state(other))
        self.assertEqual((EQUAL, 5000000), self.state())

    def test_not_under_a_guest_on_it(self):
        function = self.make_vgpu()
        other = self.make(self.shared, 3)
        self.set(EQUAL)
        self.machine.start_guest(function)
        self.assert_code(pynvml.NVML_ERROR_IN_USE, self.set, FIXED)
        self.set(FIXED, instance=other)
        self.machine.stop_guest(function)
        self.set(FIXED)
