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

"""NVML's session, and finding and describing devices."""

import os

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

A100 = '0000:41:00.0'
H100 = '0000:81:00.0'
T4 = '0000:3b:00.0'


class TestSession(base.MachineTestCase):
    def test_nothing_works_before_init(self):
        device = self.device()
        pynvml.nvmlShutdown()
        self.assert_code(pynvml.NVML_ERROR_UNINITIALIZED,
                         pynvml.nvmlDeviceGetCount)
        self.assert_code(pynvml.NVML_ERROR_UNINITIALIZED,
                         pynvml.nvmlDeviceGetName, device)
        self.assert_code(pynvml.NVML_ERROR_UNINITIALIZED,
                         pynvml.nvmlShutdown)

    def test_sessions_nest(self):
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())

    def test_handles_end_with_the_session(self):
        device = self.device()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetName, device)

    def test_a_session_does_not_survive_a_fork(self):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                pynvml.nvmlDeviceGetCount()
                answer = b'works'
            except pynvml.NVMLError as error:
                answer = str(error.value).encode()
            os.write(writer, answer)
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(str(pynvml.NVML_ERROR_UNINITIALIZED).encode(),
                         os.read(reader, 100))
        os.close(reader)
        os.close(writer)
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())

    def test_unknown_function(self):
        self.assert_code(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                         pynvml.nvmlUnitGetCount)

    def test_error_texts(self):
        self.assertEqual('In use', pynvml.nvmlErrorString(
            pynvml.NVML_ERROR_IN_USE))
        self.assertEqual('Success', pynvml.nvmlErrorString(0))

    def test_versions(self):
        self.assertEqual('550.144.02', pynvml.nvmlSystemGetDriverVersion())
        self.assertEqual('12.550.144.02',
                         pynvml.nvmlSystemGetNVMLVersion())
        self.assertEqual(12040, pynvml.nvmlSystemGetCudaDriverVersion())

    def test_library_missing_and_back(self):
        self.machine.unload_library()
        self.assert_code(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
                         pynvml.nvmlInit)
        self.assert_code(pynvml.NVML_ERROR_UNINITIALIZED,
                         pynvml.nvmlDeviceGetCount)
        self.machine.load_library()
        self.assert_code(pynvml.NVML_ERROR_UNINITIALIZED,
                         pynvml.nvmlDeviceGetCount)
        pynvml.nvmlInit()
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())

    def test_driver_not_loaded(self):
        self.machine.unload_library(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.assert_code(pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
                         pynvml.nvmlInit)

    def test_calls_are_counted_by_symbol(self):
        self.machine.reset_calls()
        pynvml.nvmlDeviceGetCount()
        self.device()
        self.device()
        self.assertEqual({'nvmlDeviceGetCount_v2': 1,
                          'nvmlDeviceGetHandleByIndex_v2': 2},
                         self.machine.calls)


class TestDevices(base.MachineTestCase):
    host = 'mixed'

    def test_a_gpu_bound_to_vfio_is_unknown(self):
        self.assertEqual(3, pynvml.nvmlDeviceGetCount())
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND, self.at,
                         '0000:c1:00.0')
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         self.device, 3)

    def test_binding_a_driver_hides_and_shows(self):
        device = self.at(H100)
        self.machine.bind_driver(H100, 'vfio-pci')
        self.assertEqual(2, pynvml.nvmlDeviceGetCount())
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetName, device)
        self.machine.bind_driver(H100, 'nvidia')
        self.machine.bind_driver('0000:c1:00.0', 'nvidia')
        self.assertEqual('NVIDIA A40', pynvml.nvmlDeviceGetName(
            self.at('0000:c1:00.0')))

    def test_a_gpu_in_use_keeps_its_driver(self):
        self.machine.add_process(H100, 7)
        self.assertRaises(OSError, self.machine.bind_driver, H100,
                          'vfio-pci')

    def test_identity(self):
        device = self.at(A100)
        info = pynvml.nvmlDeviceGetPciInfo(device)
        self.assertEqual('00000000:41:00.0', info.busId)
        self.assertEqual('0000:41:00.0', info.busIdLegacy)
        self.assertEqual((0, 0x41, 0), (info.domain, info.bus, info.device))
        self.assertEqual(0x20b210de, info.pciDeviceId)
        self.assertEqual('NVIDIA A100-SXM4-80GB',
                         pynvml.nvmlDeviceGetName(device))
        self.assertEqual(pynvml.NVML_DEVICE_ARCH_AMPERE,
                         pynvml.nvmlDeviceGetArchitecture(device))
        self.assertEqual((8, 0), pynvml.nvmlDeviceGetCudaComputeCapability(
            device))
        self.assertEqual(1, pynvml.nvmlDeviceGetIndex(device))
        self.assertEqual(1, pynvml.nvmlDeviceGetMinorNumber(device))

    def test_handles_by_every_name_are_one(self):
        device = self.at(A100)
        uuid = pynvml.nvmlDeviceGetUUID(device)
        serial = pynvml.nvmlDeviceGetSerial(device)
        for same in (pynvml.nvmlDeviceGetHandleByUUID(uuid),
                     pynvml.nvmlDeviceGetHandleBySerial(serial),
                     self.at('00000000:41:00.0'), self.at('41:00.0'),
                     self.device(1)):
            self.assertEqual(A100.upper(), pynvml.nvmlDeviceGetPciInfo(
                same).busIdLegacy)
            self.assertEqual(
                *(pynvml.cast(handle, pynvml.c_void_p).value
                  for handle in (device, same)))

    def test_names_of_nothing(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND,
                         pynvml.nvmlDeviceGetHandleByUUID, 'GPU-none')
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND,
                         pynvml.nvmlDeviceGetHandleBySerial, '0')
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND, self.at,
                         '0000:99:00.0')
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.at,
                         'first')

    def test_null_handle(self):
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetName, pynvml.c_nvmlDevice_t())

    def test_memory(self):
        device = self.at(A100)
        total = 81920 << 20
        self.assertEqual(total, pynvml.nvmlDeviceGetMemoryInfo(
            device).total)
        self.assertEqual(total, pynvml.nvmlDeviceGetMemoryInfo(
            device, pynvml.nvmlMemory_v2).total)
        self.assert_code(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                         pynvml.nvmlDeviceGetMemoryInfo, device, 7)

    def test_numa_is_for_sysfs_to_tell(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                         pynvml.nvmlDeviceGetNumaNodeId, self.at(H100))
        affinity = pynvml.nvmlDeviceGetMemoryAffinity(
            self.at(H100), 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
        self.assertEqual(1 << 1, affinity[0])

    def test_a_lost_gpu(self):
        device = self.at(H100)
        self.machine.lose_gpu(H100)
        self.assertEqual(3, pynvml.nvmlDeviceGetCount())
        self.assert_code(pynvml.NVML_ERROR_GPU_IS_LOST,
                         pynvml.nvmlDeviceGetName, device)
        self.assert_code(pynvml.NVML_ERROR_GPU_IS_LOST, self.device, 2)
        self.machine.find_gpu(H100)
        self.assertEqual('NVIDIA H100 80GB HBM3',
                         pynvml.nvmlDeviceGetName(device))

    def test_health(self):
        self.machine.set_remapped_rows(A100, uncorrected=3, pending=True)
        self.assertEqual((0, 3, 1, 0), pynvml.nvmlDeviceGetRemappedRows(
            self.at(A100)))
        self.assertEqual((0, 0, 0, 0), pynvml.nvmlDeviceGetRemappedRows(
            self.at(H100)))
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                         pynvml.nvmlDeviceGetRemappedRows, self.at(T4))
        self.assertEqual(0, pynvml.nvmlDeviceGetRetiredPagesPendingStatus(
            self.at(T4)))

    def test_utilization_is_unknown_in_mig_mode(self):
        self.assertEqual(0, pynvml.nvmlDeviceGetUtilizationRates(
            self.at(H100)).gpu)
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                         pynvml.nvmlDeviceGetUtilizationRates,
                         self.at(A100))

    def test_processes(self):
        device = self.at(H100)
        self.assertEqual(
            [], pynvml.nvmlDeviceGetComputeRunningProcesses(device))
        self.machine.add_process(H100, 4711)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        self.assertEqual([4711], [process.pid for process in processes])
        self.machine.remove_process(4711)
        self.assertEqual(
            [], pynvml.nvmlDeviceGetComputeRunningProcesses(device))


