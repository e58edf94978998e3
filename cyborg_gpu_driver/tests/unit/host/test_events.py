# SPDX-License-Identifier: Apache-2.0


"""Receiving errors in a thread that waits in a simulated NVML."""

import queue
import threading

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import health
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base


class EventSetTest(base.SimulatedTestCase):
    """The event set, without the watcher's thread."""

    def setUp(self):
        super().setUp()
        self.set = health.EventSet(self.nvml, nvml.NvmlSession())
        self.wanted = frozenset(self.addresses)
        self.second = self.addresses[1]

    def settle(self):
        return self.set.settle(self.wanted)

    def wait(self):
        return self.set.wait(0)

    def lost(self, address):
        return [condition.Event(address, 79)]

    def test_an_error_names_its_gpu_and_instance(self):
        self.settle()
        self.machine.raise_xid(str(self.second), 94, 3, 0)
        self.machine.raise_xid(str(self.first), 62)
        self.machine.raise_xid(str(self.first), None)
        self.assertEqual(
            [[condition.Event(self.second, 94, 3, 0)],
             [condition.Event(self.first, 62)],
             [condition.Event(self.first, 48)], []],
            [self.wait() for _ in range(4)])

    def test_a_handle_that_nvml_spells_anew(self):
        self.settle()
        self.set.members.clear()
        self.machine.raise_xid(str(self.second), 62)
        self.assertEqual([condition.Event(self.second, 62)], self.wait())

    def test_a_gpu_that_refuses_disturbs_no_other_and_is_said_once(self):
        self.machine.faults.fail(
            'nvmlDeviceRegisterEvents', pynvml.NVML_ERROR_NOT_SUPPORTED,
            times=2, address=str(self.first))
        self.assertEqual([], self.settle())
        self.assertNotIn(self.first, self.set.members.values())
        self.machine.raise_xid(str(self.second), 62)
        self.assertEqual([condition.Event(self.second, 62)], self.wait())
        self.settle()
        self.assertEqual(1, len(self.log.about(str(self.first))))
        self.settle()
        self.assertIn(self.first, self.set.members.values())

    def test_a_gpu_that_spoils_the_set_is_left_out_of_the_next(self):
        self.machine.faults.fail(
            'nvmlDeviceRegisterEvents', pynvml.NVML_ERROR_UNKNOWN,
            times=None, address=str(self.first))
        self.assertRaises(exception.NvmlError, self.settle)
        self.set.close()
        self.settle()
        self.assertEqual(7, len(self.set.members))

    def test_a_lost_gpu_is_told_and_the_others_are_waited_on(self):
        self.settle()
        self.machine.lose_gpu(str(self.first))
        self.assertEqual(self.lost(self.first), self.wait())
        self.assertEqual(self.lost(self.first), self.wait())
        self.assertEqual(7, len(self.set.members))
        self.machine.raise_xid(str(self.second), 62)
        self.assertEqual([condition.Event(self.second, 62)], self.wait())
        self.assertEqual([], self.settle())
        self.machine.find_gpu(str(self.first))
        self.settle()
        self.assertEqual(8, len(self.set.members))

    def test_a_set_that_is_spoiled_by_nobody(self):
        self.settle()
        self.machine.faults.fail('nvmlEventSetWait_v2',
                                 pynvml.NVML_ERROR_GPU_IS_LOST)
        self.assertRaises(exception.NvmlError, self.wait)

    def test_a_gpu_that_was_reset_is_waited_on_again(self):
        self.machine.sriov_manage(str(self.first), enable=False)
        self.settle()
        self.machine.reset_gpu(str(self.first))
        self.assertEqual([], self.settle())
        self.machine.raise_xid(str(self.first), 62)
        self.assertEqual([condition.Event(self.first, 62)], self.wait())

    def test_a_set_is_freed_once_and_never_in_another_session(self):
        self.settle()
        self.calls()
        self.set.close()
        self.assertEqual(1, self.calls()['nvmlEventSetFree'])
        self.settle()
        self.machine.unload_library()
        self.machine.load_library()
        self.calls()
        self.assertRaises(exception.NvmlError, self.wait)
        self.set.close()
        self.assertNotIn('nvmlEventSetFree', self.calls())

    def test_the_other_session_notices_first_that_nvml_was_away(self):
        self.settle()
        generation = self.nvml.generation
        self.machine.unload_library()
        self.machine.load_library()
        self.assertRaises(exception.NvmlError, self.settle)
        self.settle()
        self.assertGreater(self.nvml.generation, generation)
        self.assertEqual('A100', self.nvml.call(
            'nvmlDeviceGetName', self.device())[7:11])


