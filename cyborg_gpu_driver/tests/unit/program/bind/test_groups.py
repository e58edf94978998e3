# SPDX-License-Identifier: Apache-2.0


import dataclasses
import json
import logging

import fixtures
import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.program.bind import group_case

SINGLES = tuple((number,) for number in range(1, 9))
PAIRS = ((1, 3), (2, 4), (5, 7), (6, 8))
QUADS = ((1, 2, 3, 4), (5, 6, 7, 8))
ALL = ((1, 2, 3, 4, 5, 6, 7, 8),)
GROUPS = (*SINGLES, *PAIRS, *QUADS, *ALL)
"""From "GPU Partitions" in the fabric manager's user guide, for H100."""


class OfferTest(group_case.GroupCase):

    def test_each_partition_is_an_offer(self):
        offers = self.offers()
        self.assertEqual(sorted(GROUPS),
                         sorted(map(self.modules, offers)))
        for offer in offers:
            self.assertEqual(f'nvlink-{len(offer.members)}', offer.profile)
            self.assertEqual(min(offer.members), offer.gpu)
            self.assertEqual((1, 1, ''),
                             (offer.total, offer.creatable, offer.problem))

    def test_a_group_takes_all_that_share_a_gpu_with_it(self):
        one_of_each_size = (SINGLES[0], PAIRS[1], QUADS[0], ALL[0])
        for group in GROUPS if scope.ALL else one_of_each_size:
            handle = self.bind(*group)
            self.assert_sound()
            self.assertEqual(
                {other for other in GROUPS if not set(other) & set(group)},
                self.free(), group)
            for other in GROUPS:
                if set(other) & set(group) and other != group:
                    error = self.assertRaises(
                        exception.BindRefused, self.running.binder.bind,
                        *self.handle(*other))
                    self.assertIn(f'is taken: {handle[1]} of handle '
                                  f'{handle[2]}', str(error))
            self.assert_sound()
            self.running.binder.unbind(*handle)
            self.report()
            self.assert_sound()
            self.assertEqual(set(GROUPS), self.free(), group)


