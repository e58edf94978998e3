# SPDX-License-Identifier: Apache-2.0

"""A state file: one machine that several processes see."""

import fcntl
import json
import os
import subprocess
import sys

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.simulator import base

GPU = '0000:07:00.0'
VF = '0000:07:00.4'

OTHER_PROCESS = """
import os
import sys

import pynvml

from cyborg_gpu_driver.simulator.machine import machine

with machine.Machine.load('dgx-a100-40', sys.argv[1]) as simulated:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    made = 0
    for _ in range(int(sys.argv[2])):
        try:
            pynvml.nvmlDeviceCreateGpuInstance(device, 19)
            made += 1
        except pynvml.NVMLError_InsufficientResources:
            pass
    print(made)
"""


class TestStateFile(base.MachineTestCase):
    def setUp(self):
        super().setUp()
        directory = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(directory, 'state.json')

    def load(self):
        """Load the machine anew, as another process would."""
        return machine_module.Machine.load('dgx-a100-40', self.path)

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, '-c', OTHER_PROCESS, self.path, *arguments],
            stdout=subprocess.PIPE, text=True)

    def test_everything_that_changes_is_kept(self):
        self.use(self.load())
        device = self.device()
        _, _, handle = self.create(device, 19)
        pynvml.nvmlGpuInstanceCreateComputeInstance(handle, 0)
        number, _, _ = self.create(device, 14)
        self.create_mdev(VF, 464)
        self.machine.start_guest(base.UUID)
        self.machine.add_process(GPU, 77, 13, 0)
        self.machine.define_mdev(base.UUID)
        self.machine.lose_gpu('0000:0f:00.0')
        self.machine.set_remapped_rows('0000:47:00.0', 1, 2, True, True)
        self.machine.sriov_manage('0000:4e:00.0', enable=False)
        self.machine.bind_driver('0000:4e:00.0', 'vfio-pci')
        pynvml.nvmlDeviceSetMigMode(self.at('0000:87:00.0'), 1)

        self.use(self.load())
        device = self.at(GPU)
        self.assertEqual([13], self.instances(device, 19))
        self.assertEqual([number], self.instances(device, 14))
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
        self.assertEqual(
            [77], [process.pid for process in
                   pynvml.nvmlDeviceGetComputeRunningProcesses(mig)])
        self.assertEqual('nvidia-464', self.sysfs.link_name(
            'bus', 'mdev', 'devices', base.UUID, 'mdev_type'))
        self.assertEqual(1, len(pynvml.nvmlDeviceGetActiveVgpus(device)))
        self.assertEqual(1, len(self.machine.vfio_holders(base.UUID)))
        self.assertEqual((base.UUID,), self.machine.defined_mdevs)
        self.assert_code(pynvml.NVML_ERROR_GPU_IS_LOST, self.at,
                         '0000:0f:00.0')
        self.assertEqual((1, 2, 1, 1), pynvml.nvmlDeviceGetRemappedRows(
            self.at('0000:47:00.0')))
        self.assertEqual('vfio-pci', self.sysfs.link_name(
            'bus', 'pci', 'devices', '0000:4e:00.0', 'driver'))

    def test_a_lock_file_that_was_replaced_is_not_the_lock(self):
        machine = self.load()
        with machine.operation():
            os.unlink(self.path + '.lock')
        with machine.operation(), open(self.path + '.lock', 'rb') as file:
            self.assertRaises(BlockingIOError, fcntl.flock, file,
                              fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_forked_process_holds_the_lock_by_itself(self):
        machine = self.load()
        with machine.operation():
            pass
        inside, entered = os.pipe()
        done, leave = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with machine.operation():
                    os.write(entered, b'.')
                    os.close(leave)
                    os.read(done, 1)
            finally:
                os._exit(0)
        os.close(entered)
        try:
            self.assertEqual(b'.', os.read(inside, 1))
            self.assertRaises(
                BlockingIOError, fcntl.flock,
                machine._store._held.descriptor,
                fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(leave)
            os.waitpid(child, 0)
            os.close(inside)
            os.close(done)

    def test_processes_race_for_the_last_slices(self):
        processes = [self.start('7') for _ in range(2)]
        made = [int(process.communicate()[0]) for process in processes]
        self.assertEqual([0, 0],
                         [process.returncode for process in processes])
        self.assertEqual(7, sum(made))
        self.use(self.load())
        self.assertEqual(7, len(self.instances(self.device(), 19)))

    def test_a_refused_call_writes_nothing(self):
        self.use(self.load())
        self.create(self.device(), 0)
        before = os.stat(self.path)
        self.assert_code(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
                         self.create, self.device(), 19)
        self.assertTrue(os.path.samestat(before, os.stat(self.path)))

    def test_the_state_of_another_machine_is_refused(self):
        self.load()
        error = self.assertRaises(
            exception.HostUnusable, machine_module.Machine.load,
            'mixed', self.path)
        for word in (self.path, 'dgx-a100-40', 'mixed'):
            self.assertIn(word, str(error))

    def test_something_else_in_the_file_is_refused(self):
        for text in ('', 'nonsense', '[]', '{}', json.dumps(
                {'format': 1, 'digest': 1, 'host': 'x', 'state': {}})):
            with open(self.path, 'w', encoding='utf-8') as file:
                file.write(text)
            error = self.assertRaises(exception.HostUnusable, self.load)
            self.assertIn(self.path, str(error))

    def test_a_place_that_cannot_be_written(self):
        error = self.assertRaises(
            exception.HostUnusable, machine_module.Machine.load,
            'mixed', os.path.join(self.path, 'below', 'state.json'))
        self.assertIn(self.path, str(error))
