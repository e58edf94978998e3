# SPDX-License-Identifier: Apache-2.0

"""Faults and latencies of NVML's calls."""

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

CREATE = 'nvmlDeviceCreateGpuInstance'
GPU = '0000:07:00.0'


class TestFaults(base.MachineTestCase):

    def test_several_times_and_for_ever(self):
        name = 'nvmlDeviceGetCount_v2'
        self.machine.faults.fail(name, pynvml.NVML_ERROR_TIMEOUT, times=2)
        for _ in range(2):
            self.assert_code(pynvml.NVML_ERROR_TIMEOUT,
                             pynvml.nvmlDeviceGetCount)
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())
        self.machine.faults.fail(name, pynvml.NVML_ERROR_TIMEOUT,
                                 times=None)
        for _ in range(5):
            self.assert_code(pynvml.NVML_ERROR_TIMEOUT,
                             pynvml.nvmlDeviceGetCount)
        self.machine.faults.clear()
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())

    def test_the_effect_may_come_before_the_error(self):
        device = self.device()
        self.machine.faults.fail(CREATE, pynvml.NVML_ERROR_TIMEOUT,
                                 after=True)
        self.assert_code(pynvml.NVML_ERROR_TIMEOUT, self.create, device, 19)
        self.assertEqual([13], self.instances(device, 19))

    def test_on_one_gpu_alone(self):
        first, second = self.device(0), self.device(1)
        self.machine.faults.fail('nvmlDevice*', pynvml.NVML_ERROR_UNKNOWN,
                                 times=None, address=GPU)
        self.assert_code(pynvml.NVML_ERROR_UNKNOWN,
                         pynvml.nvmlDeviceGetName, first)
        self.assert_code(pynvml.NVML_ERROR_UNKNOWN, self.at, GPU)
        self.assert_code(pynvml.NVML_ERROR_UNKNOWN, self.device, 0)
        self.assert_code(pynvml.NVML_ERROR_UNKNOWN, self.create, first, 19)
        self.assertTrue(pynvml.nvmlDeviceGetName(second))
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())

    def test_no_lock_is_held_while_sleeping(self):
        # The call sees what happens during the sleep.
        self.machine.faults.delay(
            'nvmlDeviceGetCount_v2', 0,
            sleep=lambda seconds: self.machine.unload_library())
        self.assert_code(pynvml.NVML_ERROR_UNINITIALIZED,
                         pynvml.nvmlDeviceGetCount)
