# SPDX-License-Identifier: Apache-2.0

"""Binds that come too late, and unbinds that would take too long."""

import contextlib
import dataclasses
import logging
import threading

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program.bind import binder
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests import thread_limit
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_CREATE = 'nvmlDeviceCreateGpuInstanceWithPlacement'
_DESTROY = 'nvmlGpuInstanceDestroy'
_NOTHING = ([], [])


class _Waits(logging.Handler):
    """Log handler that sets an event when a wait for a lock begins."""

    def __init__(self):
        super().__init__()
        self.event = threading.Event()

    def emit(self, record):
        if ' waits for ' in record.getMessage():
            self.event.set()


class LimitCase(binder_case.BinderCase):

    seconds = 3600.0

    def setUp(self):
        self.now = 0.0
        super().setUp()
        self.patch(binder, 'UNBIND_SECONDS', 0.1)
        self.node.turns._clock = lambda: self.now
        self.asked = self.handle('3g.20gb')

    def hold(self):
        return locks.gpu(self.state_path, self.address, 60, 'the test')

    def phases(self):
        return [entry.phase for entry in store.Store(
            self.state_path).claims()]

    def in_thread(self, function, *arguments):
        """Start a call. Return its thread and a list that gets its error."""
        errors = []

        def run():
            try:
                function(*arguments)
            except exception.GpuDriverError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join, 60)
        return thread, errors


class LateBindTest(LimitCase):

    def test_a_lock_is_waited_for_until_the_deadline_only(self):
        with self.hold():
            error = self.assertRaises(
                exception.BindRefused, self.binder.bind, *self.asked, 0.1)
        self.assertIn('the test', str(error))
        self.assertEqual(_NOTHING, self.truth())
        self.assertEqual([], self.phases())
        self.binder.bind(*self.asked)

    def test_one_that_is_late_when_the_lock_comes_does_nothing(self):
        leftover = self.handle('1g.5gb')
        self.binder.bind(*leftover)
        self.records.give_back(leftover[2])
        before = self.truth()
        waits = self.listen()
        with self.hold():
            thread, errors = self.in_thread(self.binder.bind, *self.asked)
            self.assertTrue(waits.event.wait(scope.HANG))
            self.now = self.seconds
        thread.join(scope.HANG)
        self.assertIsInstance(errors[0], exception.BindAbandoned)
        self.assertIn('bind_timeout', str(errors[0]))
        self.assertEqual(before, self.truth())

    def test_one_that_is_late_is_not_tried_again(self):
        def take(seconds):
            if not self.now:
                self.expire(seconds)
                self.stranger(19, 4, 1)

        self.machine.faults.delay(_CREATE, 1, sleep=take)
        self.machine.reset_calls()
        self.assertRaises(exception.BindAbandoned, self.binder.bind,
                          *self.asked)
        # The call of the bind, and that of the other tool, which was quicker.
        self.assertEqual(2, self.machine.calls[_CREATE])
        self.assertEqual(([(19, 4)], []), self.truth())
        self.assertEqual([], self.phases())

    def test_one_that_is_late_at_the_end_is_rolled_back(self):
        self.machine.faults.delay(_CREATE, 1, sleep=self.expire)
        error = self.assertRaises(exception.BindAbandoned, self.binder.bind,
                                  *self.asked)
        self.assertIn('bind_timeout', str(error))
        self.assertEqual(_NOTHING, self.truth())
        self.assertEqual([], self.phases())
        self.live.refresh()
        self.assert_quiet()

    def expire(self, _seconds):
        self.now += self.seconds

    def listen(self):
        """Return a handler that learns at once of a wait for a lock."""
        self.patch(locks, '_SAY_SECONDS', 0.0)
        waits, logger = _Waits(), logging.getLogger(locks.__name__)
        logger.addHandler(waits)
        self.addCleanup(logger.removeHandler, waits)
        return waits

    def test_an_unbind_cancels_a_bind_that_waits(self):
        waits = self.listen()
        with self.hold():
            thread, errors = self.in_thread(self.binder.bind, *self.asked)
            self.assertTrue(waits.event.wait(scope.HANG))
            self.binder.unbind(*self.asked)
        thread.join(scope.HANG)
        self.assertIsInstance(errors[0], exception.BindAbandoned)
        self.assertIn('released the handle', str(errors[0]))
        self.assertEqual(_NOTHING, self.truth())
        # The next server gets the handle.
        self.binder.bind(*self.asked)
        self.assertEqual([gpu_record.Phase.BOUND], self.phases())

    def test_an_unbind_cancels_a_bind_that_is_under_way(self):
        def unbind(_seconds):
            self.assertRaises(exception.GpuDriverError, self.binder.unbind,
                              *self.asked)

        self.machine.faults.delay(_CREATE, 1, sleep=unbind)
        error = self.assertRaises(exception.BindAbandoned, self.binder.bind,
                                  *self.asked)
        self.assertIn('released the handle', str(error))
        self.assertEqual(_NOTHING, self.truth())
        self.assertEqual([], self.phases())

    def test_an_unbind_cancels_a_bind_that_is_about_to_end(self):
        put, done = self.records.put_claims, []

        def unbind(*entries):
            if entries[0].phase is gpu_record.Phase.BOUND and not done:
                done.append(True)
                self.assertRaises(exception.GpuDriverError,
                                  self.binder.unbind, *self.asked)
            put(*entries)

        self.records.put_claims = unbind
        self.assertRaises(exception.BindAbandoned, self.binder.bind,
                          *self.asked)
        self.assertEqual(_NOTHING, self.truth())
        self.assertEqual([], self.phases())

    def test_a_bind_that_overtakes_an_unbind_stays(self):
        vgpu_type = self.node.claimed_vgpus.vgpu_type

        def bound(vgpu):
            self.node.claimed_vgpus.vgpu_type = vgpu_type
            self.binder.bind(*self.asked)
            return vgpu_type(vgpu)

        self.node.claimed_vgpus.vgpu_type = bound
        self.binder.unbind(*self.asked)
        self.assertEqual([gpu_record.Phase.BOUND], self.phases())
        self.assert_quiet()


