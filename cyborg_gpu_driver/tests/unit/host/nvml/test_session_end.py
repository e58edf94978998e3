# SPDX-License-Identifier: Apache-2.0

"""Sessions that end late."""

import contextlib
import threading
import time

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base


class SessionEndTest(base.SimulatedTestCase):

    def test_a_session_that_opens_too_late_is_closed(self):
        """Otherwise no process could reset or unbind a GPU any more."""
        opens = threading.Event()
        self.addCleanup(opens.set)
        self.machine.faults.delay('nvmlInitWithFlags', 1,
                                  sleep=lambda _: opens.wait(scope.HANG))
        self.nvml.timeout = 0.02
        self.assertRaises(exception.NvmlNotAnswering,
                          self.nvml.driver_version)
        self.assertTrue(self.nvml.is_open)
        opens.set()
        self.wait_until_idle()
        self.nvml.reset()
        self.assertEqual((False, 0), (self.nvml.is_open,
                                      pynvml._nvmlLib_refcount))
        self.assertEqual(1, self.calls()['nvmlShutdown'])
        self.nvml.timeout = scope.HANG
        self.assertTrue(self.nvml.driver_version())
        self.nvml.reset()
        self.assertEqual(0, pynvml._nvmlLib_refcount)

    def test_a_close_behind_a_slow_call_is_made_later(self):
        """Otherwise no process could reset or unbind a GPU any more."""
        with self.slow_call():
            self.nvml.timeout = 0.02
            self.assertFalse(self.nvml.reset())
            self.assertTrue(self.nvml.is_open)
        self.nvml.timeout = scope.HANG
        self.assertTrue(self.nvml.reset())
        self.assertEqual((False, 1), (self.nvml.is_open,
                                      pynvml._nvmlLib_refcount))

    def test_a_session_whose_close_takes_long_holds_no_lock_later(self):
        """Otherwise no process could have NVML to itself any more."""
        opened = self.nvml
        opened.driver_version()
        with self.slow_shutdown():
            opened.timeout = 0.02
            self.assertFalse(opened.reset())
            self.assertTrue(opened.is_open)
        self.wait_until_idle()
        self.assertTrue(opened.reset())
        self.assertFalse(opened.is_open)
        # One more would end the session of somebody else.
        self.assertEqual(1, self.calls()['nvmlShutdown'])

    def test_a_session_that_closed_late_is_opened_again(self):
        self.nvml.driver_version()
        with self.slow_shutdown():
            self.nvml.timeout = 0.02
            self.assertFalse(self.nvml.reset())
        self.wait_until_idle()
        self.nvml.timeout = scope.HANG
        self.assertTrue(self.nvml.driver_version())
        self.nvml.yield_to_others()
        self.assertTrue(self.nvml.is_open)
        self.assertIsNotNone(self.nvml._held)

    def test_a_session_that_stays_open_after_exclusive_use_is_closed(self):
        may_end = threading.Event()
        self.machine.faults.delay('nvmlSystemGetDriverVersion', 1,
                                  sleep=lambda _: may_end.wait(scope.HANG))
        with self.nvml.alone():
            # Opens the session, which takes longer on a busy machine.
            self.nvml.device_count()
            self.nvml.timeout = 0.02
            self.assertRaises(exception.NvmlNotAnswering,
                              self.nvml.driver_version)
        self.assertTrue(self.nvml.is_open)
        may_end.set()
        self.wait_until_idle()
        self.wait_until_closed(self.nvml)

    def wait_until_idle(self):
        while deadline.stuck():
            time.sleep(0.01)

    @contextlib.contextmanager
    def slow_shutdown(self):
        """Let nvmlShutdown take as long as the block."""
        may_end = threading.Event()
        self.machine.faults.delay('nvmlShutdown', 1,
                                  sleep=lambda _: may_end.wait(scope.HANG))
        try:
            yield
        finally:
            may_end.set()
            self.machine.faults.clear()

    @contextlib.contextmanager
    def slow_call(self):
        """Let another session make a call that is slow, but not overdue."""
        slow = self.nvml.another()
        slow.timeout = scope.HANG
        self.addCleanup(slow.reset)
        for session in (self.nvml, slow):
            session.driver_version()
        begun, may_end = threading.Event(), threading.Event()

        def wait(_seconds):
            begun.set()
            may_end.wait(scope.HANG)

        self.machine.faults.delay('nvmlSystemGetDriverVersion', 1, sleep=wait)
        thread = threading.Thread(target=slow.driver_version)
        thread.start()
        begun.wait(scope.HANG)
        try:
            yield
        finally:
            may_end.set()
            thread.join()
            self.machine.faults.clear()

    def test_a_replaced_library_is_not_called_any_more(self):
        """The old library may hang, and calls of the new one would wait."""
        self.nvml.driver_version()
        with machine_module.Machine.load('t4x4'):
            self.assertTrue(self.nvml.reset())
        self.assertNotIn('nvmlShutdown', self.calls())

    def wait_until_closed(self, opened):
        end = time.monotonic() + scope.HANG
        while opened.is_open and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(opened.is_open)
