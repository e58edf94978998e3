# SPDX-License-Identifier: Apache-2.0

"""The simulated sysfs: what is where, and what is not a GPU."""

import errno
import os

from cyborg_gpu_driver.host import health
from cyborg_gpu_driver.host.snapshot import model
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

    def test_numvfs_is_not_for_writing(self):
        self.assert_errno(errno.ENOENT, self.sysfs.write, '4', *DEVICES,
                          H100, 'sriov_numvfs')
        self.assertEqual('0', self.read(H100, 'sriov_numvfs'))

    def test_sriov_manage_refuses(self):
        self.machine.add_process(H100, 1)
        for address, code in ((H100, errno.EBUSY), (T4, errno.ENODEV),
                              (A40, errno.ENODEV)):
            error = self.assertRaises(OSError, self.machine.sriov_manage,
                                      address)
            self.assertEqual(code, error.errno, address)
        self.machine.remove_process(1)
        self.machine.sriov_manage('ALL')
        self.assertEqual('20', self.read(H100, 'sriov_numvfs'))

    def test_reset_file(self):
        place = (*DEVICES, A40, 'reset')
        self.assert_errno(errno.EINVAL, self.sysfs.write, 'x', *place)
        self.sysfs.write('1', *place)
        self.machine.lose_gpu(A40)
        self.assert_errno(errno.ENOTTY, self.sysfs.write, '1', *place)

    def test_link_and_health_of_a_gpu_that_nvml_cannot_see(self):
        address = model.PciAddress.parse(A40)
        before = health.Seen(True, 0, 16)
        for change, seen, wrong in (
                ({}, before, 0),
                ({'lanes': 4}, health.Seen(True, 0, 4), 1),
                ({'aer': 1}, health.Seen(True, 1, 4), 2),
                ({'lost': True}, health.Seen(False, 1, 63), 2)):
            self.machine.change_gpu(A40, **change)
            found = health.read_pci(self.sysfs, address)
            self.assertEqual(seen, found)
            self.assertEqual(wrong, len(health.wrong_pci(before, found)))
        self.assertEqual({0xff}, set(self.sysfs.read_bytes(
            *DEVICES, A40, 'config')))


class TestSystemCalls(base.MachineTestCase):
    host = 'mixed'

    def setUp(self):
        super().setUp()
        self.os = self.machine.os
        self.device = f'/sys/bus/pci/devices/{A100}'

    def assert_refused(self, code, function, *args):
        error = self.assertRaises(OSError, function, *args)
        self.assertEqual(code, error.errno)

    def test_descriptors(self):
        descriptor = self.os.open(self.device + '/vendor', os.O_RDONLY)
        self.assertEqual(b'0x10de\n', self.os.read(descriptor, 100))
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

    def test_links_lead_to_the_device(self):
        self.assertEqual(
            f'/sys/devices/pci0000:00/{A100}', os.path.normpath(os.path.join(
                '/sys/bus/pci/devices', self.os.readlink(self.device))))
        self.os.stat(self.device + '/virtfn0/driver/bind')
        self.assert_refused(errno.EINVAL, self.os.readlink,
                            self.device + '/vendor')

    def test_a_file_of_a_device_that_went_away(self):
        descriptor = self.os.open(f'/sys/bus/pci/devices/{VF}/vendor',
                                  os.O_RDONLY)
        self.machine.sriov_manage(A100, enable=False)
        self.assert_refused(errno.ENODEV, self.os.read, descriptor, 10)
