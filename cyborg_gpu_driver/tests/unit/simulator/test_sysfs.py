# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The simulated sysfs: what is where, and what is not a GPU."""

import errno
import os

from cyborg_gpu_driver.host import health
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.simulator import base

T4 = '0000:3b:00.0'
A100 = '0000:41:00.0'
H100 = '0000:81:00.0'
A40 = '0000:c1:00.0'
VF = '0000:41:00.4'
DEVICES = ('bus', 'pci', 'devices')


class TestFunctions(base.MachineTestCase):
    host = 'mixed'

    def read(self, address, name):
        return self.sysfs.read(*DEVICES, address, name)

    def test_identity(self):
        self.assertEqual(
            ['0x10de', '0x20b2', '0x030200', '0x10de', '0x147f', '0'],
            [self.read(A100, name) for name in
             ('vendor', 'device', 'class', 'subsystem_vendor',
              'subsystem_device', 'numa_node')])
        self.assertEqual('1', self.read(H100, 'numa_node'))

    def test_drivers(self):
        self.assertEqual(
            ['nvidia', 'nvidia', 'vfio-pci', 'mgag200'],
            [self.sysfs.link_name(*DEVICES, address, 'driver')
             for address in (A100, VF, A40, '0000:03:00.0')])
        self.assertIsNone(self.sysfs.link_name(*DEVICES, '0000:00:1f.0',
                                               'driver'))
        self.assertEqual([A40, 'bind', 'unbind'], self.sysfs.listdir(
            'bus', 'pci', 'drivers', 'vfio-pci'))
        self.assertIn(VF, self.sysfs.listdir('bus', 'pci', 'drivers',
                                             'nvidia'))

    def test_unbinding_shows(self):
        self.machine.bind_driver(H100, None)
        self.assertIsNone(self.sysfs.link_name(*DEVICES, H100, 'driver'))

    def test_virtual_functions(self):
        self.assertEqual('20', self.read(A100, 'sriov_totalvfs'))
        self.assertEqual('20', self.read(A100, 'sriov_numvfs'))
        self.assertEqual(VF, self.sysfs.link_name(*DEVICES, A100,
                                                  'virtfn0'))
        self.assertEqual('0000:41:02.7', self.sysfs.link_name(
            *DEVICES, A100, 'virtfn19'))
        self.assertEqual(A100, self.sysfs.link_name(*DEVICES, VF,
                                                    'physfn'))
        self.assertEqual('0x20b2', self.read(VF, 'device'))
        self.assertEqual('(null)', self.read(VF, 'driver_override'))
        self.assert_errno(errno.EOPNOTSUPP, self.sysfs.write, 'vfio-pci',
                          *DEVICES, VF, 'driver_override')
        self.assertFalse(self.sysfs.exists(*DEVICES, A100, 'virtfn20'))
        self.assertFalse(self.sysfs.exists(*DEVICES, A100, 'physfn'))

    def test_no_sriov_on_turing(self):
        self.assertFalse(self.sysfs.exists(*DEVICES, T4, 'sriov_numvfs'))

    def test_numvfs_is_not_for_writing(self):
        self.assert_errno(errno.ENOENT, self.sysfs.write, '4', *DEVICES,
                          H100, 'sriov_numvfs')
        self.assertEqual('0', self.read(H100, 'sriov_numvfs'))

    def test_sriov_manage(self):
        self.machine.sriov_manage(H100)
        self.assertEqual('20', self.read(H100, 'sriov_numvfs'))
        self.assertIn('0000:81:00.4', self.sysfs.listdir(*DEVICES))
        self.machine.sriov_manage(H100, enable=False)
        self.assertNotIn('0000:81:00.4', self.sysfs.listdir(*DEVICES))
        self.assertFalse(self.sysfs.exists(*DEVICES, H100, 'virtfn0'))

    def test_sriov_manage_refuses(self):
        self.machine.add_process(H100, 1)
        error = self.assertRaises(OSError, self.machine.sriov_manage, H100)
        self.assertEqual(errno.EBUSY, error.errno)
        for address in (T4, A40):
            error = self.assertRaises(OSError, self.machine.sriov_manage,
                                      address)
            self.assertEqual(errno.ENODEV, error.errno)
        self.machine.remove_process(1)
        self.machine.sriov_manage('ALL')
        self.assertEqual('20', self.read(H100, 'sriov_numvfs'))

    def test_sriov_manage_fails_now_and_then(self):
        self.machine.faults.fail('sriov-manage', errno.EAGAIN, times=2)
        for _ in range(2):
            error = self.assertRaises(OSError, self.machine.sriov_manage,
                                      H100)
            self.assertEqual(errno.EAGAIN, error.errno)
        self.machine.sriov_manage(H100)

    def test_reset_file(self):
        self.assert_errno(errno.EINVAL, self.sysfs.write, 'x', *DEVICES,
                          A40, 'reset')
        self.sysfs.write('1', *DEVICES, A40, 'reset')
        self.assertEqual('flr bus', self.read(A40, 'reset_method'))
        self.machine.lose_gpu(A40)
        self.assert_errno(errno.ENOTTY, self.sysfs.write, '1', *DEVICES,
                          A40, 'reset')

    def test_configuration_space(self):
        place = (*DEVICES, A40, 'config')
        self.assertEqual(bytes.fromhex('de103522'),
                         self.sysfs.read_bytes(*place)[:4])
        self.machine.lose_gpu(A40)
        self.assertEqual({0xff}, set(self.sysfs.read_bytes(*place)))

    def test_errors_of_the_link(self):
        self.machine.count_link_errors(A40, correctable=2, fatal=1)
        self.machine.count_link_errors(A40, correctable=1)
        for name, total in (('correctable', 'COR 3'),
                            ('nonfatal', 'NONFATAL 0'),
                            ('fatal', 'FATAL 1')):
            self.assertEqual(f'TOTAL_ERR_{total}', self.read(
                A40, f'aer_dev_{name}').splitlines()[-1])
        self.machine.reboot()
        self.assertIn('TOTAL_ERR_COR 0', self.read(
            A40, 'aer_dev_correctable'))

    def test_link(self):
        self.machine.set_lanes(A40, 8)
        self.assertEqual(
            ['16', '8', '16.0 GT/s PCIe', '16.0 GT/s PCIe'],
            [self.read(A40, name) for name in (
                'max_link_width', 'current_link_width', 'max_link_speed',
                'current_link_speed')])
        self.machine.lose_gpu(A40)
        self.assertEqual(['63', 'Unknown'], [self.read(A40, name) for name in (
            'current_link_width', 'current_link_speed')])

    def test_health_of_a_gpu_that_nvml_cannot_see(self):
        address = model.PciAddress.parse(A40)
        before = health.read_pci(self.sysfs, address)
        self.assertEqual(health.Seen(True, 0, 16), before)
        self.machine.set_lanes(A40, 4)
        self.machine.count_link_errors(A40, fatal=1)
        self.assertEqual(2, len(health.wrong_pci(
            before, health.read_pci(self.sysfs, address))))
        self.machine.lose_gpu(A40)
        self.assertFalse(health.read_pci(self.sysfs, address).reachable)

    def test_iommu_groups(self):
        groups = {address: self.sysfs.link_name(*DEVICES, address,
                                                'iommu_group')
                  for address in self.sysfs.listdir(*DEVICES)}
        self.assertEqual(len(groups), len(set(groups.values())))
        self.assertEqual([VF], self.sysfs.listdir(
            'kernel', 'iommu_groups', groups[VF], 'devices'))

    def test_other_functions_are_there(self):
        classes = {self.read(address, 'class') + self.read(
            address, 'vendor') for address in self.sysfs.listdir(*DEVICES)}
        self.assertIn('0x0200000x8086', classes)
        self.assertIn('0x0300000x102b', classes)

    def test_switches_are_there(self):
        self.use(machine_module.Machine.load('dgx-a100-80'))
        switches = [address for address in self.sysfs.listdir(*DEVICES)
                    if self.read(address, 'vendor') == '0x10de'
                    and self.read(address, 'class') == '0x068000']
        self.assertEqual(6, len(switches))

    def test_module_version(self):
        self.assertEqual('550.144.02', self.sysfs.read('module', 'nvidia',
                                                       'version'))


