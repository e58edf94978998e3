# SPDX-License-Identifier: Apache-2.0

"""Binds and unbinds without mdev, with everything going wrong."""

import errno

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_CODES = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_IN_USE,
          pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
          pynvml.NVML_ERROR_NO_PERMISSION)
_ERRNOS = (errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EBUSY, errno.EPERM)
_REFUSALS = _CODES[2:]


class FailingCase(binder_case.BinderCase):

    machine = 'a100x4-vfio'
    gpu = '0000:31:00.0'

    def setUp(self):
        super().setUp()
        self.asked = self.handle('2g.20gb')
        self.binder.bind(*self.handle('1g.10gb'))
        self.before = self.truth()

    def attempt(self, action, *args):
        try:
            action(*args)
        except exception.GpuDriverError as error:
            self.assertNotEqual('', str(error))
            return False
        return True

    def bind(self):
        return self.attempt(self.binder.bind, *self.asked)

    def unbind(self):
        return self.attempt(self.binder.unbind, *self.asked)

    def assert_undone(self, *where):
        self.machine.faults.clear()
        self.binder.recover()
        self.live.refresh()
        self.assertEqual(self.before, self.truth(), where)
        self.assert_quiet()

    def each_read(self, action):
        """Let each read of the vendor's files fail in turn.

        :param action: called with the path and the number of that read.
        """
        for path in ('*/current_vgpu_type', '*/gpu_instance_id'):
            nth = 1
            while self._one_read(path, nth, action):
                nth += 1
            self.assertGreater(nth, 1, path)

    def _one_read(self, path, nth, action):
        self.machine.faults.fail_read(path, errno.EIO, nth)
        (fault,) = self.machine.faults._faults
        action((path, nth))
        return fault.seen >= nth


class FailingBindTest(FailingCase):

    def test_each_nvml_call(self):
        pattern = self.calls(self.bind)
        self.unbind()
        for symbol, count in pattern.items():
            for nth in range(1, count + 1):
                for code in _CODES:
                    for after in (False, True):
                        self._one(symbol, nth, code, after)

    def _one(self, symbol, nth, code, after):
        self.machine.faults.fail(symbol, code, nth, after=after)
        if self.bind():
            self.machine.faults.clear()
            self.unbind()
        if (after and code in _REFUSALS
                and symbol == 'nvmlDeviceCreateGpuInstanceWithPlacement'):
            # NVML reported that it created nothing, although it did. The
            # binder takes the instance for another tool's.
            self._remove_strangers()
        self.assert_undone(symbol, nth, code, after)

    def _remove_strangers(self):
        self.machine.faults.clear()
        self.live.refresh()
        for instance in self.live.gpu(self.address).mig.instances:
            place = instance.profile_id, instance.placement.start
            if place not in self.before[0]:
                privileged.destroy_gpu_instance(self.gpu,
                                                instance.instance_id)

    def test_each_write(self):
        for code in _ERRNOS:
            for after in (False, True):
                self.machine.faults.fail_write('*/current_vgpu_type', code,
                                               after=after)
                self.assertFalse(self.bind())
                # The bind itself undoes its changes, without recover().
                self.assertEqual(self.before, self.truth())
                self.assert_undone(code, after)
        self.assertTrue(self.bind())

    def test_each_read(self):
        def action(where):
            if self.bind():
                self.machine.faults.clear()
                self.unbind()
            self.assert_undone(*where)

        self.each_read(action)

    def test_an_undo_that_fails_too_is_finished_later(self):
        # The write of the type takes effect but reports an error. Clearing the
        # type then fails twice.
        self.machine.faults.fail_write('*/current_vgpu_type', errno.EIO,
                                       after=True)
        self.machine.faults.fail_write('*/current_vgpu_type', errno.EIO,
                                       nth=2, times=2)
        self.assertFalse(self.bind())
        self.restart()
        self.binder.recover()
        self.assertNotEqual(self.before, self.truth())
        self.binder.recover()
        self.assert_undone()

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


class FailingUnbindTest(FailingCase):

    def test_each_nvml_call(self):
        self.bind()
        pattern = self.calls(self.unbind)
        for symbol, count in pattern.items():
            for nth in range(1, count + 1):
                for code in _CODES:
                    for after in (False, True):
                        self.assertTrue(self.bind())
                        self.machine.faults.fail(symbol, code, nth,
                                                 after=after)
                        self.unbind()
                        self.assert_undone(symbol, nth, code, after)

    def test_each_write(self):
        for code in _ERRNOS:
            for after in (False, True):
                self.assertTrue(self.bind())
                self.machine.faults.fail_write('*/current_vgpu_type', code,
                                               after=after)
                self.assertFalse(self.unbind())
                self.assert_undone(code, after)

    def test_each_read(self):
        def action(where):
            self.machine.faults._faults, faults = (
                [], self.machine.faults._faults)
            self.assertTrue(self.bind())
            self.machine.faults._faults = faults
            self.unbind()
            self.assert_undone(*where)

        self.each_read(action)
