# SPDX-License-Identifier: Apache-2.0

"""Binds and unbinds with everything going wrong."""

import dataclasses
import errno
import itertools
import os
import threading

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_CODES = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_IN_USE,
          pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
          pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_TIMEOUT,
          pynvml.NVML_ERROR_INVALID_ARGUMENT,
          pynvml.NVML_ERROR_UNINITIALIZED)


class FailingBindTest(binder_case.BinderCase):
    """Each call of a bind fails with each code, before or after its effect."""

    def attempt(self):
        handle = self.handle('2g.10gb')
        try:
            self.binder.bind(*handle)
        except exception.GpuDriverError as error:
            self.assertNotEqual('', str(error))
            return False
        return True

    def test_each_nvml_call(self):
        self.binder.bind(*self.handle('1g.5gb'))
        before = self.truth()
        pattern = self.calls(self.attempt)
        self.binder.unbind(*self.handle('2g.10gb'))
        tried = 0
        for symbol, count in pattern.items():
            for nth in range(1, count + 1):
                for code in _CODES:
                    for after in (False, True):
                        tried += 1
                        self._one(before, symbol, nth, code, after)
        self.assertGreater(tried, 20)

    def test_an_instance_that_is_not_there_after_its_creation(self):
        before = self.truth()
        self.machine.faults.fail(faults.VANISHES, 0, times=None)
        self.assertFalse(self.attempt())
        self.binder.recover()
        self.live.refresh()
        self.assertEqual(before, self.truth())
        self.assert_quiet()
        # A bind reads the instance back, and tries again once.
        self.machine.faults.clear()
        self.machine.faults.fail(faults.VANISHES, 0)
        self.assertTrue(self.attempt())
        self.assertEqual(1, len(self.truth()[0]))

    def _one(self, before, symbol, nth, code, after):
        where = (symbol, nth, code, after)
        self.machine.faults.fail(symbol, code, nth, after=after)
        bound = self.attempt()
        self.machine.faults.clear()
        if bound:
            # A retry inside the bind may have avoided the fault, or it was in
            # the reading after the bind.
            self.live.refresh()
            self.binder.unbind(*self.handle('2g.10gb'))
        if (after and symbol == 'nvmlDeviceCreateGpuInstanceWithPlacement'
                and code in (pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
                             pynvml.NVML_ERROR_INVALID_ARGUMENT,
                             pynvml.NVML_ERROR_UNINITIALIZED,
                             pynvml.NVML_ERROR_NO_PERMISSION)):
            # NVML reported that it created nothing, although it did. The
            # binder takes such an instance for another tool's and leaves it
            # alone.
            self._remove_stranger(before)
        self.binder.recover()
        self.live.refresh()
        self.assertEqual(before, self.truth(), where)
        self.assert_quiet()

    def _remove_stranger(self, before):
        self.live.refresh()
        gpu = self.live.gpu(self.address)
        for instance in gpu.mig.instances:
            place = (instance.profile_id, instance.placement.start)
            if place not in before[0]:
                privileged.destroy_gpu_instance(
                    self.gpu, instance.instance_id)

    def test_nvml_is_closed_meanwhile_for_another_gpu(self):
        """NVML is closed before each call in turn, as sriov-manage needs."""
        before = self.truth()
        pattern = self.calls(self.attempt)
        self.binder.unbind(*self.handle('2g.10gb'))
        for symbol, reopened in itertools.product(pattern, (False, True)):
            closed = []

            def close_once(_seconds, closed=closed, reopened=reopened):
                if not closed:
                    closed.append(True)
                    nvml = privileged.machine().nvml
                    nvml.reset()
                    if reopened:
                        # The earlier device handles are no longer valid.
                        nvml.device_count()

            self.machine.faults.delay(symbol, 0, close_once)
            self.assertTrue(self.attempt(), (symbol, reopened))
            self.machine.faults.clear()
            self.binder.unbind(*self.handle('2g.10gb'))
            self.assertEqual((before, True), (self.truth(), bool(closed)))
        self.assert_quiet()

    def test_each_write_to_sysfs(self):
        before = self.truth()
        for code in (errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EPERM,
                     errno.EBUSY):
            for after in (False, True):
                self.machine.faults.fail_write('*/create', code, after=after)
                self.assertFalse(self.attempt())
                self.machine.faults.clear()
                self.assertEqual(before, self.truth(), (code, after))
                self.assert_quiet()
        self.assertTrue(self.attempt())

    def test_a_creation_that_the_bind_has_given_up(self):
        """It ends later, in the privileged process."""
        before = self.truth()
        create, begun, may_end = (privileged.create_gpu_instance,
                                  threading.Event(), threading.Event())

        def run(*arguments):
            with privsep._noted('create', arguments[0]):
                begun.set()
                may_end.wait()
                create(*arguments)

        def give_up(*arguments):
            late.append(threading.Thread(target=run, args=arguments))
            late[0].start()
            begun.wait()
            raise exception.HostUnusable(
                'privileged call create: late; see '
                '[cyborg_gpu_privileged] helper_command')

        late = []
        with (fixtures.MonkeyPatch('cyborg_gpu_driver.program.privileged.mig.'
                                   'create_gpu_instance', give_up),
              fixtures.MonkeyPatch('cyborg_gpu_driver.program.privileged.gpu.'
                                   '_LATE_SECONDS', 0.0)):
            self.assertFalse(self.attempt())
            self.binder.recover()
        may_end.set()
        late[0].join()
        self.assertNotEqual(before, self.truth())
        self.binder.recover()
        self.live.refresh()
        self.assertEqual(before, self.truth())
        self.assert_quiet()
        self.assertTrue(self.attempt())

    def test_an_undo_that_fails_too_is_finished_later(self):
        before = self.truth()
        for remaining in (1, 3):
            self.machine.faults.fail_write('*/create', errno.EIO)
            self.machine.faults.fail(
                'nvmlGpuInstanceDestroy', pynvml.NVML_ERROR_UNKNOWN,
                times=remaining)
            self.assertFalse(self.attempt())
            self.assertEqual([(14, 4)], self.truth()[0])
            for _ in range(remaining):
                self.restart()
                self.binder.recover()
            self.machine.faults.clear()
            self.assertEqual(before, self.truth())
            self.live.refresh()
            self.assert_quiet()

    def test_a_journal_that_cannot_be_written_stops_before_hardware(self):
        before = self.truth()
        handle = self.handle('1g.5gb')
        path = store.of(self.state_path).path(self.address)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('nonsense')
        error = self.assertRaises(exception.JournalError, self.binder.bind,
                                  *handle)
        self.assertIn(path, str(error))
        self.assertEqual(before, self.truth())


