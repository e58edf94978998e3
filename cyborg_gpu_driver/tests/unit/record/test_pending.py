# SPDX-License-Identifier: Apache-2.0

"""What is kept in memory while a record cannot be read or written."""

import dataclasses

import fixtures

from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests import unreadable
from cyborg_gpu_driver.tests.unit.record import test_store

ADDRESS = test_store.ADDRESS
_LAYOUT = test_store.LAYOUT
_OTHER_LAYOUT = dataclasses.replace(_LAYOUT, device_id='ffff')
_ANN, _CYBORG = (cordon.Cordon(source, 1.0) for source in (
    cordon.Source.OPERATOR, cordon.Source.CYBORG))


class UnreadTest(test_store.StoreCase):

    def unreadable(self):
        """Make the record unreadable."""
        return unreadable.file(self.records.path(ADDRESS))

    def assert_written(self, **parts):
        """Assert what the record has, before and after it is written."""
        expected = gpu_record.GpuRecord(**parts)
        self.assertEqual(expected, self.records.peek(ADDRESS))
        self.records.observe(ADDRESS)
        self.assertEqual(0, self.records.unwritten)
        self.assertEqual(expected, self.again().read(ADDRESS))

    def test_what_the_record_has_stays(self):
        self.records.put(ADDRESS, layout=_LAYOUT)
        with self.unreadable():
            self.records.observe(ADDRESS, layout=None)
            self.assertEqual(0, self.records.unwritten)
            self.records.observe(ADDRESS, layout=_OTHER_LAYOUT,
                                 fixed=test_store.FIXED)
            self.assertEqual(_OTHER_LAYOUT,
                             self.records.peek(ADDRESS).layout)
        self.assert_written(layout=_LAYOUT, fixed=test_store.FIXED)

    def test_a_change_is_made_to_what_the_record_has(self):
        def change(record):
            return dataclasses.replace(
                record, errors=record.errors + 1,
                cordons=cordon.added(record.cordons, _CYBORG))

        self.records.put(ADDRESS, cordons=(_ANN,), errors=3)
        with self.unreadable():
            for _ in range(2):
                self.records.keep(ADDRESS, change)
            self.assertEqual(2, self.records.peek(ADDRESS).errors)
        self.assert_written(
            cordons=cordon.added((_ANN,), _CYBORG), errors=5)

    def test_what_was_made_from_the_record_replaces_it(self):
        self.records.put(ADDRESS, layout=_LAYOUT)

        def full(*arguments):
            raise OSError('No space left on device')

        with fixtures.MonkeyPatch('os.replace', full):
            self.records.observe(ADDRESS, layout=_OTHER_LAYOUT)
            self.assertEqual(1, self.records.unwritten)
            self.records.observe(ADDRESS, layout=None)
        self.assert_written()

    def test_what_changes_during_a_write_is_written_next(self):
        with fixtures.MonkeyPatch('cyborg_gpu_driver.locks._RECORD_SECONDS',
                                  0.0), self.records.gpu(ADDRESS):
            self.records.observe(ADDRESS, layout=_LAYOUT)
        self.assertEqual(1, self.records.unwritten)
        self.assert_written(layout=_LAYOUT)