class BindTest(group_case.GroupCase):

    def test_a_guest_gets_all_gpus_and_leaves_them_clean(self):
        handle = self.bind(2, 4)
        members = self.offer(2, 4).members
        for address in members:
            self.world.attach_whole(str(address))
        self.report()
        self.assert_sound()
        self.assertRaises(exception.GpuInUse, self.running.binder.unbind,
                          *handle)
        self.assertEqual({gpu_record.Phase.UNBINDING}, {
            entry.phase for entry in self.records.claims()})
        self.assertFalse(self.free() & {(2,), (4,), (2, 4)})
        for address in members:
            self.world.detach_whole(str(address))
        resets = self.resets(members)
        self.report()
        self.report()
        self.assert_sound()
        self.assertEqual({count + 1 for count in resets},
                         set(self.resets(members)))
        self.assertEqual(set(GROUPS), self.free())

    def test_placement_hears_of_an_unbind_before_the_resets(self):
        handle = self.bind(2, 4)
        members = self.offer(2, 4).members
        before, seen = self.resets(members), []
        self.running.publish = lambda address: seen.append((
            self.resets(members), {entry.phase for entry
                                   in self.records.claims()},
            self.running.inventories(members[0])[-1].reserved))
        self.running.binder.unbind(*handle)
        self.assertEqual((before, {gpu_record.Phase.UNBINDING}, 1), seen[0])
        self.assertNotEqual(before, self.resets(members))

    def test_the_gpus_are_reset_when_their_partition_is_inactive(self):
        """No source says what a reset does to an active partition."""
        handle = self.bind(2, 4)
        reset, seen = self.running.resetter.reset, []

        def note(gpu, begin):
            seen.append(self.world.active_partitions)
            return reset(gpu, begin)

        self.running.resetter.reset = note
        self.running.binder.unbind(*handle)
        self.assertEqual([(), ()], seen)

    def resets(self, members):
        with self.world.operation():
            return [self.world.gpu(str(address)).state.resets
                    for address in members]

    def test_without_a_fabric_manager(self):
        handle = self.handle(1, 3)
        self.world.stop_fabric_manager()
        self.assertRaises(exception.FabricError, self.running.binder.bind,
                          *handle)
        self.report()
        self.assertEqual(sorted(GROUPS), sorted(map(self.modules,
                                                    self.offers())))
        self.world.start_fabric_manager()
        self.report()
        self.assert_sound()
        self.assertEqual((), self.records.claims())
        self.running.binder.bind(*handle)
        self.assert_sound()
        self.world.stop_fabric_manager()
        self.assertRaises(exception.FabricError, self.running.binder.unbind,
                          *handle)
        self.world.start_fabric_manager(restart=True)
        for _ in range(2):
            self.report()
        self.assert_sound()
        self.assertEqual((), self.records.claims())

    def test_an_activation_that_fails_is_rolled_back(self):
        for after in (False, True):
            self.world.faults.fail('fmActivateFabricPartition', -10,
                                   after=after)
            self.assertRaises(exception.FabricError, self.bind, 5, 7)
            self.assert_sound()
            self.assertEqual((), self.records.claims())
            self.assertEqual(set(GROUPS), self.free())

    def test_a_claim_that_cannot_be_written_leaves_none(self):
        handle = self.handle(5, 7)
        last = self.offer(5, 7).members[-1]
        write = self.records._write

        def fail(address, *arguments):
            if address == last:
                raise exception.JournalError(path='x', reason='is full')
            write(address, *arguments)

        self.records._write = fail
        self.assertRaises(exception.JournalError, self.running.binder.bind,
                          *handle)
        self.records._write = write
        self.assertEqual((), self.records.claims())
        self.assert_sound()

    def test_a_gpu_that_disappears_refuses_the_bind(self):
        read = live.LiveHost.refresh_gpu

        def fail(host, address):
            if self.world.active_partitions:
                has_gone.append(address)
            if address in has_gone:
                raise exception.UnknownGpu(address=address)
            return read(host, address)

        has_gone = []
        handle = self.handle(5, 7)
        logged = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        with fixtures.MonkeyPatch(
                'cyborg_gpu_driver.program.bind.live.LiveHost.refresh_gpu',
                fail):
            self.assertRaises(exception.UnknownGpu, self.running.binder.bind,
                              *handle)
        self.assertNotIn('Could not roll back', logged.output)
        self.assert_sound()
        self.assertEqual((), self.records.claims())
        self.assertEqual(set(GROUPS), self.free())

    def test_a_partition_that_was_left_is_activated_anew(self):
        self.machine.fabric.activate(3)
        calls = self.world.calls
        before = dict(calls)
        self.bind(1, 3)
        self.assert_sound()
        for name in ('fmActivateFabricPartition',
                     'fmDeactivateFabricPartition'):
            self.assertEqual(before.get(name, 0) + 1, calls[name], name)

    def test_a_partition_that_is_active_is_not_activated_again(self):
        for _ in range(2):
            privileged_fabric.activate(3)
        self.assertEqual(1, self.world.calls['fmActivateFabricPartition'])

    def test_a_partition_of_a_server_is_never_interrupted(self):
        """Even if the list of active partitions was read before its bind."""
        handle = self.bind(1, 3)
        for address in self.offer(1, 3).members:
            self.world.attach_whole(str(address))
        self.running.reconciler._connections.connect(
            self.records.claims(), frozenset())
        self.assert_sound()
        self.assertEqual(handle[2], self.records.claims()[0].handle)

    def test_a_gpu_that_somebody_uses_is_not_given_away(self):
        handle = self.handle(6, 8)
        self.world.attach_whole(str(self.offer(8).gpu))
        error = self.assertRaises(exception.BindRefused,
                                  self.running.binder.bind, *handle)
        self.assertIn('is in use', str(error))
        self.assert_sound()
        self.assertEqual((), self.records.claims())

    def test_leftovers_of_a_group_wait_for_all_of_its_gpus(self):
        handle = self.bind(1, 3)
        self.records.give_back(handle[2])
        error = self.assertRaises(exception.BindRefused, self.bind, 1)
        self.assertIn(handle[2], str(error))
        self.report()
        self.bind(1)
        self.assert_sound()

    def test_what_is_no_group(self):
        function, _asked, handle = self.handle(1, 3)
        self.assertRaises(exception.BindRefused, self.running.binder.bind,
                          function, 'nvlink-3', handle)
        for text in ('nvlink-0', 'nvlink-', 'nvlink-2 ', 'nvlink-100'):
            self.assertRaises(
                exception.InvalidValue, self.running.binder.bind, function,
                text, handle)


