# SPDX-License-Identifier: Apache-2.0

"""Compute instances of servers, which only those servers destroy."""

import threading

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_SHARED = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


class ComputeCase(binder_case.BinderCase):

    def entry(self, handle):
        return self.records.claim(handle[2])

    def add_compute(self, handle):
        """Create a compute instance, as a guest does in its GPU instance."""
        instance = pynvml.nvmlDeviceGetGpuInstanceById(
            pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu),
            self.entry(handle).instance_id)
        for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, index, _SHARED, 1)
            except pynvml.NVMLError:
                continue
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
            return

    def compute(self):
        """The number of compute instances of each GPU instance, by id."""
        with self.machine.operation():
            return {number: len(item.compute) for number, item in
                    self.machine.gpu(self.gpu).state.instances.items()}

    def bind(self, profile, count):
        handles = [self.handle(profile, number) for number in range(count)]
        for handle in handles:
            self.binder.bind(*handle)
        return handles


class UnbindTest(ComputeCase):

    def test_who_runs_beside_a_busy_instance_is_left_alone(self):
        first, *others = self.bind('1g.5gb', 4)
        for handle in others:
            self.add_compute(handle)
            self.machine.start_guest(handle[2])
        # A process of the host runs in the instance that is released.
        self.add_compute(first)
        number = self.entry(first).instance_id
        self.machine.add_process(self.gpu, 4711, number, 0)
        before = self.compute()
        for _ in range(2):
            self.assertRaises(exception.NvmlError, self.binder.unbind,
                              *first)
            self.binder.recover()
        self.assertEqual(before, self.compute())
        self.machine.remove_process(4711)
        self.binder.recover()
        del before[number]
        self.assertEqual(before, self.compute())
        self.assert_quiet()

    def test_what_an_ended_guest_has_left_goes_with_its_instance(self):
        first, second = self.bind('1g.5gb', 2)
        for handle in (first, second):
            self.add_compute(handle)
            self.machine.start_guest(handle[2])
        left = {self.entry(second).instance_id: 1}
        self.machine.stop_guest(first[2])
        self.binder.unbind(*first)
        self.assertEqual(left, self.compute())
        self.assert_quiet()

    def test_it_stays_where_a_vgpu_may_be_on_it(self):
        # Nothing tells on which instance an mdev without a guest is.
        first, second = self.bind('1g.5gb', 2)
        self.add_compute(first)
        before = self.compute()
        self.assertRaises(exception.NvmlError, self.binder.unbind, *first)
        self.assertEqual(before, self.compute())
        self.machine.start_guest(second[2])
        self.binder.recover()
        self.assertEqual([self.entry(second).instance_id],
                         [*self.compute()])
        self.assert_quiet()

    def test_a_guest_on_anothers_instance_keeps_its_compute(self):
        # As in the test of the exchange, the second vGPU is on the instance of
        # the first.
        self.stranger(9, 4, 4)
        self.stranger(19, 0, 1)
        self.live.refresh()
        first, second = self.bind('1g.5gb', 2)
        self.machine.start_guest(second[2])
        self.add_compute(first)
        number = self.entry(first).instance_id
        freed = self.entry(second).instance_id
        self.binder.unbind(*first)
        self.assertEqual(1, self.compute()[number])
        self.assertNotIn(freed, self.compute())
        self.assertEqual(number, self.entry(second).instance_id)
        self.live.refresh()
        self.assert_quiet()


