# SPDX-License-Identifier: Apache-2.0

"""What was reported stays reported, and nothing in use changes."""

import collections
import contextlib
import dataclasses
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report import withdrawal
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests import unreadable
from cyborg_gpu_driver.tests.unit.report import placements

_ADDRESS = model.PciAddress.parse('0000:07:00.0')
_OTHER = model.PciAddress.parse('0000:0f:00.0')
_GPU = model.Gpu(
    address=_ADDRESS, vendor_id='10de', device_id='20b2', class_code='0302',
    model='NVIDIA A100-SXM4-80GB', uuid='GPU-1', memory_mib=81920,
    driver='nvidia', visible_to_nvml=True)
_IN_GUEST = dataclasses.replace(
    _GPU, model=None, uuid=None, memory_mib=None, driver='vfio-pci',
    visible_to_nvml=False)
_UNSEEN = dataclasses.replace(_IN_GUEST, driver='nvidia')


def _offers(gpu, profiles=('1g.10gb', '3g.40gb'), total=2):
    parents = (model.PciAddress.parse('0000:07:00.4'),)
    return [
        offers.Offer(gpu.address, 'p', policy.Mode.MIG, profile, total,
                     vgpu_type_id=f'nvidia-{number}', parents=parents)
        for number, profile in enumerate(profiles, 1)]


def _fewer(gpu):
    return _offers(gpu, ('1g.10gb',))


def _none(gpu):
    return []


def _make(gpu, offered):
    device = build.device(gpu, offered, 'host')
    return device if device.deployables else None


def _device(gpu, make=_offers):
    return _make(gpu, make(gpu))


class WithdrawalTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.placement = placements.Placement()
        self.restart()

    def restart(self):
        self.withdrawal = withdrawal.Withdrawal(
            self.state_path, self.placement.providers(), _make, 'host')

    def decide(self, *present, gpus=(), make=_offers, ignored=(), claimed=(),
               library_missing=False, unhealthy=()):
        decision = self.withdrawal.decide(
            model.Host(gpus=(*present, *gpus),
                       library_missing=library_missing), make,
            ignored, set(claimed), unhealthy)
        return decision, {device.address: device
                          for device in decision.devices}

    def report(self, *gpus, **kwargs):
        return self.decide(*gpus, **kwargs)[1]

    def use(self, device, number=0):
        self.placement.use(device.deployables[number].provider_uuid)

    def free(self):
        self.placement.used.clear()

    def assert_kept(self, before, number=0, **kwargs):
        """Check that nothing but traits changes, and nothing is promised.

        :param number: of the first deployable that is withdrawn.
        """
        decision, devices = self.decide(**kwargs)
        after = devices[_ADDRESS]
        self.assertFalse(after.stub)
        self.assertEqual(
            [(item.name, item.resource_class, item.handles)
             for item in before.deployables],
            [(item.name, item.resource_class, item.handles)
             for item in after.deployables])
        gone = after.deployables[number:]
        self.assertEqual(gone, tuple(
            item for item in after.deployables
            if names.WITHDRAWN in item.traits))
        self.assertEqual(
            {(item.provider_uuid, item.num_accelerators,
              item.num_accelerators) for item in gone},
            {(item.provider, item.total, item.reserved)
             for item in decision.draining})
        return decision

    def test_what_cyborgs_own_driver_gave_to_servers_is_left_alone(self):
        function = model.PciAddress.parse('0000:07:00.4')
        other = dataclasses.replace(_GPU, address=_OTHER)
        host = dataclasses.replace(_GPU, vfs=(
            model.VirtualFunction(function, 0, 'nvidia', None),)), other
        for used, left in ((_ADDRESS, {_ADDRESS}),
                           (function, {_ADDRESS, function})):
            self.state_path = self.useFixture(fixtures.TempDir()).path
            self.restart()
            (uuid,) = self.placement.tree = {names.provider_uuid(
                f'host_{used}'): {'PGPU': {'total': 1}}}
            self.placement.use(uuid)
            for _ in range(2):
                self.assertEqual({_ADDRESS}, self.withdrawal.of_other_driver(
                    model.Host(gpus=host)))
                decision, reported = self.decide(*host)
                self.assertEqual({*left, _OTHER}, set(reported))
                self.assertEqual(left, {address for address, device
                                        in reported.items() if device.stub})
                self.assertEqual([reserved.Inventory(uuid, 'PGPU', 1, 1)],
                                 [*decision.draining])
                self.assertLessEqual(left, {
                    device.address for device in self.withdrawal.held()})
                # A restart asks again.
                self.restart()
            self.free()
            self.assertEqual(set(), self.withdrawal.of_other_driver(
                model.Host(gpus=host)))
            decision, reported = self.decide(*host)
            self.assertEqual({*left, _OTHER}, set(reported))
            withdrawn = reported[used].deployables[-1]
            self.assertEqual((f'host_{used}', 'PGPU'), (
                withdrawn.name, withdrawn.resource_class))
            self.assertIn(names.WITHDRAWN, withdrawn.traits)
            self.assertEqual([build.cpid_info(used)], [
                handle.attach_info for handle in withdrawn.handles])
            self.assertEqual([reserved.Inventory(uuid, 'PGPU', 1, 1)],
                             [*decision.draining])
            self.placement.gone.add(uuid)
            self.assertEqual(
                {_ADDRESS: _device(host[0]), _OTHER: _device(other)},
                self.report(*host))

    def test_while_placement_has_not_told_only_known_gpus_are_reported(self):
        self.placement.used = None
        self.withdrawal.of_other_driver(model.Host(gpus=(_GPU,)))
        self.assertTrue(self.report(_GPU)[_ADDRESS].stub)
        # A Placement that is silent would make each request wait.
        self.assertEqual(1, self.placement.asked.total())
        self.placement.used = collections.Counter()
        self.report(_GPU)
        self.restart()
        self.placement.used = None
        self.assertFalse(self.report(_GPU)[_ADDRESS].stub)

    def unread(self, gpu=_UNSEEN, **kwargs):
        """How much is reserved by provider while a GPU cannot be read."""
        decision, devices = self.decide(gpu, **kwargs)
        self.assertTrue(devices[_ADDRESS].stub)
        self.assertEqual((), decision.trusted)
        return {item.provider: (item.total, item.reserved)
                for item in decision.draining}

    def test_what_cannot_be_read_is_promised_to_nobody(self):
        device = self.report(_GPU)[_ADDRESS]
        self.placement.publish(device)
        one, two = (item.provider_uuid for item in device.deployables)
        for gpu in (_UNSEEN, dataclasses.replace(
                _GPU, problems=('MIG mode: UNKNOWN',))):
            self.free()
            self.assertEqual({one: (2, 2), two: (2, 2)}, self.unread(gpu))
            # What servers have is theirs: a migration writes it again.
            self.use(device)
            self.assertEqual({one: (2, 1), two: (2, 2)}, self.unread(gpu))
        self.assertEqual((), self.decide(_GPU)[0].draining)

    def test_a_whole_gpu_that_cannot_be_read_stays_its_servers(self):
        device = self.report(_GPU, make=self.whole())[_ADDRESS]
        self.placement.publish(device)
        uuid = device.deployables[0].provider_uuid
        self.assertEqual({uuid: (1, 1)}, self.unread())
        self.use(device)
        self.assertEqual({uuid: (1, 0)}, self.unread())

    def test_without_library_a_gpu_never_seen_is_whole(self):
        devices = self.report(_UNSEEN, library_missing=True)
        self.assertFalse(devices[_ADDRESS].stub)

    def test_without_library_a_gpu_that_nvml_once_saw_is_left_alone(self):
        self.report(_GPU)
        devices = self.report(_UNSEEN, library_missing=True)
        self.assertTrue(devices[_ADDRESS].stub)

    def test_facts_of_nvml_stay_while_a_guest_has_the_gpu(self):
        before = self.report(_GPU)
        self.restart()
        self.assertEqual(before, self.report(_IN_GUEST))

    def test_facts_of_another_board_are_not_taken_over(self):
        self.report(_GPU)
        other = dataclasses.replace(_IN_GUEST, device_id='2330')
        self.assertNotEqual('NVIDIA A100-SXM4-80GB',
                            self.report(other)[_ADDRESS].model)

    def test_a_gpu_that_vanishes_stays_until_its_providers_are_deleted(self):
        """The device of a GPU that is not there is made of its record."""
        device = self.report(_GPU)[_ADDRESS]
        for _ in range(2):
            decision = self.assert_kept(device)
            self.assertEqual((), decision.trusted)
            self.restart()
        one, two = (item.provider_uuid for item in device.deployables)
        self.placement.gone.add(one)
        (left,) = self.report()[_ADDRESS].deployables
        self.assertEqual(two, left.provider_uuid)
        self.placement.gone.add(two)
        self.assertEqual({}, self.report())
        self.assertEqual((), self.withdrawal.held())

    def test_what_is_offered_again_is_as_before(self):
        device = self.report(_GPU)[_ADDRESS]
        for away in ({'ignored': [_ADDRESS]}, {'make': _none},
                     {'make': _fewer}):
            self.decide(_GPU, **away)
            self.restart()
            decision, devices = self.decide(_GPU)
            self.assertEqual(device, devices[_ADDRESS])
            self.assertEqual((), decision.draining)

    def test_under_another_host_name_nothing_is_reported_again(self):
        device = self.report(_GPU)[_ADDRESS]
        self.withdrawal = withdrawal.Withdrawal(
            self.state_path, self.placement.providers(),
            lambda gpu, offered: build.device(gpu, offered, 'other'), 'other')
        reported = self.report(_GPU)[_ADDRESS]
        self.assertEqual(2, len(reported.deployables))
        self.assertEqual(set(), {item.name for item in device.deployables} & {
            item.name for item in reported.deployables})

    def test_what_a_server_got_meanwhile_is_in_use(self):
        device = self.report(_GPU)[_ADDRESS]
        self.report()
        self.use(device)
        self.restart()
        self.assertTrue(self.report()[_ADDRESS].stub)
        self.free()
        self.assert_kept(device, 1, gpus=(_GPU,), make=_fewer)
        for _ in range(2):
            self.use(device, 1)
            decision, devices = self.decide(_GPU, make=_fewer)
            self.assertTrue(devices[_ADDRESS].stub)
            self.assertEqual(
                [(device.deployables[1].provider_uuid, 2, 2)],
                [(item.provider, item.total, item.reserved)
                 for item in decision.draining])
            # The other provider is still counted.
            self.assertEqual((_ADDRESS,), decision.trusted)
            self.restart()

    def test_what_is_unused_is_asked_only_once(self):
        self.report(_GPU)
        # The tree is known when the first answer is there.
        for asked in (3, 2, 1, 1):
            self.placement.asked.clear()
            self.report()
            self.assertEqual(asked, self.placement.asked.total())

    def test_a_mode_is_left_when_nothing_of_it_can_be_in_use(self):
        self.report(_GPU, make=self.whole())
        for mode in ('passthrough', 'mig'):
            self.report(_GPU)
            known = withdrawal.remembered(self.state_path)[_ADDRESS]
            self.assertEqual(mode, known.mode)

    def test_unknown_use_counts_as_use(self):
        self.report(_GPU)
        self.placement.used = None
        self.placement.asked.clear()
        self.assertTrue(self.report()[_ADDRESS].stub)
        # A Placement that is silent would make each request wait.
        self.assertEqual(1, self.placement.asked.total())
        self.placement.used = collections.Counter()
        self.assertFalse(self.report()[_ADDRESS].stub)

    def test_a_claim_in_the_journal_counts_as_use(self):
        device = self.report(_GPU)[_ADDRESS]
        self.assertTrue(self.report(claimed=[_ADDRESS])[_ADDRESS].stub)
        # But not as a use of what was withdrawn before.
        self.decide(_GPU, make=_fewer)
        self.assert_kept(device, 1, gpus=(_GPU,), make=_fewer,
                         claimed=[_ADDRESS])

    def test_a_profile_in_use_is_not_dropped_but_drained(self):
        first = self.report(_GPU)[_ADDRESS]
        dropped = first.deployables[1]
        self.use(first, 1)
        decision, devices = self.decide(_GPU, make=_fewer)
        self.assertTrue(devices[_ADDRESS].stub)
        (drained,) = decision.draining
        self.assertEqual(
            (dropped.provider_uuid, dropped.resource_class, 2, 2),
            (drained.provider, drained.resource_class, drained.total,
             drained.reserved))
        self.free()
        for _ in range(2):
            self.assert_kept(first, 1, gpus=(_GPU,), make=_fewer)
        self.placement.gone.add(dropped.provider_uuid)
        for _ in range(2):
            decision, devices = self.decide(_GPU, make=_fewer)
            self.assertEqual(_device(_GPU, _fewer), devices[_ADDRESS])
            self.assertEqual((), decision.draining)

    def test_of_an_unhealthy_gpu_only_what_is_not_offered_is_drained(self):
        """The inventory closes what is offered; a drain would repeat that."""
        first = self.report(_GPU)[_ADDRESS]
        self.use(first, 1)
        decision, _ = self.decide(_GPU, unhealthy=[_ADDRESS], make=_fewer)
        self.assertEqual({first.deployables[1].provider_uuid},
                         {item.provider for item in decision.draining})
        decision, _ = self.decide(_UNSEEN, unhealthy=[_ADDRESS])
        self.assertEqual({item.provider_uuid for item in first.deployables},
                         {item.provider for item in decision.draining})

    def test_use_of_a_profile_that_stays_does_not_hold_up_the_others(self):
        first = self.report(_GPU)[_ADDRESS]
        self.use(first, 0)
        self.assertFalse(self.report(_GPU, make=_fewer)[_ADDRESS].stub)

    def test_another_set_of_handles_waits_until_idle(self):
        self.use(self.report(_GPU)[_ADDRESS])

        def more(gpu):
            return _offers(gpu, total=3)

        self.assertTrue(self.report(_GPU, make=more)[_ADDRESS].stub)
        self.free()
        self.assertEqual(_device(_GPU, more),
                         self.report(_GPU, make=more)[_ADDRESS])

    def test_an_ignored_gpu_is_left_alone_while_it_is_in_use(self):
        device = self.report(_GPU)[_ADDRESS]
        self.use(device)
        self.assertTrue(
            self.report(_GPU, ignored=[_ADDRESS])[_ADDRESS].stub)
        self.free()
        # What its next owner does with it does not matter.
        for gpu in (_GPU, _UNSEEN):
            self.assert_kept(device, gpus=(gpu,), ignored=[_ADDRESS])

    def whole(self, busy=''):
        return lambda gpu: [offers.Offer(
            gpu.address, 'p', policy.Mode.PASSTHROUGH, 'passthrough', 1,
            creatable=0 if busy else 1, parents=(gpu.address,), busy=busy)]

    def test_a_busy_gpu_is_reported_when_it_is_idle(self):
        log = self.useFixture(fixtures.FakeLogger())
        for _ in range(2):
            decision, devices = self.decide(
                _GPU, make=self.whole('3 processes'))
            self.assertEqual({}, devices)
            self.assertEqual((), decision.trusted)
        self.assertEqual(1, log.output.count(
            'is not reported yet: 3 processes'))
        self.assertEqual((), self.withdrawal.held())
        self.assertEqual({_ADDRESS}, set(self.report(
            _GPU, make=self.whole())))

    def test_a_reported_gpu_that_becomes_busy_stays(self):
        before = self.report(_GPU, make=self.whole())[_ADDRESS]
        self.restart()
        decision, devices = self.decide(_GPU, make=self.whole('busy'))
        self.assertEqual(before, dataclasses.replace(
            devices[_ADDRESS], busy=''))
        self.assertEqual((_ADDRESS,), decision.trusted)

    def test_a_gpu_that_a_lost_report_had_is_news_when_busy(self):
        device = self.report(_GPU, make=self.whole())[_ADDRESS]
        self.placement.gone.add(device.deployables[0].provider_uuid)
        self.assertEqual({}, self.report(_GPU, make=self.whole('busy')))

    def test_what_a_busy_gpu_was_before_is_kept(self):
        log = self.useFixture(fixtures.FakeLogger())
        first = self.report(_GPU)[_ADDRESS]
        self.use(first)
        for _ in range(2):
            self.assertTrue(self.report(
                _GPU, make=self.whole('busy'))[_ADDRESS].stub)
        self.assertEqual(1, len(log.output.splitlines()))
        self.free()
        self.assert_kept(first, gpus=(_GPU,), make=self.whole('busy'))

    def test_a_gpu_whose_record_was_damaged_stays_until_it_is_rebuilt(self):
        self.report(_GPU)
        records = store.of(self.state_path)
        with open(records.path(_ADDRESS), 'w', encoding='utf-8') as stream:
            stream.write('{}')
        records.check()
        self.restart()
        for gpus in ((), (_GPU,)):
            self.assertTrue(self.report(*gpus)[_ADDRESS].stub)
        records.put(_ADDRESS, claims_lost=False)
        self.assertFalse(self.report(_GPU)[_ADDRESS].stub)

    def test_a_record_that_an_operator_deletes_ends_its_stub(self):
        records = store.of(self.state_path)
        records.put(_ADDRESS, claims_lost=True)
        log = self.useFixture(fixtures.FakeLogger())
        self.assertTrue(self.report()[_ADDRESS].stub)
        self.assertIn(f'delete {records.path(_ADDRESS)}', log.output)
        os.unlink(records.path(_ADDRESS))
        self.assertEqual({}, self.report())

    def test_a_state_path_that_cannot_be_written_does_not_stop_reports(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.state_path = '/proc/self/nowhere'
        self.restart()
        for _ in range(3):
            self.assertFalse(self.report(_GPU)[_ADDRESS].stub)
        self.assertEqual(1, log.output.count('kept in memory'))

    def test_a_report_is_remembered_as_soon_as_it_can_be(self):
        target = os.path.join(self.state_path, 'target')
        self.state_path = os.path.join(self.state_path, 'link')
        os.symlink(target, self.state_path)
        self.restart()
        self.report(_GPU)
        self.assertFalse(os.path.exists(target))
        os.mkdir(target)
        self.report(_GPU)
        self.assertEqual({_ADDRESS}, {*withdrawal.remembered(
            self.state_path)})

    def test_a_record_that_cannot_be_read_now_is_waited_for(self):
        self.report(_GPU)
        path = store.Store(self.state_path).path(_ADDRESS)
        with unreadable.file(path):
            self.restart()
            other = dataclasses.replace(_GPU, address=_OTHER)
            self.assertEqual({_ADDRESS: True, _OTHER: False}, {
                address: device.stub for address, device
                in self.report(_GPU, other).items()})
            self.assertEqual(
                (build.stub_device(_ADDRESS), build.stub_device(_OTHER)),
                self.withdrawal.held())
        # Its last report is known again.
        self.assertTrue(self.report(
            _UNSEEN, library_missing=True)[_ADDRESS].stub)
        self.use(self.report(_GPU)[_ADDRESS])
        self.assertTrue(self.report()[_ADDRESS].stub)

    def test_a_record_that_becomes_readable_meanwhile_stays(self):
        self.report(_GPU)
        with contextlib.ExitStack() as stack:
            stack.enter_context(unreadable.file(
                store.Store(self.state_path).path(_ADDRESS)))
            self.restart()

            def make(gpu):
                stack.close()
                return _offers(gpu)

            self.report(dataclasses.replace(_GPU, address=_OTHER), make=make)
        self.assertIsNotNone(
            store.Store(self.state_path).read(_ADDRESS).reported)
