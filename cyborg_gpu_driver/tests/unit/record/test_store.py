# SPDX-License-Identifier: Apache-2.0

"""The records of GPUs on disk, intact or damaged."""

import dataclasses
import errno
import os
import threading
import uuid

import fixtures
from oslotest import base

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope

ADDRESS = model.PciAddress.parse('0000:07:00.0')
OTHER = model.PciAddress.parse('0000:0f:00.0')
FIXED = gpu_record.FixedVgpus(
    {model.PciAddress.parse('0000:07:00.4'): 'nvidia-1'},
    frozenset({spec.MigInstanceSpec(model.Placement(0, 4), 9)}))
LAYOUT = gpu_record.SavedLayout(ADDRESS, '20b0', True, spec.MigLayout(
    True, True, (spec.MigInstanceSpec(model.Placement(4, 4), 9, ((0, 3),)),)))
CHANGE = gpu_record.Change(ADDRESS, spec.MigLayout(False, False))


def claim(number=1, **changes):
    return dataclasses.replace(gpu_record.Claim(
        str(uuid.UUID(int=number)), ADDRESS, ADDRESS, 'nvidia-474', '1g.5gb',
        gpu_record.Phase.BOUND, 19, model.Placement(number, 1)), **changes)


class StoreCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.records = store.Store(self.state_path)

    def again(self):
        """The records as another process sees them."""
        return store.Store(self.state_path)

    def damage(self, address=ADDRESS, content='{'):
        path = self.records.path(address)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(content)

    def assert_lost(self, address):
        """Assert that nothing is left but ``FIXED``, and the GPU is closed."""
        found = self.again().read(address)
        self.assertEqual([cordon.Source.RECORD],
                         [item.source for item in found.cordons])
        self.assertEqual(
            gpu_record.GpuRecord(claims_lost=True, fixed=FIXED),
            dataclasses.replace(found, cordons=()))


class StoreTest(StoreCase):

    def test_a_gpu_without_a_record(self):
        self.assertEqual(gpu_record.GpuRecord(), self.records.read(ADDRESS))
        self.assertEqual((), self.records.addresses())
        self.assertFalse(self.records.read(ADDRESS).claims_lost)

    def test_what_is_written_outlives_the_process(self):
        self.records.put(ADDRESS, fixed=FIXED)
        self.records.put(ADDRESS, layout=LAYOUT)
        self.records.put(OTHER, claims=(claim(gpu=OTHER),))
        for records in (self.records, self.again()):
            self.assertEqual(
                gpu_record.GpuRecord(fixed=FIXED, layout=LAYOUT),
                records.read(ADDRESS))
            self.assertEqual((ADDRESS, OTHER), records.addresses())

    def test_another_process_is_seen_whatever_the_size(self):
        binding = [claim(number, phase=gpu_record.Phase.BINDING)
                   for number in (1, 2)]
        self.records.put(ADDRESS, claims=binding[:1])
        size = os.stat(self.records.path(ADDRESS)).st_size
        self.again().put(ADDRESS, claims=binding[1:])
        self.assertEqual(size, os.stat(self.records.path(ADDRESS)).st_size)
        self.assertEqual(binding[1:],
                         [*self.records.read(ADDRESS).claims])

    def test_what_is_written_during_a_read_is_read_again(self):
        self.records.put(ADDRESS, fixed=FIXED)
        reading, read = self.again(), durable.read

        def late(*arguments):
            content = read(*arguments)
            self.records.put(ADDRESS, fixed=gpu_record.FixedVgpus())
            return content

        with fixtures.MonkeyPatch('cyborg_gpu_driver.durable.read', late):
            reading.read(ADDRESS)
        self.assertTrue(reading.read(ADDRESS).fixed.is_empty)

    def test_what_stays_the_same_is_not_written(self):
        self.records.put(ADDRESS, fixed=FIXED)
        before = os.stat(self.records.path(ADDRESS))
        self.records.put(ADDRESS, fixed=FIXED)
        self.assertEqual(before, os.stat(self.records.path(ADDRESS)))

    def test_nothing_is_written_if_the_caller_fails(self):
        def fail():
            with self.records.gpu(ADDRESS) as draft:
                draft.record = gpu_record.GpuRecord(fixed=FIXED)
                raise KeyError
        self.assertRaises(KeyError, fail)
        self.assertEqual((), self.again().addresses())

    def test_two_threads_lose_nothing(self):
        def add(number):
            for _ in range(5):
                with self.records.gpu(ADDRESS) as draft:
                    draft.record = dataclasses.replace(
                        draft.record, claims=(*draft.record.claims,
                                              claim(number)))
        threads = [threading.Thread(target=add, args=(number,))
                   for number in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scope.HANG)
        self.assertEqual(15, len(self.again().read(ADDRESS).claims))

    def test_one_who_holds_the_gpu_can_write(self):
        with locks.gpu(self.state_path, ADDRESS):
            self.records.put(ADDRESS, fixed=FIXED)


