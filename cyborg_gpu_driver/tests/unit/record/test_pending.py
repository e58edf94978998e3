# SPDX-License-Identifier: Apache-2.0

"""What is kept in memory while a record cannot be read or written."""

import dataclasses

import fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import unreadable
from cyborg_gpu_driver.tests.unit.record import test_store

ADDRESS = test_store.ADDRESS
_PLACE = model.Placement(0, 1)
_ANN, _CYBORG, _HEALTH = (cordon.Cordon(source, 1.0) for source in (
    cordon.Source.OPERATOR, cordon.Source.CYBORG, cordon.Source.HEALTH))


def _condition(code, last=1.0, placement=None):
    return health.Condition(code, 1.0, last, placement=placement)


def _health(*conditions, boot='one', uuid=None):
    return gpu_record.HealthRecord(boot, uuid, conditions)


class UnreadTest(test_store.StoreCase):

    def unreadable(self):
        """Make the record unreadable."""
        return unreadable.file(self.records.path(ADDRESS))

    def keep(self, **parts):
        self.records.keep(ADDRESS, lambda record: dataclasses.replace(
            record, **parts))

    def assert_written(self, **parts):
        """Assert what the record has, before and after it is written."""
        expected = gpu_record.GpuRecord(**parts)
        self.assertEqual(expected, self.records.peek(ADDRESS))
        self.records.observe(ADDRESS)
        self.assertEqual(0, self.records.unwritten)
        self.assertEqual(expected, self.again().read(ADDRESS))

    def test_what_the_record_has_stays(self):
        self.records.put(ADDRESS, layout=test_store.LAYOUT)
        with self.unreadable():
            self.keep(layout=None)
            self.assertEqual(0, self.records.unwritten)
            self.keep(layout=dataclasses.replace(
                test_store.LAYOUT, device_id='ffff'), fixed=test_store.FIXED)
            self.assertEqual('ffff',
                             self.records.peek(ADDRESS).layout.device_id)
        self.assert_written(layout=test_store.LAYOUT, fixed=test_store.FIXED)

    def test_cordons_and_errors_are_added(self):
        self.records.put(ADDRESS, cordons=(_ANN,), errors=3)
        with self.unreadable():
            self.keep(cordons=(_CYBORG,), errors=1)
            self.keep(cordons=(dataclasses.replace(_ANN, who='bob'),
                               _CYBORG, _HEALTH), errors=2)
        cordons = cordon.added((_ANN, _CYBORG), _HEALTH)
        self.assert_written(cordons=cordons, errors=3)
        with self.unreadable():
            self.keep(errors=4)
        self.assert_written(cordons=cordons, errors=4)

    def test_conditions_are_added(self):
        there = (dataclasses.replace(_condition('XID_48', 1.0, _PLACE),
                                     first=0.0, count=7),
                 _condition('XID_31', 9.0))
        self.records.put(ADDRESS, health=_health(*there, uuid='a'))
        new = (_condition('XID_48', 2.0, _PLACE), _condition('XID_48', 3.0))
        with self.unreadable():
            self.keep(health=_health(*new, _condition('XID_31', 8.0)))
        self.assert_written(health=_health(
            dataclasses.replace(new[0], first=0.0, count=7), new[1],
            there[1], uuid='a'))

    def test_what_a_reboot_or_another_board_has_ended_is_left_out(self):
        for changes in ({'boot': 'two'}, {'uuid': 'b'}):
            self.records.put(ADDRESS, health=_health(_condition('XID_79'),
                                                     uuid='a'))
            new = _health(_condition('XID_48'), **{'uuid': 'a', **changes})
            with self.unreadable():
                self.keep(health=new)
            self.assert_written(health=new)

    def test_what_was_made_from_the_record_replaces_it(self):
        self.records.put(ADDRESS, layout=test_store.LAYOUT)
        names = [dataclasses.replace(test_store.LAYOUT, device_id=name)
                 for name in ('aaaa', 'bbbb')]

        def full(*arguments):
            raise OSError('No space left on device')

        with fixtures.MonkeyPatch('cyborg_gpu_driver.durable._replace',
                                  full):
            self.keep(layout=names[0])
        with self.unreadable():
            self.assertEqual(names[0], self.records.peek(ADDRESS).layout)
            self.keep(layout=names[1])
        self.assert_written(layout=names[1])

    def test_what_changes_during_a_write_is_written_next(self):
        records = [gpu_record.GpuRecord(errors=number) for number in range(3)]
        pending = store.Pending()
        pending.keep(ADDRESS, records[0], records[1], True)
        written = pending.of(ADDRESS)
        pending.keep(ADDRESS, records[1], records[2], True)
        pending.forget(ADDRESS, written)
        self.assertEqual(records[2], store.joined(
            records[1], pending.of(ADDRESS)))
