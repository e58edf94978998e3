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

"""Modes of a GPU (ECC, confidential computing, persistence) and its fabric."""

import ctypes

import pynvml

from cyborg_gpu_driver.simulator.machine import machine as machine_module
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


class PersistenceTest(base.MachineTestCase):
    def mode(self):
        return pynvml.nvmlDeviceGetPersistenceMode(self.device())

    def test_nvml_does_not_reach_the_daemon(self):
        self.machine.start_persistenced()
        pynvml.nvmlDeviceSetPersistenceMode(self.device(), 0)
        self.assertEqual(1, self.mode())
        self.machine.stop_persistenced()
        self.assertEqual(0, self.mode())

    def test_it_is_on_until_it_is_turned_off(self):
        device = self.device()
        for mode in (1, 0):
            pynvml.nvmlDeviceSetPersistenceMode(device, mode)
            self.assertEqual(mode, self.mode())
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceSetPersistenceMode, device, 2)


class FabricTest(base.MachineTestCase):
    def state(self, host, kind=pynvml.c_nvmlGpuFabricInfo_v3_t):
        """Return the fabric state and health summary of a host's first GPU."""
        if self.machine.host.name != host:
            self.use(machine_module.Machine.load(host))
        info = kind()
        pynvml.nvmlDeviceGetGpuFabricInfoV(self.device(),
                                           ctypes.byref(info))
        return info.state, getattr(info, 'healthSummary', None)

    def test_registered_with_the_fabric_manager(self):
        self.assertEqual((3, 1), self.state('hgx-h100'))
        self.assertEqual((3, None), self.state(
            'hgx-h100', pynvml.c_nvmlGpuFabricInfo_v2_t))
        self.machine.stop_fabric_manager()
        self.assertEqual((2, 0), self.state('hgx-h100'))

    def test_not_on_switches(self):
        self.assertEqual((0, 0), self.state('rtxpro6000x8'))

    def test_ampere_has_no_such_state(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, self.state,
                         'dgx-a100-40')