class FailingUnbindTest(binder_case.BinderCase):

    def setUp(self):
        super().setUp()
        self.bound = self.handle('2g.10gb')
        self.binder.bind(*self.bound)

    def unbind(self):
        try:
            self.binder.unbind(*self.bound)
        except exception.GpuDriverError:
            return False
        return True

    def test_each_nvml_call(self):
        pattern = self.calls(self.binder.unbind, *self.bound)
        for symbol, count in pattern.items():
            for nth in range(1, count + 1):
                for code in _CODES:
                    for after in (False, True):
                        self.binder.bind(*self.bound)
                        self.machine.faults.fail(symbol, code, nth,
                                                 after=after)
                        self.unbind()
                        self.machine.faults.clear()
                        self.binder.recover()
                        self.assertEqual(([], []), self.truth(),
                                         (symbol, nth, code, after))
                        self.live.refresh()
                        self.assert_quiet()

    def test_a_guest_that_still_holds_it_is_not_disturbed(self):
        held = self.truth()
        self.machine.start_guest(self.bound[2])
        self.assertFalse(self.unbind())
        self.assertEqual(held, self.truth())
        self.binder.recover()
        self.assertEqual(held, self.truth())
        error = self.assertRaises(exception.GpuDriverError,
                                  self.binder.bind, *self.bound)
        self.assertIn('its VFIO device is open', str(error))
        self.assertEqual((), self.machine.damage)
        self.machine.stop_guest(self.bound[2])
        self.binder.recover()
        self.assertEqual(([], []), self.truth())
        self.binder.bind(*self.bound)
        self.assertEqual(held, self.truth())

    def test_an_instance_id_that_is_reused_is_not_destroyed(self):
        entry = self.records.claim(self.bound[2])
        privileged_vgpu.remove_mdev(self.bound[2])
        # By now another instance has the id of the one that the bind created.
        self.records.put_claims(dataclasses.replace(
            entry, placement=model.Placement(0, 2)))
        before = self.truth()
        self.assertTrue(self.unbind())
        self.assertEqual(before, self.truth())
        self.assertEqual((), self.records.claims())

    def test_another_instance_at_the_old_place_is_not_destroyed(self):
        entry = self.records.claim(self.bound[2])
        # By now another instance is at the place of the one that the bind
        # created.
        self.records.put_claims(dataclasses.replace(
            entry, instance_id=entry.instance_id + 1))
        instances, _ = self.truth()
        self.assertTrue(self.unbind())
        self.assertEqual((instances, []), self.truth())
        self.assertEqual((), self.records.claims())

    def test_leftovers_on_another_gpu_are_not_removed_without_its_lock(self):
        (other,) = {gpu.address for gpu in self.live.host().gpus
                    if gpu.address != self.address}
        handle = self.handle('1g.5gb')
        entry = gpu_record.Claim(
            handle=handle[2], gpu=other, function=other,
            mdev_type=handle[1], profile='1g.5gb',
            phase=gpu_record.Phase.UNBINDING)
        self.records.put_claims(entry)
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *handle)
        self.assertIn(f'the handle is bound on {other}', str(error))
        self.assertEqual(entry, self.records.claim(handle[2]))

    def test_what_a_bind_cannot_remove_first_is_removed_later(self):
        privileged_vgpu.remove_mdev(self.bound[2])
        self.machine.faults.fail('nvmlGpuInstanceDestroy',
                                 pynvml.NVML_ERROR_UNKNOWN)
        self.assertRaises(exception.NvmlError, self.binder.bind,
                          *self.bound)
        self.binder.recover()
        self.assertEqual(([], []), self.truth())
        self.assertEqual((), self.records.claims())

    def test_a_record_that_cannot_be_read_for_a_while(self):
        path = store.of(self.state_path).path(self.address)
        os.rename(path, f'{path}.away')
        os.makedirs(path)
        self.assertRaises(exception.JournalUnreadable, self.binder.unbind,
                          *self.bound)
        os.rmdir(path)
        os.rename(f'{path}.away', path)
        # Cyborg does not repeat the unbind.
        self.binder.recover()
        self.assertEqual(([], []), self.truth())
        self.assertEqual((), self.records.claims())


