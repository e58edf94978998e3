# SPDX-License-Identifier: Apache-2.0

"""vGPUs that take a whole GPU on NVSwitches, and their partitions."""

import dataclasses
import uuid

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.reconcile import groups
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program import nodes
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_WHOLE = 'H100XM-80C'
_HALF = 'H100XM-40C'
_LOST, _NVLINK_ERROR = -9, -10


class FabricCase(binder_case.BinderCase):

    machine = 'hgx-h100-vfio'
    gpu = '0000:18:00.0'
    policy = policy.Policy('p', policy.Mode.VGPU, vgpu_types=(_WHOLE, _HALF))

    def setUp(self):
        super().setUp()
        self.partition = 8
        self.assertEqual(2, self.machine.host.module(self.gpu))

    def keep(self):
        groups.Connections(privileged.machine(), self.live,
                           self.records).look()

    def assert_active(self, *partitions):
        self.assertEqual(partitions, self.machine.active_partitions)
        self.assertEqual((), self.machine.damage)


class BindTest(FabricCase):

    def test_bind_and_unbind(self):
        handle = self.handle(_WHOLE)
        self.binder.bind(*handle)
        self.assert_active(self.partition)
        (entry,) = self.records.claims()
        self.assertEqual(self.partition, entry.fabric_partition)
        with self.machine.operation():
            self.assertEqual({'8': [handle[0]]},
                             self.machine.state.fabric.active)
        self.binder.bind(*handle)
        self.assert_active(self.partition)
        self.binder.unbind(*handle)
        self.assert_active()
        self.assertEqual(([], []), self.truth())
        self.binder.unbind(*handle)

    def test_a_part_of_a_gpu_has_no_nvlinks(self):
        self.binder.bind(*self.handle(_HALF))
        self.assert_active()
        self.assertEqual(0, self.machine.calls['fmConnect'])

    def test_a_gpu_without_its_fabric_is_not_given_away(self):
        handle = self.handle(_WHOLE)
        for prepare, words in (
                (lambda: self.machine.configure_fabric_manager(mode=0),
                 'FABRIC_MODE'),
                (lambda: self.machine.configure_fabric_manager(mode=1),
                 'FABRIC_MODE'),
                (self.machine.stop_fabric_manager, 'cannot be reached'),
                (self.machine.remove_fabric_manager, 'fabricmanager.cfg')):
            self.machine.configure_fabric_manager(mode=2)
            self.machine.start_fabric_manager()
            prepare()
            error = self.assertRaises(exception.BindRefused,
                                      self.binder.bind, *handle)
            self.assertIn(words, str(error))
            self.assertEqual(([], []), self.truth())
            self.assertEqual((), self.records.claims())

    def test_an_activation_that_fails_is_rolled_back(self):
        handle = self.handle(_WHOLE)
        for after in (False, True):
            self.machine.faults.fail('fmActivateFabricPartitionWithVFs',
                                     _NVLINK_ERROR, after=after)
            error = self.assertRaises(exception.FabricError,
                                      self.binder.bind, *handle)
            self.assertEqual('NVLINK_ERROR', error.symbol)
            self.assertEqual(([], []), self.truth())
            self.assertEqual((), self.records.claims())
            self.assert_active()
        self.binder.bind(*handle)
        self.assert_active(self.partition)

    def test_what_a_lost_vgpu_has_left_is_taken_over(self):
        other = self.handle(_WHOLE, 1)
        self.binder.bind(*other)
        with self.machine.operation():
            left = dict(self.machine.state.fabric.active)
        self.binder.unbind(*other)
        with self.machine.operation(write=True):
            self.machine.state.fabric.active.update(left)
        handle = self.handle(_WHOLE)
        self.binder.bind(*handle)
        with self.machine.operation():
            self.assertEqual({'8': [handle[0]]},
                             self.machine.state.fabric.active)

    def test_an_unbind_while_the_fabric_manager_is_stopped(self):
        handle = self.handle(_WHOLE)
        self.binder.bind(*handle)
        self.machine.stop_fabric_manager()
        self.assertRaises(exception.FabricError, self.binder.unbind, *handle)
        self.assertEqual(([], []), self.truth())
        (entry,) = self.records.claims()
        self.assertIs(gpu_record.Phase.UNBINDING, entry.phase)
        self.machine.start_fabric_manager(restart=True)
        self.keep()
        self.binder.recover()
        self.assert_active()
        self.assertEqual((), self.records.claims())

    def test_the_next_bind_waits_for_the_partition(self):
        first = self.handle(_WHOLE)
        second = (*self.handle(_WHOLE, 1)[:2], str(uuid.UUID(int=7)))
        self.binder.bind(*first)
        self.machine.faults.fail('fmDeactivateFabricPartition',
                                 _NVLINK_ERROR, times=2)
        self.assertRaises(exception.FabricError, self.binder.unbind, *first)
        self.assertRaises(exception.BindRefused, self.binder.bind, *second)
        self.assert_active(self.partition)
        self.binder.bind(*second)
        self.binder.recover()
        self.assert_active(self.partition)
        self.assertEqual([second[2]],
                         [entry.handle for entry in self.records.claims()])


