# SPDX-License-Identifier: Apache-2.0


"""Which handles are virtual functions, according to a simulated sysfs."""

from __future__ import annotations

import errno
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.nova import handles
from cyborg_gpu_driver.simulator.machine import machine as simulator

FUNCTION = '0000:16:00.4'


def request(function=FUNCTION, asked_type='nvidia-1155',
            attach_type='MDEV', **more):
    """A bound accelerator request."""
    domain, bus, rest = function.split(':')
    device, number = rest.split('.')
    return {'uuid': 'arq', 'attach_handle_type': attach_type,
            'attach_handle_info': {
                'domain': domain, 'bus': bus, 'device': device,
                'function': number, 'asked_type': asked_type, **more}}


class FunctionTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.machine = simulator.Machine.load('l40sx4')
        self.sysfs = pci.Sysfs('/sys', os_module=self.machine.os)
        self.reader = handles.HandleReader(self.sysfs)
        self.type_id = next(
            kind.type_id for kind in self.machine.gpus[0].model.vgpu_types
            if kind.name == 'L40S-12Q')
        self.sysfs.write(str(self.type_id), 'bus', 'pci', 'devices',
                         FUNCTION, 'nvidia', 'current_vgpu_type')

    def test_function_with_the_vgpu_that_was_asked_for(self):
        found = self.reader.function(
            request(asked_type=f'nvidia-{self.type_id}'))
        self.assertEqual(FUNCTION, str(found))

    def test_another_vgpu_is_refused(self):
        for function, asked in ((FUNCTION, 'nvidia-1'),
                                ('0000:16:00.5', f'nvidia-{self.type_id}'),
                                (FUNCTION, f'nvidia-{self.type_id}0')):
            error = self.assertRaises(
                exception.BindRefused, self.reader.function,
                request(function, asked))
            self.assertIn(function, str(error))
            self.assertIn('arq', str(error))

    def test_what_is_no_type_is_refused(self):
        for function in (FUNCTION, '0000:16:00.5'):
            for asked in (None, '', 'nvidia-', 'nvidia-0', '0',
                          f'nvidia-{self.type_id}\n', 'nvidia-\u0661',
                          str(self.type_id), 'nvidia-../x', 7):
                self.assertRaises(exception.BindRefused,
                                  self.reader.function,
                                  request(function, asked))

    def test_other_handles_are_novas(self):
        for other in (request(attach_type='PCI'),
                      request(attach_type='TEST_PCI'),
                      request('0000:16:00.0'),
                      {'uuid': 'x', 'attach_handle_type': 'MDEV'},
                      {'uuid': 'x', 'attach_handle_type': 'MDEV',
                       'attach_handle_info': 'x'}):
            self.assertIsNone(self.reader.function(other))

    def test_mdev_types_count_before_the_file(self):
        root = self.useFixture(fixtures.TempDir()).path
        place = f'{root}/bus/pci/devices/{FUNCTION}'
        os.makedirs(f'{place}/nvidia')
        with open(f'{place}/nvidia/current_vgpu_type', 'w') as stream:
            stream.write('1155\n')
        reader = handles.HandleReader(pci.Sysfs(root))
        self.assertEqual(FUNCTION, str(reader.function(request())))
        os.mkdir(f'{place}/mdev_supported_types')
        self.assertIsNone(reader.function(request()))

    def test_file_that_cannot_be_read_is_refused(self):
        self.machine.faults.fail_read('*/current_vgpu_type', errno.EACCES)
        self.assertRaises(exception.BindRefused, self.reader.function,
                          request(asked_type=f'nvidia-{self.type_id}'))


class GroupTest(base.BaseTestCase):
    """Handles of groups of GPUs."""

    GPUS = ('0000:16:00.0', '0000:38:00.0')

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('l40sx4')
        self.assertLessEqual(set(self.GPUS),
                             {gpu.address for gpu in machine.gpus})
        self.reader = handles.HandleReader(
            pci.Sysfs('/sys', os_module=machine.os))

    def group(self, addresses, asked_type='nvlink-2', **more):
        return self.reader.group(request(
            self.GPUS[0], asked_type, addresses=addresses, **more))

    def test_all_gpus_in_their_order(self):
        for text in (' '.join(self.GPUS), '0000:16:00.0 38:00.0'):
            self.assertEqual(self.GPUS, tuple(map(str, self.group(text))))
        self.assertEqual(self.GPUS[:1], tuple(map(str, self.group(
            self.GPUS[0], 'nvlink-1'))))

    def test_other_handles_are_not_groups(self):
        for other in (request(), request(attach_type='PCI'),
                      request(asked_type=None), request(asked_type='nvlink-'),
                      {'uuid': 'x', 'attach_handle_type': 'MDEV'}):
            self.assertIsNone(self.reader.group(other))

    def test_what_is_no_gpu_of_the_host_is_refused(self):
        for addresses in (
                '0000:16:00.0 0000:99:00.0', '0000:16:00.0 0000:16:00.4',
                '0000:16:00.0', '0000:16:00.0 0000:16:00.0',
                '0000:38:00.0 0000:16:00.0', '', None, ['0000:16:00.0'],
                '0000:16:00.0  0000:38:00.0', '0000:16:00.0 ../../x',
                '0000:16:00.0 0000:38:00.0 0000:5a:00.0'):
            self.assertRaises(exception.BindRefused, self.group, addresses)
        self.assertRaises(exception.BindRefused, self.group,
                          ' '.join(self.GPUS), bus='zz')