class TestSystemCalls(base.MachineTestCase):
    host = 'mixed'

    def setUp(self):
        super().setUp()
        self.os = self.machine.os
        self.device = f'/sys/bus/pci/devices/{A100}'

    def assert_refused(self, code, function, *args):
        error = self.assertRaises(OSError, function, *args)
        self.assertEqual(code, error.errno)

    def test_no_such_path(self):
        for path in ('/sys/nothing', '/etc/passwd',
                     self.device + '/nothing', '/sys/bus/mdev/devices/x'):
            self.assert_refused(errno.ENOENT, self.os.stat, path)
        self.assert_refused(errno.ENOTDIR, self.os.stat,
                            self.device + '/vendor/more')

    def test_a_file_keeps_its_place_while_read(self):
        descriptor = self.os.open(self.device + '/vendor', os.O_RDONLY)
        self.assertEqual(b'0x', self.os.read(descriptor, 2))
        self.assertEqual(b'10de\n', self.os.read(descriptor, 100))
        self.assertEqual(b'', self.os.read(descriptor, 100))
        self.os.close(descriptor)
        self.assert_refused(errno.EBADF, self.os.read, descriptor, 1)
        self.assert_refused(errno.EBADF, self.os.close, descriptor)

    def test_permissions(self):
        self.assert_refused(errno.EACCES, self.os.open,
                            self.device + '/vendor', os.O_WRONLY)
        self.assert_refused(errno.EACCES, self.os.open,
                            self.device + '/reset', os.O_RDONLY)
        self.assert_refused(errno.EISDIR, self.os.open, self.device,
                            os.O_WRONLY)
        self.assertEqual(0o100200, self.os.stat(
            self.device + '/reset').st_mode)

    def test_links_lead_to_the_device(self):
        place = f'/sys/devices/pci0000:00/{A100}'
        self.assertEqual(place, self.os.realpath(self.device))
        self.assertEqual(
            place, os.path.normpath(os.path.join(
                '/sys/bus/pci/devices', self.os.readlink(self.device))))
        self.assertEqual('/sys/bus/pci/drivers/nvidia', self.os.realpath(
            self.device + '/virtfn0/driver'))
        self.assert_refused(errno.EINVAL, self.os.readlink,
                            self.device + '/vendor')

    def test_a_file_of_a_device_that_went_away(self):
        descriptor = self.os.open(f'/sys/bus/pci/devices/{VF}/vendor',
                                  os.O_RDONLY)
        self.machine.sriov_manage(A100, enable=False)
        self.assert_refused(errno.ENODEV, self.os.read, descriptor, 10)


class TestFaults(base.MachineTestCase):
    host = 'mixed'

    def test_reads_fail_where_asked(self):
        self.machine.faults.fail_read('*/0000:41:00.0/numa_node',
                                      errno.EIO)
        self.assertEqual('0', self.sysfs.read(*DEVICES, T4, 'numa_node'))
        self.assert_errno(errno.EIO, self.sysfs.read, *DEVICES, A100,
                          'numa_node')
        self.assertEqual('0', self.sysfs.read(*DEVICES, A100, 'numa_node'))

    def test_writes_fail_before_or_after(self):
        create = self.mdev_type(T4, 231)
        self.machine.faults.fail_write('*/create', errno.EIO)
        self.assert_errno(errno.EIO, self.create_mdev, T4, 231)
        self.assertEqual([], self.sysfs.listdir('bus', 'mdev', 'devices'))
        self.machine.faults.fail_write('*/create', errno.EIO, after=True)
        self.assert_errno(errno.EIO, self.create_mdev, T4, 231)
        self.assertEqual([base.UUID], self.sysfs.listdir(*create,
                                                         'devices'))
        self.create_mdev(T4, 231, base.OTHER_UUID)
