# SPDX-License-Identifier: Apache-2.0

import os
import signal
import threading

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base

_3G = 9
_CHILD = 20
"""Seconds after which the test kills a child that hangs."""


class SessionTest(base.SimulatedTestCase):
    """Opening, closing and errors."""

    def test_one_session_serves_every_call_of_every_thread(self):
        threads = [threading.Thread(target=self.nvml.device, args=(address,))
                   for address in self.addresses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(1, self.calls()['nvmlInitWithFlags'])

    def test_error_carries_call_code_and_symbol(self):
        missing = model.PciAddress(0, 0xfe, 0, 0)
        error = self.assertRaises(exception.NvmlError, self.nvml.device,
                                  missing)
        self.assertEqual(
            ('nvmlDeviceGetHandleByPciBusId',
             pynvml.NVML_ERROR_NOT_FOUND, 'NOT_FOUND'),
            (error.call, error.code, error.symbol))

    def test_function_that_is_missing_is_told_from_one_refused(self):
        self.use('t4x4')
        refused = self.assertRaises(exception.NvmlError, self.nvml.mig_mode,
                                    self.device())
        self.assertEqual('NOT_SUPPORTED', refused.symbol)
        for name in ('nvmlDeviceGetPowerUsageOfTomorrow',
                     'nvmlDeviceGetGpuInstanceRemainingCapacityV'):
            missing = self.assertRaises(exception.NvmlError, self.nvml.call,
                                        name, self.device())
            self.assertEqual('FUNCTION_NOT_FOUND', missing.symbol)

    def test_missing_library_is_a_reason_said_once_and_tried_again(self):
        self.machine.unload_library()
        for _ in range(3):
            self.assertIn('libnvidia-ml.so.1', self.nvml.problem())
            self.assertTrue(self.nvml.library_missing)
        self.assertEqual(1, len(self.log.about('NVML is not available')))
        self.machine.load_library()
        self.assertIsNone(self.nvml.problem())
        self.assertFalse(self.nvml.library_missing)

    def test_dead_session_fails_once_and_is_opened_again(self):
        device = self.device()
        self.machine.reboot()
        error = self.assertRaises(exception.NvmlError, self.nvml.mig_mode,
                                  device)
        self.assertEqual('UNINITIALIZED', error.symbol)
        self.nvml.mig_mode(self.device())

    def test_forked_child_opens_its_own_session(self):
        self.device()
        self.assertEqual(0, self.child_opens(os.fork))
        # The parent's session has outlived the child's.
        self.nvml.mig_mode(self.device())

    def child_opens(self, fork):
        """Open NVML in a forked child; return the child's wait status.

        The parent kills a child that hangs, because the child would keep
        the pipe of the test runner open.
        """
        child = fork()
        if child == 0:
            status = 1
            try:
                self.nvml.mig_mode(self.device())
                status = 0
            finally:
                os._exit(status)
        killer = threading.Timer(_CHILD, os.kill, (child, signal.SIGKILL))
        killer.start()
        try:
            return os.waitpid(child, 0)[1]
        finally:
            killer.cancel()

    def test_fork_while_a_thread_opens_does_not_lock_the_child_out(self):
        opening, forked = threading.Event(), threading.Event()

        def wait(_seconds):
            opening.set()
            forked.wait(scope.HANG)

        self.machine.faults.delay('nvmlInitWithFlags', 1, sleep=wait)
        thread = threading.Thread(target=self.nvml.driver_version)
        thread.start()
        self.assertTrue(opening.wait(scope.HANG))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.machine.faults.clear()
                opener = threading.Thread(target=self.nvml.driver_version)
                opener.daemon = True
                opener.start()
                opener.join(scope.HANG)
                status = int(opener.is_alive())
            finally:
                os._exit(status)
        forked.set()
        thread.join()
        self.assertEqual(0, os.waitpid(child, 0)[1])


class InstanceTest(base.SimulatedTestCase):
    """GPU instances, as bind and unbind need them."""

    def test_compute_instances_must_go_first(self):
        made = self.cut(self.first, _3G, 4, 4)
        handle = self.nvml.call('nvmlDeviceGetGpuInstanceById',
                                self.device(), made.instance_id)
        for profile in (1, 0):
            self.nvml.call('nvmlGpuInstanceCreateComputeInstance', handle,
                           profile)
        self.assertEqual(2, len(self.nvml.mig_uuids(self.device(),
                                                    made.instance_id)))
        error = self.assertRaises(
            exception.NvmlError, self.nvml.destroy_gpu_instance,
            self.device(), made.instance_id)
        self.assertEqual('IN_USE', error.symbol)
        self.nvml.destroy_compute_instances(self.device(), made.instance_id)
        self.nvml.destroy_gpu_instance(self.device(), made.instance_id)
