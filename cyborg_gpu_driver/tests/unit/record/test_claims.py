# SPDX-License-Identifier: Apache-2.0

"""The journal returns what was put into it, or says why it cannot."""

import dataclasses
import json
import uuid

import fixtures
from oslotest import base

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

_GPU = model.PciAddress.parse('0000:07:00.0')
_OTHER = model.PciAddress.parse('0000:0f:00.0')
_VF = model.PciAddress.parse('0000:07:00.4')


def _entry(number=1, **changes):
    entry = gpu_record.Claim(
        handle=str(uuid.UUID(int=number)), gpu=_GPU, function=_VF,
        mdev_type='nvidia-474', profile='1g.5gb',
        phase=gpu_record.Phase.BINDING, profile_id=19,
        placement=model.Placement(6, 1))
    return dataclasses.replace(entry, **changes)


class JournalTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.path = store.of(self.state_path).path(_GPU)
        self.records = store.Store(self.state_path, lambda: 1000.0)

    def test_entries_outlive_the_process(self):
        entries = (_entry(1), _entry(2, gpu=_OTHER, profile_id=None,
                                     placement=None,
                                     phase=gpu_record.Phase.BOUND),
                   _entry(3, vfio=True, vgpu_placement=0, boot='one',
                          repeats=2))
        self.records.put_claims(*entries)
        again = store.Store(self.state_path)
        self.assertEqual(set(entries), set(again.claims()))
        self.assertEqual(entries[1:2], again.claims(_OTHER))
        self.assertEqual(entries[0], again.claim(entries[0].handle))

    def test_all_entries_are_read_or_none(self):
        self.records.put_claims(_entry(1), _entry(2, gpu=_OTHER))
        self.assertEqual({_entry(1), _entry(2, gpu=_OTHER)},
                         set(self.records.all_claims()))
        records = store.of(self.state_path)
        records.put(_OTHER, claims_lost=True)
        self.assert_unknown(records.path(_OTHER))
        records.put(_OTHER, claims_lost=False)
        with open(self.path, 'w', encoding='utf-8') as stream:
            stream.write('{')
        self.assert_unknown(self.path)

    def assert_unknown(self, path):
        self.assertIn(path, str(self.assertRaises(
            exception.JournalError, self.records.all_claims)))

    def test_the_first_gpu_of_a_group_loses_its_claim_last(self):
        group = _entry(members=(_GPU, _OTHER))
        self.records.put_claims(*group.on_each())
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.locks._RECORD_SECONDS', 0.0))
        with locks.record(self.state_path, _OTHER):
            self.assertRaises(exception.LockTimeout,
                              self.records.remove_claims, group.handle)
        self.assertEqual(2, len(self.records.claims()))

    def test_what_was_given_back_is_written_at_once(self):
        # The clock was set back after the bind.
        stays, goes = (_entry(number, phase=gpu_record.Phase.BOUND,
                              since=2000.0) for number in (1, 2))
        self.records.put_claims(stays, goes)
        self.records.give_back(goes.handle)
        unbinding = dataclasses.replace(
            goes, phase=gpu_record.Phase.UNBINDING, until=2000.0)
        self.assertEqual((stays, unbinding),
                         store.Store(self.state_path).claims())

    def test_what_was_given_back_stays_so_until_it_is_removed(self):
        # A put of the entry as it was read before must not revive it.
        bound = _entry(phase=gpu_record.Phase.BOUND)
        unbinding = dataclasses.replace(
            bound, phase=gpu_record.Phase.UNBINDING, until=1000.0)
        self.records.put_claims(bound)
        self.records.give_back(bound.handle)
        self.records.put_claims(bound)
        for records in (self.records, store.Store(self.state_path)):
            self.assertEqual((unbinding,), records.claims())
        self.records.remove_claims(bound.handle)
        self.records.put_claims(bound)
        self.assertEqual((bound,), self.records.claims())

    def test_what_cannot_be_written_was_given_back_all_the_same(self):
        bound = _entry(phase=gpu_record.Phase.BOUND)
        unbinding = dataclasses.replace(
            bound, phase=gpu_record.Phase.UNBINDING, until=1000.0)
        self.records.put_claims(bound)
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.locks._RECORD_SECONDS', 0.0))
        with locks.record(self.state_path, _GPU):
            self.assertRaises(exception.LockTimeout, self.records.give_back,
                              bound.handle)
        self.assertEqual((unbinding,), self.records.claims())
        self.assertEqual((bound,), store.Store(self.state_path).claims())
        self.records.put_claims(_entry(2))
        self.assertEqual((unbinding, _entry(2)),
                         store.Store(self.state_path).claims())

    def test_only_a_bound_entry_is_given_back(self):
        # A bind that is under way checks itself whether it is still wanted.
        self.records.put_claims(_entry())
        self.records.give_back(_entry().handle)
        self.records.give_back(_entry(2).handle)
        self.assertEqual((_entry(),), self.records.claims())

    def test_another_thread_removes_an_entry_that_is_being_read(self):
        class Removing(dict):
            def __contains__(self, handle):
                return self.pop(handle, None) is not None

        bound = _entry(phase=gpu_record.Phase.BOUND)
        self.records.put_claims(bound)
        self.records._given_back = Removing()
        self.records.give_back(bound.handle)
        self.assertEqual([gpu_record.Phase.UNBINDING],
                         [item.phase for item in self.records.claims()])

    def content(self):
        with open(self.path, encoding='utf-8') as stream:
            return json.load(stream)['content']

    def test_a_bad_entry_is_refused_not_acted_upon(self):
        self.records.put_claims(_entry())
        (good,) = self.content()['claims']
        for field, value in (('handle', '../../x'), ('gpu', 'x'),
                             ('gpu', str(_OTHER)),
                             ('function', '/'), ('mdev_type', 'nvidia-1/..'),
                             ('phase', 'lost'), ('profile_id', '19'),
                             ('placement', {'start': -1, 'size': 1}),
                             ('instance_id', 1.5), ('vfio', 1), ('vfio', None),
                             ('vgpu_placement', -1),
                             ('vgpu_placement', '0'), ('boot', 1),
                             ('repeats', -1)):
            durable.write(self.path, store.KIND, store.VERSION, {
                'claims': [dict(good, **{field: value})]})
            self.assertRaises(exception.JournalError, self.records.claims,
                              _GPU)

    def test_a_damaged_record_costs_one_gpu(self):
        self.records.put_claims(_entry(1), _entry(2, gpu=_OTHER))
        with open(self.path, 'w', encoding='utf-8') as stream:
            stream.write('{')
        self.assertEqual((_entry(2, gpu=_OTHER),), self.records.claims())
        self.assertEqual(_entry(2, gpu=_OTHER),
                         self.records.claim(_entry(2).handle))
        self.assertIsNone(self.records.claim(_entry(3).handle, _OTHER))
        for gpu in (None, _GPU):
            self.assertRaises(exception.JournalError, self.records.claim,
                              _entry(1).handle, gpu)

    def test_handle_given_away_after_another_process_has_removed_it(self):
        """An earlier give_back has no effect on the next server."""
        bound = _entry(phase=gpu_record.Phase.BOUND)
        self.records.put_claims(bound)
        self.records.give_back(bound.handle)
        store.Store(self.state_path).remove_claims(bound.handle)
        self.records.given_away(bound.handle)
        self.records.put_claims(bound)
        self.assertEqual((bound,), self.records.claims())