class WatcherTest(base.SimulatedTestCase):
    """The watcher's thread."""

    def setUp(self):
        super().setUp()
        # They are seconds on a real GPU, and the tests wait for them.
        self.use_constant('_WAIT_MS', 20)
        self.events = queue.Queue()
        self.make(self.events.put)

    def make(self, callback, retry=0.02):
        self.use_constant('_RETRY', retry)
        self.watcher = health.Watcher(self.nvml, callback)
        self.addCleanup(self.watcher.stop)

    def use_constant(self, name, value):
        self.useFixture(fixtures.MonkeyPatch(
            f'{health.__name__}.{name}', value))

    def watch(self):
        """Watch all GPUs; return when the watcher waits for events."""
        registered = threading.Event()
        self.machine.faults.delay('nvmlEventSetWait_v2', 0,
                                  lambda _: registered.set())
        self.watcher.watch(self.addresses)
        self.assertTrue(registered.wait(scope.HANG))

    def next(self):
        return self.events.get(timeout=scope.HANG)

    def raised(self, xid=62, address=None):
        self.machine.raise_xid(str(address or self.first), xid)
        return self.next()

    def test_a_callback_that_fails_does_not_end_it(self):
        told = threading.Event()

        def fail(event):
            told.set()
            raise ValueError(event.xid)

        self.make(fail)
        self.watch()
        for _ in range(2):
            told.clear()
            self.machine.raise_xid(str(self.first), 62)
            self.assertTrue(told.wait(scope.HANG))
        self.assertTrue(self.log.about('XID 62'))

    def test_while_nvml_is_away_it_rests(self):
        self.make(self.events.put, scope.HANG)
        tries = queue.Queue()
        self.machine.unload_library(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.machine.faults.delay('nvmlInitWithFlags', 0, tries.put)
        self.watcher.watch(self.addresses)
        tries.get(timeout=scope.HANG)
        self.assertRaises(queue.Empty, tries.get, timeout=0.3)

    def test_no_error_ends_it(self):
        """An exception is logged once, and errors are received again."""
        failed = threading.Semaphore(0)

        def fail(_):
            failed.release()
            raise ValueError('not expected')

        self.watch()
        self.machine.faults.delay('nvmlEventSetWait_v2', 0, fail)
        for _ in range(3):
            self.assertTrue(failed.acquire(timeout=scope.HANG))
            self.watcher.watch(self.addresses)
        self.watch()
        self.assertEqual(62, self.raised().xid)
        self.assertEqual(1, len(self.log.about('not expected')))

    def test_a_stop_does_not_wait_for_what_hangs(self):
        self.useFixture(fixtures.MockPatchObject(
            deadline, '_STOP_SECONDS', 0.1))
        self.watch()
        hangs, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def hang(_):
            hangs.set()
            release.wait()

        self.machine.faults.delay('nvmlEventSetWait_v2', 0, hang)
        self.assertTrue(hangs.wait(scope.HANG))
        self.watcher.stop()
        self.machine.faults.clear()
        release.set()
        self.watcher._thread._thread.join(scope.HANG)
        self.watch()
        self.assertEqual(62, self.raised().xid)

    def test_it_lets_go_for_who_wants_nvml_alone(self):
        self.watch()
        with self.nvml.alone(), self.machine.operation():
            self.assertFalse(self.machine.library.open)
        self.watch()
        self.assertEqual(62, self.raised().xid)

    def test_a_callback_that_waits_keeps_nobody_from_having_nvml(self):
        told, go_on = threading.Event(), threading.Event()

        def wait(event):
            told.set()
            go_on.wait(scope.HANG)

        self.make(wait)
        self.addCleanup(go_on.set)
        self.watch()
        self.machine.raise_xid(str(self.first), 62)
        self.assertTrue(told.wait(scope.HANG))
        with self.nvml.alone(), self.machine.operation():
            self.assertFalse(self.machine.library.open)
