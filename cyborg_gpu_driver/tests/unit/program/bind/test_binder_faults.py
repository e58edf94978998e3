# SPDX-License-Identifier: Apache-2.0

"""Binds and unbinds in which NVML, the kernel or the process fails."""

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

_CREATE = 'nvmlDeviceCreateGpuInstanceWithPlacement'
_ERRNOS = (errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EBUSY, errno.EPERM)
_REFUSALS = (pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
             pynvml.NVML_ERROR_NO_PERMISSION,
             pynvml.NVML_ERROR_INVALID_ARGUMENT,
             pynvml.NVML_ERROR_UNINITIALIZED)
"""With these, NVML reports that it created nothing."""
_CODES = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_IN_USE,
          pynvml.NVML_ERROR_TIMEOUT, *_REFUSALS)


class FaultCase(binder_case.BinderCase):
    """A bind of one slice beside another one."""

    codes = _CODES
    write = '*/create'
    """The file with which the kernel makes a vGPU."""
    profiles = ('1g.5gb', '2g.10gb')

    def setUp(self):
        super().setUp()
        self.asked = self.handle(self.profiles[1])
        self.binder.bind(*self.handle(self.profiles[0]))
        self.before = self.truth()

    def attempt(self, action):
        try:
            action(*self.asked)
        except exception.GpuDriverError as error:
            self.assertNotEqual('', str(error))
            return False
        return True

    def bind(self):
        return self.attempt(self.binder.bind)

    def unbind(self):
        return self.attempt(self.binder.unbind)

    def assert_undone(self, *where):
        self.machine.faults.clear()
        self.binder.recover()
        self.live.refresh()
        self.assertEqual(self.before, self.truth(), where)
        self.assert_quiet()

    def each_call(self, pattern):
        """Let each call of NVML fail in turn, before or after its effect."""
        for symbol, count in pattern.items():
            for nth, code, after in itertools.product(
                    range(1, count + 1), self.codes, (False, True)):
                yield symbol, nth, code, after


class FaultTests:
    """Whatever fails, a bind or unbind leaves what was there before."""

    def test_each_nvml_call_of_a_bind(self):
        pattern = self.calls(self.bind)
        self.unbind()
        for symbol, nth, code, after in self.each_call(pattern):
            self.machine.faults.fail(symbol, code, nth, after=after)
            if self.bind():
                # A retry inside the bind may have avoided the fault, or it
                # was in the reading after the bind.
                self.machine.faults.clear()
                self.unbind()
            if after and code in _REFUSALS and symbol == _CREATE:
                # NVML has created it nevertheless, and the binder takes the
                # instance for another tool's.
                self.remove_strangers()
            self.assert_undone(symbol, nth, code, after)

    def remove_strangers(self):
        self.machine.faults.clear()
        self.live.refresh()
        for instance in self.live.gpu(self.address).mig.instances:
            place = instance.profile_id, instance.placement.start
            if place not in self.before[0]:
                privileged.destroy_gpu_instance(self.gpu,
                                                instance.instance_id)

    def test_each_nvml_call_of_an_unbind(self):
        self.bind()
        pattern = self.calls(self.unbind)
        for symbol, nth, code, after in self.each_call(pattern):
            self.assertTrue(self.bind())
            self.machine.faults.fail(symbol, code, nth, after=after)
            self.unbind()
            self.assert_undone(symbol, nth, code, after)

    def test_each_write_of_a_bind(self):
        for code, after in itertools.product(_ERRNOS, (False, True)):
            self.machine.faults.fail_write(self.write, code, after=after)
            self.assertFalse(self.bind())
            # The bind itself undoes its changes, without recover().
            self.assertEqual(self.before, self.truth())
            self.assert_undone(code, after)
        self.assertTrue(self.bind())

    def test_a_process_that_dies(self):
        class Died(BaseException):
            """An end that no rollback catches, like SIGKILL."""

        for name in ('create_instance', 'create_vgpu', 'instance_under'):
            step = getattr(self.node.claimed_vgpus, name)

            def die(*args, step=step):
                step(*args)
                raise Died

            setattr(self.node.claimed_vgpus, name, die)
            self.assertRaises(Died, self.binder.bind, *self.asked)
            self.restart()
            self.assert_undone(name)


