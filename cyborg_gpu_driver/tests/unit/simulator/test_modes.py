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

"""ECC and confidential-computing modes, through pynvml."""

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
        self.assertEqual([1], pynvml.nvmlDeviceGetDefaultEccMode(
            self.device()))

    def test_it_needs_root(self):
        self.machine.privileged = False
        self.assert_code(pynvml.NVML_ERROR_NO_PERMISSION,
                         pynvml.nvmlDeviceSetEccMode, self.device(), 0)

    def test_what_is_no_mode(self):
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceSetEccMode, self.device(), 2)

    def test_no_confidential_computing_before_hopper(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                         pynvml.nvmlSystemGetConfComputeState)


class ConfidentialComputingTest(base.MachineTestCase):

    host = 'hgx-h100'

    def test_modes(self):
        for mode, found in (('', (0, 0)), ('on', (1, 0)),
                            ('devtools', (0, 1))):
            self.machine.set_confidential_computing(mode)
            state = pynvml.nvmlSystemGetConfComputeState()
            self.assertEqual(found, (state.ccFeature, state.devToolsMode))
