# SPDX-License-Identifier: Apache-2.0

"""Several vGPUs on one GPU instance, with mdev and without."""

import dataclasses
import errno
import itertools
import logging
import math
import random

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_SET = 'nvmlGpuInstanceSetVgpuSchedulerState'
_FIXED = pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE
_ROOM = {'DC-1-8Q': 3, 'DC-1-12Q': 2}


class SharedCase(binder_case.BinderCase):

    gpu = '0000:16:00.0'
    policy = policy.Policy('p', policy.Mode.MIG, vgpu_types=tuple(_ROOM))

    def setUp(self):
        super().setUp()
        self.small = [self.handle('DC-1-8Q', number) for number in range(6)]
        self.large = [self.handle('DC-1-12Q', number) for number in range(4)]

    def instances(self):
        return len(self.truth()[0])

    def walk(self, handles, bind):
        """Bind what is offered, and unbind, in a random order."""
        chance = random.Random(4)
        bound, free = [], [*handles]
        for _step in range(80):
            if free and chance.random() < 0.6:
                handle = chance.choice(free)
                profile = ('DC-1-8Q' if handle in self.small
                           else 'DC-1-12Q')
                if self.creatable()[profile]:
                    bind(*handle)
            elif bound:
                self.binder.unbind(*chance.choice(bound))
            self.assert_quiet()
            known = {entry.handle for entry in self.records.claims()}
            bound = [item for item in handles if item[2] in known]
            free = [item for item in handles if item[2] not in known]
        for handle in bound:
            self.binder.unbind(*handle)
        self.assertEqual(([], []), self.truth())


class SharingTests:

    def test_an_instance_is_filled_before_another_is_cut(self):
        self.assertEqual({'DC-1-8Q': 12, 'DC-1-12Q': 8}, self.creatable())
        for handle, instances, left in zip(
                self.small, (1, 1, 1, 2, 2, 2), (11, 10, 9, 8, 7, 6),
                strict=True):
            self.binder.bind(*handle)
            self.assertEqual(instances, self.instances())
            self.assertEqual(left, self.creatable()['DC-1-8Q'])
            self.assert_quiet()
        view = self.belief()
        self.live.refresh()
        self.assertEqual(view, self.belief())

    def test_every_order_of_releases(self):
        for order in itertools.permutations(range(4)):
            for handle in self.small[:4]:
                self.binder.bind(*handle)
            self.assertEqual(2, self.instances())
            for left, number in zip((3, 2, 1, 0), order, strict=True):
                self.binder.unbind(*self.small[number])
                self.assertGreaterEqual(self.instances(),
                                        math.ceil(left / 3))
                self.assertLessEqual(self.instances(), min(left, 2), order)
                self.assert_quiet()

    def test_a_walk_with_one_size_is_refused_nothing_promised(self):
        self.walk(self.small, self.binder.bind)

    def test_what_a_stranger_cut_is_not_destroyed(self):
        self.stranger(47, 0, 3)
        self.live.refresh()
        for handle in self.small[:4]:
            self.binder.bind(*handle)
        # After a reboot, all four vGPUs fit on the instances of the binds.
        self.assertEqual(1 + 2, self.instances())
        for handle in self.small[:4]:
            self.binder.unbind(*handle)
        self.assertEqual(([(47, 0)], []), self.truth())

    def test_after_a_reboot_an_instance_of_a_stranger_is_not_filled(self):
        self.binder.bind(*self.small[0])
        (entry,) = self.records.claims()
        # Now a stranger's instance has the id and the place of the lost one.
        with self.machine.operation(write=True):
            self.machine.gpu(self.gpu).state.vgpus.clear()
        self.records.put_claims(
            dataclasses.replace(entry, boot='an earlier one'))
        self.restart()
        for number, handle in enumerate(self.small[1:]):
            # Three other instances of three each are free.
            self.assertEqual(9 - number, self.creatable()['DC-1-8Q'])
            self.binder.bind(*handle)
        self.assertEqual(3, self.instances())
        for handle in self.small:
            self.binder.unbind(*handle)
        self.assertEqual([(entry.profile_id, entry.placement.start)],
                         self.truth()[0])

    def test_an_instance_that_somebody_destroyed_is_cut_anew(self):
        # The live view has the instance, with room on it. The hardware does
        # not have it.
        self.binder.bind(*self.small[0])
        with self.machine.operation(write=True):
            state = self.machine.gpu(self.gpu).state
            state.vgpus.clear()
        (number,) = state.instances
        privileged.destroy_gpu_instance(self.gpu, number)
        self.binder.bind(*self.small[1])
        self.assertEqual(1, self.instances())
        self.binder.unbind(*self.small[1])
        self.binder.unbind(*self.small[0])
        self.assertEqual(([], []), self.truth())

    def test_a_failed_bind_leaves_the_instance_to_the_others(self):
        self.binder.bind(*self.small[0])
        before = self.truth()
        self.fail_vgpu()
        self.assertRaises(exception.SysfsError, self.binder.bind,
                          *self.small[1])
        self.machine.faults.clear()
        self.assertEqual(before, self.truth())
        self.assert_quiet()
        self.binder.bind(*self.small[1])
        self.assertEqual(1, self.instances())


