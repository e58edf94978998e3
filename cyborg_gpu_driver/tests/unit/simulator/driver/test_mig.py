# SPDX-License-Identifier: Apache-2.0

"""MIG through pynvml: profiles, modes, instances and every refusal."""

import ctypes
import dataclasses
import itertools

import pynvml

from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.simulator import base

A100 = '0000:41:00.0'
H100 = '0000:81:00.0'
ONE, ONE_ME, ONE_DOUBLE, TWO, THREE, FOUR, SEVEN = 19, 20, 15, 14, 9, 5, 0


def placements(device, profile_id):
    """Return the possible placements, as a caller does: count first."""
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
        device, profile_id, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
        device, profile_id, array, ctypes.byref(count))
    return [(item.start, item.size) for item in array]


def profiles(device):
    """Return every profile by name, in a way that suits later drivers."""
    found = {}
    for enum in itertools.count():
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, enum)
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError_InvalidArgument:
            return found
        found[info.name] = info
    return found


class TestProfiles(base.MachineTestCase):

    def test_the_number_that_finds_a_profile_is_not_its_id(self):
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, placements,
                         self.device(),
                         pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         self.create, self.device(), 1)

    def test_gaps_and_the_end(self):
        get = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
        device = self.device()
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, get, device,
                         pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE)
        # Where the list ends depends on the driver.
        last = 0x11
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, get, device,
                         last - 1)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, get, device, last)
        host = dataclasses.replace(files.load(self.host),
                                   driver_version='595.45.04')
        with machine_module.Machine(host):
            pynvml.nvmlInit()
            device = self.device()
            self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, get, device,
                             last)
            self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, get, device,
                             pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)

class TestModes(base.MachineTestCase):
    host = 'mixed'

    def off(self, address):
        """Disable the VFs of the A100, then its MIG mode."""
        self.machine.sriov_manage(address, enable=False)
        pynvml.nvmlDeviceSetMigMode(self.at(address), 0)

    def test_ampere_is_reset_by_the_call(self):
        self.off(A100)
        device = self.at(A100)
        self.assertEqual([0, 0], pynvml.nvmlDeviceGetMigMode(device))
        self.assertEqual(0, pynvml.nvmlDeviceGetMaxMigDeviceCount(device))
        self.assertEqual(pynvml.NVML_SUCCESS,
                         pynvml.nvmlDeviceSetMigMode(device, 1))
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetMigMode, device)
        self.assertEqual([1, 1], pynvml.nvmlDeviceGetMigMode(self.at(A100)))

    def test_a_holder_leaves_the_mode_of_ampere_pending(self):
        self.off(A100)
        self.machine.add_holder(A100, 812, 'nvidia-persistenced')
        device = self.at(A100)
        self.assertEqual(pynvml.NVML_ERROR_IN_USE,
                         pynvml.nvmlDeviceSetMigMode(device, 1))
        self.assertEqual([0, 1], pynvml.nvmlDeviceGetMigMode(device))
        self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, self.create,
                         device, ONE)
        self.machine.remove_holder(812)
        self.assertEqual([0, 1], pynvml.nvmlDeviceGetMigMode(device))
        self.assertEqual(pynvml.NVML_SUCCESS,
                         pynvml.nvmlDeviceSetMigMode(device, 1))
        self.assertEqual([1, 1], pynvml.nvmlDeviceGetMigMode(self.at(A100)))

    def test_ampere_on_nvswitches_needs_a_fabric_manager(self):
        self.use(machine_module.Machine.load('dgx-a100-40'))
        address = self.machine.gpus[0].address
        self.machine.sriov_manage(address, enable=False)
        self.machine.stop_fabric_manager()
        device = self.device()
        self.assertEqual(pynvml.NVML_ERROR_UNKNOWN,
                         pynvml.nvmlDeviceSetMigMode(device, 0))
        self.assertEqual([1, 0], pynvml.nvmlDeviceGetMigMode(device))

    def test_a_reset_ends_handles_and_restores_instances(self):
        self.machine.sriov_manage(A100, enable=False)
        for keeps in (True, False):
            self.machine.host = dataclasses.replace(
                self.machine.host, keeps_mig=keeps)
            device = self.at(A100)
            number, _, instance = self.create(device, ONE)
            self.machine.reset_gpu(A100)
            self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                             pynvml.nvmlDeviceGetMigMode, device)
            self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                             pynvml.nvmlGpuInstanceGetInfo, instance)
            self.assertEqual([number] if keeps else [],
                             self.instances(self.at(A100), ONE))

    def test_calls_that_need_mig_mode(self):
        device = self.at(H100)
        for call in ((pynvml.nvmlDeviceCreateGpuInstance, device, ONE),
                     (pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device,
                      0)):
            self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, *call)

    def test_calls_that_need_it_before_hopper(self):
        device = self.at(H100)
        by_id = pynvml.nvmlDeviceGetGpuInstanceById
        self.assertEqual([], self.instances(device, ONE))
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND, by_id, device, 0)
        self.off(A100)
        device = self.at(A100)
        for call in ((by_id, device, 0), (self.instances, device, ONE)):
            self.assert_code(pynvml.NVML_ERROR_NOT_SUPPORTED, *call)


class TestInstances(base.MachineTestCase):

    def test_a_placement_that_the_profile_does_not_have(self):
        device = self.device()
        for start, size in ((7, 1), (1, 2), (0, 2)):
            self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                             self.create, device, ONE, start, size)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.create,
                         device, FOUR, 4, 4)

    def test_one_that_vanishes_after_its_creation(self):
        self.machine.faults.fail(faults.VANISHES, 0, nth=2)
        device = self.device()
        self.create(device, ONE)
        handle = pynvml.nvmlDeviceCreateGpuInstance(device, ONE)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpuInstanceGetInfo, handle)
        self.assertEqual([13], self.instances(device, ONE))
        self.create(device, ONE)

    def test_a_handle_of_something_destroyed(self):
        device = self.device()
        _, _, handle = self.create(device, ONE)
        pynvml.nvmlGpuInstanceDestroy(handle)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpuInstanceGetInfo, handle)
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlGpuInstanceDestroy, handle)

    def test_destroy_is_refused_while_in_use(self):
        device = self.device()
        number, _, handle = self.create(device, ONE)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(handle, 0)
        self.assert_code(pynvml.NVML_ERROR_IN_USE,
                         pynvml.nvmlGpuInstanceDestroy, handle)
        self.machine.add_process('0000:07:00.0', 9, number, 0)
        self.assert_code(pynvml.NVML_ERROR_IN_USE,
                         pynvml.nvmlComputeInstanceDestroy, compute)
        self.machine.remove_process(9)
        pynvml.nvmlComputeInstanceDestroy(compute)
        self.machine.add_process('0000:07:00.0', 9, number)
        self.assert_code(pynvml.NVML_ERROR_IN_USE,
                         pynvml.nvmlGpuInstanceDestroy, handle)
        self.machine.remove_process(9)
        pynvml.nvmlGpuInstanceDestroy(handle)
        self.assertEqual([], self.instances(device, ONE))
