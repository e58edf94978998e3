# SPDX-License-Identifier: Apache-2.0

"""Binds and unbinds on simulated hardware."""

import dataclasses
import errno
import os
import threading
import uuid

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.program.bind import binder_case


class BindTest(binder_case.BinderCase):

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
        self.assertEqual(
            [('bound', handle[2]), ('unbound', handle[2])],
            [(record.what, record.subject) for record
             in host_files.audit(self.state_path)])

    def test_a_bind_makes_few_nvml_calls(self):
        calls = self.calls(self.binder.bind, *self.handle('1g.5gb'))
        self.assertLessEqual(sum(calls.values()), self.bind_calls, calls)
        # Also while other instances exist.
        for number in range(1, 7):
            calls = self.calls(self.binder.bind,
                               *self.handle('1g.5gb', number))
            self.assertLessEqual(sum(calls.values()), self.bind_calls, calls)

    def test_a_bind_writes_the_record_before_and_after_each_half(self):
        record = store.of(self.state_path).path(self.address)
        written, replace = [], os.replace

        def watched(new, path):
            written.append((path, self.truth()[0]))
            replace(new, path)

        self.useFixture(fixtures.MonkeyPatch('os.replace', watched))
        self.binder.bind(*self.handle('2g.10gb'))
        # The second time, it has the id of the instance.
        self.assertEqual([(record, []), *[(record, self.truth()[0])] * 2],
                         written)
        self.assertEqual(1, len(self.truth()[0]))

    def test_repeated_and_unknown_calls_change_nothing(self):
        handle = self.handle('1g.5gb')
        self.binder.bind(*handle)
        bound = self.truth()
        self.binder.bind(*handle)
        self.assertEqual(bound, self.truth())
        # Cyborg has lost the first bind, and gives the handle to another.
        self.machine.start_guest(handle[2])
        self.assertIn('a server runs', str(self.assertRaises(
            exception.BindRefused, self.binder.bind, *handle)))
        self.machine.stop_guest(handle[2])
        self.assertEqual(bound, self.truth())
        self.binder.unbind(*handle[:2], str(uuid.uuid4()))
        self.assertEqual(bound, self.truth())
        for _ in range(2):
            self.binder.unbind(*handle)
            self.assertEqual(([], []), self.truth())
        self.assert_quiet()

    def test_an_instance_made_by_somebody_else_is_seen_and_left(self):
        device = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu)
        pynvml.nvmlDeviceCreateGpuInstance(device, 19)
        self.assertEqual([(19, 6)], self.truth()[0])
        # The live view does not have that instance, but a bind reads its GPU.
        self.binder.bind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 5), (19, 6)], self.truth()[0])
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *self.handle('7g.40gb'))
        self.assertIn('1g.5gb@6', str(error))
        self.binder.unbind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 6)], self.truth()[0])

    def test_a_vgpu_on_anothers_instance_is_exchanged(self):
        # The NVIDIA driver puts a vGPU on any free instance of its profile.
        # With 3g@4 and a foreign 1g@0, the first handle gets 1g@1, but its
        # vGPU is on the foreign instance. The second handle gets 1g@3, and its
        # vGPU is on the first handle's instance.
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
        (entry,) = self.records.claims()
        self.assertEqual(model.Placement(1, 1), entry.placement)
        self.live.refresh()
        self.assertEqual(self.truth(), self.belief())
        self.binder.unbind(*second)
        self.assertEqual((foreign, []), self.truth())
        self.assertEqual((), self.records.claims())

    def test_an_instance_with_a_strangers_guest_is_not_exchanged(self):
        for start in (0, 1):
            self.stranger(19, start, 1)
        self.live.refresh()
        # The vGPUs of the two handles are on the foreign instances, and the
        # vGPU of the foreign guest is on an instance of theirs.
        handles = [self.handle('1g.5gb', number) for number in (0, 1)]
        for handle in handles:
            self.binder.bind(*handle)
        function, type_id, guest = self.handle('1g.5gb', 2)
        privileged_vgpu.create_mdev(function, type_id, guest)
        self.machine.start_guest(guest)
        with self.machine.operation():
            (taken,) = [vgpu.instance for vgpu
                        in self.machine.gpu(self.gpu).state.vgpus
                        if vgpu.uuid == guest]
        (entry,) = [entry for entry in self.records.claims()
                    if entry.instance_id == taken]
        (asked,) = [item for item in handles if item[2] == entry.handle]
        before, _ = self.truth()
        self.assertRaises(exception.NvmlError, self.binder.unbind, *asked)
        self.assertEqual(before, self.truth()[0])
        self.machine.stop_guest(guest)
        privileged_vgpu.remove_mdev(guest)
        self.binder.recover()
        self.assertEqual([handle[2] for handle in handles
                          if handle is not asked],
                         [entry.handle for entry in self.records.claims()])
        self.assertEqual(len(before) - 1, len(self.truth()[0]))

    def test_what_a_dead_bind_has_cut_is_not_exchanged(self):
        # As above, but a third bind has died right after it created its
        # instance.
        self.stranger(9, 4, 4)
        self.stranger(19, 0, 1)
        self.live.refresh()
        first, second, dead = (self.handle('1g.5gb', number)
                               for number in range(3))
        self.binder.bind(*first)
        self.binder.bind(*second)
        self.stranger(19, 2, 1)
        bound = self.records.claim(second[2])
        self.records.remove_claims(second[2])
        begun = dataclasses.replace(
            bound, handle=dead[2], function=model.PciAddress.parse(dead[0]),
            phase=gpu_record.Phase.BINDING, placement=model.Placement(2, 1),
            instance_id=None)
        self.records.put_claims(begun)
        self.records.put_claims(bound)
        self.binder.unbind(*first)
        foreign = [(9, 4), (19, 0)]
        self.assertEqual([*foreign, (19, 1), (19, 2)], self.truth()[0])
        self.assertEqual(begun, self.records.claim(dead[2]))
        self.binder.recover()
        self.assertEqual([*foreign, (19, 1)], self.truth()[0])
        self.binder.unbind(*second)
        self.assertEqual((foreign, []), self.truth())

    def test_an_instance_of_an_earlier_boot_is_not_taken_for_anothers(self):
        handle = self.handle('3g.20gb')
        self.binder.bind(*handle)
        (bound,) = self.records.claims()
        self.machine.reboot()
        self.restart()
        self.stranger(9, bound.placement.start, 4)
        self.live.refresh()
        (theirs,) = self.live.gpu(self.address).mig.instances
        self.assertEqual((bound.placement, bound.instance_id),
                         (theirs.placement, theirs.instance_id))
        self.node.health.event(condition.Event(self.address, 94,
                                               theirs.instance_id))
        self.binder.unbind(*handle)
        self.assertEqual([(9, 4)], self.truth()[0])
        self.assertEqual({theirs.placement},
                         self.node.health.unhealthy_instances(self.address))
        self.assertEqual((), self.records.claims())

    def strangers_come_first(self, *starts):
        """Let another tool take each place just before the binder does."""
        places, taking = list(starts), []

        def take(_seconds):
            if places and not taking:
                taking.append(True)
                self.stranger(19, places.pop(0), 1)
                taking.clear()

        self.machine.faults.delay('nvmlDeviceCreateGpuInstanceWithPlacement',
                                  1, sleep=take)

    def test_a_stranger_that_is_quicker_twice(self):
        self.strangers_come_first(6, 5)
        self.binder.bind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 5), (19, 6)], self.truth()[0][-2:])
        self.assertEqual(3, len(self.truth()[0]))
        self.binder.unbind(*self.handle('1g.5gb'))
        self.assertEqual([(19, 5), (19, 6)], self.truth()[0])

    def test_a_stranger_that_is_always_quicker(self):
        self.strangers_come_first(6, 5, 4)
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *self.handle('1g.5gb'))
        self.assertIn('another program has taken', str(error))
        self.assertEqual(([(19, 4), (19, 5), (19, 6)], []), self.truth())
        self.assertEqual((), self.records.claims())

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
        self.assertEqual((), self.records.claims())

    def test_a_bind_during_a_snapshot_is_not_forgotten(self):
        self.machine = simulator.Machine.load('dgx-a100-40')
        self.restart()
        handle = self.handle('3g.20gb')
        other = next(gpu.address for gpu in self.machine.gpus
                     if gpu.address != self.gpu)
        bound = []

        def bind(_seconds):
            name = threading.current_thread().name
            if name == f'cyborg-gpu-nvml {other}' and not bound:
                bound.append(True)
                for thread in threading.enumerate():
                    if thread.name == f'cyborg-gpu-{self.gpu}':
                        # The GPU has been read when this thread ends.
                        thread.join()
                self.binder.bind(*handle)

        self.machine.faults.delay('nvmlDeviceGetMigMode', 1, sleep=bind)
        self.live.refresh()
        self.assertEqual([True], bound)
        self.assert_quiet()
        self.assertEqual([(9, 4)], self.belief()[0])

    def test_an_mdev_of_that_name_on_another_gpu(self):
        handle = self.handle('1g.5gb')
        other = model.PciAddress.parse('0000:0f:00.0')
        pynvml.nvmlDeviceCreateGpuInstance(
            pynvml.nvmlDeviceGetHandleByPciBusId(str(other)), 19)
        privileged_vgpu.create_mdev(
            str(self.live.gpu(other).vfs[0].address), *handle[1:])
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *handle)
        self.assertIn('an mdev with that UUID exists', str(error))
        self.assertEqual(([], []), self.truth())
        self.assertEqual((), self.records.claims())

    def test_the_health_of_an_instance_ends_with_it(self):
        handle = self.handle('1g.5gb')
        self.binder.bind(*handle)
        (entry,) = self.records.claims()
        self.node.health.event(condition.Event(self.address, 94,
                                               entry.instance_id))
        self.assertTrue(self.node.health.unhealthy_instances(self.address))
        self.binder.unbind(*handle)
        self.assertFalse(self.node.health.unhealthy_instances(self.address))

    def test_what_a_guest_still_holds_is_published(self):
        """No allocation covers the vGPU from now on."""
        handle = self.handle('1g.5gb')
        self.binder.bind(*handle)
        self.machine.start_guest(handle[2])
        self.assertRaises(exception.GpuInUse, self.binder.unbind, *handle)
        self.assertEqual([self.address] * 2, self.published)


