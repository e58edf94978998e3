# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Binds and unbinds on simulated hardware, with everything going wrong."""

import collections
import ctypes
import dataclasses
import errno
import uuid

import fixtures
import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import nvml
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host import sysfs
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program import binder
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import live
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.simulator import machine as simulator

_CODES = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_IN_USE,
          pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
          pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_TIMEOUT,
          pynvml.NVML_ERROR_INVALID_ARGUMENT)


class BinderCase(base.BaseTestCase):

    machine = 'dgx-a100-40'
    gpu = '0000:07:00.0'
    policy = policy.Policy('p', policy.Mode.MIG)

    def setUp(self):
        super().setUp()
        self.machine = simulator.Machine.load(self.machine).install()
        self.addCleanup(self.machine.uninstall)
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.address = model.PciAddress.parse(self.gpu)
        self.published = []
        self.restart()

    def restart(self):
        """As a new process would begin, on the same machine and files."""
        platform_ = platform.Platform(
            sysfs.Sysfs('/sys', os_module=self.machine.os),
            nvml.NvmlSession(), simulated=True)
        self.addCleanup(setattr, privileged, '_platform', None)
        privileged.run_here(platform_)
        self.journal = journal.Journal(self.state_path)
        self.live = live.LiveHost(
            reader.HostReader(platform_),
            policies.Settings(policies=(self.policy,)))
        self.binder = binder.Binder(
            self.live, hardware.Hardware(platform_), self.journal,
            self.state_path, self.published.append)
        self.live.refresh()

    def handle(self, profile, number=0):
        """A handle's (function, type, UUID) as Cyborg would send it."""
        gpu = self.live.gpu(self.address)
        (offer,) = [offer for offer in self.live.offers(gpu)
                    if offer.profile == profile]
        parent = offer.parents[number % len(offer.parents)]
        return (str(parent), offer.vgpu_type_id,
                str(uuid.uuid5(uuid.NAMESPACE_DNS, f'{profile} {number}')))

    def stranger(self, profile_id, start, size):
        """Let somebody else make an instance."""
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu), profile_id,
            ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size)))

    def truth(self):
        """What the hardware has, whatever anybody believes."""
        with self.machine.operation():
            gpu = self.machine.gpu(self.gpu).state
            return (sorted((item.profile_id, item.start)
                           for item in gpu.instances.values()),
                    sorted((vgpu.uuid, vgpu.function, vgpu.type_id)
                           for vgpu in gpu.vgpus))

    def belief(self):
        """What the live view has, in the same form."""
        gpu = self.live.gpu(self.address)
        return (sorted((item.profile_id, item.placement.start) for item
                       in (gpu.mig.instances if gpu.mig else ())),
                sorted((mdev.uuid, str(mdev.parent),
                        int(mdev.type_id.split('-')[1]))
                       for mdev in gpu.all_mdevs))

    def assert_quiet(self):
        """View, journal and hardware agree, and nothing is under way."""
        self.assertEqual(self.truth(), self.belief())
        entries = self.journal.entries()
        self.assertEqual({journal.Phase.BOUND} if entries else set(),
                         {entry.phase for entry in entries})
        uuids = [item[0] for item in self.truth()[1]]
        self.assertEqual(sorted(entry.handle for entry in entries), uuids)

    def calls(self, action, *args):
        """Which C symbols an action calls, and how often."""
        self.machine.reset_calls()
        action(*args)
        return collections.Counter(self.machine.calls)


