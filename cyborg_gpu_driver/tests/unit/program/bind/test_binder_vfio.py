# SPDX-License-Identifier: Apache-2.0

"""Binds and unbinds where vGPUs are made without mdev."""

import dataclasses
import errno
import os
import threading
import uuid

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.simulator.driver import mig as rules
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.program.bind import binder_case


class VfioCase(binder_case.BinderCase):

    machine = 'a100x4-vfio'

    def used_by(self, handle, number):
        """Another handle on the same function."""
        return (*handle[:2], str(uuid.UUID(int=number)))

    def type_on(self, handle):
        return {item[1]: item[2] for item in self.truth()[1]}.get(handle[0])


class MigTest(VfioCase):

    gpu = '0000:31:00.0'

    def test_ours_stays_ours_while_the_vgpu_is_on_a_strangers(self):
        self.stranger(9, 0, 4)
        self.live.refresh()
        handle = self.handle('3g.40gb')
        self.binder.bind(*handle)
        self.assertEqual([(9, 0), (9, 4)], self.truth()[0])
        self.live.refresh()
        self.assert_quiet()
        self.binder.unbind(*handle)
        self.assertEqual(([(9, 0)], []), self.truth())

    def test_the_journal_has_the_instance_that_the_driver_chose(self):
        first, second = (self.handle('3g.40gb', number)
                         for number in (0, 1))
        self.stranger(9, 4, 4)
        self.live.refresh()
        self.binder.bind(*first)
        self._destroy(9, 4)
        self.live.refresh()
        self.assertEqual([(9, 0)], self.truth()[0])
        self.machine.faults.fail('nvmlGpuInstanceDestroy',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        self.assertRaises(exception.NvmlError, self.binder.unbind, *first)
        self.machine.faults.clear()
        # The second bind cannot remove that instance either. The bind creates
        # another one, and the NVIDIA driver puts the vGPU on the first
        # handle's instance.
        self.machine.faults.fail('nvmlGpuInstanceDestroy',
                                 pynvml.NVML_ERROR_UNKNOWN)
        self.binder.bind(*second)
        self.assertEqual([(9, 0)], self.truth()[0])
        self.assertEqual([(9, 0)], self.belief()[0])
        entry = self.records.claim(second[2])
        self.assertEqual(model.Placement(0, 4), entry.placement)
        self.live.refresh()
        self.binder.recover()
        self.assert_quiet()
        self.assertEqual([(9, 0)], self.truth()[0])
        self.binder.unbind(*second)
        self.assertEqual(([], []), self.truth())

    def bound_beside_a_stranger(self):
        """Bind a handle whose vGPU is on another tool's instance.

        Its own instance is empty. The NVIDIA driver puts the next vGPU on it.
        """
        self.stranger(19, 0, 1)
        self.live.refresh()
        handle = self.handle('1g.10gb')
        self.binder.bind(*handle)
        return handle

    def assert_only_the_strangers_after(self, handle):
        self.binder.unbind(*handle)
        self.assertEqual(([(19, 0)], []), self.truth())

    def test_a_bind_that_ends_leaves_no_instance_that_another_swapped(self):
        class Died(BaseException):
            """An end that no rollback catches, like SIGKILL."""

        def cancel():
            self.binder._turns.cancel(second[2])

        def die():
            raise Died

        first, second = (self.bound_beside_a_stranger(),
                         self.handle('1g.10gb', 1))
        for end, error in ((cancel, exception.BindAbandoned), (die, Died)):
            create = self.node.claimed_vgpus.create_vgpu

            def create_and_end(*arguments, create=create, end=end):
                made = create(*arguments)
                end()
                return made

            self.node.claimed_vgpus.create_vgpu = create_and_end
            self.assertRaises(error, self.binder.bind, *second)
            self.node.claimed_vgpus.create_vgpu = create
            if error is Died:
                self.restart()
                self.binder.recover()
            self.assert_quiet()
        self.assert_only_the_strangers_after(first)

    def test_without_a_gpu_instance_nothing_is_made(self):
        # Another tool destroys the instance before the bind writes the type.
        before = self.truth()
        write = self.machine.os.write

        def destroy_and_write(descriptor, data):
            self._destroy(*self.truth()[0][0])
            return write(descriptor, data)

        self.machine.os.write = destroy_and_write
        error = self.assertRaises(exception.SysfsError, self.binder.bind,
                                  *self.handle('1g.10gb'))
        self.machine.os.write = write
        self.assertEqual(errno.EIO, error.errno)
        self.assertEqual(before, self.truth())
        self.assert_quiet()

    def test_a_write_that_hangs_is_waited_for_before_the_rollback(self):
        before, released = self.truth(), threading.Event()
        self.addCleanup(released.set)
        write = self.machine.os.write

        def write_late(descriptor, data):
            released.wait(scope.HANG)
            return write(descriptor, data)

        self.patch(self.machine.os, 'write', write_late)
        self.patch(privileged.machine().nvml, 'timeout', 1.0)
        handle = self.handle('1g.10gb')
        error = self.assertRaises(exception.NvmlNotAnswering,
                                  self.binder.bind, *handle)
        self.assertIn('current_vgpu_type', str(error))
        # Until the write returns, nothing is done for the GPU.
        self.binder.recover()
        self.assertNotEqual(before, self.truth())
        self.assertEqual(1, len(self.records.claims()))
        released.set()
        while deadline.stuck([self.address]):
            os.sched_yield()
        self.assertIsNotNone(self.type_on(handle))
        self.binder.recover()
        self.assertEqual(before, self.truth())
        self.assert_quiet()

    def _destroy(self, profile_id, start):
        """Destroy an instance, as another tool would."""
        with self.machine.operation():
            gpu = self.machine.gpu(self.gpu)
            (number,) = [
                number for number, item in gpu.state.instances.items()
                if (item.profile_id, item.start) == (profile_id, start)]
            rules.destroy(gpu, number)


class DeadFunctionTest(VfioCase):
    """A guest that is killed in its first seconds."""

    gpu = '0000:31:00.0'

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.records.clock = lambda: self.now

    def serve(self, seconds, number=0, die=True):
        handle = self.handle('1g.10gb', number)
        self.binder.bind(*handle)
        self.machine.start_guest(handle[0])
        self.now += seconds
        if die:
            self.machine.kill_guest(handle[0])
        else:
            self.machine.stop_guest(handle[0])
        self.binder.unbind(*handle)

    def dead(self):
        return [str(function) for function
                in self.binder._health.dead_functions(self.address)]

    def test_once_may_have_any_reason(self):
        self.serve(2.0)
        self.serve(2.0, number=1)
        self.assertEqual([], self.dead())

    def test_twice_sets_only_that_function_aside(self):
        self.serve(2.0)
        self.serve(2.0)
        handle = self.handle('1g.10gb')
        self.assertEqual([handle[0]], self.dead())
        self.assertIsNone(self.binder._health.unhealthy(self.address))
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *handle)
        self.assertIn('two servers in a row did not come up', str(error))
        self.assertEqual(([], []), self.truth())
        # Another process knows it too.
        self.restart()
        self.assertEqual([handle[0]], self.dead())
        self.serve(60.0, number=1)

    def test_a_server_that_came_up(self):
        for seconds in (2.0, 60.0, 2.0):
            self.serve(seconds, die=False)
        self.assertEqual([], self.dead())