class MdevTest(FaultTests, FaultCase):

    def test_an_instance_that_is_not_there_after_its_creation(self):
        self.machine.faults.fail(faults.VANISHES, 0, times=None)
        self.assertFalse(self.bind())
        self.assert_undone()
        # A bind reads the instance back, and tries again once.
        self.machine.faults.fail(faults.VANISHES, 0)
        self.assertTrue(self.bind())
        self.assertEqual(2, len(self.truth()[0]))

    def test_nvml_is_closed_meanwhile_for_another_gpu(self):
        """NVML is closed before each call in turn, as sriov-manage needs."""
        pattern = self.calls(self.bind)
        self.unbind()
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
            self.assertTrue(self.bind(), (symbol, reopened))
            self.machine.faults.clear()
            self.unbind()
            self.assertEqual((self.before, True),
                             (self.truth(), bool(closed)))
        self.assert_quiet()

    def test_a_creation_that_the_bind_has_given_up(self):
        """It ends later, in the privileged process."""
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
            self.assertFalse(self.bind())
            self.binder.recover()
        may_end.set()
        late[0].join()
        self.assertNotEqual(self.before, self.truth())
        self.assert_undone()
        self.assertTrue(self.bind())

    def test_an_undo_that_fails_too_is_finished_later(self):
        for remaining in (1, 3):
            self.machine.faults.fail_write(self.write, errno.EIO)
            self.machine.faults.fail(
                'nvmlGpuInstanceDestroy', pynvml.NVML_ERROR_UNKNOWN,
                times=remaining)
            self.assertFalse(self.bind())
            self.assertIn((14, 4), self.truth()[0])
            for _ in range(remaining):
                self.restart()
                self.binder.recover()
            self.assert_undone()

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


class VfioTest(FaultTests, FaultCase):

    machine = 'a100x4-vfio'
    gpu = '0000:31:00.0'
    codes = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_IN_USE,
             *_REFUSALS[:2])
    write = '*/current_vgpu_type'
    profiles = ('1g.10gb', '2g.20gb')

    def each_read(self, action):
        """Let each read of the vendor's files fail in turn.

        :param action: called with the path and the number of that read.
        """
        for path in ('*/current_vgpu_type', '*/gpu_instance_id'):
            nth, seen = 0, 0
            while seen >= nth:
                nth += 1
                self.machine.faults.fail_read(path, errno.EIO, nth)
                (fault,) = self.machine.faults._faults
                action((path, nth))
                seen = fault.seen
            self.assertGreater(nth, 1, path)

    def test_each_read_of_a_bind(self):
        def action(where):
            if self.bind():
                self.machine.faults.clear()
                self.unbind()
            self.assert_undone(*where)

        self.each_read(action)

    def test_each_read_of_an_unbind(self):
        def action(where):
            self.machine.faults._faults, faults = (
                [], self.machine.faults._faults)
            self.assertTrue(self.bind())
            self.machine.faults._faults = faults
            self.unbind()
            self.assert_undone(*where)

        self.each_read(action)

    def test_each_write_of_an_unbind(self):
        for code, after in itertools.product(_ERRNOS, (False, True)):
            self.assertTrue(self.bind())
            self.machine.faults.fail_write(self.write, code, after=after)
            self.assertFalse(self.unbind())
            self.assert_undone(code, after)

    def test_an_undo_that_fails_too_is_finished_later(self):
        # The write of the type takes effect but reports an error. Clearing the
        # type then fails twice.
        self.machine.faults.fail_write(self.write, errno.EIO, after=True)
        self.machine.faults.fail_write(self.write, errno.EIO, nth=2, times=2)
        self.assertFalse(self.bind())
        self.restart()
        self.binder.recover()
        self.assertNotEqual(self.before, self.truth())
        self.assert_undone()


class LeftTest(binder_case.BinderCase):
    """What an unbind finds is not always what the bind has made."""

    def setUp(self):
        super().setUp()
        self.bound = self.handle('2g.10gb')
        self.binder.bind(*self.bound)

    def test_an_instance_of_the_same_id_or_place_is_not_destroyed(self):
        for number, stale in enumerate(({'placement': model.Placement(0, 2)},
                                        {'instance_id': 99})):
            claim = self.records.claim(self.bound[2])
            privileged_vgpu.remove_mdev(self.bound[2])
            self.records.put_claims(dataclasses.replace(claim, **stale))
            before = self.truth()
            self.binder.unbind(*self.bound)
            self.assertEqual(before, self.truth())
            self.assertEqual((), self.records.claims())
            if not number:
                self.binder.bind(*self.bound)

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
