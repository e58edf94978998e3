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

"""What simulated GPUs do not support in monitoring."""

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

_GPU = '0000:07:00.0'
_NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


class TestTelemetry(base.MachineTestCase):

    host = 'dgx-a100-80'

    def field(self, number, scope=0, address=_GPU):
        return pynvml.nvmlDeviceGetFieldValues(
            self.at(address), [(number, scope)])[0]

    def test_no_utilization_in_mig_mode(self):
        self.assert_code(_NOT_SUPPORTED, pynvml.nvmlDeviceGetUtilizationRates,
                         self.at(_GPU))

    def test_no_remapped_rows_while_there_are_gpu_instances(self):
        number = pynvml.NVML_FI_DEV_REMAPPED_UNC
        self.machine.set_remapped_rows(_GPU, uncorrected=1)
        self.assertEqual((0, 1), (self.field(number).nvmlReturn,
                                  self.field(number).value.uiVal))
        self.create(self.at(_GPU), 19)
        self.assertEqual(_NOT_SUPPORTED, self.field(number).nvmlReturn)

    def test_no_ecc_errors_without_ecc(self):
        number = pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL
        self.assertEqual(0, self.field(number).nvmlReturn)
        self.machine.set_ecc_mode(_GPU, False)
        self.assertEqual(_NOT_SUPPORTED, self.field(number).nvmlReturn)

    def test_clocks(self):
        self.assertEqual(1593, pynvml.nvmlDeviceGetClockInfo(
            self.at(_GPU), pynvml.NVML_CLOCK_MEM))
        self.assert_code(_NOT_SUPPORTED, pynvml.nvmlDeviceGetClockInfo,
                         self.at(_GPU), pynvml.NVML_CLOCK_VIDEO)


class TestBlackwell(base.MachineTestCase):

    host = 'rtxpro6000x8'

    def test_fields_of_nvlink_need_nvlink(self):
        device = self.device()
        for number in (pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
                       pynvml.NVML_FI_DEV_NVLINK_GET_STATE,
                       pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC):
            (found,) = pynvml.nvmlDeviceGetFieldValues(device, [(number, 0)])
            self.assertEqual(_NOT_SUPPORTED, found.nvmlReturn)


class TestVgpu(base.MachineTestCase):

    host = 't4x4'

    def test_utilization_is_of_new_samples_only(self):
        device = self.device()
        self.assertEqual([], pynvml.nvmlDeviceGetVgpuUtilization(device, 0))
        address = self.machine.gpus[0].address
        self.sysfs.write(base.UUID, 'class', 'mdev_bus', address,
                         'mdev_supported_types', 'nvidia-230', 'create')
        self.machine.start_guest(base.UUID, '7')
        (sample,) = pynvml.nvmlDeviceGetVgpuUtilization(device, 0)
        self.assertGreater(sample.timeStamp, 0)
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND,
                         pynvml.nvmlDeviceGetVgpuUtilization, device,
                         sample.timeStamp + 3600 * 10**6)

    def test_the_kind_of_a_virtual_machines_id(self):
        address = self.machine.gpus[0].address
        self.sysfs.write(base.UUID, 'class', 'mdev_bus', address,
                         'mdev_supported_types', 'nvidia-230', 'create')
        self.machine.start_guest(base.UUID, '7')
        (vgpu,) = pynvml.nvmlDeviceGetActiveVgpus(self.device())
        self.assertEqual((b'7', pynvml.NVML_VGPU_VM_ID_DOMAIN_ID), tuple(
            item.encode() if isinstance(item, str) else item
            for item in pynvml.nvmlVgpuInstanceGetVmID(vgpu)))