class OwnershipTest(VfioCase):
    """A function in use, or of another owner by now, remains as it is."""

    gpu = '0000:b1:00.0'
    policy = policy.Policy('p', policy.Mode.VGPU,
                           vgpu_types=('A100D-20C', 'A100D-40C'))

    def setUp(self):
        super().setUp()
        self.bound = self.handle('A100D-40C')

    def assert_kept(self, error=exception.GpuInUse):
        held = self.truth()
        self.assertRaises(error, self.binder.unbind, *self.bound)
        self.assertEqual(held, self.truth())
        self.binder.recover()
        self.assertEqual(held, self.truth())
        # No other handle gets the function.
        other = self.used_by(self.bound, 1)
        refused = self.assertRaises(exception.BindRefused,
                                    self.binder.bind, *other)
        self.assertIn(self.bound[2], str(refused))
        self.assertRaises(error, self.binder.bind, *self.bound)
        self.assertEqual(held, self.truth())
        self.assertEqual(gpu_record.Phase.UNBINDING,
                         self.records.claim(self.bound[2]).phase)

    def assert_freed(self):
        self.binder.recover()
        self.assertEqual(([], []), self.truth())
        self.binder.bind(*self.used_by(self.bound, 1))
        self.assert_quiet()

    def test_a_process_that_has_the_device_open(self):
        self.binder.bind(*self.bound)
        self.machine.open_vfio(self.bound[0], 4711)
        self.assert_kept()
        error = self.assertRaises(exception.GpuInUse, self.binder.unbind,
                                  *self.bound)
        self.assertIn('process 4711', str(error))
        self.machine.close_vfio(self.bound[0], 4711)
        self.assert_freed()

    def look_with(self, holders):
        """Replace the function that finds the users of a VFIO device."""
        machine = dataclasses.replace(privileged.machine(),
                                      vfio_holders=holders)
        privileged.run_here(machine)

    def test_a_guest_that_only_nvml_sees(self):
        self.binder.bind(*self.bound)
        self.machine.start_guest(self.bound[0])
        self.look_with(lambda function: ())
        self.assert_kept()

    def test_what_is_not_known_to_be_free(self):
        def unknown(function):
            raise exception.UsageUnknown(what=function, reason='forbidden')

        self.binder.bind(*self.bound)
        self.look_with(unknown)
        self.assert_kept(exception.UsageUnknown)
        self.look_with(lambda function: ())
        self.assert_freed()

    def test_anothers_guest_is_not_taken_for_ours(self):
        other = self.handle('A100D-40C', 1)
        self.binder.bind(*self.bound)
        self.binder.bind(*other)
        self.machine.start_guest(other[0])
        self.binder.unbind(*self.bound)
        self.assertIsNone(self.type_on(self.bound))
        self.assertIsNotNone(self.type_on(other))
        self.assert_quiet()

    def test_a_late_release_after_another_handle_took_over(self):
        self.binder.bind(*self.bound)
        self.binder.unbind(*self.bound)
        other = self.used_by(self.bound, 1)
        self.binder.bind(*other)
        held = self.truth()
        for _ in range(2):
            self.binder.unbind(*self.bound)
            self.binder.recover()
            self.assertEqual(held, self.truth())
        self.assert_quiet()

    def test_a_release_with_another_function(self):
        other = self.handle('A100D-40C', 1)
        self.binder.bind(*self.bound)
        self.binder.bind(*other)
        held = self.truth()
        for wrong in ((other[0], *self.bound[1:]),
                      (self.bound[0], 'nvidia-1', self.bound[2])):
            for action in (self.binder.unbind, self.binder.bind):
                self.assertRaises(exception.BindRefused, action, *wrong)
                self.assertEqual(held, self.truth())
        self.assert_quiet()

    def test_a_function_that_carries_another_type_by_now(self):
        self.binder.bind(*self.bound)
        privileged_vgpu.set_vgpu_type(self.bound[0], 0)
        other = int(self.handle('A100D-20C')[1].split('-')[1])
        privileged_vgpu.set_vgpu_type(self.bound[0], other)
        self.binder.unbind(*self.bound)
        self.assertEqual(other, self.type_on(self.bound))
        self.assertEqual((), self.records.claims())

    def test_a_vgpu_that_was_lost_is_made_again(self):
        self.binder.bind(*self.bound)
        held = self.truth()
        privileged_vgpu.set_vgpu_type(self.bound[0], 0)
        self.binder.bind(*self.bound)
        self.assertEqual(held, self.truth())
        self.assert_quiet()

    def test_a_function_that_a_stranger_uses(self):
        number = int(self.bound[1].split('-')[1])
        privileged_vgpu.set_vgpu_type(self.bound[0], number)
        held = self.truth()
        for refresh in (False, True):
            if refresh:
                self.live.refresh()
            error = self.assertRaises(exception.BindRefused,
                                      self.binder.bind, *self.bound)
            self.assertIn('did not create', str(error))
            self.assertEqual(held, self.truth())
            self.assertEqual((), self.records.claims())
            self.binder.unbind(*self.bound)
            self.assertEqual(held, self.truth())