class CompleteBindTest(LimitCase):
    """Cyborg would never give back the handle of a bind that failed."""

    policy = policy.Policy('p', policy.Mode.AUTO, roles=(
        policy.Mode.MIG, policy.Mode.PASSTHROUGH))

    def assert_bound(self):
        self.assertEqual([gpu_record.Phase.BOUND], self.phases())
        self.assertEqual(1, len(self.truth()[1]))

    def test_what_follows_it_fails(self):
        log = self.useFixture(fixtures.FakeLogger(binder.__name__))

        @contextlib.contextmanager
        def partitioning(address):
            yield ''
            raise RuntimeError("can't start new thread")

        self.cloud.partitioning = partitioning
        self.binder.bind(*self.asked)
        self.assert_bound()
        self.assertIn("can't start new thread", log.output)

    def test_no_thread_can_write_to_placement(self):
        written = []
        self.cloud.publish = publishing.Publisher(
            lambda address, generations: written.append(address)).publish
        with thread_limit.reached('free capacity'):
            self.binder.bind(*self.asked)
        self.assert_bound()
        self.assertEqual([self.address], written)


class SlowUnbindTest(LimitCase):

    def setUp(self):
        super().setUp()
        self.binder.bind(*self.asked)
        self.bound = self.truth()
        self.release = threading.Event()
        self.addCleanup(self.release.set)

    def assert_returned(self):
        self.binder.recover()
        self.assertEqual(_NOTHING, self.truth())
        self.assertEqual([], self.phases())

    def test_nvml_hangs(self):
        self.machine.faults.delay(
            _DESTROY, 1, sleep=lambda _seconds: self.release.wait(scope.HANG))
        error = self.assertRaises(exception.StepFailed, self.binder.unbind,
                                  *self.asked)
        self.assertIn('after 0.1 s', str(error))
        self.assertEqual([gpu_record.Phase.UNBINDING], self.phases())
        self.release.set()
        self.assert_returned()

    def test_without_a_thread_it_is_done_in_the_callers(self):
        with thread_limit.reached('unbind'):
            self.binder.unbind(*self.asked)
        self.assertEqual(_NOTHING, self.truth())
        self.assertEqual([], self.phases())

    def test_mdevctl_hangs_and_holds_up_no_bind(self):
        asked = threading.Event()

        def tool(*_arguments):
            asked.set()
            self.release.wait(scope.HANG)

        self.patch(privileged, '_platform', dataclasses.replace(
            privileged.machine(), mdevctl=tool))
        self.assertRaises(exception.StepFailed, self.binder.unbind,
                          *self.asked)
        self.assertTrue(asked.wait(scope.HANG))
        self.assertEqual([gpu_record.Phase.UNBINDING], self.phases())
        self.binder.bind(*self.handle('1g.5gb'))
        self.release.set()
        self.binder.recover()
        self.assertEqual([(19, 6)], self.truth()[0])
        self.assert_quiet()

    def test_a_handle_that_is_bound_again_meanwhile_stays_bound(self):
        calls = []

        def tool(*_arguments):
            calls.append(True)
            if len(calls) == 1:
                # Another report finishes the unbind, and the next server binds
                # the handle.
                self.binder.recover()
                self.binder.bind(*self.asked)

        self.patch(privileged, '_platform', dataclasses.replace(
            privileged.machine(), mdevctl=tool))
        # An unbind that ran out of time did only this.
        self.records.give_back(self.asked[2])
        self.binder.recover()
        self.assertEqual(2, len(calls))
        self.assertEqual(self.bound, self.truth())
        self.assert_quiet()

    def test_a_bind_that_a_report_waited_for_is_no_leftover(self):
        log = self.useFixture(fixtures.FakeLogger(level=logging.INFO))
        (entry,) = self.records.claims()
        self.records.put_claims(dataclasses.replace(
            entry, phase=gpu_record.Phase.BINDING))
        held = locks.gpus

        def wait(*arguments):
            self.records.put_claims(entry)
            return held(*arguments)

        self.patch(locks, 'gpus', wait)
        self.binder.recover()
        self.assertNotIn('leftovers', log.output)
        self.assert_quiet()

    def test_who_gets_the_handle_next_finds_nothing_of_it(self):
        with self.hold():
            self.assertRaises(exception.GpuDriverError, self.binder.unbind,
                              *self.asked)
        self.machine.reset_calls()
        self.binder.bind(*self.asked)
        self.assertEqual(1, self.machine.calls[_CREATE])
        self.assertEqual([gpu_record.Phase.BOUND], self.phases())


class PublishTest(binder_case.BinderCase):

    def publish(self, address):
        """Take the GPU's lock: no bind must wait for a slow Placement."""
        with locks.gpu(self.state_path, address, 0.0):
            self.published.append(self.creatable()['7g.40gb'])

    def test_placement_is_told_without_the_lock(self):
        self.cloud.publish = self.publish
        asked = self.handle('1g.5gb')
        self.binder.bind(*asked)
        self.binder.unbind(*asked)
        self.assertEqual([0, 1], self.published)

    def test_what_a_refused_bind_has_learnt_is_told(self):
        self.cloud.publish = self.publish
        self.stranger(19, 0, 1)
        self.assertRaises(exception.BindRefused, self.binder.bind,
                          *self.handle('7g.40gb'))
        self.assertEqual([0], self.published)
