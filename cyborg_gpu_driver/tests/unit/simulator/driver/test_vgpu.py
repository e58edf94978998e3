# SPDX-License-Identifier: Apache-2.0

"""vGPUs of all three kinds, through sysfs and NVML."""

import errno

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.simulator import base

DEVICES = ('bus', 'pci', 'devices')


class TestMdevOnTheGpu(base.MachineTestCase):
    """Turing: types on the physical function."""

    host = 't4x4'
    gpu = '0000:3b:00.0'

    def test_the_first_excludes_the_other_types(self):
        self.create_mdev(self.gpu, 231)
        self.assertEqual(7, self.available(self.gpu, 231))
        self.assertEqual(0, self.available(self.gpu, 226))
        self.assertEqual(0, self.available(self.gpu, 230))
        self.assertEqual(8, self.available('0000:5e:00.0', 226))
        self.remove_mdev()
        self.assertEqual(8, self.available(self.gpu, 226))

    def test_uuids(self):
        for uuid in ('', 'x', base.UUID[:-1], base.UUID + '0',
                     base.UUID.replace('-', ''), base.UUID + '\n\n'):
            self.assert_errno(errno.EINVAL, self.create_mdev, self.gpu, 231,
                              uuid)
        self.create_mdev(self.gpu, 231, base.UUID.upper() + '\n')
        self.assertEqual([base.UUID], self.sysfs.listdir('bus', 'mdev',
                                                         'devices'))
        self.assert_errno(errno.EEXIST, self.create_mdev, self.gpu, 231)
        self.assert_errno(errno.EEXIST, self.create_mdev, '0000:5e:00.0',
                          231)

    def test_a_removal_waits_for_the_guest(self):
        self.create_mdev(self.gpu, 231)
        self.machine.start_guest(base.UUID)
        self.machine.pause = lambda seconds: self.machine.stop_guest(
            base.UUID)
        self.remove_mdev()
        self.assertFalse(self.sysfs.exists('bus', 'mdev', 'devices',
                                           base.UUID))
        (damage,) = self.machine.damage
        self.assertEqual((self.gpu, f'mdev {base.UUID} removed while a '
                          'process has it open'),
                         (damage.address, damage.mistake))


class TestMdevOnVirtualFunctions(base.MachineTestCase):
    """Ampere in MIG mode: a vGPU needs an instance behind it."""

    host = 'dgx-a100-40'
    vf = '0000:07:00.4'
    other_vf = '0000:07:00.5'

    def test_available_only_with_an_instance(self):
        self.assertEqual(0, self.available(self.vf, 463))
        self.assert_errno(errno.ENOSPC, self.create_mdev, self.vf, 463)
        self.create(self.device(), 19)
        self.assertEqual(1, self.available(self.vf, 463))
        self.assertEqual(0, self.available(self.vf, 464))
        self.assertEqual(0, self.available('0000:0f:00.4', 463))

    def test_one_vgpu_a_function_and_one_an_instance(self):
        device = self.device()
        self.create(device, 19)
        self.create(device, 19)
        self.create_mdev(self.vf, 463)
        self.assertEqual(0, self.available(self.vf, 463))
        self.assertEqual(1, self.available(self.other_vf, 463))
        self.assert_errno(errno.ENOSPC, self.create_mdev, self.vf, 463,
                          base.OTHER_UUID)
        self.create_mdev(self.other_vf, 463, base.OTHER_UUID)
        self.assertEqual(0, self.available('0000:07:00.6', 463))


