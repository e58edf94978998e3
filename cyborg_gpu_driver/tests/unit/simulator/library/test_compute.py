# SPDX-License-Identifier: Apache-2.0

"""Compute instances and the MIG devices that they make."""


import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

GPU = '0000:07:00.0'
ONE, TWO, THREE, FOUR, SEVEN = 19, 14, 9, 5, 0


class TestComputeInstances(base.MachineTestCase):
    def profiles(self, instance):
        """Return the counts of the profiles that share engines, by name."""
        found = {}
        for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, enum, 0)
            except pynvml.NVMLError_NotSupported:
                continue
            found[info.name] = info.instanceCount
        return found

    def test_what_an_instance_offers(self):
        device = self.device()
        _, _, three = self.create(device, THREE)
        self.assertEqual(
            {'MIG 1c.3g.20gb': 3, 'MIG 2c.3g.20gb': 1, 'MIG 3g.20gb': 1,
             'MIG 1c.3g.20gb+me': 3}, self.profiles(three))
        pynvml.nvmlGpuInstanceDestroy(three)
        _, _, seven = self.create(device, SEVEN)
        self.assertEqual(
            {'MIG 1c.7g.40gb': 7, 'MIG 2c.7g.40gb': 3, 'MIG 3c.7g.40gb': 2,
             'MIG 4c.7g.40gb': 1, 'MIG 7g.40gb': 1,
             'MIG 1c.7g.40gb+me': 7}, self.profiles(seven))


class TestMigDevices(base.MachineTestCase):
    def make(self, profile_id=TWO, compute_profile=1):
        number, _, handle = self.create(self.device(), profile_id)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(
            handle, compute_profile)
        return number, handle, compute

    def test_a_device_for_each_compute_instance(self):
        device = self.device()
        self.assertEqual(7, pynvml.nvmlDeviceGetMaxMigDeviceCount(device))
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND,
                         pynvml.nvmlDeviceGetMigDeviceHandleByIndex,
                         device, 0)
        number, _, compute = self.make()
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
        self.assertEqual(number, pynvml.nvmlDeviceGetGpuInstanceId(mig))
        self.assertEqual('NVIDIA A100-SXM4-40GB MIG 2g.10gb',
                         pynvml.nvmlDeviceGetName(mig))
        self.assertEqual(9856 << 20,
                         pynvml.nvmlDeviceGetMemoryInfo(mig).total)
        same = pynvml.nvmlComputeInstanceGetInfo(compute).device
        self.assertEqual(pynvml.nvmlDeviceGetUUID(mig),
                         pynvml.nvmlDeviceGetUUID(same))

    def test_a_mig_device_is_not_a_gpu(self):
        self.make()
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self.device(), 0)
        for call in ((pynvml.nvmlDeviceGetMigMode, mig),
                     (pynvml.nvmlDeviceGetPciInfo, mig),
                     (pynvml.nvmlDeviceCreateGpuInstance, mig, ONE)):
            self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, *call)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetGpuInstanceId, self.device())

    def test_processes_of_a_mig_device(self):
        number, _, _ = self.make()
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self.device(), 0)
        self.machine.add_process(GPU, 1, number, 0)
        self.assertEqual([(1, number, 0)], [
            (process.pid, process.gpuInstanceId, process.computeInstanceId)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(
                mig)])
        self.make(ONE, 0)
        other = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self.device(),
                                                           1)
        self.assertEqual(
            [], pynvml.nvmlDeviceGetComputeRunningProcesses(other))
