# SPDX-License-Identifier: Apache-2.0
"""The time that servers have GPUs: nothing is lost, and nothing invented."""

import collections
import dataclasses
import os
import random
import uuid

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import ledger
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.record import uptime
from cyborg_gpu_driver.tests import scope

_GPUS = tuple(model.PciAddress.parse(f'0000:{bus:02x}:00.0')
              for bus in (0x3b, 0x5e))
_GPU = _GPUS[0]
_WHOLE = model.PciAddress.parse('0000:86:00.0')
_HANDLE = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_SERVERS = ('7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11',
            '0d7e5b36-92a4-4c37-8b0f-3b8e7f0a1c55')
_OPERATIONS = scope.examples(1000)


class _Killed(BaseException):
    """The process ends before it has written."""


class _World(fixtures.Fixture):
    """A host's records, the clock since its boot, and the true use.

    Binds and unbinds write what :mod:`cyborg_gpu_driver.program.bind` writes,
    in the same order. That the agent may die after each of its steps is
    tested in :mod:`cyborg_gpu_driver.tests.functional.test_kill_agent`.
    """

    def _setUp(self):
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.boot = 1
        self.now = 60_000
        self.left = None
        """Writes before the process is killed; None for no kill."""
        self.truth = collections.Counter()
        self.live = {}
        """GPU, profile and begin by handle or server."""
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.record.uptime.now', self.moment))
        self._replace = os.replace
        self.useFixture(fixtures.MonkeyPatch('os.replace', self._renamed))
        self.start()

    def moment(self):
        return ledger.Moment(str(self.boot), self.now)

    def _renamed(self, old, new):
        if self.left is not None:
            if self.left == 0:
                raise _Killed()
            self.left -= 1
        self._replace(old, new)

    def start(self):
        """Start a process, with nothing in its memory."""
        self.left = None
        store._stores.clear()
        self.records = store.of(self.state_path)
        self.records = store.Store(self.state_path)

    def bind(self, gpu, handle, profile='1g.10gb'):
        entry = gpu_record.Claim(handle, gpu, gpu, 'nvidia-474', profile,
                                 gpu_record.Phase.BINDING)
        self.records.put_claims(entry)
        self.records.put_claims(dataclasses.replace(
            entry, phase=gpu_record.Phase.BOUND, since=1.0))
        self.begin(handle, gpu, profile)

    def unbind(self, handle):
        self.records.give_back(handle)
        self.end(handle)
        self.records.remove_claims(handle)

    def allocate(self, *servers):
        """Let a report see which servers have the whole GPU."""
        self.records.observe(_WHOLE, tenancy=cleaning.Known(
            cleaning.State.USED if servers else cleaning.State.FREE, servers))
        for server in set(self.live) & set(_SERVERS) - set(servers):
            self.end(server)
        for server in set(servers) - set(self.live):
            self.begin(server, _WHOLE, 'passthrough')

    def begin(self, name, gpu, profile):
        self.live[name] = gpu, profile, self.now

    def end(self, name):
        gpu, profile, since = self.live.pop(name)
        self.truth[gpu, profile] += self.now - since

    def report(self):
        """Count up to now, as the agent does at the end of a report."""
        for address, record in self.records.records().items():
            if record.ledger.is_past(str(self.boot)):
                with self.records.gpu(address):
                    pass
        uptime.note(self.state_path, self.moment())

    def restart(self):
        """Restart the host; what runs counts again from its first report."""
        last = uptime.last(self.state_path)
        for name, (gpu, profile, since) in self.live.items():
            self.truth[gpu, profile] += max(0, last.uptime - since)
            self.live[name] = gpu, profile, 30_000
        self.boot += 1
        self.now = 30_000
        self.start()
        self.report()

    def shown(self):
        """The sums that the exporter shows, as another process."""
        last = uptime.last(self.state_path)
        found = collections.Counter()
        for address, record in store.Store(
                self.state_path).records().items():
            for (profile, _), time in record.ledger.sums(last).items():
                found[address, profile] += time
        return found

    def name(self, project='ours'):
        """Say whose everything is that runs."""
        for address, record in self.records.records().items():
            with self.records.gpu(address) as draft:
                named = draft.record.ledger.named(
                    dict.fromkeys(record.ledger.running, project))
                draft.record = dataclasses.replace(draft.record, ledger=named)

    def expected(self):
        """The true sums at a report that is made now."""
        found = collections.Counter(self.truth)
        for gpu, profile, since in self.live.values():
            found[gpu, profile] += self.now - since
        return found


