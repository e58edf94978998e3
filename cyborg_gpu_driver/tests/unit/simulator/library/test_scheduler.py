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

"""How time-sliced vGPUs share a GPU."""

import ctypes

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

BEST, EQUAL, FIXED = 1, 2, 3
GRAPHICS, ENCODER = 1, 2
DEFAULT, DISABLE, ENABLE = 0, 1, 2


class TestScheduler(base.MachineTestCase):
    host = 'l40sx4'
    gpu = '0000:16:00.0'
    vf = '0000:16:00.4'

    def set(self, policy, arr=DISABLE, time_slice=None, arr_data=None,
            device=None):
        wanted = pynvml.c_nvmlVgpuSchedulerSetState_t()
        wanted.schedulerPolicy, wanted.enableARRMode = policy, arr
        if time_slice is not None:
            wanted.schedulerParams.vgpuSchedData.timeslice = time_slice
        if arr_data is not None:
            data = wanted.schedulerParams.vgpuSchedDataWithARR
            data.avgFactor, data.frequency = arr_data
        pynvml.nvmlDeviceSetVgpuSchedulerState(
            device or self.at(self.gpu), wanted)

    def state(self):
        found = pynvml.nvmlDeviceGetVgpuSchedulerState(self.at(self.gpu))
        data = found.schedulerParams
        return (found.schedulerPolicy, found.arrMode,
                data.vgpuSchedData.timeslice if found.arrMode == DISABLE
                else (data.vgpuSchedDataWithARR.avgFactor,
                      data.vgpuSchedDataWithARR.timeslice))

    def test_it_goes_with_the_driver(self):
        self.set(EQUAL)
        self.machine.sriov_manage(self.gpu, enable=False)
        self.assertEqual(BEST, self.state()[0])
        self.set(EQUAL)
        self.machine.sriov_manage(self.gpu)
        self.assertEqual(BEST, self.state()[0])
        self.machine.sriov_manage(self.gpu, enable=False)
        self.set(EQUAL)
        self.machine.reset_gpu(self.gpu)
        self.assertEqual(BEST, self.state()[0])
        self.set(EQUAL)
        self.machine.bind_driver(self.gpu, 'vfio-pci')
        self.machine.bind_driver(self.gpu, 'nvidia')
        self.assertEqual(BEST, self.state()[0])
        self.set(EQUAL)
        self.machine.reboot()
        pynvml.nvmlInit()
        self.assertEqual(BEST, self.state()[0])


class TestInstanceScheduler(base.MachineTestCase):
    """A GPU instance that several vGPUs share."""

    host = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    shared = 47
    """1g.24gb+gfx; DC-1-8Q shares it with two others."""

    def setUp(self):
        super().setUp()
        self.instance = self.make(self.shared)

    def make(self, profile, start=0, size=3):
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            self.at(self.gpu), profile,
            ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size)))

    def set(self, policy, time_slice=None, instance=None, engine=GRAPHICS,
            version=pynvml.nvmlVgpuSchedulerState_v1, arr=DISABLE):
        wanted = pynvml.c_nvmlVgpuSchedulerState_v1_t()
        wanted.version, wanted.engineId = version, engine
        wanted.schedulerPolicy, wanted.enableARRMode = policy, arr
        if time_slice is not None:
            wanted.schedulerParams.vgpuSchedData.timeslice = time_slice
        pynvml.nvmlGpuInstanceSetVgpuSchedulerState(
            instance or self.instance, wanted)

    def state(self, instance=None, engine=GRAPHICS,
              version=pynvml.nvmlVgpuSchedulerStateInfo_v1):
        found = pynvml.c_nvmlVgpuSchedulerStateInfo_v1_t()
        found.version, found.engineId = version, engine
        pynvml.nvmlGpuInstanceGetVgpuSchedulerState(
            instance or self.instance, found)
        return (found.schedulerPolicy,
                found.schedulerParams.vgpuSchedData.timeslice)

    def test_each_instance_has_its_own(self):
        other = self.make(self.shared, 3)
        self.assertEqual((BEST, 0), self.state())
        self.set(EQUAL, time_slice=5000000)
        self.assertEqual((EQUAL, 5000000), self.state())
        self.assertEqual((BEST, 0), self.state(other))
        self.set(FIXED, instance=other)
        self.assertEqual((FIXED, 2000000), self.state(other))
        self.assertEqual((EQUAL, 5000000), self.state())

