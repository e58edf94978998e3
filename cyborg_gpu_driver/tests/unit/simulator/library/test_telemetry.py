# SPDX-License-Identifier: Apache-2.0

"""How busy simulated GPUs and GPU instances are (GPM)."""

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base


class TestGpm(base.MachineTestCase):

    host = 'hgx-h100'

    def measured(self, *samples):
        wanted = pynvml.c_nvmlGpmMetricsGet_t()
        wanted.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = 1
        wanted.sample1, wanted.sample2 = samples
        wanted.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        pynvml.nvmlGpmMetricsGet(wanted)
        return wanted.metrics[0].value

    def test_an_instance_is_measured_between_two_samples(self):
        address = self.machine.gpus[0].address
        self.machine.sriov_manage(address, enable=False)
        device = self.device()
        pynvml.nvmlDeviceSetMigMode(device, 1)
        first, second = (
            self.create(device, 19)[0] for _ in range(2))
        one, two, three = (pynvml.nvmlGpmSampleAlloc() for _ in range(3))
        pynvml.nvmlGpmMigSampleGet(device, first, one)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.measured,
                         one, two)
        self.machine.work_instance(address, first, (90, 80, 0, 0))
        pynvml.nvmlGpmMigSampleGet(device, first, two)
        self.assertEqual(80, self.measured(one, two))
        pynvml.nvmlGpmMigSampleGet(device, second, three)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.measured,
                         one, three)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpmMigSampleGet, device, 99, one)
        pynvml.nvmlGpmSampleFree(one)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpmSampleFree, one)
