# SPDX-License-Identifier: Apache-2.0

"""Binds on GPUs whose vGPUs have several sizes."""

import errno
import uuid

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_TYPES = ('A100D-10C', 'A100D-20C', 'A100D-40C')


class MixedCase(binder_case.BinderCase):

    gpu = '0000:b1:00.0'
    policy = policy.Policy('p', policy.Mode.VGPU, vgpu_types=_TYPES,
                           mixed_sizes=True)

    def setUp(self):
        super().setUp()
        pynvml.nvmlDeviceSetVgpuHeterogeneousMode(
            pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu), 1)
        self.live.refresh()

    def guest(self, handle):
        """The name that the simulated machine gives the handle's vGPU."""
        return handle[self.name]


class MixedTests:

    def test_every_guest_starts_where_it_was_placed(self):
        self.assertEqual({'A100D-10C': 8, 'A100D-20C': 4, 'A100D-40C': 2},
                         self.creatable())
        handles = [self.handle(*which) for which in (
            ('A100D-10C', 0), ('A100D-40C', 0), ('A100D-20C', 0),
            ('A100D-10C', 1))]
        for handle in handles:
            self.binder.bind(*handle)
        self.assertEqual({'A100D-10C': 0, 'A100D-20C': 0, 'A100D-40C': 0},
                         self.creatable())
        for handle in handles:
            self.machine.start_guest(self.guest(handle))
        self.assert_quiet()
        before = self.truth()
        for profile in _TYPES:
            error = self.assertRaises(
                exception.BindRefused, self.binder.bind,
                *self.handle(profile, 3)[:2], str(uuid.UUID(int=1)))
            self.assertIn('no placement', str(error))
        self.assertEqual(before, self.truth())

    def test_what_is_left_is_known_at_once(self):
        handle = self.handle('A100D-40C')
        self.binder.bind(*handle)
        left = {'A100D-10C': 4, 'A100D-20C': 2, 'A100D-40C': 1}
        self.assertEqual(left, self.creatable())
        self.live.refresh()
        self.assertEqual(left, self.creatable())
        self.binder.unbind(*handle)
        self.assertEqual({'A100D-10C': 8, 'A100D-20C': 4, 'A100D-40C': 2},
                         self.creatable())
        self.assertEqual(([], []), self.truth())

    def test_a_small_one_beside_a_gap_leaves_room_for_a_large_one(self):
        # The NVIDIA driver would take the lowest free place, which was the
        # large vGPU's.
        first, second, third = (self.handle('A100D-10C', number)
                                for number in range(3))
        large = self.handle('A100D-40C')
        self.binder.bind(*large)
        self.binder.bind(*first)
        self.binder.bind(*second)
        self.binder.unbind(*large)
        self.binder.bind(*third)
        self.assertEqual(1, self.creatable()['A100D-40C'])
        self.binder.bind(*large)
        for handle in (first, second, third, large):
            self.machine.start_guest(self.guest(handle))

    def test_what_an_outsider_has_made_since_the_last_report(self):
        """Only the NVIDIA driver knows the place of that vGPU."""
        function, type_id, uuid_ = self.handle('A100D-40C', 1)
        if self.name == 2:
            privileged_vgpu.create_mdev(function, type_id, uuid_)
        else:
            privileged_vgpu.set_vgpu_type(
                function, vgpu_name.type_number(type_id))
        handle = self.handle('A100D-40C', 0)
        self.binder.bind(*handle)
        self.machine.start_guest(self.guest(handle))

    def test_a_placement_that_cannot_be_written_is_undone(self):
        handle = self.handle('A100D-20C')
        for after in (False, True):
            self.machine.faults.fail_write('*/vgpu_params', errno.EIO,
                                           after=after)
            self.assertRaises(exception.SysfsError, self.binder.bind,
                              *handle)
            self.assertEqual(([], []), self.truth())
            self.assert_quiet()
            self.assertEqual(4, self.creatable()['A100D-20C'])


class MdevTest(MixedTests, MixedCase):

    only = {'model': 'a100-80-pcie', 'vfs': 'all', 'framework': 'mdev'}
    name = 2


class VfioTest(MixedTests, MixedCase):

    machine = 'a100x4-vfio'
    name = 0