class ChangeTest(ComputeCase):
    """A process died while it applied a layout."""

    def left(self, start):
        """Write the record of a change that destroyed 1g.5gb at a start."""
        self.before = spec.MigInstanceSpec(model.Placement(start, 1), 19)
        records = store.of(self.state_path)
        records.put(self.address, change=gpu_record.Change(
            self.address, spec.MigLayout(True, True, (self.before,)), ('a',),
            touched=(self.before,)))
        return records

    def test_a_bind_rolls_it_back_first(self):
        self.live.refresh()
        handle = self.handle('1g.5gb')
        self.binder.bind(*handle)
        own = self.entry(handle).placement
        self.binder.unbind(*handle)
        # The change left free the place that the bind would take.
        records = self.left(own.start)
        self.binder.bind(*handle)
        self.assertIsNone(records.read(self.address).change)
        self.assertNotEqual(own, self.entry(handle).placement)
        self.assertIn((19, own.start), self.truth()[0])

    def test_a_bind_is_refused_while_it_cannot_be(self):
        self.live.refresh()
        handle = self.handle('1g.5gb')
        records = self.left(0)
        self.machine.faults.fail(
            'nvmlDeviceCreateGpuInstanceWithPlacement', 999, times=None)
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *handle)
        self.assertIn('rollback of an interrupted change', str(error))
        self.machine.faults.clear()
        self.binder.bind(*handle)
        self.assertIsNone(records.read(self.address).change)


class LeftoverTest(ComputeCase):

    def left(self, phase):
        """Write and return the entry of a bind that only wrote its record."""
        function, mdev_type, handle = self.handle('7g.40gb', 0)
        entry = gpu_record.Claim(
            handle=handle, gpu=self.address,
            function=model.PciAddress.parse(function), mdev_type=mdev_type,
            profile='7g.40gb', phase=phase, profile_id=0,
            placement=model.Placement(0, 8),
            boot=privileged.machine().boot_id())
        self.records.put_claims(entry)
        return entry

    def test_a_bind_finishes_first_what_a_dead_process_left(self):
        for phase in (gpu_record.Phase.BINDING, gpu_record.Phase.UNBINDING):
            self.left(phase)
            self.restart()
            # The agent serves binds before its first report.
            other = self.handle('7g.40gb', 1)
            self.binder.bind(*other)
            self.add_compute(other)
            self.machine.start_guest(other[2])
            before = self.truth(), self.compute()
            self.binder.recover()
            self.assertEqual(before, (self.truth(), self.compute()))
            self.assert_quiet()
            self.machine.stop_guest(other[2])
            self.binder.unbind(*other)

    def test_the_place_of_what_cannot_be_finished_is_not_given(self):
        entry = self.left(gpu_record.Phase.BINDING)
        self.machine.faults.fail('nvmlDeviceGetGpuInstances',
                                 pynvml.NVML_ERROR_UNKNOWN)
        self.assertRaises(exception.BindRefused, self.binder.bind,
                          *self.handle('1g.5gb'))
        self.assertEqual((entry,), self.records.claims())
        self.machine.faults.clear()
        self.binder.bind(*self.handle('1g.5gb'))
        self.assert_quiet()

    def test_its_definition_goes_too(self):
        function, mdev_type, handle = self.handle('1g.5gb', 1)
        self.binder.bind(function, mdev_type, handle)
        self.machine.define_mdev(handle)
        self.records.give_back(handle)
        self.restart()
        self.binder.bind(*self.handle('1g.5gb', 2))
        for thread in threading.enumerate():
            if thread.name == f'mdevctl undefine {handle}':
                thread.join(scope.HANG)
        self.assertEqual((), self.machine.defined_mdevs)
        self.assertIsNone(self.records.claim(handle))


class GivenAgainTest(binder_case.BinderCase):

    def test_bind_of_what_another_process_has_removed(self):
        """As doctor --repair does, without the agent noticing."""
        asked = self.handle('1g.5gb')
        self.binder.bind(*asked)
        self.machine.start_guest(asked[2])
        self.assertRaises(exception.GpuInUse, self.binder.unbind, *asked)
        self.machine.stop_guest(asked[2])
        agent = self.binder
        self.restart()
        self.binder.recover()
        self.assertEqual((), self.records.claims())
        agent.bind(*asked)
        (entry,) = self.records.claims()
        self.assertIs(gpu_record.Phase.BOUND, entry.phase)
