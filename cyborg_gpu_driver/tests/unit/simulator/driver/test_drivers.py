# SPDX-License-Identifier: Apache-2.0

"""Drivers of PCI functions, as the kernel binds them through sysfs."""

import dataclasses
import errno

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.simulator import base

_GPU, _OTHER = '0000:41:00.0', '0000:81:00.0'
_VFIO_GPU = '0000:c1:00.0'
_SOUND = '0000:41:00.1'
_PCI = ('bus', 'pci')


class DriversTestCase(base.MachineTestCase):
    host = 'mixed'

    def setUp(self):
        super().setUp()
        pynvml.nvmlShutdown()
        for gpu in (_GPU, _OTHER):
            self.machine.sriov_manage(gpu, enable=False)

    def driver(self, address):
        return self.sysfs.link_name(*_PCI, 'devices', address, 'driver')

    def override(self, address, driver):
        self.sysfs.write(driver, *_PCI, 'devices', address,
                         'driver_override')

    def unbind(self, address, driver):
        self.sysfs.write(address, *_PCI, 'drivers', driver, 'unbind')

    def bind(self, address, driver):
        self.sysfs.write(address, *_PCI, 'drivers', driver, 'bind')

    def probe(self, address):
        self.sysfs.write(address, *_PCI, 'drivers_probe')


class TestBinding(DriversTestCase):

    def test_what_the_kernel_refuses(self):
        self.assert_errno(errno.ENODEV, self.unbind, _GPU, 'vfio-pci')
        self.assert_errno(errno.ENODEV, self.unbind, '0000:ff:00.0', 'nvidia')
        self.assert_errno(errno.EBUSY, self.bind, _GPU, 'nvidia')
        self.assert_errno(errno.ENODEV, self.bind, '0000:ff:00.0', 'nvidia')
        self.assert_errno(errno.ENODEV, self.probe, '0000:ff:00.0')
        self.assert_errno(errno.EINVAL, self.override, _GPU, 'x' * 4095)
        self.unbind(_GPU, 'nvidia')
        self.assert_errno(errno.ENODEV, self.bind, _GPU, 'vfio-pci')
        self.override(_GPU, 'vfio-pci')
        self.assert_errno(errno.ENODEV, self.bind, _GPU, 'nvidia')

    def test_a_board_with_grace_needs_a_driver_of_its_own(self):
        host = self.machine.host
        gpu = dataclasses.replace(host.gpu(_GPU), vfs=0,
                                  model=files.load_model('gh200'))
        for driver, damage in (('nvgrace_gpu_vfio_pci', 0), ('vfio-pci', 1)):
            self.use(machine_module.Machine(
                dataclasses.replace(host, gpus=(gpu,))))
            self.machine.unload_drm()
            pynvml.nvmlShutdown()
            self.override(_GPU, driver)
            self.unbind(_GPU, 'nvidia')
            self.bind(_GPU, driver)
            self.machine.attach_whole(_GPU)
            self.assertEqual(damage, len(self.machine.damage))

    def test_a_lost_gpu_is_not_taken(self):
        self.unbind(_GPU, 'nvidia')
        self.machine.lose_gpu(_GPU)
        self.assert_errno(errno.ENODEV, self.bind, _GPU, 'nvidia')
        self.probe(_GPU)
        self.assertIsNone(self.driver(_GPU))

    def test_what_the_driver_keeps(self):
        for keeps in (True, False):
            self.machine.host = dataclasses.replace(
                self.machine.host, keeps_mig=keeps)
            pynvml.nvmlInit()
            self.create(self.at(_GPU), 19)
            pynvml.nvmlDeviceSetMigMode(self.at(_OTHER), 1)
            pynvml.nvmlShutdown()
            for gpu in (_GPU, _OTHER):
                self.unbind(gpu, 'nvidia')
                self.bind(gpu, 'nvidia')
            pynvml.nvmlInit()
            self.assertEqual(
                [13] if keeps else [], self.instances(self.at(_GPU), 19))
            self.assertEqual([1, 1],
                             pynvml.nvmlDeviceGetMigMode(self.at(_GPU)))
            self.assertEqual([keeps, keeps],
                             pynvml.nvmlDeviceGetMigMode(self.at(_OTHER)))
            pynvml.nvmlShutdown()
            self.machine.reboot()


class TestWholeGpus(DriversTestCase):
    """Guests that have a whole GPU, as libvirt starts and ends them."""

    def test_a_process_that_has_vfio_open(self):
        self.machine.open_vfio(_VFIO_GPU, 4711)
        self.assertEqual((4711,), self.machine.vfio_holders(_VFIO_GPU))
        self.machine.close_vfio(_VFIO_GPU, 4711)
        self.assertEqual((), self.machine.vfio_holders(_VFIO_GPU))
        self.assertRaises(exception.HostUnusable,
                          self.machine.open_vfio, _GPU, 4711)


class TestOtherFunctions(DriversTestCase):
    """A board with an audio function beside the GPU."""

    def setUp(self):
        super().setUp()
        host = files.load(self.host)
        sound = spec.Function(
            address=_SOUND, vendor='10de', device='1aef',
            class_code='040300', driver='snd_hda_intel', numa_node=0)
        self.use(machine_module.Machine(dataclasses.replace(
            host, functions=(*host.functions, sound))))
        pynvml.nvmlShutdown()
        self.machine.sriov_manage(_GPU, enable=False)

    def test_a_guest_needs_the_whole_group(self):
        error = self.assertRaises(OSError, self.machine.start_guest, _GPU)
        self.assertEqual(errno.EPERM, error.errno)
        self.unbind(_SOUND, 'snd_hda_intel')
        self.machine.start_guest(_GPU)


class TestKernelReset(DriversTestCase):
    """A write to ``reset`` asks neither the driver nor the guest."""

    def reset(self, address):
        self.sysfs.write('1', *_PCI, 'devices', address, 'reset')

    def mistakes(self):
        return [(item.address, item.mistake) for item in self.machine.damage]

    def test_under_the_driver_the_gpu_dies(self):
        pynvml.nvmlInit()
        device = self.at(_GPU)
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(
            device, pynvml.nvmlEventTypeXidCriticalError, events)
        self.reset(_GPU)
        self.assertEqual([(_GPU, 'reset under the driver nvidia')],
                         self.mistakes())
        self.assertEqual(79, pynvml.nvmlEventSetWait_v2(events, 0).eventData)
        lost = pynvml.NVML_ERROR_GPU_IS_LOST
        self.assert_code(lost, pynvml.nvmlDeviceGetName, device)
        self.assert_code(lost, self.at, _GPU)
        self.reset(_GPU)
        self.assert_code(lost, self.at, _GPU)

    def test_what_brings_a_dead_gpu_back(self):
        self.reset(_GPU)
        self.unbind(_GPU, 'nvidia')
        self.assert_errno(errno.ENODEV, self.bind, _GPU, 'nvidia')
        self.reset(_GPU)
        self.bind(_GPU, 'nvidia')
        pynvml.nvmlInit()
        self.at(_GPU)
        self.reset(_GPU)
        self.machine.reboot()
        pynvml.nvmlInit()
        self.at(_GPU)