class UnexpectedErrorTest(binder_case.BinderCase):
    """Errors that are not the driver's, for example of a daemon that died."""

    def setUp(self):
        super().setUp()
        self.machine.faults.delay('nvmlGpuInstanceDestroy', 1,
                                  sleep=self.end)
        self.asked = self.handle('2g.10gb')

    def end(self, _seconds):
        raise OSError('Premature eof waiting for privileged process')

    def assert_returned(self):
        self.machine.faults.clear()
        self.binder.recover()
        self.assertEqual(([], []), self.truth())
        self.assertEqual((), self.records.claims())

    def test_a_report_goes_on(self):
        self.binder.bind(*self.asked)
        self.records.give_back(self.asked[2])
        self.binder.recover()
        self.assertEqual([(14, 4)], self.truth()[0])
        self.assert_returned()

    def test_a_bind_fails_with_its_own_error(self):
        self.machine.faults.fail_write('*/create', errno.EIO)
        self.assertRaises(exception.SysfsError, self.binder.bind,
                          *self.asked)
        self.assertEqual([(14, 4)], self.truth()[0])
        self.assert_returned()


class CrashTest(binder_case.BinderCase):
    """The next process finishes what a dead process began."""

    def test_each_phase_of_a_bind(self):
        done = self.handle('1g.5gb')
        self.binder.bind(*done)
        before = self.truth()
        handle = self.handle('3g.20gb')
        for stop in ('create_instance', 'create_vgpu', 'put_claims'):
            self._die_at(stop, handle)
            self.restart()
            self.binder.recover()
            self.live.refresh()
            self.assertEqual(before, self.truth(), stop)
            self.assert_quiet()
            self.binder.bind(*handle)
            self.binder.unbind(*handle)

    def _die_at(self, stop, handle):
        """Let the process die right after a step, without a rollback."""
        class Died(BaseException):
            """An end that no rollback catches, like SIGKILL."""

        parts, records = self.node.claimed_vgpus, self.records
        owner = records if stop == 'put_claims' else parts
        step = getattr(owner, stop)
        seen = []

        def die(*args):
            result = step(*args)
            seen.append(result)
            # The first put comes before the hardware changes, the second one
            # after.
            if stop != 'put_claims' or len(seen) == 1:
                raise Died
            return result

        setattr(owner, stop, die)
        self.assertRaises(Died, self.binder.bind, *handle)

    def test_a_bind_that_was_complete_stays(self):
        handle = self.handle('3g.20gb')
        self.binder.bind(*handle)
        bound = self.truth()
        self.restart()
        self.binder.recover()
        self.assertEqual(bound, self.truth())
        self.assert_quiet()
        self.binder.unbind(*handle)
        self.assertEqual(([], []), self.truth())