class RandomTest(base.BaseTestCase):

    def test_binds_kills_and_reboots(self):
        choose = random.Random(20261122)
        world = self.useFixture(_World())
        world.report()
        before, ends = collections.Counter(), collections.Counter()
        for step in range(_OPERATIONS):
            world.now += choose.choice((250, 1000, 7001, 3600_000))
            chance = choose.random()
            world.left = choose.randrange(4) if chance < 0.2 else None
            try:
                self._do(world, choose, str(uuid.UUID(int=step + 1)))
            except _Killed:
                ends['kill'] += 1
                self._recover(world)
            world.left = None
            world.name()
            if chance > 0.95:
                ends['restart'] += 1
                world.restart()
                world.name()
            elif chance > 0.6:
                world.report()
                self.assertEqual(+world.expected(), +world.shown())
            shown = world.shown()
            for key, time in before.items():
                # A counter that falls is taken for a new one.
                self.assertLessEqual(time, shown[key])
            before = shown
        for kind in ('kill', 'restart'):
            self.assertGreater(ends[kind], _OPERATIONS // 50, kind)

    def _do(self, world, choose, handle):
        bound = sorted(set(world.live) - set(_SERVERS))
        chance = choose.random()
        if chance < 0.25:
            world.allocate(*choose.choice(((), _SERVERS[:1], _SERVERS[1:])))
        elif bound and (len(bound) > 8 or chance < 0.6):
            world.unbind(choose.choice(bound))
        else:
            world.bind(choose.choice(_GPUS), handle,
                       choose.choice(('1g.10gb', '2g.20gb')))

    def _recover(self, world):
        """Start a new process, which removes what did not finish."""
        world.start()
        for entry in world.records.claims():
            if entry.phase is not gpu_record.Phase.BOUND:
                if entry.handle in world.live:
                    world.end(entry.handle)
                world.records.remove_claims(entry.handle)


class CountTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.world = self.useFixture(_World())

    def ledger(self, gpu=_GPU):
        return store.Store(self.world.state_path).read(gpu).ledger

    def test_a_bind_under_way_is_none(self):
        self.world.left = 1
        self.assertRaises(_Killed, self.world.bind, _GPU, _HANDLE)
        self.assertEqual(ledger.Ledger(), self.ledger())

    def test_a_guest_that_keeps_its_vgpu_has_given_it_back(self):
        self.world.bind(_GPU, _HANDLE)
        self.world.now += 60_000
        self.world.left = 1
        self.assertRaises(_Killed, self.world.unbind, _HANDLE)
        self.world.start()
        self.world.now += 3600_000
        self.world.report()
        self.assertEqual({('1g.10gb', ''): 60_000},
                         self.ledger().sums(self.world.moment()))

    def test_each_project(self):
        for project in ('ours', 'theirs', None):
            self.world.bind(_GPU, _HANDLE)
            if project:
                self.world.name(project)
            self.world.now += 5000
            self.world.unbind(_HANDLE)
        self.assertEqual({'1g.10gb': {'ours': 5000, 'theirs': 5000,
                                      '': 5000}}, self.ledger().ended)

    def test_an_unknown_project_may_become_known_until_the_end(self):
        self.world.bind(_GPU, _HANDLE)
        self.world.now += 5000
        self.world.report()
        self.assertEqual({}, self.ledger().sums(self.world.moment()))
        self.world.name()
        self.assertEqual({('1g.10gb', 'ours'): 5000},
                         self.ledger().sums(self.world.moment()))

    def test_a_group_counts_on_its_first_gpu(self):
        entry = gpu_record.Claim(
            _HANDLE, _GPU, _GPU, 'nvidia-474', '2x', gpu_record.Phase.BOUND,
            members=_GPUS)
        self.world.records.put_claims(*entry.on_each())
        self.assertEqual([1, 0], [len(self.ledger(gpu).running)
                                  for gpu in _GPUS])

    def test_a_restart_is_counted_up_to_the_last_report_before_it(self):
        self.world.bind(_GPU, _HANDLE)
        self.world.name()
        self.world.now += 5000
        self.world.report()
        self.world.now += 700
        self.world.restart()
        self.world.now += 2000
        self.world.unbind(_HANDLE)
        self.assertEqual({'1g.10gb': {'ours': 7000}}, self.ledger().ended)

    def test_an_unbind_before_the_first_report_after_a_restart(self):
        self.world.bind(_GPU, _HANDLE)
        self.world.name()
        self.world.now += 5000
        self.world.report()
        self.world.boot, self.world.now = 2, 1
        self.world.unbind(_HANDLE)
        self.assertEqual({'1g.10gb': {'ours': 5000}}, self.ledger().ended)

    def test_a_record_that_was_lost_begins_anew(self):
        self.world.bind(_GPU, _HANDLE)
        path = self.world.records.path(_GPU)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('no record')
        self.world.now += 5000
        self.world.records.check()
        self.world.records.rebuilt(_GPU, (gpu_record.Claim(
            _HANDLE, _GPU, _GPU, 'nvidia-474', '1g.10gb',
            gpu_record.Phase.BOUND),))
        self.world.now += 200
        self.world.unbind(_HANDLE)
        self.assertEqual({'1g.10gb': {'': 200}}, self.ledger().ended)

    def test_a_damaged_time_of_the_last_report_blocks_nothing(self):
        self.world.bind(_GPU, _HANDLE)
        self.world.report()
        with open(uptime._path(self.world.state_path), 'w',
                  encoding='utf-8') as stream:
            stream.write('no time')
        self.assertRaises(exception.JournalError, uptime.last,
                          self.world.state_path)
        self.world.boot = 2
        self.world.unbind(_HANDLE)
        self.assertEqual({'1g.10gb': {'': 0}}, self.ledger().ended)
        self.world.report()
        self.assertEqual(self.world.moment(),
                         uptime.last(self.world.state_path))


class ClockTest(base.BaseTestCase):

    def test_it_is_that_of_the_kernel(self):
        first, second = uptime.now(), uptime.now()
        self.assertEqual(first.boot, second.boot)
        self.assertLessEqual(first.uptime, second.uptime)
        with open('/proc/uptime', encoding='ascii') as stream:
            seconds = float(stream.read().split()[0])
        self.assertLessEqual(seconds, uptime.now().uptime / 1000 + 0.01)

    def test_the_records_hold_it(self):
        self.assertEqual({}, gpu_record.GpuRecord().assigned)
        self.assertIsNone(uptime.last(
            self.useFixture(fixtures.TempDir()).path))