class DamageTest(StoreCase):

    def test_a_damaged_record_costs_one_gpu(self):
        self.records.put(OTHER, claims=(claim(gpu=OTHER),))
        for content in ('', '{', '[]', 'null', '{"kind": "x"}'):
            self.damage(content=content)
            for use in (self.records.read, self.records.check_gpu):
                records = self.again()
                if use == self.records.read:
                    self.assertRaises(exception.JournalError, records.read,
                                      ADDRESS)
                    self.assertRaises(exception.JournalError, records.put,
                                      ADDRESS, fixed=FIXED)
                    self.assertFalse(records.read(OTHER).claims_lost)
                    self.assertEqual([OTHER], [
                        address for address, record
                        in records.records().items() if record.claims])

    def test_it_is_set_aside_and_said_once(self):
        self.records.put(OTHER, fixed=FIXED)
        self.damage()
        with open(self.records.path(ADDRESS) + '.x.new', 'w'):
            pass
        self.again().check()
        self.again().check()
        self.assertEqual(1, self.log.output.count('was moved to'))
        self.assertEqual(
            [f'{ADDRESS}.json', f'{ADDRESS}.json.unusable-1',
             f'{OTHER}.json'],
            sorted(os.listdir(os.path.join(self.state_path, 'gpus'))))
        self.assertTrue(self.again().read(ADDRESS).claims_lost)
        self.assertTrue(self.again().check())
        self.assertEqual(FIXED, self.again().read(OTHER).fixed)

    def test_one_that_cannot_be_replaced_is_kept_once(self):
        def full(*arguments):
            raise OSError(errno.ENOSPC, 'No space left on device')

        self.damage()
        with fixtures.MonkeyPatch('os.replace', full):
            for _ in range(3):
                self.records.check()
                self.records.peek(ADDRESS)
        for text in ('No space left', 'Expecting property name'):
            self.assertEqual(1, self.log.output.count(text), text)
        self.again().check()
        self.assertEqual(
            [f'{ADDRESS}.json', f'{ADDRESS}.json.unusable-1'],
            sorted(os.listdir(os.path.join(self.state_path, 'gpus'))))
        self.damage()
        self.again().check()
        self.assertEqual(3, len(os.listdir(
            os.path.join(self.state_path, 'gpus'))))

    def test_one_that_may_not_be_read_stays(self):
        os.makedirs(self.records.path(ADDRESS))
        self.check_that_it_stays()

    def test_nobody_waits_for_the_other_end_of_a_pipe(self):
        for name in ('gpus', 'locks'):
            os.mkdir(os.path.join(self.state_path, name))
        os.mkfifo(self.records.path(ADDRESS))
        self.check_that_it_stays()
        os.mkfifo(os.path.join(self.state_path, 'locks',
                               f'cyborg-gpu-record-{OTHER}'))
        self.assertRaises(exception.JournalError, self.records.put, OTHER,
                          layout=LAYOUT)

    def check_that_it_stays(self):
        for _ in range(2):
            self.records.check()
        self.assertEqual(1, self.log.output.count('cannot be read'))
        self.assertFalse(self.records.check())
        self.assertRaises(exception.JournalUnreadable, self.records.read,
                          ADDRESS)
        self.assertEqual([f'{ADDRESS}.json'], os.listdir(
            os.path.join(self.state_path, 'gpus')))

    def test_one_that_may_not_be_read_does_not_hide_a_damaged_one(self):
        os.makedirs(self.records.path(ADDRESS))
        self.records.put(OTHER, layout=LAYOUT)
        with open(self.records.path(OTHER), 'w', encoding='utf-8') as stream:
            stream.write('{')
        self.records.check()
        self.assertTrue(self.records.read(OTHER).claims_lost)

    def test_peek_says_once_what_is_wrong(self):
        self.damage()
        for _ in range(3):
            self.assertEqual(gpu_record.GpuRecord(),
                             self.records.peek(ADDRESS))
        self.assertEqual(1, self.log.output.count('cannot be read'))


