# SPDX-License-Identifier: Apache-2.0

"""Which differences are found, when they are named, and what repairs do."""

import dataclasses

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.partition import reconcile as words
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

K = words.Kind


class ReconcileCase(binder_case.BinderCase):

    grace = 300

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level='INFO'))
        self.now = 0.0
        self.asked = self.unsettled = ()
        self.known = True
        self.usages = {}
        self.cloud.requests = self.requests
        self.cloud.usages = lambda looked: self.usages
        self.build()

    def build(self):
        self.sysfs = self.node.platform.sysfs
        self.reconciler = self.node.reconciler
        self.reconciler._grace = self.grace
        self.reconciler._clock = lambda: self.now

    def requests(self):
        if not self.known:
            return None
        return words.Requests(tuple(
            words.Request(entry.handle, f'arq of {entry.handle}', 'server',
                          entry.function, entry.mdev_type)
            for entry in self.asked), self.unsettled)

    def bind(self, profile='3g.20gb', number=0):
        """Bind a handle that has a request. Return its entry."""
        handle = self.handle(profile, number)
        self.binder.bind(*handle)
        entry = self.records.claim(handle[2])
        self.asked += (entry,)
        return entry

    def kinds(self):
        return [item.kind for item in self.reconciler.find(refresh=True)]

    def difference(self, kind):
        return next(item for item in self.reconciler.find(refresh=True)
                    if item.kind is kind)

    def look(self):
        """Run a report. Return what it logs."""
        before = len(self.log.output)
        self.live.refresh()
        self.reconciler.look()
        return self.log.output[before:]

    def take_away(self, entry, instance=True):
        self.sysfs.write('1', 'bus', 'mdev', 'devices', entry.handle,
                         'remove')
        if instance:
            with self.machine.operation(write=True):
                del self.machine.gpu(self.gpu).state.instances[
                    entry.instance_id]


