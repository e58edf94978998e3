# SPDX-License-Identifier: Apache-2.0

"""GPU instances through pynvml, and every refusal."""


import pynvml

from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.tests.unit.simulator import base

ONE, ONE_ME, ONE_DOUBLE, TWO, THREE, FOUR, SEVEN = 19, 20, 15, 14, 9, 5, 0


class TestInstances(base.MachineTestCase):

    def test_a_placement_that_the_profile_does_not_have(self):
        device = self.device()
        for start, size in ((7, 1), (1, 2), (0, 2)):
            self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                             self.create, device, ONE, start, size)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.create,
                         device, FOUR, 4, 4)

    def test_one_that_vanishes_after_its_creation(self):
        self.machine.faults.fail(faults.VANISHES, 0, nth=2)
        device = self.device()
        self.create(device, ONE)
        handle = pynvml.nvmlDeviceCreateGpuInstance(device, ONE)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpuInstanceGetInfo, handle)
        self.assertEqual([13], self.instances(device, ONE))
        self.create(device, ONE)

    def test_a_handle_of_something_destroyed(self):
        device = self.device()
        _, _, handle = self.create(device, ONE)
        pynvml.nvmlGpuInstanceDestroy(handle)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpuInstanceGetInfo, handle)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpuInstanceDestroy, handle)

    def test_destroy_is_refused_while_in_use(self):
        device = self.device()
        number, _, handle = self.create(device, ONE)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(handle, 0)
        self.assert_code(pynvml.NVML_ERROR_IN_USE,
                         pynvml.nvmlGpuInstanceDestroy, handle)
        self.machine.add_process('0000:07:00.0', 9, number, 0)
        self.assert_code(pynvml.NVML_ERROR_IN_USE,
                         pynvml.nvmlComputeInstanceDestroy, compute)
        self.machine.remove_process(9)
        pynvml.nvmlComputeInstanceDestroy(compute)
        self.machine.add_process('0000:07:00.0', 9, number)
        self.assert_code(pynvml.NVML_ERROR_IN_USE,
                         pynvml.nvmlGpuInstanceDestroy, handle)
        self.machine.remove_process(9)
        pynvml.nvmlGpuInstanceDestroy(handle)
        self.assertEqual([], self.instances(device, ONE))