class TestVendorVfio(base.MachineTestCase):
    """Ada: files of the vendor's VFIO driver instead of mdevs."""

    host = 'l40sx4'
    gpu = '0000:16:00.0'
    vf = '0000:16:00.4'
    other_vf = '0000:16:00.5'

    def read(self, address, name):
        return self.sysfs.read(*DEVICES, address, 'nvidia', name)

    def set_type(self, address, value):
        self.sysfs.write(str(value), *DEVICES, address, 'nvidia',
                         'current_vgpu_type')

    def creatable(self, address):
        header, *lines = self.read(address,
                                   'creatable_vgpu_types').split('\n')
        self.assertEqual('ID    : vGPU Name', header)
        return [tuple(part.strip() for part in line.split(':'))
                for line in lines]

    def test_siblings_change(self):
        before = dict(self.creatable(self.other_vf))
        self.set_type(self.vf, 1145)
        after = dict(self.creatable(self.other_vf))
        self.assertLess(set(after), set(before))
        self.assertEqual({'L40S-1B', 'L40S-1A', 'L40S-1Q'},
                         {name.split()[-1] for name in after.values()})
        big = next(number for number, name in before.items()
                   if name.endswith('L40S-48Q'))
        self.assert_errno(errno.EIO, self.set_type, self.other_vf, big)

    def make(self):
        """Make a vGPU on the first virtual function."""
        self.set_type(self.vf, 1145)

    def test_an_open_device_keeps_its_vgpu(self):
        self.make()
        self.assertEqual((), self.machine.vfio_holders(self.vf))
        self.machine.open_vfio(self.vf, 7)
        pid = self.machine.start_guest(self.vf)
        self.assertEqual(pid, self.machine.start_guest(self.vf))
        self.assertEqual((7, pid), self.machine.vfio_holders(self.vf))
        self.assertEqual((), self.machine.vfio_holders(self.other_vf))
        self.machine.stop_guest(self.vf)
        self.assertEqual([], pynvml.nvmlDeviceGetActiveVgpus(self.device()))
        self.assert_errno(errno.EBUSY, self.set_type, self.vf, 0)
        self.machine.close_vfio(self.vf, 7)
        self.set_type(self.vf, 0)
        self.assertRaises(exception.HostUnusable,
                          self.machine.start_guest, self.vf)

    def test_refusals(self):
        for value in ('', 'x', '-1', '99999'):
            self.assert_errno(errno.EINVAL, self.set_type, self.vf, value)
        self.set_type(self.vf, 1145)
        self.assert_errno(errno.EBUSY, self.set_type, self.vf, 1145)
        self.machine.start_guest(self.vf)
        self.assert_errno(errno.EBUSY, self.set_type, self.vf, 0)
        self.machine.stop_guest(self.vf)
        self.set_type(self.vf, 0)


class TestVendorVfioWithMig(TestVendorVfio):
    """Blackwell: several vGPUs of one size in a +gfx instance."""

    host = 'rtxpro6000x8'
    q3, q6, plain = 1461, 1463, 14

    def setUp(self):
        super().setUp()
        kinds = {kind.name: kind.type_id for kind in
                 self.machine.gpus[0].model.vgpu_types}
        self.q3, self.a3 = kinds['DC-1-3Q'], kinds['DC-1-3A']
        self.q6, self.sliced = kinds['DC-1-6Q'], kinds['DC-24Q']

    def make(self):
        self.create(self.device(), 47)
        self.set_type(self.vf, self.q3)

    def test_siblings_change(self):
        self.create(self.device(), 47)
        self.set_type(self.vf, self.q3)
        self.assert_errno(errno.EIO, self.set_type, self.other_vf, self.q6)
        # A type of another series and the same size fits beside it.
        self.set_type(self.other_vf, self.a3)
        self.assertEqual('1', self.read(self.other_vf, 'placement_id'))

    def test_refusals(self):
        self.assert_errno(errno.EIO, self.set_type, self.vf, self.q3)
        self.create(self.device(), self.plain)
        self.assert_errno(errno.EIO, self.set_type, self.vf, self.q3)
        self.assert_errno(errno.EIO, self.set_type, self.vf, self.sliced)

    def test_as_many_as_an_instance_holds(self):
        self.create(self.device(), 47)
        functions = self.machine.gpus[0].vfs()
        for function in functions[:8]:
            self.set_type(function, self.q3)
        self.assert_errno(errno.EIO, self.set_type, functions[8], self.q3)
        self.create(self.device(), 47)
        self.set_type(functions[8], self.q3)


class TestTypesInNvml(base.MachineTestCase):

    def test_a_driver_without_vgpus(self):
        with machine_module.Machine.load('mixed'):
            pynvml.nvmlInit()
            device = self.at('0000:81:00.0')
            self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                             pynvml.nvmlDeviceGetSupportedVgpus, device)
            self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                             pynvml.nvmlVgpuTypeGetMaxInstances, device,
                             231)