class MdevTest(SharingTests, SharedCase):

    only = {'model': 'rtx-pro-6000', 'mig': True, 'vfs': 'all',
            'framework': 'mdev'}

    def fail_vgpu(self):
        self.machine.faults.fail_write('*/create', errno.ENOSPC, times=None)

    def test_an_instance_with_a_guest_is_not_exchanged(self):
        # The first three vGPUs are on the stranger's instance, the next three
        # on that of the first three, and the guest on that of the next three.
        self.stranger(47, 0, 3)
        self.live.refresh()
        for handle in self.small:
            self.binder.bind(*handle)
        function, type_id, guest = self.handle('DC-1-8Q', 6)
        privileged_vgpu.create_mdev(function, type_id, guest)
        self.machine.start_guest(guest)
        for handle in self.small[:2]:
            self.binder.unbind(*handle)
        before = self.records.claims()
        error = self.assertRaises(exception.NvmlError, self.binder.unbind,
                                  *self.small[2])
        self.assertEqual('IN_USE', error.symbol)
        self.assertEqual(before[1:], self.records.claims()[1:])
        self.machine.stop_guest(guest)
        privileged_vgpu.remove_mdev(guest)
        for handle in self.small[2:]:
            self.binder.unbind(*handle)
        self.assertEqual(([(47, 0)], []), self.truth())

    def test_a_walk_with_two_sizes_leaves_nothing(self):
        # Nothing tells which instance an mdev is on. If the NVIDIA driver has
        # spread one size over more instances than needed, there may be no room
        # for the other size.
        def bind(*handle):
            before = self.truth()
            try:
                self.binder.bind(*handle)
            except exception.BindRefused:
                self.assertEqual(before, self.truth())

        self.walk([*self.small, *self.large], bind)


class SchedulerTest(SharedCase):
    """The policy's scheduler of the vGPUs that share an instance."""

    machine = 'rtxpro6000x8'
    policy = policy.Policy(
        'p', policy.Mode.MIG, vgpu_types=tuple(_ROOM),
        scheduler=model.SchedulerPolicy.FIXED_SHARE, time_slice=5_000_000)

    def schedulers(self):
        with self.machine.operation():
            return [(item.scheduler.policy, item.scheduler.time_slice)
                    for item in self.machine.gpu(
                        self.gpu).state.instances.values()]

    def test_once_for_each_instance(self):
        for number, handle in enumerate(self.small):
            calls = self.calls(self.binder.bind, *handle)
            self.assertLessEqual(sum(calls.values()), self.bind_calls, calls)
            self.assertEqual(number % 3 == 0, calls[_SET], number)
        self.assertEqual([(_FIXED, 5_000_000)] * 2, self.schedulers())
        for handle in self.small:
            self.binder.unbind(*handle)
        self.assertEqual(([], []), self.truth())

    def test_before_the_first_vgpu(self):
        # The vGPU cannot be created, but the bind has set the scheduler
        # before.
        self.machine.faults.fail_write('*/current_vgpu_type', errno.EPERM)
        self.machine.reset_calls()
        self.assertRaises(exception.SysfsError, self.binder.bind,
                          *self.small[0])
        self.assertEqual(1, self.machine.calls[_SET])
        self.assertEqual(([], []), self.truth())

    def test_without_it_rather_than_no_vgpu(self):
        self.machine.faults.fail(_SET, pynvml.NVML_ERROR_NOT_SUPPORTED)
        log = self.useFixture(fixtures.FakeLogger(level=logging.WARNING))
        self.binder.bind(*self.small[0])
        self.assertEqual(1, self.instances())
        self.assertIn('cannot set the vGPU scheduler of 1g.24gb+gfx at 9:3: '
                      'nvmlGpuInstanceSetVgpuSchedulerState failed',
                      log.output)
        self.assert_quiet()

    def test_not_without_a_policy_for_it(self):
        self.policy = policy.Policy('p', policy.Mode.MIG,
                                    vgpu_types=tuple(_ROOM))
        self.restart()
        calls = self.calls(self.binder.bind, *self.small[0])
        self.assertNotIn(_SET, calls)


class VfioTest(SharingTests, SharedCase):

    machine = 'rtxpro6000x8'

    def fail_vgpu(self):
        self.machine.faults.fail_write('*/current_vgpu_type', errno.EIO,
                                       times=2)

    def test_a_walk_with_two_sizes_is_refused_nothing_promised(self):
        self.walk([*self.small, *self.large], self.binder.bind)

    def test_what_could_not_be_undone_is_not_tried_again_on_top(self):
        self.binder.bind(*self.small[0])
        before = self.truth()
        path = '*/current_vgpu_type'
        self.machine.faults.fail_write(path, errno.EIO, after=True)
        self.machine.faults.fail_write(path, errno.EPERM, nth=2)
        error = self.assertRaises(exception.SysfsError, self.binder.bind,
                                  *self.small[1])
        self.assertEqual(errno.EIO, error.errno)
        self.binder.recover()
        self.assertEqual(before, self.truth())
        self.assert_quiet()
