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

"""GPU-hours: the records match what happened, to the second."""

import collections
import contextlib
import dataclasses
import datetime
import logging
import os
import random
import stat
import uuid

import fixtures
from oslo_utils import fixture
from oslo_utils import timeutils
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics.usage import account
from cyborg_gpu_driver.metrics.usage import document
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import cleaning as program_cleaning
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope

_GPUS = tuple(model.PciAddress.parse(f'0000:{bus:02x}:00.0')
              for bus in (0x3b, 0x5e))
_GPU = _GPUS[0]
_HANDLE = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
_WHOLE = model.PciAddress.parse('0000:86:00.0')
_OTHER = '0d7e5b36-92a4-4c37-8b0f-3b8e7f0a1c55'
_TENANTS = {_SERVER, _OTHER}
"""Servers that may have the whole GPU."""
_OPERATIONS = scope.examples(2000)
"""The number of random operations."""


class _Killed(BaseException):
    """The process ends before its next write."""


class _PowerCut(BaseException):
    """The machine loses what was not synchronised to its disk."""


class _Disk(fixtures.Fixture):
    """What a directory has on the disk, not only in the kernel's memory.

    ``left`` is the number of synchronisations before the power is cut; None
    for no cut. A directory whose synchronisation is cut has its new names.
    """

    def __init__(self, path, choose):
        self._path = path
        self._choose = choose
        self._synced = {}
        self.left = None

    def _setUp(self):
        self._replace, self._unlink = os.replace, os.unlink
        for name, function in (('fsync', self._fsync),
                               ('replace', self._renamed),
                               ('unlink', self._unlinked)):
            self.useFixture(fixtures.MonkeyPatch(f'os.{name}', function))

    def _fsync(self, descriptor):
        found = os.fstat(descriptor)
        is_file = stat.S_ISREG(found.st_mode)
        if self.left is not None:
            if self.left == 0:
                raise _PowerCut('' if is_file else 'renamed')
            self.left -= 1
        if is_file:
            self._synced[found.st_ino] = found.st_size

    def _forget(self, path):
        """Forget a file, because another file may get its inode number."""
        with contextlib.suppress(FileNotFoundError):
            self._synced.pop(os.stat(path).st_ino, None)

    def _renamed(self, old, new):
        self._forget(new)
        self._replace(old, new)

    def _unlinked(self, path):
        self._forget(path)
        self._unlink(path)

    def cut(self):
        """Lose all or half of what each file has only in memory."""
        self.left = None
        for directory, _, names in os.walk(self._path):
            for name in names:
                path = os.path.join(directory, name)
                found = os.stat(path)
                synced = self._synced.get(found.st_ino, 0)
                if found.st_size > synced:
                    os.truncate(path, self._choose((
                        synced, (synced + found.st_size) // 2)))


class _World(fixtures.Fixture):
    """A host's records, a clock, and the true use.

    Binds and unbinds write what :mod:`cyborg_gpu_driver.program.bind` writes,
    in the same order. That a process may die after each of those steps is
    tested in :mod:`cyborg_gpu_driver.tests.functional.test_kill_sweep`.
    """

    def __init__(self, choose=random.choice):
        self._choose = choose

    def _setUp(self):
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.time = self.useFixture(fixture.TimeFixture())
        self.now = 1_800_000_000.0
        self.truth = []
        self.live = {}
        self.left = None
        self.tenants = ()
        self.generation = 1
        self.disk = self.useFixture(_Disk(self.state_path, self._choose))
        # 60,000 lines about locks are of no use.
        logging.disable(logging.INFO)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.start()

    def start(self):
        """Start a new process, with nothing in its memory."""
        self.left = None
        store._stores.clear()
        self.journal = journal.Journal(self.state_path, lambda: self.now)
        self.audit = audit.Audit(self.state_path)
        self.cleaner = program_cleaning.Cleaner(
            None, self.state_path, None, self.audit)

    @property
    def now(self):
        return self._now

    @now.setter
    def now(self, value):
        self._now = value
        timeutils.set_time_override(datetime.datetime.fromtimestamp(
            value, datetime.timezone.utc))

    def write(self, function, *arguments):
        if self.left is not None:
            if self.left == 0:
                raise _Killed()
            self.left -= 1
        function(*arguments)

    def bind(self, gpu, handle, profile):
        entry = journal.Entry(handle, gpu, gpu, 'nvidia-474', profile,
                              journal.Phase.BINDING)
        self.write(self.journal.put, entry)
        entry = dataclasses.replace(entry, phase=journal.Phase.BOUND,
                                    since=self.journal.clock())
        with self.unless_lost(lambda: self.begin(handle, gpu, profile)):
            self.write(self.journal.put, entry)
        self.write(self.audit.record, gpu, 'bound', handle,
                   audit.of_entry(entry))

    def unbind(self, handle):
        entry = self.journal.get(handle)
        if entry.phase is journal.Phase.BOUND:
            with self.unless_lost(lambda: self.end(handle)):
                self.write(self.journal.give_back, handle)
        self.remove(handle)

    @contextlib.contextmanager
    def unless_lost(self, happens):
        """Call ``happens`` if the file of a write gets its name."""
        try:
            yield
        except _PowerCut as error:
            if error.args == ('renamed',):
                happens()
            raise
        happens()

    def remove(self, handle):
        entry = self.journal.get(handle)
        self.write(self.audit.record, entry.gpu,
                   'undone' if entry.phase is journal.Phase.BINDING
                   else 'unbound', handle, audit.of_entry(entry))
        self.write(self.journal.remove, handle)

    def report(self):
        """Record who has the whole GPU, in the order of a report.

        The reset takes no time here. See :class:`Cleaner`.
        """
        seen = cleaning.Seen(self.tenants, self.generation)
        before = self.cleaner._known(_WHOLE)
        known = cleaning.following(before, seen)
        self.write(self.cleaner._tell, _WHOLE, before, known, '')
        for tenant in set(self.live) & _TENANTS - set(seen.tenants):
            self.end(tenant)
        for tenant in set(seen.tenants) - set(self.live):
            self.begin(tenant, _WHOLE, document.PASSTHROUGH)
        self.write(self.cleaner._keep, _WHOLE, known)
        if known.state is cleaning.State.DIRTY:
            self.write(self.cleaner._keep, _WHOLE, dataclasses.replace(
                known, state=cleaning.State.FREE))

    def allocate(self, *tenants):
        """Let Placement allocate the whole GPU to other servers."""
        self.generation += bool(tenants)
        self.tenants = tenants

    def begin(self, name, gpu, profile):
        self.live[name] = (gpu, profile, self.now)

    def end(self, handle):
        gpu, profile, since = self.live.pop(handle)
        self.truth.append((gpu, profile, since, self.now))

    def recover(self):
        for entry in self.journal.entries():
            if entry.phase is not journal.Phase.BOUND:
                self.remove(entry.handle)

    def account(self):
        records = store.Store(self.state_path).records()
        return account.build(audit.read(self.state_path).records, records)


class RandomTest(base.BaseTestCase):

    def test_binds_kills_and_reboots(self):
        choose = random.Random(20261122)
        world = self.useFixture(_World(choose.choice))
        start = world.now
        ends = collections.Counter()
        for step in range(_OPERATIONS):
            world.now += choose.choice((0.25, 1, 7, 3600))
            chance = choose.random()
            world.left = choose.randrange(5) if chance < 0.2 else None
            world.disk.left = choose.randrange(9) if chance > 0.8 else None
            try:
                self._do(world, choose, str(uuid.UUID(int=step + 1)))
            except (_Killed, _PowerCut) as error:
                ends[type(error)] += 1
                self._end(world, choose, isinstance(error, _PowerCut))
            world.disk.left = None
            if step % 100 == 99:
                self._check(world, start)
        for kind, least in (_Killed, 20), (_PowerCut, 20):
            self.assertGreater(ends[kind], _OPERATIONS // least, kind)
        self._check(world, start)

    def _do(self, world, choose, handle):
        bound = sorted(set(world.live) - _TENANTS)
        chance = choose.random()
        if chance < 0.25:
            world.allocate(*choose.choice(((), (_SERVER,), (_OTHER,))))
            world.report()
        elif bound and (len(bound) > 8 or chance < 0.6):
            world.unbind(choose.choice(bound))
        else:
            world.bind(choose.choice(_GPUS), handle,
                       choose.choice(('1g.10gb', '2g.20gb')))

    def _end(self, world, choose, power):
        """End the process or the machine. Servers keep their handles."""
        world.left = world.disk.left = None
        if power:
            world.disk.cut()
        world.now += choose.choice((0, 2, 600))
        world.start()
        world.recover()
        world.report()

    def _check(self, world, start):
        found = world.account()
        self.assertEqual((), found.lost)
        wanted = collections.Counter()
        for gpu, profile, since, until in (
                *world.truth, *((*item, world.now)
                                for item in world.live.values())):
            wanted[gpu, profile] += until - since
        seconds = collections.Counter()
        for item in found.usages:
            seconds[item.gpu, item.profile] += item.seconds(start, world.now)
        self.assertEqual(wanted, seconds)
        self.assertEqual(len(world.live), len(
            [item for item in found.usages if item.until is None]))


class AccountTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.world = self.useFixture(_World())

    def one(self):
        found = self.world.account()
        self.assertEqual((), found.lost)
        (item,) = found.usages
        return item

    def test_what_goes_on(self):
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        item = self.one()
        self.assertEqual((_GPU, '1g.10gb', _HANDLE, None),
                         (item.gpu, item.profile, item.handle, item.until))
        now = self.world.now
        self.assertEqual(5.0, item.seconds(0, now + 5))
        self.assertEqual(2.0, item.seconds(now + 3, now + 5))
        self.assertEqual(0.0, item.seconds(0, now - 1))

    def test_a_bind_under_way_is_none(self):
        self.world.left = 1
        self.assertRaises(_Killed, self.world.bind, _GPU, _HANDLE, '1g')
        self.assertEqual(account.Account(()), self.world.account())

    def test_a_guest_that_keeps_its_vgpu_has_given_it_back(self):
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        self.world.now += 60
        self.world.left = 1
        self.assertRaises(_Killed, self.world.unbind, _HANDLE)
        self.world.now += 3600
        self.assertEqual(60.0, self.one().seconds(0, self.world.now))

    def test_an_end_that_was_written_down_twice_is_the_first(self):
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        entry = self.world.journal.get(_HANDLE)
        for seconds in (10, 20):
            self.world.audit.record(
                _GPU, 'unbound', _HANDLE, audit.of_entry(
                    dataclasses.replace(entry, until=entry.since + seconds)))
        self.assertEqual(10.0, self.one().seconds(0, self.world.now + 99))

    def test_a_clock_that_was_put_back(self):
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        self.world.now -= 3600
        self.world.unbind(_HANDLE)
        self.assertEqual(0.0, self.one().seconds(0, self.world.now + 7200))

    def test_an_unbind_that_no_record_can_take_has_its_time(self):
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        self.world.now += 5
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.durable.write', self._full_disk))
        self.assertRaises(exception.JournalError,
                          self.world.journal.give_back, _HANDLE)
        self.world.now += 50
        self.assertRaises(exception.JournalError,
                          self.world.journal.give_back, _HANDLE)
        entry = self.world.journal.get(_HANDLE)
        self.assertEqual((journal.Phase.UNBINDING, 5.0),
                         (entry.phase, entry.until - entry.since))

    def _full_disk(self, path, *_):
        raise exception.JournalError(path=path, reason='no space')

    def test_a_claim_of_an_earlier_release_begins_with_its_line(self):
        entry = journal.Entry(_HANDLE, _GPU, _GPU, 'nvidia-474', '1g.10gb',
                              journal.Phase.BOUND)
        self.world.audit.record(_GPU, 'bound', _HANDLE,
                                audit.of_entry(entry))
        self.world.journal.put(entry)
        (line,) = audit.read(self.world.state_path).records
        self.assertEqual(line.time.timestamp(), self.one().since)

    def test_an_end_that_nobody_knows_is_not_counted(self):
        self.world.audit.record(_GPU, 'bound', _HANDLE, {
            'profile': '1g.10gb', 'since': 5.0})
        found = self.world.account()
        self.assertEqual((), found.usages)
        self.assertEqual([_HANDLE], [item.handle for item in found.lost])

    def test_an_end_that_is_missing_before_the_next_bind(self):
        for since in (5.0, 50.0, 500.0):
            self.world.audit.record(_GPU, 'bound', _HANDLE, {
                'profile': '1g.10gb', 'since': since})
        self.world.audit.record(_GPU, 'unbound', _HANDLE, {
            'profile': '1g.10gb', 'since': 50.0, 'until': 60.0})
        self.world.journal.put(journal.Entry(
            _HANDLE, _GPU, _GPU, 'nvidia-474', '1g.10gb',
            journal.Phase.BOUND, since=500.0))
        found = self.world.account()
        self.assertEqual([(50.0, 60.0), (500.0, None)], [
            (item.since, item.until) for item in found.usages])
        self.assertEqual([5.0], [item.since for item in found.lost])

    def assign(self, server, **more):
        self.world.audit.record(_GPU, 'assigned', _HANDLE, {
            'server': server, 'since': self.world.now, **more})

    def test_whose_it_was(self):
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        self.assign(_SERVER, project='ours')
        self.assertEqual((_SERVER, 'ours'),
                         (self.one().server, self.one().project))

    def test_a_handle_that_one_server_has_after_another(self):
        for server in (_SERVER, None, _OTHER):
            self.world.bind(_GPU, _HANDLE, '1g.10gb')
            if server is not None:
                self.assign(server)
            self.world.now += 60
            self.world.unbind(_HANDLE)
        self.assertEqual([_SERVER, '', _OTHER], [
            item.server for item in self.world.account().usages])

    def test_a_line_without_the_time_of_its_bind(self):
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        self.world.now += 10
        self.world.audit.record(_GPU, 'assigned', _HANDLE,
                                {'server': _SERVER})
        self.world.unbind(_HANDLE)
        self.world.now += 10
        self.world.bind(_GPU, _HANDLE, '1g.10gb')
        self.assertEqual([_SERVER, ''], [
            item.server for item in self.world.account().usages])


class WholeTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.lines = []

    def line(self, what, *tenants):
        for tenant in tenants or ('',):
            self.lines.append(audit.Record(
                datetime.datetime.fromtimestamp(
                    self.now, datetime.timezone.utc), _GPU, what, tenant,
                {'tenants': list(tenants)} if what == 'given' else {}))

    def found(self, state=None):
        records = {} if state is None else {_GPU: gpu_record.GpuRecord(
            tenancy=cleaning.Known(state))}
        found = account.build(self.lines, records)
        return [[(item.server, item.since, item.until) for item in items]
                for items in (found.usages, found.lost)]

    def test_one_server_after_the_other(self):
        self.line('given', _SERVER)
        self.now += 60
        self.line('returned', _SERVER)
        self.line('cleaned', _SERVER)
        self.now += 60
        self.line('given', _OTHER)
        self.assertEqual([[(_SERVER, 1000.0, 1060.0),
                           (_OTHER, 1120.0, None)], []],
                         self.found(cleaning.State.USED))

    def test_a_line_that_a_killed_report_wrote_twice(self):
        self.line('given', _SERVER)
        self.now += 60
        self.line('given', _SERVER)
        self.now += 60
        for _ in range(2):
            self.line('returned', _SERVER)
        self.assertEqual([[(_SERVER, 1000.0, 1120.0)], []],
                         self.found(cleaning.State.DIRTY))

    def test_a_server_that_takes_over_from_another(self):
        self.line('given', _SERVER)
        self.now += 60
        self.line('given', _OTHER, _SERVER)
        self.now += 60
        self.line('given', _OTHER)
        self.assertEqual([[(_SERVER, 1000.0, 1120.0),
                           (_OTHER, 1060.0, None)], []], self.found())

    def test_an_end_that_nobody_knows(self):
        self.line('given', _SERVER)
        self.assertEqual([[], [(_SERVER, 1000.0, None)]],
                         self.found(cleaning.State.FREE))
