# SPDX-License-Identifier: Apache-2.0

"""Modes of a GPU (ECC, confidential computing, persistence) and its fabric."""


import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base


class EccTest(base.MachineTestCase):

    host = 't4x4'

    def modes(self):
        return pynvml.nvmlDeviceGetEccMode(self.device())

    def test_it_waits_for_a_restart(self):
        self.assertEqual([1, 1], self.modes())
        pynvml.nvmlDeviceSetEccMode(self.device(), 0)
        self.assertEqual([1, 0], self.modes())
        self.machine.reboot()
        pynvml.nvmlInit()
        self.assertEqual([0, 0], self.modes())
        self.assert_code(
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.nvmlDeviceGetTotalEccErrors, self.device(), 1, 0)

    def test_no_confidential_computing_before_hopper(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                         pynvml.nvmlSystemGetConfComputeState)


class PersistenceTest(base.MachineTestCase):
    def mode(self):
        return pynvml.nvmlDeviceGetPersistenceMode(self.device())

    def test_nvml_does_not_reach_the_daemon(self):
        self.machine.start_persistenced()
        pynvml.nvmlDeviceSetPersistenceMode(self.device(), 0)
        self.assertEqual(1, self.mode())
        self.machine.stop_persistenced()
        self.assertEqual(0, self.mode())
