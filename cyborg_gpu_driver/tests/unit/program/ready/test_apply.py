# SPDX-License-Identifier: Apache-2.0

"""Applying layouts: what is kept, what is refused, and who is in the way."""

import dataclasses
import errno
import os
import uuid

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program import layouts

_UUID = str(uuid.UUID(int=7))


class ApplyTest(layouts.LayoutCase):

    def test_layout_with_compute_instances(self):
        self.assertIs(apply.Status.CHANGED, self.apply(
            _1c_3g_40gb=3, _2g_20gb=1))
        enabled, pending, instances = self.truth()
        self.assertTrue(enabled and pending)
        self.assertEqual(
            {9: [(0, 1), (1, 1), (2, 1)], 14: [(0, 2)]},
            {profile: compute for _, _, profile, compute in instances})

    def test_skipped_reset_leaves_the_mode_pending(self):
        self.load(self._without_mig())
        self.restart()
        self.machine.add_holder(str(self.address), 815, 'nv-hostengine')
        status = self.apply(options=apply.Options(may_reset=False),
                            _7g_80gb=1)
        self.assertIs(apply.Status.PENDING, status)
        self.assertEqual((False, True, []), self.truth())
        self.machine.remove_holder(815)
        self.assertIsNone(self.change_record())
        self.assertIs(apply.Status.CHANGED, self.apply(_7g_80gb=1))

    def test_mode_only_leaves_instances(self):
        self.apply(_3g_40gb=1)
        before = self.truth()
        status = self.apply(options=apply.Options(mode_only=True),
                            _1g_10gb=7)
        self.assertIs(apply.Status.UNCHANGED, status)
        self.assertEqual(before, self.truth())

    def test_mode_only_leaves_instances_if_the_mode_was_to_change(self):
        self.apply(_3g_40gb=1)
        before = self.truth()
        with self.machine.operation(write=True):
            self.machine.gpu(str(self.address)).state.pending = False
        self.assertIs(apply.Status.CHANGED, self.apply(
            options=apply.Options(mode_only=True), _3g_40gb=1))
        self.assertEqual(before, self.truth())

    def test_hopper_needs_no_reset(self):
        self.use('hgx-h100')
        self.load(self._without_mig())
        self.restart()
        self.machine.faults.fail_write('*/reset', errno.EIO, times=None)
        self.assertIs(apply.Status.CHANGED, self.apply(_1g_10gb=7))
        self.assertEqual(7, len(self.truth()[2]))

    def test_gpus_succeed_and_fail_each_by_itself(self):
        self.use(self.MACHINE, gpus=3)
        other = self.host.gpus[1]
        self.machine.faults.fail(
            'nvmlDeviceCreateGpuInstanceWithPlacement', 999, times=None,
            address=str(other.address))
        outcomes = self.applier.apply_all([
            (gpu, self.wanted(gpu=gpu, _3g_40gb=2))
            for gpu in self.host.gpus[:3]])
        self.assertEqual(
            [apply.Status.CHANGED, apply.Status.FAILED,
             apply.Status.CHANGED],
            [outcome.status for outcome in outcomes])
        self.assertIn(str(other.address), str(outcomes[1].error))
        self.assertEqual([], self.truth(other.address)[2])
        self.assertEqual(2, len(self.truth(self.host.gpus[2].address)[2]))

    def test_all_gpus_have_their_modes_before_any_gets_instances(self):
        self.use('hgx-h100', gpus=3)
        with self.machine.operation(write=True):
            for gpu in self.machine.gpus:
                gpu.state.mig = gpu.state.pending = False
        self.restart()
        switch, create = ('nvmlDeviceSetMigMode',
                          'nvmlDeviceCreateGpuInstanceWithPlacement')
        called = []
        for name in (switch, create):
            self.machine.faults.delay(
                name, 0, lambda _, name=name: called.append(name))
        other = str(self.host.gpus[1].address)
        self.machine.faults.fail(create, 999, times=None, address=other)
        outcomes = self.applier.apply_all([
            (gpu, self.wanted(gpu=gpu, _1g_10gb=7))
            for gpu in self.host.gpus])
        self.assertEqual(
            ['changed', 'failed', 'changed'],
            [outcome.status.value for outcome in outcomes])
        self.assertEqual([switch] * 3, called[:called.index(create)])
        # The rollback ends the MIG mode too.
        self.assertEqual((False, False, []), self.truth(other))
        self.assertEqual(7, len(self.truth(self.host.gpus[2].address)[2]))

    def test_gpus_that_switch_do_not_wait_for_each_other(self):
        """Each has NVML alone for 0.5 s; all five would exceed the timeout."""
        self.use(self.MACHINE, gpus=5)
        self.platform.nvml.access.timeout = 1.0
        self.machine.faults.delay('nvmlDeviceSetMigMode', 0.5)
        outcomes = self.applier.apply_all([
            (gpu, self.wanted(enabled=False, gpu=gpu))
            for gpu in self.host.gpus[:5]])
        self.assertEqual(
            [''] * 5, [str(outcome.error or '') for outcome in outcomes])
        self.assertEqual([gpu.address for gpu in self.host.gpus[:5]],
                         [outcome.gpu for outcome in outcomes])

    def test_gpu_that_was_reset_since_the_snapshot(self):
        self.apply(_3g_40gb=1)
        for keeps, status in ((True, apply.Status.UNCHANGED),
                              (False, apply.Status.CHANGED)):
            self.machine.host = dataclasses.replace(
                self.machine.host, keeps_mig=keeps)
            self.machine.reset_gpu(str(self.address))
            self.assertIs(status, self.apply(_3g_40gb=1))

    def _without_mig(self):
        state = self.saved()
        state.mig = state.pending = False
        return state