class RoleTest(binder_case.BinderCase):
    """When an idle GPU does not take the role that a bind needs."""

    policy = policy.Policy('p', policy.Mode.AUTO,
                           roles=(policy.Mode.MIG, policy.Mode.VGPU))

    def test_while_its_claims_are_lost(self):
        self.records.put(self.address, claims_lost=True)
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *self.handle('3g.20gb'))
        self.assertIn('was damaged', str(error))

    def test_while_something_runs_on_it(self):
        self.records.put(self.address, by_role={
            'mig': roles.of(self.live.gpu(self.address))})
        self.machine.change_gpu(self.gpu, mig=False, pending=False)
        self.machine.add_process(self.gpu, 4711)
        self.live.refresh()
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *self.handle('3g.20gb'))
        self.assertIn('in use: process', str(error))
        self.assertTrue(self.live.refresh_gpu(self.address).vfs)


class MdevctlTest(binder_case.BinderCase):
    """An mdev that Nova defines with mdevctl would start at the next boot."""

    def setUp(self):
        super().setUp()
        self.bound = self.handle('1g.5gb')
        self.binder.bind(*self.bound)
        self.machine.define_mdev(self.bound[2])

    def test_the_definition_goes_with_the_mdev(self):
        self.binder.unbind(*self.bound)
        self.assertEqual((), self.machine.defined_mdevs)

    def test_it_goes_where_the_journal_knows_nothing(self):
        self.records.remove_claims(self.bound[2])
        self.binder.unbind(*self.bound)
        self.assertEqual((), self.machine.defined_mdevs)
        # The instance that it may have used is kept.
        self.assertEqual(([(19, 6)], []), self.truth())
        self.assertEqual([self.address] * 2, self.published)

    def test_it_stays_while_a_guest_holds_the_mdev(self):
        self.machine.start_guest(self.bound[2])
        self.assertRaises(exception.GpuInUse, self.binder.unbind,
                          *self.bound)
        self.assertEqual((self.bound[2],), self.machine.defined_mdevs)
        self.machine.stop_guest(self.bound[2])
        self.binder.recover()
        self.assertEqual((), self.machine.defined_mdevs)

    def test_it_goes_where_the_mdev_is_gone_already(self):
        privileged_vgpu.remove_mdev(self.bound[2])
        self.binder.unbind(*self.bound)
        self.assertEqual((), self.machine.defined_mdevs)

    def test_an_unbind_does_not_wait_for_mdevctl(self):
        for code in (errno.ENOENT, errno.EIO):
            self.machine.faults.clear()
            self.machine.faults.fail('mdevctl', code, times=None)
            self.binder.unbind(*self.bound)
            self.assertEqual(([], []), self.truth())
            self.assert_quiet()
            self.binder.bind(*self.bound)

    def test_a_bind_that_fails_asks_nothing_of_mdevctl(self):
        self.machine.reset_calls()
        self.machine.faults.fail_write('*/create', errno.EIO)
        self.assertRaises(exception.SysfsError, self.binder.bind,
                          *self.handle('2g.10gb'))
        self.assertEqual(0, self.machine.calls['mdevctl'])
