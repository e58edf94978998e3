# SPDX-License-Identifier: Apache-2.0

"""A simulated machine in place of this one."""

import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as machine_module


class TestPlatform(base.BaseTestCase):
    def open(self, name):
        self.machine = machine_module.Machine.load(name)
        opened = platform.open_platform(self.machine)
        self.addCleanup(self.machine.uninstall)
        return opened

    def test_no_real_library_takes_the_place_of_a_missing_one(self):
        opened = self.open('mixed')
        self.machine.unload_library()
        error = self.assertRaises(exception.NvmlError, opened.nvml.call,
                                  'nvmlDeviceGetCount')
        self.assertEqual(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, error.code)
        self.machine.load_library()
        self.assertEqual(3, opened.nvml.device_count())

    def test_programs_and_open_devices(self):
        opened = self.open('l40sx4')
        opened.nvidia_smi('-i', '0000:16:00.0', '-pm', '0')
        opened.sriov_manage('0000:16:00.0', False)
        self.assertEqual('0', opened.sysfs.read(
            'bus', 'pci', 'devices', '0000:16:00.0', 'sriov_numvfs'))
        self.machine.define_mdev('4b20d080-1b54-4048-85b3-a6a62d165c01')
        opened.mdevctl('undefine', '--uuid',
                       '4b20d080-1b54-4048-85b3-a6a62d165c01')
        self.assertEqual((), self.machine.defined_mdevs)
        opened.sysfs.write('1145', 'bus', 'pci', 'devices', '0000:38:00.4',
                           'nvidia', 'current_vgpu_type')
        pid = self.machine.start_guest('0000:38:00.4')
        self.assertEqual((pid,), opened.vfio_holders('0000:38:00.4'))
