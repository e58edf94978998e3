# SPDX-License-Identifier: Apache-2.0

"""sriov-manage, mdevctl and nvidia-smi of a simulated machine."""


import pynvml
from oslo_concurrency import processutils

from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.tests.unit.simulator import base


class ToolsTestCase(base.MachineTestCase):
    def refused(self, tool, *arguments):
        """Return the stderr and the exit status of a run that fails."""
        error = self.assertRaises(processutils.ProcessExecutionError, tool,
                                  *arguments)
        return error.stderr, error.exit_code


class TestMdevctl(ToolsTestCase):
    host = 't4x4'

    def setUp(self):
        super().setUp()
        self.run_tool = tools.mdevctl(self.machine)

    def test_definitions_outlive_mdevs_and_reboots(self):
        self.create_mdev('0000:3b:00.0', 231)
        self.machine.define_mdev(base.UUID)
        self.machine.define_mdev(base.UUID)
        self.remove_mdev()
        self.machine.reboot()
        self.assertEqual((base.UUID,), self.machine.defined_mdevs)

    def test_other_arguments(self):
        for arguments in ((), ('undefine',), ('undefine', base.UUID),
                          ('start', '-u', base.UUID)):
            self.assertEqual(2, self.refused(self.run_tool, *arguments)[1])


class TestNvidiaSmi(ToolsTestCase):
    host = 'dgx-a100-40'
    gpu = '0000:07:00.0'

    def setUp(self):
        super().setUp()
        self.machine.sriov_manage(self.gpu, enable=False)
        self.run_tool = tools.nvidia_smi(self.machine)

    def reset(self):
        return self.run_tool('--gpu-reset', '-i', self.gpu)

    def pend(self):
        """Let MIG mode be pending (off), and close NVML."""
        with self.machine.operation(write=True):
            self.machine.gpu(self.gpu).state.pending = False
        pynvml.nvmlShutdown()

    def mode(self):
        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetMigMode(self.at(self.gpu))[0]
        finally:
            pynvml.nvmlShutdown()

    def test_it_resets(self):
        self.create(self.at(self.gpu), 19)
        self.pend()
        self.assertIn(f'GPU {self.gpu} was successfully reset',
                      self.reset())
        self.assertEqual(0, self.mode())
        self.assertEqual(1, self.machine.calls['nvidia-smi'])
        self.assertEqual({}, self.machine.gpu(self.gpu).state.instances)

    def test_an_unknown_gpu(self):
        pynvml.nvmlShutdown()
        error = self.refused(self.run_tool, '--gpu-reset', '-i',
                             '0000:ff:00.0')
        self.assertIn('No devices were found', error[0])
        self.assertEqual(6, error[1])

    def test_wrong_arguments(self):
        for arguments in ((), ('-L',), ('--gpu-reset',)):
            self.assertEqual(2, self.refused(self.run_tool, *arguments)[1])

    def test_what_nvml_says_is_the_exit_status(self):
        for code in (pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
                     pynvml.NVML_ERROR_LIBRARY_NOT_FOUND):
            self.machine.unload_library(code)
            for ask in (self.reset, lambda: self.persist('1')):
                self.assertEqual(code, self.refused(ask)[1])
        self.machine.load_library()
        self.machine.lose_gpu(self.gpu)
        text, status = self.refused(self.reset)
        self.assertIn('GPU is lost', text)
        self.assertEqual(pynvml.NVML_ERROR_GPU_IS_LOST, status)

    def persist(self, mode):
        return self.run_tool('-i', self.gpu, '-pm', mode)

    def test_persistence_mode_without_the_daemon(self):
        pynvml.nvmlShutdown()
        for mode, word in (('1', 'Enabled'), ('0', 'Disabled')):
            self.assertIn(f'{word} persistence mode', self.persist(mode))
        self.machine.privileged = False
        self.assertEqual(4, self.refused(self.persist, '0')[1])

    def test_the_daemon_cannot_open_a_gpu_that_came_back(self):
        pynvml.nvmlShutdown()
        self.machine.start_persistenced()
        self.machine.sriov_manage(self.gpu, enable=False)
        for driver in ('vfio-pci', 'nvidia'):
            self.machine.bind_driver(self.gpu, driver)
        self.assertEqual(255, self.refused(self.persist, '1')[1])
        self.machine.start_persistenced()
        self.persist('1')
