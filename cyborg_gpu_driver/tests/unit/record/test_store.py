# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The records of GPUs on disk, intact or damaged."""

import dataclasses
import errno
import json
import os
import threading
import uuid

import fixtures
from oslotest import base

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import gpu_record as boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import health as health_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope

ADDRESS = model.PciAddress.parse('0000:07:00.0')
OTHER = model.PciAddress.parse('0000:0f:00.0')
FIXED = gpu_record.FixedVgpus(
    {model.PciAddress.parse('0000:07:00.4'): 'nvidia-1'},
    frozenset({spec.MigInstanceSpec(model.Placement(0, 4), 9)}))
LAYOUT = gpu_record.SavedLayout(ADDRESS, '20b0', True, spec.MigLayout(
    True, True, (spec.MigInstanceSpec(model.Placement(4, 4), 9, ((0, 3),)),)))
_DISABLED = cordon.Cordon(cordon.Source.CYBORG)
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
        self.assertFalse(self.records.is_lost(ADDRESS))

    def test_what_is_written_outlives_the_process(self):
        self.records.put(ADDRESS, fixed=FIXED)
        self.records.put(ADDRESS, layout=LAYOUT)
        self.records.put(OTHER, claims=(claim(gpu=OTHER),))
        for records in (self.records, self.again()):
            self.assertEqual(
                gpu_record.GpuRecord(fixed=FIXED, layout=LAYOUT),
                records.read(ADDRESS))
            self.assertEqual((ADDRESS, OTHER), records.addresses())

    def test_another_process_is_seen_at_once(self):
        self.records.put(ADDRESS, fixed=FIXED)
        self.again().put(ADDRESS, fixed=gpu_record.FixedVgpus())
        self.assertTrue(self.records.read(ADDRESS).fixed.is_empty)

    def test_another_process_is_seen_whatever_the_size(self):
        self.records.put(ADDRESS, claims=(claim(1),))
        size = os.stat(self.records.path(ADDRESS)).st_size
        self.again().put(ADDRESS, claims=(claim(2),))
        self.assertEqual(size, os.stat(self.records.path(ADDRESS)).st_size)
        self.assertEqual((claim(2),), self.records.read(ADDRESS).claims)

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

    def test_stores_of_one_directory_are_shared(self):
        self.assertIs(store.of(self.state_path), store.of(self.state_path))

    def test_a_record_of_the_first_version_is_the_boards(self):
        durable.write(self.records.path(ADDRESS), store.KIND, 1, {
            'ids': ['10de', '20b0', None, None], 'boot': 'one', 'time': 1.0})
        board = boards.Record(('10de', '20b0', None, None), 'one', 1.0)
        self.assertEqual(gpu_record.GpuRecord(board=board),
                         self.records.read(ADDRESS))
        self.records.put(ADDRESS, fixed=FIXED)
        self.assertEqual(gpu_record.GpuRecord(board=board, fixed=FIXED),
                         self.again().read(ADDRESS))


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
                    self.assertFalse(records.is_lost(OTHER))
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
        self.assertTrue(self.again().is_lost(ADDRESS))
        self.assertTrue(self.again().has_lost())
        self.assertEqual(FIXED, self.again().read(OTHER).fixed)

    def test_one_that_cannot_be_replaced_is_kept_once(self):
        def full(*arguments):
            raise OSError(errno.ENOSPC, 'No space left on device')

        self.damage()
        with fixtures.MonkeyPatch('cyborg_gpu_driver.durable._replace', full):
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
        for _ in range(2):
            self.records.check()
        self.assertEqual(1, self.log.output.count('cannot be read'))
        self.assertFalse(self.records.has_lost())
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
        self.assertTrue(self.records.is_lost(OTHER))

    def test_a_record_of_another_gpu(self):
        self.records.put(ADDRESS, layout=LAYOUT)
        os.rename(self.records.path(ADDRESS), self.records.path(OTHER))
        self.assertRaises(exception.JournalError, self.records.read, OTHER)

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

    def test_what_is_in_memory_is_changed_further(self):
        with locks.record(self.state_path, ADDRESS):
            self.records.observe(ADDRESS, fixed=FIXED)
            before, after = self.records.keep(
                ADDRESS, lambda record: dataclasses.replace(
                    record, change=CHANGE))
            self.assertEqual((None, FIXED), (before.change, before.fixed))
            self.assertEqual(after, self.records.read(ADDRESS))
        self.records.observe(ADDRESS, fixed=FIXED)
        self.assertEqual(after, self.again().read(ADDRESS))

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

    def test_a_record_of_a_release_without_cordons(self):
        for disabled, cordons in ((True, (_DISABLED,)), (False, ())):
            durable.write(self.records.path(OTHER), store.KIND, store.VERSION,
                          {'disabled': disabled, 'errors': 2})
            self.assertEqual(
                gpu_record.GpuRecord(cordons=cordons, errors=2),
                self.again().read(OTHER))
        durable.write(self.records.path(OTHER), store.KIND, store.VERSION,
                      {'disabled': 1})
        self.assertRaises(exception.JournalError, self.again().read, OTHER)

    def test_a_record_of_a_release_with_other_words_for_health(self):
        condition = health.Condition('XID_79', 1.0, 2.0)
        durable.write(self.records.path(OTHER), store.KIND, store.VERSION, {
            'sickness': {'boot': 'one', 'uuid': 'GPU-1',
                         'ailments': [codec.encode(condition)]}})
        self.assertEqual(
            gpu_record.GpuRecord(health=health_record.HealthRecord(
                'one', 'GPU-1', (condition,))), self.again().read(OTHER))
        durable.write(self.records.path(OTHER), store.KIND, store.VERSION,
                      {'sickness': 1})
        self.assertRaises(exception.JournalError, self.again().read, OTHER)

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