class FindTest(ReconcileCase):

    def test_a_gpu_in_motion_is_left_out(self):
        entry = self.bind()
        self.asked = ()
        self.assertEqual([K.NO_REQUEST], self.kinds())

        def requests():
            self.binder.unbind(str(entry.function), entry.mdev_type,
                               entry.handle)
            return words.Requests()

        self.cloud.requests = requests
        self.assertEqual([], self.kinds())

    def test_an_instance_of_somebody_else(self):
        self.stranger(19, 0, 1)
        self.assertEqual([K.FOREIGN_INSTANCE], self.kinds())
        (instance,) = self.live.gpu(self.address).mig.instances
        self.machine.add_process(self.gpu, 4711,
                                 instance=instance.instance_id)
        self.assertEqual([], self.kinds())
        self.machine.remove_process(4711)
        self.assertEqual([K.FOREIGN_INSTANCE], self.kinds())
        gpu = self.live.gpu(self.address)
        store.of(self.state_path).put(
            self.address, layout=apply.saved(
                gpu, gpu_record.GpuRecord(), 'boot'))
        self.assertEqual([], self.kinds())

    def test_an_unknown_use_is_no_difference(self):
        self.stranger(19, 0, 1)
        self.live.refresh()
        self.machine.faults.fail('nvmlDeviceGetComputeRunningProcesses_v3',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        self.assertEqual((), self.reconciler.find())

    def test_a_gpu_that_is_not_ours_to_explain(self):
        self.policy = dataclasses.replace(
            self.policy, mode=binder_case.policy.Mode.PASSTHROUGH)
        self.restart()
        self.build()
        self.stranger(19, 0, 1)
        self.assertEqual([], self.kinds())


class NameTest(ReconcileCase):

    def test_once_and_again_after_it_was_gone(self):
        entry = self.bind()
        self.known = False
        self.take_away(entry, instance=False)
        self.assertIn('no longer has a vGPU', self.look())
        self.assertEqual('', self.look())
        self.known = True
        self.assertIn('recreated', self.look())
        self.assertEqual('', self.look())
        self.known = False
        self.take_away(entry, instance=False)
        self.assertIn('no longer has a vGPU', self.look())

    def test_what_may_pass_has_to_last(self):
        entry = self.bind()
        self.asked = ()
        self.assertEqual('', self.look())
        self.now = 299
        self.assertEqual('', self.look())
        self.now = 300
        self.assertIn('no accelerator request', self.look())
        self.assertIsNone(self.records.claim(entry.handle))
        self.assertEqual(([], []), self.truth())

    def test_what_has_passed_begins_anew(self):
        self.bind()
        asked, self.asked = self.asked, ()
        self.look()
        self.now, self.asked = 299, asked
        self.look()
        self.now, self.asked = 400, ()
        self.assertEqual('', self.look())
        self.assertEqual(1, len(self.records.claims()))

    def test_what_cannot_be_looked_for_stays(self):
        """An unknown fact ends no difference, and none begins anew."""
        self.patch(locks.gpu, '__defaults__', (0.0, ''))
        self.stranger(19, 6, 1)
        self.assertIn('unknown GPU instance', self.look())
        self.bind()
        asked, self.asked = self.asked, ()
        self.assertEqual('', self.look())
        self.now = 200
        with locks.gpu(self.state_path, self.address):
            self.assertEqual('', self.look())
        self.assertEqual((K.FOREIGN_INSTANCE,), self.reconciler.left)
        self.machine.faults.fail('nvmlDeviceGetComputeRunningProcesses_v3',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        self.known = False
        self.look()
        self.assertEqual((K.FOREIGN_INSTANCE,), self.reconciler.left)
        self.machine.faults.clear()
        self.known = True
        self.now = 300
        self.assertIn('no accelerator request', self.look())
        self.assertIn(asked[0].handle, self.log.output)

    def test_what_cannot_be_looked_for_is_not_repaired(self):
        entry = self.bind()
        self.asked, self.unsettled = (), ('arq',)
        self.look()
        self.now = 300
        self.assertIn('binding or unbinding', self.look())
        self.unsettled, self.known = (), False
        self.assertEqual('', self.look())
        self.assertEqual((K.NO_REQUEST,), self.reconciler.left)
        self.assertEqual((entry,), self.records.claims())

    def test_a_failed_repair_is_told_once(self):
        entry = self.bind()
        self.take_away(entry)
        self.machine.faults.fail(
            'nvmlDeviceCreateGpuInstanceWithPlacement',
            pynvml.NVML_ERROR_UNKNOWN, times=2)
        self.assertIn('could not repair', self.look())
        self.assertNotIn('could not repair', self.look())
        self.assertIn('recreated', self.look())

    def test_it_never_raises(self):
        self.cloud.requests = lambda: 1 / 0
        self.assertIn('division by zero', self.look())
        self.assertEqual('', self.look())


class RepairTest(ReconcileCase):

    def repair(self, kind):
        return self.reconciler.repair(self.difference(kind))

    def refused(self, difference):
        return str(self.assertRaises(
            exception.StepFailed, self.reconciler.repair, difference))

    def test_what_cyborg_knows_by_then_stays(self):
        self.bind()
        asked, self.asked = self.asked, ()
        difference = self.difference(K.NO_REQUEST)
        before = self.truth()
        self.asked = asked
        self.assertIn('has it now', self.refused(difference))
        self.asked, self.unsettled = (), ('arq',)
        self.assertIn('in progress', self.refused(difference))
        self.unsettled, self.known = (), False
        self.assertIn('could not be queried', self.refused(difference))
        self.known = True
        self.machine.start_guest(asked[0].handle)
        self.assertIn('virtual machine', self.refused(difference))
        self.assertEqual(before[0], self.truth()[0])
        self.assertEqual(gpu_record.Phase.BOUND,
                         self.records.claims()[0].phase)

    def test_an_instance_below_a_vgpu_is_made_again(self):
        entry = self.bind()
        before = self.truth()
        with self.machine.operation(write=True):
            del self.machine.gpu(self.gpu).state.instances[
                entry.instance_id]
        self.repair(K.INSTANCE_GONE)
        self.assertEqual(before, self.truth())
        self.assertEqual([], self.kinds())

    def test_nothing_is_made_again_that_cyborg_has_released(self):
        entry = self.bind()
        self.take_away(entry)
        difference = self.difference(K.VGPU_GONE)
        self.asked = ()
        self.assertIn('no accelerator request', self.refused(difference))
        self.assertEqual(([], []), self.truth())

    def test_an_entry_is_written_again(self):
        entry = self.bind()
        self.records.remove_claims(entry.handle)
        self.published.clear()
        self.repair(K.NOT_RECORDED)
        self.assertEqual([self.address], self.published)
        # Only the lost record had the time from which the server had the vGPU.
        self.assertEqual((dataclasses.replace(entry, since=None),),
                         self.records.claims())
        self.records.remove_claims(entry.handle)
        difference = self.difference(K.NOT_RECORDED)
        self.asked = ()
        self.assertIn('no accelerator request', self.refused(difference))
        self.assertEqual((), self.records.claims())

    def test_what_a_guest_kept(self):
        entry = self.bind()
        self.machine.start_guest(entry.handle)
        self.assertRaises(exception.GpuInUse, self.binder.unbind,
                          str(entry.function), entry.mdev_type, entry.handle)
        self.asked = ()
        self.assertIn('cannot be removed yet', self.refused(
            self.difference(K.UNFINISHED)))
        self.machine.stop_guest(entry.handle)
        self.repair(K.UNFINISHED)
        self.assertEqual(([], []), self.truth())

    def test_reserved_is_written(self):
        entry = self.bind()
        self.published.clear()
        self.usages = {self.address: (words.Usage(
            'uuid', entry.profile, entry.mdev_type, 1, 1, 0),)}
        self.repair(K.RESERVED)
        self.assertEqual([self.address], self.published)


class SharedTest(ReconcileCase):

    machine = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    policy = binder_case.policy.Policy(
        'p', binder_case.policy.Mode.MIG, vgpu_types=('DC-1-8Q',))

    def test_all_that_share_an_instance_have_the_new_one(self):
        first, second = (self.bind('DC-1-8Q', number) for number in (0, 1))
        self.assertEqual(first.instance_id, second.instance_id)
        before = self.truth()
        with self.machine.operation(write=True):
            state = self.machine.gpu(self.gpu).state
            state.vgpus.clear()
            state.instances.clear()
        # The NVIDIA driver may give the new instance any id.
        self.records.put_claims(*(dataclasses.replace(entry, instance_id=99)
                                  for entry in (first, second)))
        self.look()
        self.assertEqual(before, self.truth())
        self.assertEqual(1, len({entry.instance_id for entry
                                 in self.records.claims()}))
        self.assertEqual([], self.kinds())
        for entry in (first, second):
            self.binder.unbind(str(entry.function), entry.mdev_type,
                               entry.handle)
        self.assertEqual(([], []), self.truth())


class AskingTest(ReconcileCase):

    def setUp(self):
        super().setUp()
        self.asked_of_cyborg = 0
        self.meanwhile = lambda: None

    def requests(self):
        """Return Cyborg's answer, which may take any time."""
        self.asked_of_cyborg += 1
        with locks.gpu(self.state_path, self.address, 0.0):
            pass
        answer = super().requests()
        self.meanwhile()
        return answer

    def difference(self, kind):
        (found,) = [item for item in self.reconciler.find()
                    if item.kind is kind]
        self.asked_of_cyborg = 0
        return found

    def test_a_handle_that_is_bound_again_meanwhile_stays(self):
        asked = self.handle('1g.5gb')
        self.binder.bind(*asked)
        lost = self.difference(K.NO_REQUEST)
        before = self.truth()
        # Cyborg gives the handle to the next server after its answer.
        self.meanwhile = lambda: self.binder.bind(*asked)
        error = self.assertRaises(exception.StepFailed,
                                  self.reconciler.repair, lost)
        self.assertIn('in the meantime', str(error))
        self.assertEqual(before, self.truth())
        self.assert_quiet()

    def test_a_gpu_that_somebody_keeps_locked_is_left_out(self):
        self.binder.bind(*self.handle('1g.5gb'))
        self.patch(locks.gpu, '__defaults__', (0.0, ''))
        with locks.gpu(self.state_path, self.address):
            self.cloud.requests = words.Requests
            self.assertEqual((), self.reconciler.find())
        self.assertEqual([K.NO_REQUEST], [
            item.kind for item in self.reconciler.find()])