class RestartTest(FabricCase):

    def setUp(self):
        super().setUp()
        self.bound = self.handle(_WHOLE)
        self.binder.bind(*self.bound)
        self.live.refresh()

    def test_the_fabric_manager_was_restarted(self):
        for restart in (False, True):
            self.machine.stop_fabric_manager()
            self.keep()
            self.machine.start_fabric_manager(restart=restart)
            self.keep()
            self.assert_active(self.partition)

    def test_a_lost_record_is_not_left_out_of_the_list(self):
        (before,) = self.records.claims()
        records = store.of(self.state_path)
        with open(records.path(before.gpu), 'w', encoding='utf-8') as stream:
            stream.write('{')
        self.assertTrue(self.records.check())
        self.machine.stop_fabric_manager()
        self.machine.start_fabric_manager(restart=True)
        rebuilder = self.node.rebuilder
        self.cloud.requests = lambda: reconcile.Requests((reconcile.Request(
            before.handle, 'arq', None, before.function,
            before.mdev_type),))
        self.keep()
        self.assertEqual([before.gpu], rebuilder.rebuild())
        log = self.useFixture(fixtures.FakeLogger())
        host = self.live.host
        self.keep()
        self.assertIn(f'because the partition of handle {before.handle} on '
                      f'GPU {before.gpu} is not known', log.output)
        # NVML does not tell the types of the GPU, or does not list it.
        gpu = self.live.gpu(before.gpu)
        for seen in (dataclasses.replace(gpu, vgpu_types=()), None):
            self.patch(self.live, 'host', lambda gpu=seen: model.Host(
                gpus=() if gpu is None else (gpu,)))
            self.keep()
        self.live.host = host
        self.assertEqual(0, self.machine.calls[
            'fmSetActivatedFabricPartitions'])
        for restart in (False, True):
            self.machine.stop_fabric_manager()
            self.machine.start_fabric_manager(restart=restart)
            self.keep()
            (entry,) = self.records.claims()
            self.assertEqual(self.partition, entry.fabric_partition)
            self.assert_active(self.partition)

    def test_another_mode(self):
        self.machine.configure_fabric_manager(mode=0)
        self.machine.start_fabric_manager()
        self.keep()
        self.assert_active()
        self.binder.unbind(*self.bound)
        self.assertEqual((), self.records.claims())

    def test_the_machine_was_restarted(self):
        self.machine.reboot()
        self.machine.sriov_manage('ALL')
        self.assert_active()
        self.live.refresh()
        nodes.Node(privileged.machine(), self.state_path).preparer.restore(
            self.live.gpu(self.address), None, [])
        self.assert_active(self.partition)
        self.assertEqual(self.bound[0], self.truth()[1][0][1])


class OtherBoardsTest(binder_case.BinderCase):

    machine = 'a100x4-vfio'
    gpu = '0000:ca:00.0'
    policy = policy.Policy('p', policy.Mode.VGPU,
                           vgpu_types=('A100D-80C',))

    def test_no_nvswitches(self):
        (offer,) = self.live.offers(self.live.gpu(self.address))
        self.assertEqual(1, offer.total)
        self.binder.bind(*self.handle(offer.profile))
        (entry,) = self.records.claims()
        self.assertIsNone(entry.fabric_partition)