class KeepTest(group_case.GroupCase):

    def test_after_a_restart_of_the_fabric_manager(self):
        self.bind(1, 3)
        self.bind(5, 6, 7, 8)
        for restart in (False, True):
            self.world.stop_fabric_manager()
            self.world.start_fabric_manager(restart=restart)
            self.report()
            self.assert_sound()

    def test_before_nova_starts_servers_after_a_boot(self):
        self.bind(1, 3)
        self.bind(5, 6, 7, 8)
        self.world.reboot()
        self.begin(reports=False)
        self.assertEqual((), self.world.active_partitions)
        said = []
        for _ in range(2):
            for gpu in self.running.live.host().gpus:
                self.running.preparer.restore(gpu, None, said)
        self.assertEqual(['activate NVSwitch partition 2',
                          'activate NVSwitch partition 3'], sorted(said))
        self.assert_sound()
        self.report()
        self.assert_sound()

    def test_a_bound_group_of_which_all_records_are_lost(self):
        """Cyborg knows the owner. Until Cyborg answers, no server gets it."""
        handle = self.bind(1, 3)
        self.bind(2,)
        members = self.offer(1, 3).members
        known = [reconcile.Requests((reconcile.Request(
            handle[2], 'arq', 'server', members[0], handle[1]),))]
        for address in members:
            with self.records.gpu(address) as draft:
                draft.record = dataclasses.replace(
                    draft.record, claims=(), claims_lost=True)
        self.running.requests = lambda: None
        self.report()
        self.assertEqual(2, len(self.world.active_partitions))
        self.assertFalse({(1,), (3,), (1, 3)} & self.free())
        self.running.requests = lambda: known[0]
        self.report()
        self.assert_sound()
        self.assertEqual({handle[2]}, {
            entry.handle for entry in self.records.claims()
            if len(entry.members) == 2})
        self.running.binder.unbind(*handle)
        self.report()
        self.assert_sound()
        self.assertIn((1, 3), self.free())

    def test_a_group_that_cyborg_does_not_know(self):
        handle = self.bind(1, 3)
        members = self.offer(1, 3).members
        self.running.requests = reconcile.Requests
        self.world.attach_whole(str(members[1]))
        (found,) = self.differences()
        self.assertFalse(found.safe, found)
        self.assertIn(str(members[1]), found.text)
        self.world.detach_whole(str(members[1]))
        (found,) = self.differences()
        self.assertTrue(found.safe, found)
        self.assertEqual(handle[2], found.subject)
        self.running.reconciler.repair(found)
        self.report()
        self.assert_sound()
        self.assertEqual((), self.records.claims())

    def differences(self):
        return self.running.reconciler.find(refresh=True)

    def test_a_partition_that_nobody_has(self):
        fabric = self.machine.fabric
        fabric.activate(3)
        self.report()
        self.assert_sound()
        self.assertEqual((), self.world.active_partitions)

    def test_a_claim_that_a_record_lost_is_written_again(self):
        self.bind(1, 2, 3, 4)
        before = self.records.claims()
        for entry in before:
            with self.records.gpu(entry.gpu) as draft:
                draft.record = dataclasses.replace(
                    draft.record, claims=())
            self.report()
            self.assert_sound()
            self.assertEqual(before, self.records.claims())


class BlackwellTest(group_case.GroupCase):
    """GPUs with NVLink 5, whose NVSwitches are not functions of the host."""

    def begin(self, reports=True):
        with open(self.host_path, encoding='utf-8') as stream:
            content = yaml.safe_load(stream)
        content['driver_version'] = '580.65.06'
        content['nvswitches'] = [{
            'address': '0000:0b:00.0', 'vendor': '15b3', 'device': '1021',
            'class': '020700', 'driver': 'mlx5_core'}]
        for gpu in content['gpus']:
            gpu['model'] = 'b200'
        with open(self.host_path, 'w', encoding='utf-8') as stream:
            yaml.safe_dump(content, stream)
        super().begin(reports=False)
        self.world.start_fabric_manager()
        if reports:
            self.report()

    def test_gpus_are_reset_after_the_fabric_manager_has_started(self):
        handle = self.bind(1, 2)
        self.assert_sound()
        self.running.binder.unbind(*handle)
        self.report()
        self.bind(1, 2)
        self.assert_sound()

    def test_they_wait_for_the_fabric_manager(self):
        self.world.stop_fabric_manager()
        self.world.reboot()
        self.begin(reports=False)
        self.world.stop_fabric_manager()
        gpu = self.running.live.refresh().gpus[0]
        outcome = self.running.preparer.prepare(gpu)
        self.assertIn('the fabric manager cannot be reached', outcome.reason)