class RefusalTest(layouts.LayoutCase):
    """A refused apply changes nothing, and says what is in the way."""

    def setUp(self):
        super().setUp()
        self.apply(_3g_40gb=2)
        self.before = self.truth()
        self.first, self.second = sorted(
            self.machine.gpu(self.address).state.instances)
        self.machine.reset_calls()

    def refused(self, kind, *words, enabled=True, **devices):
        error = self.assertRaises(kind, self.apply, enabled=enabled,
                                  **devices)
        for word in words:
            self.assertIn(word, str(error))
        self.assertEqual(self.before, self.truth())
        self.assertEqual(0, self.mutating_calls())
        self.assertIsNone(self.change_record())

    def test_process_on_an_instance(self):
        self.machine.add_process(self.address, os.getpid(), self.first, 0)
        self.refused(exception.ChangeRefused,
                     f'process {os.getpid()}', '3g.40gb', _7g_80gb=1)

    def test_instance_bound_to_a_handle(self):
        state = self.machine.gpu(self.address).state
        store.Store(self.state_path).put_claims(gpu_record.Claim(
            handle=_UUID, gpu=self.address, function=self.address,
            mdev_type='nvidia-476', profile='3g.40gb',
            phase=gpu_record.Phase.BOUND, profile_id=9,
            placement=model.Placement(state.instances[self.first].start, 4),
            instance_id=self.first))
        self.refused(exception.ChangeRefused, f'handle {_UUID}',
                     _7g_80gb=1)

    def test_mdev_of_which_nobody_tells_the_instance(self):
        with self.machine.operation(write=True):
            self.machine.gpu(self.address).state.vfs = 20
        self.restart()
        kind = next(item for item in self.gpu.vgpu_types
                    if item.gi_profile_id == 9)
        self.platform.sysfs.write(
            _UUID, 'class', 'mdev_bus', str(self.gpu.vfs[0].address),
            'mdev_supported_types', kind.mdev_type_id, 'create')
        self.restart()
        self.machine.reset_calls()
        self.refused(exception.ChangeRefused, f'mdev {_UUID}',
                     _7g_80gb=1)

    def test_process_in_the_way_of_a_mode_change(self):
        self.machine.add_process(self.address, os.getpid())
        self.refused(exception.ChangeRefused, f'process {os.getpid()} (',
                     enabled=False)

    def test_virtual_functions_in_the_way_of_a_mode_change(self):
        with self.machine.operation(write=True):
            self.machine.gpu(self.address).state.vfs = 20
        self.restart()
        self.machine.reset_calls()
        self.refused(exception.ChangeRefused, '20 virtual functions',
                     enabled=False)

    def test_gpu_whose_mig_state_could_not_be_read(self):
        """The GPU must not look like one without MIG."""
        (saved,) = apply.remembered(self.state_path)
        self.machine.faults.fail('nvmlDeviceGetMigMode', 999, times=None,
                                 address=str(self.address))
        self.restart()
        self.machine.faults.clear()
        self.machine.reset_calls()
        self.assertIsNone(self.gpu.mig)
        self.refused(exception.ChangeRefused, 'nvmlDeviceGetMigMode',
                     enabled=False)
        self.assertRaises(exception.ChangeRefused, self.restore, saved)

    def test_damaged_journal(self):
        path = self.records.path(self.address)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('{')
        error = self.assertRaises(exception.JournalError, self.apply,
                                  _7g_80gb=1)
        self.assertIn(path, str(error))
        self.assertEqual(self.before, self.truth())

    def test_what_the_gpu_has_is_not_lost_at_the_next_boot(self):
        """It fails if it cannot be remembered, also with nothing to do."""
        self.apply(_7g_80gb=1)
        self.records.put(self.address, layout=None)
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.durable.write', self.full))
        error = self.assertRaises(exception.GpuDriverError, self.apply,
                                  _7g_80gb=1)
        self.assertIn('the disk is full', str(error))

    def full(self, path, *_):
        raise exception.JournalError(path=path, reason='the disk is full')


class CheckpointTest(layouts.LayoutCase):

    def test_applied_layout_is_back_after_a_reboot(self):
        self.apply(_1c_3g_40gb=3, _2g_20gb=2)
        before = self.truth()
        self.machine.reboot()
        self.restart()
        self.assertEqual([], self.truth()[2])
        (saved,) = apply.remembered(self.state_path)
        self.assertTrue(self.restore(saved))
        self.assertEqual(before, self.truth())
        self.machine.reset_calls()
        self.assertEqual([], self.restore(saved))
        self.assertEqual(0, self.mutating_calls())

    def test_checkpoint_of_another_board_is_refused(self):
        self.apply(_3g_40gb=1)
        (saved,) = apply.remembered(self.state_path)
        self.use('hgx-h100')
        error = self.assertRaises(exception.ChangeRefused, self.restore,
                                  saved)
        self.assertIn('20b2', str(error))

    def test_damaged_record_is_kept_beside(self):
        self.apply(_3g_40gb=1)
        path = self.records.path(self.address)
        for name in (path, f'{path}.half.new'):
            with open(name, 'w', encoding='utf-8') as stream:
                stream.write('{')
        before = self.truth()
        self.restore(None)
        self.assertEqual(
            ['0000:07:00.0.json', '0000:07:00.0.json.unusable-1'],
            sorted(os.listdir(os.path.dirname(path))))
        self.assertEqual(before, self.truth())
