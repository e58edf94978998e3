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


"""What NVML reports about the live migration of vGPUs."""

import ctypes

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base


class MetadataTest(base.MachineTestCase):

    host = 'l40sx4'

    def address(self, index=0):
        return self.machine.gpus[index].address

    def caps(self):
        return pynvml.nvmlDeviceGetVgpuMetadata(
            self.device()).pgpuVirtualizationCaps

    def text(self, index=0):
        return pynvml.nvmlDeviceGetPgpuMetadataString(self.device(index))[0]

    def test_capability_is_bit_0(self):
        self.assertEqual(1, self.caps() & 1)
        self.machine.set_migration(self.address(), False)
        self.assertEqual(0, self.caps() & 1)

    def test_size_that_is_needed(self):
        function = pynvml._nvmlGetFunctionPointer(
            'nvmlDeviceGetVgpuMetadata')
        size = ctypes.c_uint(8)
        self.assertEqual(
            pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
            function(self.device(), None, ctypes.byref(size)))
        self.assertEqual(
            ctypes.sizeof(pynvml.c_nvmlVgpuPgpuMetadata_t), size.value)
        self.assertEqual(pynvml.NVML_ERROR_INVALID_ARGUMENT, function(
            self.device(), None, ctypes.byref(size)))

    def test_equal_boards_have_equal_strings(self):
        self.assertEqual(self.text(0), self.text(1))
        self.machine.set_ecc_mode(self.address(), False)
        self.assertNotEqual(self.text(0), self.text(1))

    def test_without_support_a_string_equals_no_other(self):
        for index in (0, 1):
            self.machine.set_migration(self.address(index), False)
        self.assertNotEqual(self.text(0), self.text(1))


class NoHostTest(base.MachineTestCase):

    host = 'wsl'

    def test_a_driver_without_vgpus(self):
        for name in ('nvmlDeviceGetVgpuMetadata',
                     'nvmlDeviceGetPgpuMetadataString'):
            self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                             getattr(pynvml, name), self.device())