class BindTest(BinderCase):

    def test_bind_and_unbind(self):
        empty = self.truth()
        handle = self.handle('3g.20gb')
        self.binder.bind(*handle)
        self.assertEqual(
            ([(9, 4)], [(handle[2], handle[0],
                         int(handle[1].split('-')[1]))]), self.truth())
        self.assert_quiet()
        self.binder.unbind(*handle)
        self.assertEqual(empty, self.truth())
        self.assert_quiet()
        self.assertEqual([self.address] * 2, self.published)

    def test_a_bind_makes_few_nvml_calls(self):
        calls = self.calls(self.binder.bind, *self.handle('1g.5gb'))
        self.assertLessEqual(sum(calls.values()), 8, calls)
        # Also where there is something already.
        for number in range(1, 7):
            calls = self.calls(self.binder.bind,
                               *self.handle('1g.5gb', number))
            self.assertLessEqual(sum(calls.values()), 8, calls)

    def test_repeated_and_unknown_calls_change_nothing(self):
        handle = self.handle('1g.5gb')
        self.binder.bind(*handle)
        bound = self.truth()
        self.binder.bind(*handle)
        self.assertEqual(bound, self.truth())
        self.binder.unbind(*handle[:2], str(uuid.uuid4()))
        self.assertEqual(bound, self.truth())
        for _ in range(2):
            self.binder.unbind(*handle)
            self.assertEqual(([], []), self.truth())
        self.assert_quiet()

    def test_full_is_refused_with_what_is_in_the_way(self):
        self.binder.bind(*self.handle('4g.20gb'))
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *self.handle('7g.40gb'))
        self.assertIn('4g.20gb@0', str(error))
        self.assert_quiet()

    def test_an_instance_made_by_somebody_else_is_seen_and_left(self):
        device = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu)
        pynvml.nvmlDeviceCreateGpuInstance(device, 19)
        self.assertEqual([(19, 6)], self.truth()[0])
        # The view does not know: the plan is made for 6 and refused.
        self.binder.bind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 5), (19, 6)], self.truth()[0])
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *self.handle('7g.40gb'))
        self.assertIn('1g.5gb@6', str(error))
        self.binder.unbind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 6)], self.truth()[0])

    def test_room_made_by_somebody_else_is_found(self):
        device = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu)
        instance = pynvml.nvmlDeviceCreateGpuInstance(device, 0)
        self.live.refresh()
        pynvml.nvmlGpuInstanceDestroy(instance)
        self.binder.bind(*self.handle('7g.40gb'))
        self.assertEqual([(0, 0)], self.truth()[0])

    def test_a_vf_that_somebody_uses_is_gone_round(self):
        handle = self.handle('1g.5gb')
        device = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu)
        pynvml.nvmlDeviceCreateGpuInstance(device, 19)
        foreign = str(uuid.uuid4())
        privileged.create_mdev(handle[0], handle[1], foreign)
        self.live.refresh()
        self.binder.bind(*handle)
        places = {item[0]: item[1] for item in self.truth()[1]}
        self.assertNotEqual(places[foreign], places[handle[2]])
        self.binder.unbind(*handle)
        self.assertEqual([foreign], [item[0] for item in self.truth()[1]])
        self.assertEqual([(19, 6)], self.truth()[0])

    def test_a_vgpu_on_anothers_instance_is_exchanged(self):
        # The driver puts a vGPU on any free instance of its profile. With
        # 3g@4 and a foreign 1g@0 the first handle gets 1g@1 and sits on the
        # foreign one, the second gets 1g@3 and sits on the first's.
        self.stranger(9, 4, 4)
        self.stranger(19, 0, 1)
        self.live.refresh()
        first, second = (self.handle('1g.5gb', number) for number in (0, 1))
        self.binder.bind(*first)
        self.binder.bind(*second)
        foreign = [(9, 4), (19, 0)]
        self.assertEqual([*foreign, (19, 1), (19, 3)], self.truth()[0])
        self.binder.unbind(*first)
        self.assertEqual([*foreign, (19, 1)], self.truth()[0])
        self.assertEqual([second[2]], [item[0] for item in self.truth()[1]])
        (entry,) = self.journal.entries()
        self.assertEqual(model.Placement(1, 1), entry.placement)
        self.live.refresh()
        self.assertEqual(self.truth(), self.belief())
        self.binder.unbind(*second)
        self.assertEqual((foreign, []), self.truth())
        self.assertEqual((), self.journal.entries())

    def test_a_stranger_that_is_quicker_is_left_alone(self):
        # Between our look and our creation somebody takes the place.
        create = 'nvmlDeviceCreateGpuInstanceWithPlacement'
        taken = []

        def take(_seconds):
            if not taken:
                taken.append(True)
                self.stranger(19, 6, 1)

        self.machine.faults.delay(create, 1, sleep=take)
        self.binder.bind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 5), (19, 6)], self.truth()[0])
        self.binder.unbind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 6)], self.truth()[0])

    def test_a_stranger_at_the_place_is_not_undone(self):
        # The view is old, and NVML's answer leaves open what it did.
        self.stranger(19, 6, 1)
        self.machine.faults.fail(
            'nvmlDeviceCreateGpuInstanceWithPlacement',
            pynvml.NVML_ERROR_UNKNOWN)
        self.assertRaises(exception.NvmlError, self.binder.bind,
                          *self.handle('1g.5gb'))
        self.assertEqual(([(19, 6)], []), self.truth())
        self.assertEqual((), self.journal.entries())

    def test_an_mdev_of_another_type_than_asked_for_is_undone(self):
        handle = self.handle('1g.5gb')
        readlink = self.machine.os.readlink

        def other(path):
            target = readlink(path)
            return (target.replace(handle[1], 'nvidia-1')
                    if path.endswith('mdev_type') else target)

        self.machine.os.readlink = other
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *handle)
        self.assertIn('nvidia-1', str(error))
        self.assertEqual(([], []), self.truth())
        self.assertEqual((), self.journal.entries())

    def test_a_bind_during_a_snapshot_is_not_forgotten(self):
        handle = self.handle('3g.20gb')
        bound = []

        def bind(_seconds):
            # The first GPU has been read when the last one is asked.
            asked = self.machine.calls['nvmlDeviceGetMigMode']
            if asked == len(self.machine.gpus) - 1 and not bound:
                bound.append(True)
                self.binder.bind(*handle)

        self.machine.reset_calls()
        self.machine.faults.delay('nvmlDeviceGetMigMode', 1, sleep=bind)
        self.live.refresh()
        self.assertEqual([True], bound)
        self.assert_quiet()
        self.assertEqual([(9, 4)], self.belief()[0])

    def test_an_mdev_that_is_not_ours_is_not_taken_over(self):
        handle = self.handle('1g.5gb')
        device = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu)
        pynvml.nvmlDeviceCreateGpuInstance(device, 19)
        privileged.create_mdev(*handle)
        before = self.truth()
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *handle)
        self.assertIn('did not make', str(error))
        self.assertEqual(before, self.truth())

    def test_without_a_journal_the_mdev_goes_and_the_instance_stays(self):
        handle = self.handle('1g.5gb')
        self.binder.bind(*handle)
        self.journal.remove(handle[2])
        self.binder.unbind(*handle)
        self.assertEqual(([(19, 6)], []), self.truth())