class ChangeTest(base.BaseTestCase):

    def test_where_a_change_was(self):
        for at, text in ((0, 'step 1 of 2 (one)'), (1, 'step 2 of 2 (two)'),
                         (2, '(the check at the end)')):
            self.assertIn(text, str(dataclasses.replace(
                CHANGE, steps=('one', 'two'), at=at)))
        self.assertIn('no room', str(dataclasses.replace(
            CHANGE, problem='no room')))


class EarlierReleaseTest(StoreCase):
    """Files of earlier releases, migrated by whichever process is first."""

    files = {
        'journal.json': ('cyborg-gpu journal', [{
            'handle': claim().handle, 'gpu': str(ADDRESS),
            'function': str(ADDRESS), 'mdev_type': 'nvidia-474',
            'profile': '1g.5gb', 'phase': 'bound', 'profile_id': 19,
            'placement': {'start': 1, 'size': 1}, 'instance_id': None,
            'foreign_ids': []}]),
        'fixed.json': ('cyborg-gpu fixed vGPUs', [{
            'gpu': str(OTHER), 'types': {'0000:07:00.4': 'nvidia-1'},
            'instances': [{'profile_id': 9, 'start': 0, 'size': 4}]}]),
        'checkpoint.json': ('cyborg-gpu checkpoint', [{
            'gpu': str(ADDRESS), 'device_id': '20b0', 'vfs': True,
            'enabled': True, 'pending': True, 'instances': [{
                'profile_id': 9, 'start': 4, 'size': 4,
                'compute': [[0, 3]]}]}]),
        f'changes/{ADDRESS}.json': ('cyborg-gpu layout change', {
            'gpu': str(ADDRESS), 'before': {
                'enabled': False, 'pending': False, 'instances': []},
            'steps': [], 'at': 0, 'touched': [], 'problem': None}),
        'health.json': ('cyborg-gpu health', [{
            'gpu': str(OTHER), 'boot': 'one', 'uuid': None, 'ailments': [{
                'code': 'XID_79', 'first': 1.0, 'last': 2.0, 'count': 1,
                'clean': 0, 'placement': None, 'instance_id': None}]}]),
        'cleaning.json': ('cyborg-gpu cleaning', {str(ADDRESS): {
            'state': 'used', 'tenants': ['a'], 'generation': None,
            'reason': ''}}),
        'reported.json': ('cyborg-gpu report', {str(ADDRESS): {
            'device_id': '20b0', 'mode': 'mig', 'facts': {'uuid': 'GPU-1'},
            'providers': {'p': {'resource_class': 'c', 'total': 1,
                                'handles': 'd'}}}}),
        'disabled.json': ('cyborg-gpu disabled', [str(OTHER)])}

    def setUp(self):
        super().setUp()
        for name, (kind, content) in self.files.items():
            durable.write(os.path.join(self.state_path, name), kind, 1,
                          content)
        self.expected = {
            ADDRESS: gpu_record.GpuRecord(
                claims=(claim(),), layout=LAYOUT, change=CHANGE,
                tenancy=cleaning.Known(cleaning.State.USED, ('a',)),
                reported=gpu_record.Reported(
                    '20b0', 'mig', gpu_record.ReportedFacts(uuid='GPU-1'),
                    {'p': gpu_record.ReportedProvider('c', 1, 'd')})),
            OTHER: gpu_record.GpuRecord(
                fixed=FIXED, cordons=(_DISABLED,),
                health=health_record.HealthRecord(
                    'one', None, (health.Condition('XID_79', 1.0, 2.0),)))}

    def left(self):
        return sorted(
            os.path.relpath(os.path.join(directory, name), self.state_path)
            for directory, _, names in os.walk(self.state_path)
            for name in names if '/locks' not in directory)

    def test_they_are_taken_over_once_and_kept(self):
        self.assertEqual(self.expected, self.records.records())
        self.assertEqual(
            sorted([*(f'{name}.migrated-1' for name in self.files),
                    f'gpus/{ADDRESS}.json', f'gpus/{OTHER}.json']),
            self.left())
        self.assertEqual(self.expected, self.again().records())

    def test_the_first_read_has_what_is_taken_over(self):
        self.assertEqual(self.expected[ADDRESS], self.records.read(ADDRESS))

    def test_the_board_stays(self):
        durable.write(self.records.path(OTHER), store.KIND, 1, {
            'ids': [None] * 4, 'boot': 'one', 'time': 1.0})
        self.assertEqual('one', self.records.read(OTHER).board.boot)
        self.assertEqual(FIXED, self.records.read(OTHER).fixed)

    def test_without_leave_to_write_they_are_read(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.locks._RECORD_SECONDS', 0.0))
        with locks.migration(self.state_path):
            self.assertEqual(self.expected, self.records.records())
            self.assertRaises(exception.LockTimeout, self.records.put,
                              ADDRESS, change=None)
        self.assertEqual(sorted(self.files), self.left())
        self.records.put(ADDRESS, change=None)
        self.assertIsNone(self.again().read(ADDRESS).change)
        self.assertEqual((claim(),), self.again().read(ADDRESS).claims)

    def test_a_process_that_ends_meanwhile(self):
        # The records are written, but two old files are not renamed yet.
        self.records.records()
        for name in ('fixed.json', 'checkpoint.json'):
            path = os.path.join(self.state_path, name)
            os.rename(f'{path}.migrated-1', path)
        self.assertEqual(self.expected, self.again().records())

    def test_a_record_that_was_damaged_before_the_rest_was_migrated(self):
        self.records.records()
        path = os.path.join(self.state_path, 'fixed.json')
        os.rename(f'{path}.migrated-1', path)
        self.damage(OTHER)
        self.assert_lost(OTHER)

    def test_a_damaged_journal_is_kept_and_its_claims_are_looked_for(self):
        path = os.path.join(self.state_path, 'journal.json')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump({'kind': 'x'}, stream)
        third = model.PciAddress.parse('0000:47:00.0')
        self.records.check()
        for records in (self.records, self.again()):
            self.assertTrue(records.has_lost())
            self.assertEqual([True] * 3, [
                records.is_lost(gpu) for gpu in (ADDRESS, OTHER, third)])
        self.assertIn('nothing in it is used', self.log.output)
        for address in (ADDRESS, OTHER):
            self.records.put(address, claims_lost=False)
        self.records.settle()
        self.assertFalse(self.again().has_lost())
        self.assertFalse(self.again().is_lost(third))
        self.assertIn('journal.json.lost-1.unusable-1', self.left())
        self.assertEqual(LAYOUT, self.again().read(ADDRESS).layout)

    def test_another_damaged_file_costs_what_it_had(self):
        path = os.path.join(self.state_path, 'fixed.json')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('{')
        self.assertFalse(self.records.has_lost())
        self.assertIn('fixed.json.unusable-1', self.left())
        self.assertEqual({**self.expected, OTHER: dataclasses.replace(
            self.expected[OTHER], fixed=gpu_record.FixedVgpus())},
            self.records.records())