class PreparedTest(group_case.GroupCase):
    """GPUs that "cyborg-gpu gpu prepare" has bound before any report."""

    def begin(self, reports=True):
        super().begin(False)
        for gpu in self.running.live.host().gpus:
            outcome = self.running.preparer.prepare(gpu)
            self.assertEqual('', outcome.reason)
        super().begin(reports)

    def test_they_keep_their_groups(self):
        self.assertEqual(set(GROUPS), self.free())


class BridgeTest(group_case.GroupCase):
    """Two GPUs with a bridge, and no NVSwitch."""

    host = 'h100nvlx2'

    def modules(self, offer):
        return tuple(map(str, offer.members))

    def test_pair(self):
        pair = ('0000:17:00.0', '0000:65:00.0')
        singles = {(address,) for address in pair}
        self.assertEqual({pair, *singles}, self.free())
        handle = self.bind(*pair)
        self.assertEqual(set(), self.free())
        self.assertEqual([None, None], [
            entry.fabric_partition for entry in self.records.claims()])
        self.running.binder.unbind(*handle)
        self.report()
        self.bind(pair[0])
        self.assertEqual({(pair[1],)}, self.free())

    def test_a_pair_without_its_bridge_is_not_offered(self):
        pair = ('0000:17:00.0', '0000:65:00.0')
        handle = self.bind(*pair)
        for address in pair:
            with self.world.operation(write=True):
                self.world.gpu(address).state.meters.links_down = list(
                    range(12))
        self.running.binder.unbind(*handle)
        for _ in range(2):
            self.report()
            self.assertEqual({(address,) for address in pair}, self.free())


class UnknownSizeTest(group_case.GroupCase):

    host = 'h100nvlx2'
    options = {'mode': 'nvlink', 'nvlink_sizes': [2, 4]}

    def test_why_it_is_not_offered(self):
        self.assertEqual(
            {'nvlink-4': 'NVLink connects the GPU to no group of 4; '
                         'nvlink_sizes can be 1, 2', 'nvlink-2': ''},
            {offer.profile: offer.problem for offer in self.offers()})


class ReportTest(group_case.GroupCase):

    def test_what_cyborg_and_placement_get(self):
        devices = {str(gpu.address): self.running.device(
            gpu, self.running.servable(gpu))
            for gpu in self.running.live.host().gpus}
        (all_,) = [item for device in devices.values()
                   for item in device.deployables
                   if item.offer.profile == 'nvlink-8']
        self.assertEqual('host1_gpu_0000:18:00.0_nvlink-8', all_.name)
        self.assertEqual('CUSTOM_NVIDIA_NVLINK_8_H100_80GB_HBM3',
                         all_.resource_class)
        self.assertLessEqual({
            'CUSTOM_GPU_KIND_NVLINK', 'CUSTOM_NVIDIA_2330_NVLINK_8',
            'CUSTOM_GPU_MEMORY_80GB', 'OWNER_CYBORG'}, set(all_.traits))
        (handle,) = all_.handles
        self.assertEqual(('MDEV', 'nvlink-8'),
                         (handle.attach_type, handle.asked_type))
        # The limit is the length of Cyborg's database column.
        self.assertLessEqual(len(handle.attach_info), 255)
        self.assertEqual(tuple(sorted(devices)), tuple(map(
            str, nvlink.from_text(json.loads(handle.attach_info)[
                'addresses']))))
        self.assertEqual({'nvlink-1'}, {
            item.offer.profile
            for item in devices['0000:db:00.0'].deployables})


class LockTest(group_case.GroupCase):

    def test_all_or_none_are_held(self):
        first, second, third = self.offer(1, 2, 3, 4).members[:3]
        with locks.gpu(self.state_path, second):
            self.assertRaises(
                exception.LockTimeout, self.hold, (third, second, first))
            with locks.gpu(self.state_path, first, 0.1):
                pass
        self.hold((third, second, first))

    def hold(self, gpus):
        with locks.gpus(self.state_path, gpus, 0.2):
            self.assertRaises(exception.LockTimeout, locks.gpu(
                self.state_path, gpus[0], 0.1).__enter__)