class FailingBindTest(BinderCase):
    """Each call of a bind fails in turn, with each code, both ways."""

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

    def _one(self, before, symbol, nth, code, after):
        where = (symbol, nth, code, after)
        self.machine.faults.fail(symbol, code, nth, after=after)
        bound = self.attempt()
        self.machine.faults.clear()
        if bound:
            # A retry inside may have got round it.
            self.binder.unbind(*self.handle('2g.10gb'))
        if (after and symbol == 'nvmlDeviceCreateGpuInstanceWithPlacement'
                and code in (pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
                             pynvml.NVML_ERROR_INVALID_ARGUMENT,
                             pynvml.NVML_ERROR_NO_PERMISSION)):
            # NVML said that it made nothing and did: such an instance is a
            # stranger's, and is left alone.
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
        path = self.journal._path
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('nonsense')
        error = self.assertRaises(exception.JournalError, self.binder.bind,
                                  *self.handle('1g.5gb'))
        self.assertIn(path, str(error))
        self.assertEqual(before, self.truth())


class FailingUnbindTest(BinderCase):

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
        self.assertIn('remove', str(error))
        self.machine.stop_guest(self.bound[2])
        self.binder.recover()
        self.assertEqual(([], []), self.truth())
        self.binder.bind(*self.bound)
        self.assertEqual(held, self.truth())

    def test_an_instance_id_that_is_reused_is_not_destroyed(self):
        entry = self.journal.get(self.bound[2])
        privileged.remove_mdev(self.bound[2])
        # By now the id is of another one than that which was cut for us.
        self.journal.put(dataclasses.replace(
            entry, placement=model.Placement(0, 2)))
        before = self.truth()
        self.assertTrue(self.unbind())
        self.assertEqual(before, self.truth())
        self.assertEqual((), self.journal.entries())


class CrashTest(BinderCase):
    """A process that ends in the middle is finished by the next."""

    def test_each_phase_of_a_bind(self):
        done = self.handle('1g.5gb')
        self.binder.bind(*done)
        before = self.truth()
        handle = self.handle('3g.20gb')
        for stop in ('make_instance', 'make_mdev', 'put'):
            self._die_at(stop, handle)
            self.restart()
            self.binder.recover()
            self.live.refresh()
            self.assertEqual(before, self.truth(), stop)
            self.assert_quiet()
            self.binder.bind(*handle)
            self.binder.unbind(*handle)

    def _die_at(self, stop, handle):
        """Let the process end right after a step, undoing nothing."""
        class Died(BaseException):
            """What no rollback catches, like SIGKILL."""

        tools, records = self.binder._tools, self.journal
        owner = records if stop == 'put' else tools
        step = getattr(owner, stop)
        seen = []

        def die(*args):
            result = step(*args)
            seen.append(result)
            # The second put is the one after the hardware.
            if stop != 'put' or len(seen) == 1:
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


class TimeSlicedTest(BinderCase):

    machine = 't4x4'
    gpu = '0000:3b:00.0'
    policy = policy.Policy('p', policy.Mode.VGPU,
                           vgpu_types=('T4-4C', 'T4-8C'))

    def creatable(self):
        gpu = self.live.gpu(self.address)
        return {offer.profile: offer.creatable
                for offer in self.live.offers(gpu)}

    def test_types_exclude_each_other_until_the_last_is_gone(self):
        self.assertEqual({'T4-4C': 4, 'T4-8C': 2}, self.creatable())
        handles = [self.handle('T4-4C', number) for number in range(4)]
        for left, handle in zip((3, 2, 1, 0), handles, strict=True):
            self.binder.bind(*handle)
            self.assertEqual({'T4-4C': left, 'T4-8C': 0}, self.creatable())
        before = self.truth()
        self.assertRaises(exception.GpuDriverError, self.binder.bind,
                          *self.handle('T4-8C'))
        self.assertEqual(before, self.truth())
        # The kernel's figures of now must not outlive the vGPUs.
        self.live.refresh()
        for left, handle in zip((1, 2, 3, 4), handles, strict=True):
            self.binder.unbind(*handle)
            self.assertEqual(left, self.creatable()['T4-4C'])
        self.assertEqual({'T4-4C': 4, 'T4-8C': 2}, self.creatable())
        self.assert_quiet()

    def test_a_write_that_fails(self):
        for after in (False, True):
            self.machine.faults.fail_write('*/create', errno.EIO,
                                           after=after)
            self.assertRaises(exception.SysfsError, self.binder.bind,
                              *self.handle('T4-4C'))
            self.assertEqual(([], []), self.truth())
            self.assert_quiet()