class TestLinks(base.MachineTestCase):
    host = 'dgx-a100-40'

    def test_the_other_end_is_a_switch(self):
        device = self.device()
        for link in range(12):
            self.assertEqual(1, pynvml.nvmlDeviceGetNvLinkState(
                device, link))
            self.assertEqual(
                pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
                pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(device, link))
            remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(device, link)
            self.assertEqual(0x1af110de, remote.pciDeviceId)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetNvLinkState, device, 12)

    def test_bridged_pairs(self):
        with base.machine_module.Machine.load('a30x4'):
            pynvml.nvmlInit()
            device = self.at('0000:31:00.0')
            self.assertEqual('00000000:4B:00.0',
                             pynvml.nvmlDeviceGetNvLinkRemotePciInfo(
                                 device, 0).busId)
            self.assertEqual(
                pynvml.NVML_NVLINK_DEVICE_TYPE_GPU,
                pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(device, 0))

    def test_a_board_without_links(self):
        with base.machine_module.Machine.load('t4x4'):
            pynvml.nvmlInit()
            self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED,
                             pynvml.nvmlDeviceGetNvLinkState,
                             self.device(), 0)

    def test_topology(self):
        self.assertEqual(pynvml.NVML_TOPOLOGY_NODE,
                         pynvml.nvmlDeviceGetTopologyCommonAncestor(
                             self.device(0), self.device(1)))
        self.assertEqual(pynvml.NVML_TOPOLOGY_SYSTEM,
                         pynvml.nvmlDeviceGetTopologyCommonAncestor(
                             self.device(0), self.device(2)))


class TestWsl(base.MachineTestCase):
    host = 'wsl'

    def test_nvml_alone_knows_the_gpu(self):
        device = self.device()
        self.assertEqual('NVIDIA L40S', pynvml.nvmlDeviceGetName(device))
        self.assertEqual([], self.sysfs.listdir('bus', 'pci', 'devices'))
        self.assertTrue(self.sysfs.exists('class', 'misc', 'dxg'))