class UnwritableTest(StoreCase):

    def setUp(self):
        super().setUp()
        self.records.put(ADDRESS, layout=LAYOUT)
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.locks._RECORD_SECONDS', 0.0))

    def test_what_was_observed_is_kept_and_tried_again(self):
        with locks.record(self.state_path, ADDRESS):
            for _ in range(2):
                self.records.observe(ADDRESS, fixed=FIXED)
            self.assertEqual(FIXED, self.records.read(ADDRESS).fixed)
            self.assertEqual(LAYOUT, self.records.read(ADDRESS).layout)
            self.assertTrue(self.again().read(ADDRESS).fixed.is_empty)
        self.assertEqual(1, self.log.output.count('kept in memory'))
        self.records.put(ADDRESS, change=CHANGE)
        self.assertEqual(gpu_record.GpuRecord(
            fixed=FIXED, layout=LAYOUT, change=CHANGE),
            self.again().read(ADDRESS))

    def test_the_last_word_on_what_is_in_memory_counts(self):
        with locks.record(self.state_path, ADDRESS):
            self.records.observe(ADDRESS, fixed=FIXED)
        self.records.observe(ADDRESS, fixed=gpu_record.FixedVgpus())
        for records in (self.records, self.again()):
            self.assertTrue(records.read(ADDRESS).fixed.is_empty)
        self.records.put(ADDRESS, change=CHANGE)
        self.assertTrue(self.again().read(ADDRESS).fixed.is_empty)

    def test_what_is_wrong_for_all_gpus_is_said_once(self):
        records = store.Store('/proc/self/nowhere')
        for address in (ADDRESS, OTHER):
            records.observe(address, errors=1)
            self.assertEqual(1, records.read(address).errors)
        self.assertEqual(1, self.log.output.count('kept in memory'))

    def test_what_has_to_be_written_ahead_is_refused(self):
        with locks.record(self.state_path, ADDRESS):
            self.assertRaises(exception.LockTimeout, self.records.put,
                              ADDRESS, change=CHANGE)
        self.assertIsNone(self.records.read(ADDRESS).change)

    def test_a_damaged_record_does_not_lose_what_is_in_memory(self):
        with locks.record(self.state_path, ADDRESS):
            self.records.observe(ADDRESS, fixed=FIXED)
        self.damage()
        self.assertEqual(FIXED, self.records.peek(ADDRESS).fixed)
        self.records.check()
        self.assert_lost(ADDRESS)


class OwnedTest(base.BaseTestCase):

    def test_who_owns_an_instance(self):
        record = gpu_record.GpuRecord(
            claims=(claim(1), claim(2, placement=None, profile_id=None),
                    claim(3, profile_id=None)),
            fixed=FIXED, layout=LAYOUT)
        self.assertEqual(
            FIXED.instances | {spec.MigInstanceSpec(model.Placement(1, 1), 19),
                               spec.MigInstanceSpec(model.Placement(4, 4), 9)},
            record.owned_instances)
