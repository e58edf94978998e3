# SPDX-License-Identifier: Apache-2.0

"""What the tests of the simulator share: a machine under pynvml."""

from __future__ import annotations

import ctypes

import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.simulator.machine import machine as machine_module

UUID = '4b20d080-1b54-4048-85b3-a6a62d165c01'
OTHER_UUID = '4b20d080-1b54-4048-85b3-a6a62d165c02'


class MachineTestCase(base.BaseTestCase):
    """A simulated machine that pynvml's own functions work on."""

    host = 'dgx-a100-40'

    def setUp(self):
        super().setUp()
        self.use(machine_module.Machine.load(self.host))

    def use(self, machine):
        """Work on another machine, or on the same one in another state."""
        self.machine = machine.install()
        self.addCleanup(machine.uninstall)
        # These tests have NVML, programs and the kernel to themselves.
        machine.stop_persistenced()
        self.sysfs = pci.Sysfs('/sys', os_module=machine.os)
        pynvml.nvmlInit()

    def device(self, index=0):
        return pynvml.nvmlDeviceGetHandleByIndex(index)

    def at(self, address):
        return pynvml.nvmlDeviceGetHandleByPciBusId(address)

    def assert_code(self, code, function, *args, **kwargs):
        """``function`` is refused with this nvmlReturn_t."""
        error = self.assertRaises(pynvml.NVMLError, function, *args,
                                  **kwargs)
        self.assertEqual(code, error.value)

    def assert_errno(self, errno, function, *args):
        """``function`` is refused with this errno."""
        error = self.assertRaises(exception.SysfsError, function, *args)
        self.assertEqual(errno, error.errno)

    # MIG in short

    def create(self, device, profile_id, start=None, size=None):
        """Create a GPU instance; return its id, start and handle."""
        if start is None:
            handle = pynvml.nvmlDeviceCreateGpuInstance(device, profile_id)
        else:
            placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
            handle = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                device, profile_id, ctypes.byref(placement))
        info = pynvml.nvmlGpuInstanceGetInfo(handle)
        return info.id, info.placement.start, handle

    def instances(self, device, profile_id):
        """Ids of a profile's instances, as NVML lists them."""
        array = (pynvml.c_nvmlGpuInstance_t * 12)()
        count = ctypes.c_uint()
        pynvml.nvmlDeviceGetGpuInstances(device, profile_id, array,
                                         ctypes.byref(count))
        return [pynvml.nvmlGpuInstanceGetInfo(array[number]).id
                for number in range(count.value)]

    # vGPU in short

    def create_mdev(self, function, type_id, uuid=UUID):
        self.sysfs.write(uuid, *self.mdev_type(function, type_id),
                         'create')

    def remove_mdev(self, uuid=UUID):
        self.sysfs.write('1', 'bus', 'mdev', 'devices', uuid, 'remove')

    def available(self, function, type_id):
        return int(self.sysfs.read(*self.mdev_type(function, type_id),
                                   'available_instances'))

    @staticmethod
    def mdev_type(function, type_id):
        return ('bus', 'pci', 'devices', function, 'mdev_supported_types',
                f'nvidia-{type_id}')
