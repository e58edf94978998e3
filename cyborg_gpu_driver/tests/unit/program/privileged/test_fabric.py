# SPDX-License-Identifier: Apache-2.0

"""What the privileged calls to the fabric manager refuse."""

import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import fabric
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator import platform as simulated
from cyborg_gpu_driver.tests.unit.program import machines

_FUNCTION = '0000:18:00.4'


class FabricTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.machine = machines.load('hgx-h100-vfio')
        platform = simulated.open_platform(self.machine)
        self.addCleanup(self.machine.uninstall)
        self.addCleanup(setattr, privileged, '_platform', None)
        privileged.run_here(platform)

    def test_arguments_are_checked(self):
        for number in (-1, True, '8', 1 << 31, None):
            for call in (lambda number: fabric.activate(number, _FUNCTION),
                         fabric.deactivate, fabric.activate,
                         lambda number: fabric.give_list([number])):
                self.assertRaises(exception.InvalidValue, call, number)
        for function in ('../0000:18:00.4', '', '0000:17:00.9'):
            self.assertRaises(exception.InvalidValue, fabric.activate,
                              8, function)
            self.assertRaises(exception.InvalidValue,
                              fabric.own_partition, function)
        self.assertRaises(exception.UnknownGpu, fabric.activate, 8,
                          '0000:00:1f.0')
        self.assertEqual(0, self.machine.calls['fmConnect'])

    def test_what_is_not_active_is_not_deactivated(self):
        self.assertIsNone(fabric.deactivate(8))
        self.assertIsNone(fabric.deactivate(99))
        self.assertEqual(
            0, self.machine.calls['fmDeactivateFabricPartition'])

    def test_a_gpu_whose_links_cannot_be_read(self):
        """CUDA would not start in a guest that gets no partition."""
        self.machine.faults.fail('nvmlDeviceGetNvLinkRemoteDeviceType',
                                 pynvml.NVML_ERROR_UNKNOWN)
        error = self.assertRaises(exception.NvmlError, fabric.own_partition,
                                  '0000:18:00.0')
        self.assertEqual('UNKNOWN', error.symbol)
        self.assertIsNotNone(fabric.own_partition('0000:18:00.0'))

    def test_a_gpu_without_a_partition(self):
        with self.machine.operation(write=True):
            self.machine.state.fabric.excluded = ['0000:18:00.0']
        error = self.assertRaises(exception.StepFailed,
                                  fabric.own_partition, '0000:18:00.0')
        self.assertIn('no partition', str(error))
