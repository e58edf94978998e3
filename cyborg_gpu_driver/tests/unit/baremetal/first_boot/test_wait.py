# SPDX-License-Identifier: Apache-2.0

"""The first boot waits for an NVIDIA driver that loads late."""

import errno

import fixtures
import pynvml
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.baremetal import first_boot
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator

_FIRST = '0000:18:00.0'


class WaitTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        directory = self.useFixture(fixtures.TempDir()).path
        self.hardware = simulator.Machine.load('hgx-h100')
        machine = platform.open_platform(self.hardware)
        self.addCleanup(self.hardware.uninstall)
        privileged.run_here(machine)
        self.now, self.said, self.happens = 0.0, [], {}
        self.conf = cfg.ConfigOpts()
        gpu_conf.register_opts(self.conf)
        self.conf([], project='cyborg', default_config_files=[])
        self.conf.set_override('state_path', directory, 'gpu')
        self.boot = self.start()
        self.found = layout_sources.Found('metadata', 'all-1g.10gb')

    def start(self):
        server = node.Node(self.conf)
        server.platform = privileged.machine()
        return first_boot.FirstBoot(server, self.said.append,
                                    lambda: self.now, self.sleep)

    def sleep(self, seconds):
        self.now += seconds
        self.happens.pop(self.now, lambda: None)()

    def test_each_reason_to_wait_is_said_once(self):
        self.hardware.unload_library()
        self.happens = {
            3.0: lambda: self.hardware.unload_library(
                pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
            7.0: self.hardware.load_library}
        outcome = self.boot.partition(300, self.found)
        self.assertIs(first_boot.Result.APPLIED, outcome.result)
        self.assertEqual(7.0, self.now)
        self.assertEqual([
            'Waiting for the NVIDIA driver, up to 300 seconds: there is no '
            'NVML library (libnvidia-ml.so.1) on this machine',
            'Waiting for the NVIDIA driver, up to 297 seconds: the NVIDIA '
            'kernel driver is not loaded'], self.said)

    def test_a_gpu_that_comes_later_than_the_others(self):
        self.hardware.sriov_manage(_FIRST, False)
        self.hardware.bind_driver(_FIRST, None)
        opened = []

        def comes():
            opened.append(self.hardware.calls['nvmlInitWithFlags'])
            self.hardware.bind_driver(_FIRST, 'nvidia')

        self.happens = {2.0: comes}
        self.hardware.reset_calls()
        outcome = self.boot.partition(300, self.found)
        self.assertEqual((first_boot.Result.APPLIED, 2.0, 8),
                         (outcome.result, self.now, len(outcome.gpus)))
        # An NVML session only knows the GPUs that existed when it was
        # opened. So the first boot opened a new session for each look at
        # the GPUs before this one appeared.
        self.assertEqual([2], opened)
        self.assertIn(f'NVML does not list {_FIRST}, which is bound to no '
                      'driver', self.said[0])

    def test_the_time_is_up(self):
        self.hardware.unload_library()
        outcome = self.boot.partition(2.5, self.found)
        self.assertEqual(2.5, self.now)
        self.assertEqual(
            (first_boot.Result.FAILED,
             'the NVIDIA driver is not ready after 2.5 seconds: there is no '
             'NVML library (libnvidia-ml.so.1) on this machine', ()),
            (outcome.result, outcome.error, outcome.gpus))

    def test_a_bus_that_cannot_be_read_is_no_lack_of_gpus(self):
        self.assertTrue(self.boot.has_gpus())
        self.hardware.unload_library()
        self.hardware.faults.fail_read('*/vendor', errno.EIO, times=None)
        error = self.assertRaises(exception.HostUnusable,
                                  self.start().has_gpus)
        self.assertIn('PCI function ', str(error))

    def test_mig_that_cannot_be_read_is_no_wrong_layout(self):
        call = 'nvmlDeviceGetGpuInstanceProfileInfo'
        self.hardware.faults.fail(f'{call}*', pynvml.NVML_ERROR_UNKNOWN,
                                  times=None, address=_FIRST)
        # Otherwise the GPU would count as a board like the others.
        self.hardware.faults.fail('nvmlDeviceGetVbiosVersion',
                                  pynvml.NVML_ERROR_NOT_SUPPORTED,
                                  times=None, address=_FIRST)
        outcome = self.boot.partition(0, self.found)
        self.assertEqual(
            (first_boot.Result.FAILED, ['failed', *['changed'] * 7]),
            (outcome.result, [gpu.status for gpu in outcome.gpus]))
        self.assertIn(_FIRST, outcome.error)
        self.assertIn('it cannot be reached: unreadable: ',
                      outcome.gpus[0].error)
        self.assertIn(f'{call} failed', outcome.gpus[0].error)
