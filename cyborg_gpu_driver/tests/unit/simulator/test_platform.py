# SPDX-License-Identifier: Apache-2.0

"""A simulated machine in place of this one."""

import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as machine_module


class TestPlatform(base.BaseTestCase):
    def test_no_real_library_takes_the_place_of_a_missing_one(self):
        machine = machine_module.Machine.load('mixed')
        opened = platform.open_platform(machine)
        self.addCleanup(machine.uninstall)
        machine.unload_library()
        error = self.assertRaises(exception.NvmlError, opened.nvml.call,
                                  'nvmlDeviceGetCount')
        self.assertEqual(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, error.code)
        machine.load_library()
        self.assertEqual(3, opened.nvml.device_count())
