# SPDX-License-Identifier: Apache-2.0

"""Sessions that end late, or whose objects no longer exist."""

import contextlib
import gc
import threading
import time

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base


class SessionEndTest(base.SimulatedTestCase):

    def test_garbage_collection_waits_for_no_lock(self):
        """A thread that is inside pynvml may collect a session."""
        sessions, opened = self.open_another()

        def collect():
            with pynvml.libLoadLock:
                sessions.clear()

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        thread.join(scope.HANG)
        self.assertFalse(thread.is_alive())
        self.wait_until_closed(opened)
        self.assertEqual(1, self.calls().get('nvmlShutdown'))

    def test_a_session_that_opens_too_late_is_closed(self):
        """Otherwise no process could reset or unbind a GPU any more."""
        opens = threading.Event()
        self.addCleanup(opens.set)
        self.machine.faults.delay('nvmlInitWithFlags', 1,
                                  sleep=lambda _: opens.wait(scope.HANG))
        self.nvml.timeout = 0.02
        self.assertRaises(exception.NvmlNotAnswering,
                          self.nvml.driver_version)
        self.assertTrue(self.nvml.gate.is_open)
        opens.set()
        self.wait_until_idle()
        self.nvml.reset()
        self.assertEqual((False, 0), (self.nvml.gate.is_open,
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
            self.assertTrue(self.nvml.gate.is_open)
        self.nvml.timeout = scope.HANG
        self.assertTrue(self.nvml.reset())
        self.assertEqual((False, 1), (self.nvml.gate.is_open,
                                      pynvml._nvmlLib_refcount))

    def test_an_abandoned_session_behind_a_slow_call_is_closed_later(self):
        sessions, opened = self.open_another()
        with self.slow_call():
            opened.timeout = 0.02
            sessions.clear()
            gate.close_idle()
            self.assertTrue(opened.is_open)
        self.wait_until_closed(opened)
        self.nvml.reset()
        self.assertEqual(1, pynvml._nvmlLib_refcount)

    def test_a_session_whose_close_takes_long_holds_no_lock_later(self):
        """Otherwise no process could have NVML to itself any more."""
        for is_abandoned in (False, True):
            sessions, opened = self.open_another()
            with self.slow_shutdown():
                sessions[0].timeout = opened.timeout = 0.02
                if not is_abandoned:
                    self.assertFalse(sessions[0].reset())
                sessions.clear()
                # The error of the close refers to its session.
                gc.collect()
                while not deadline.stuck():
                    gate.close_idle()
                    time.sleep(0.01)
                self.assertTrue(opened.is_open)
            self.wait_until_closed(opened)
        # One more would end the session of somebody else.
        self.assertEqual(2, self.calls()['nvmlShutdown'])

    def test_a_session_that_closed_late_is_opened_again(self):
        self.nvml.driver_version()
        with self.slow_shutdown():
            self.nvml.timeout = 0.02
            self.assertFalse(self.nvml.reset())
        self.wait_until_idle()
        self.nvml.timeout = scope.HANG
        self.assertTrue(self.nvml.driver_version())
        opened = self.nvml.gate
        gate.close_idle()
        self.assertTrue(opened.is_open)
        self.assertIsNotNone(opened._held)

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
        self.assertTrue(self.nvml.gate.is_open)
        may_end.set()
        self.wait_until_idle()
        self.wait_until_closed(self.nvml.gate)

    def open_another(self):
        """Return another open session, alone in a list, and its gate."""
        session = self.nvml.another()
        session.driver_version()
        return [session], session.gate

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
        sessions, opened = self.open_another()
        with machine_module.Machine.load('t4x4'):
            sessions.clear()
            self.wait_until_closed(opened)
        self.assertNotIn('nvmlShutdown', self.calls())

    def test_a_session_of_before_a_reboot_ends_none_of_after_it(self):
        sessions, opened = self.open_another()
        self.machine.reboot()
        self.nvml.reset()
        self.nvml.driver_version()
        sessions.clear()
        self.wait_until_closed(opened)
        with self.machine.operation():
            self.assertTrue(self.machine.library.open)

    def wait_until_closed(self, opened):
        end = time.monotonic() + scope.HANG
        while opened.is_open and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(opened.is_open)
