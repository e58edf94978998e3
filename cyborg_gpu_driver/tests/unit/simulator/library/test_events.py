# SPDX-License-Identifier: Apache-2.0


"""NVML's event sets, waited on through pynvml."""

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

A100 = '0000:07:00.0'
OTHER = '0000:0f:00.0'
XID = pynvml.nvmlEventTypeXidCriticalError
DBE = pynvml.nvmlEventTypeDoubleBitEccError


class TestEvents(base.MachineTestCase):

    def setUp(self):
        super().setUp()
        self.machine.sriov_manage(A100, enable=False)
        self.set = pynvml.nvmlEventSetCreate()

    def register(self, address=A100, types=XID | DBE):
        pynvml.nvmlDeviceRegisterEvents(self.at(address), types, self.set)

    def wait(self, milliseconds=0):
        return pynvml.nvmlEventSetWait_v2(self.set, milliseconds)

    def assert_nothing(self):
        self.assert_code(pynvml.NVML_ERROR_TIMEOUT, self.wait)

    def test_nothing_comes_after_a_reset(self):
        self.register()
        self.machine.reset_gpu(A100)
        self.machine.raise_xid(A100, 62)
        self.assert_nothing()
        self.register()
        self.machine.raise_xid(A100, 62)
        self.assertEqual(62, self.wait().eventData)

    def test_a_lost_gpu_tells_of_it_and_spoils_the_set(self):
        self.register()
        self.register(OTHER)
        self.machine.lose_gpu(A100)
        self.assertEqual(79, self.wait().eventData)
        self.assert_code(pynvml.NVML_ERROR_GPU_IS_LOST, self.wait)
        self.machine.raise_xid(OTHER, 62)
        self.assertEqual(62, self.wait().eventData)
