# SPDX-License-Identifier: Apache-2.0


"""What simulated GPUs report about their health."""

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

A100 = '0000:07:00.0'
RECOVERY = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


class TestHealth(base.MachineTestCase):

    def setUp(self):
        super().setUp()
        self.machine.sriov_manage(A100, enable=False)

    def uncorrected(self, counter=pynvml.NVML_VOLATILE_ECC):
        return pynvml.nvmlDeviceGetTotalEccErrors(
            self.at(A100), pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            counter)

    def recovery(self):
        return pynvml.nvmlDeviceGetFieldValues(self.at(A100), [RECOVERY])[0]

    def test_a_reset_heals_what_it_can(self):
        self.machine.set_health(A100, uncorrected=2, recovery=1)
        self.machine.set_remapped_rows(A100, 0, 1, pending=True, failed=True)
        self.assertEqual(2, self.uncorrected())
        self.assertEqual(1, self.uncorrected(pynvml.NVML_AGGREGATE_ECC))
        self.assertEqual((0, 1), (self.recovery().nvmlReturn,
                                  self.recovery().value.uiVal))
        self.machine.reset_gpu(A100)
        self.assertEqual(0, self.uncorrected())
        self.assertEqual(1, self.uncorrected(pynvml.NVML_AGGREGATE_ECC))
        self.assertEqual((0, 1, 0, 1), pynvml.nvmlDeviceGetRemappedRows(
            self.at(A100)))
        self.assertEqual(0, self.recovery().value.uiVal)
