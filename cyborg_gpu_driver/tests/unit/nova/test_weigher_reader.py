# SPDX-License-Identifier: Apache-2.0

"""Reading the free capacity of GPUs from a fake Placement."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import fixtures
from oslotest import base

from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests import scope

CLASS = 'CUSTOM_X'
ONE, TWO = (f'{digit * 8}-{digit * 4}-4{digit * 3}-8{digit * 3}-{digit * 12}'
            for digit in '12')
LABELS = {'1g.10gb': 7, '3g.40gb': 2, '1g.10gb.me': 1}


class Answer:

    def __init__(self, status_code, body):
        self.status_code = status_code
        self.text = f'answer {status_code}'
        self._body = body

    def json(self):
        return self._body


class Placement:
    """A fake Placement that has hosts with one GPU each.

    :ivar used: the usage of each profile, by host.
    :ivar full: hosts that have no allocation candidate.
    :ivar servers: the servers of each provider in use.
    :ivar gone: the beginning of the paths that do not exist.
    :ivar traits: traits of each provider.
    """

    def __init__(self):
        self.status_code = 200
        self.asked = []
        self.used = {}
        self.full = set()
        self.servers = [ONE]
        self.gone = ''
        self.traits = [published.TRAIT]
        self.before = bool

    def get(self, url, version):
        self.before()
        path, _question, query = url.partition('?')
        if not query:
            self.asked.append((path, ''))
            if self.gone and path.startswith(self.gone):
                return Answer(404, None)
            name = path.rsplit('/', 1)[1]
            return Answer(self.status_code, {
                'project_id': f'of {name[0]}'} if name != 'allocations'
                else {'allocations': {
                    server: {'resources': {CLASS: 1}}
                    for server in self.servers}})
        parameters = dict(item.split('=') for item in query.split('&'))
        host = parameters['in_tree']
        self.asked.append((path, host))
        if self.status_code != 200:
            return Answer(self.status_code, None)
        if path == '/allocation_candidates':
            return Answer(200, {'provider_summaries': (
                {} if host in self.full else self.summaries(host))})
        return Answer(200, {'resource_providers': [
            {'uuid': names.provider_uuid(name), 'name': name}
            for name in self.names(host)]})

    def names(self, host):
        return [f'{host}_gpu_0000:18:00.0_{label}' for label in LABELS]

    def summaries(self, host):
        found = {host: {'root_provider_uuid': host, 'traits': [],
                        'resources': {'VCPU': {'capacity': 8, 'used': 0}}}}
        for name, total in zip(self.names(host), LABELS.values()):
            found[names.provider_uuid(name)] = {
                'root_provider_uuid': host, 'traits': self.traits,
                'resources': {CLASS: {
                    'capacity': total, 'used': self.used.get(host, 0)}}}
        return found

    def candidate(self, host):
        return {names.provider_uuid(self.names(host)[1]): {
            'resources': {CLASS: 1}}}

    def read(self):
        """The hosts that the reader has read since the last call."""
        found = [host for path, host in self.asked
                 if path == '/allocation_candidates']
        self.asked.clear()
        return found


class ReaderTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.placement = Placement()
        self.logged = self.useFixture(fixtures.FakeLogger())

    def reader(self, keep=5.0, most=1000):
        return weigher_reader.Reader(self.placement.get, keep, most,
                                     lambda: self.now)

    def fleet(self, reader, hosts='ab', mark=0, **options):
        """Return the fleet once all that is due was read, or nothing can be.
        """
        found = reader.fleet(CLASS, dict.fromkeys(hosts, mark), **options)
        self.idle(reader)
        return found

    def idle(self, reader):
        with reader._changed:
            self.assertTrue(reader._changed.wait_for(
                lambda: not reader._is_reading, scope.HANG))

    def test_two_requests_tell_all_of_a_new_host(self):
        fleet = self.fleet(self.reader())
        self.assertEqual(
            [(path, host) for host in 'ab'
             for path in ('/allocation_candidates', '/resource_providers')],
            self.placement.asked)
        for host in 'ab':
            self.assertIsNotNone(fleet.cost(self.placement.candidate(host)))
        self.assertIsNone(fleet.cost(self.placement.candidate('c')))

    def test_only_what_may_have_changed_is_read(self):
        reader = self.reader()
        first = self.fleet(reader)
        self.placement.asked.clear()
        self.now += 4.9
        self.assertIs(first, self.fleet(reader))
        self.assertEqual([], self.placement.asked)
        self.placement.used['b'] = 1
        fleet = reader.fleet(CLASS, {'a': 0, 'b': 'changed'})
        self.assertEqual([('/allocation_candidates', 'b')],
                         self.placement.asked)
        self.assertLess(first.number, fleet.number)
        self.assertIs(fleet, reader.latest)
        self.assertLess(fleet.cost(self.placement.candidate('b')).gpu,
                        fleet.cost(self.placement.candidate('a')).gpu)

    def test_a_host_that_stays_the_same_is_read_ever_more_rarely(self):
        reader = self.reader()
        self.fleet(reader, 'a')
        read = []
        for second in range(1500):
            self.now += 1
            self.placement.asked.clear()
            self.fleet(reader, 'a')
            if self.placement.asked:
                read.append(second + 1)
        self.assertEqual([5, 15, 35, 75, 155, 315, 615, 915, 1215], read)
        self.placement.used['a'] = 1
        for pause in (300, 5, 10):
            self.now += pause - 0.1
            self.assertEqual([], self.placement.read())
            self.now += 0.1
            self.fleet(reader, 'a')
            self.assertEqual(['a'], self.placement.read())

    def test_a_request_reads_no_more_than_its_share(self):
        reader = self.reader(keep=0.0)
        hosts = [f'h{number:02}' for number in range(50)]
        found = []
        for _ in range(5):
            self.fleet(reader, hosts)
            found.append(len(self.placement.asked))
            self.placement.asked.clear()
        self.assertEqual([weigher_reader.SHARE] * 5, found)
        # Hosts that are due again do not delay new ones.
        fleet = self.fleet(reader, hosts)
        for host in hosts:
            self.assertIsNotNone(fleet.cost(self.placement.candidate(host)))
        # A host that has changed comes before hosts that are only old.
        self.placement.asked.clear()
        reader.fleet(CLASS, {**dict.fromkeys(hosts, 0), 'h49': 1})
        self.idle(reader)
        self.assertEqual('h49', self.placement.read()[0])

    def servers(self, reader, fleet):
        """The servers of each provider of the host a; None if unknown."""
        return [reader.servers('a', fleet.offer(names.provider_uuid(name)))
                for name in self.placement.names('a')]

    def test_who_is_on_a_gpu(self):
        self.placement.used['a'] = 1
        there = (weigher_reader.Server(ONE, 'of 1', 1),)
        for options, traits, known in (
                ({}, (), False), ({'watched': 'a'}, (), True),
                ({}, (names.ISOLATED,), True)):
            self.placement.asked.clear()
            self.placement.traits = [published.TRAIT, *traits]
            reader = self.reader()
            fleet = self.fleet(reader, 'a', **options)
            self.assertEqual([there if known else None] * 3,
                             self.servers(reader, fleet))
            # Each provider, and each server once.
            self.assertEqual(2 + 4 * known, len(self.placement.asked))
        self.placement.asked.clear()
        self.now += 5
        self.fleet(reader, 'a')
        self.assertEqual(1, len(self.placement.asked))
        # One came for another.
        self.placement.servers = [TWO]
        fleet = self.fleet(reader, 'a', mark=1)
        self.assertEqual([(weigher_reader.Server(TWO, 'of 2', 1),)] * 3,
                         self.servers(reader, fleet))

    def test_who_is_on_a_gpu_is_not_known(self):
        self.placement.used['a'] = 1
        for servers, gone, expected in (
                ([ONE, TWO], '', None),
                (['../x'], '', (weigher_reader.Server('../x', '', 1),)),
                # Deleted after the host was read, which is no failure.
                ([ONE], '/resource_providers/', None),
                ([ONE], '/allocations/',
                 (weigher_reader.Server(ONE, '', 1),))):
            self.placement.servers, self.placement.gone = servers, gone
            reader = self.reader()
            fleet = self.fleet(reader, 'a', watched='a')
            self.assertEqual([expected] * 3, self.servers(reader, fleet))
            self.assertIsNotNone(fleet.cost(self.placement.candidate('a')))
        self.assertEqual('', self.logged.output)

    def test_more_servers_than_one_request_can_read(self):
        self.placement.used['a'] = 30
        self.placement.servers = [
            f'{ONE[:-2]}{number:02}' for number in range(30)]
        reader = self.reader()
        for expected in (weigher_reader.SHARE, 1 + 1 + 8 + 2):
            self.placement.asked.clear()
            fleet = self.fleet(reader, 'a', watched='a')
            self.assertEqual(expected, len(self.placement.asked))
        self.assertNotIn(None, self.servers(reader, fleet))

    def test_hosts_are_forgotten(self):
        reader = self.reader(most=2)
        self.fleet(reader, 'ab')
        fleet = self.fleet(reader, 'bc')
        # Otherwise a host that no longer exists would affect what is scarce.
        self.assertEqual(['b', 'c'], [
            host for host in 'abc'
            if fleet.cost(self.placement.candidate(host)) is not None])
        fleet = self.fleet(reader, 'abc')
        for host in 'abc':
            self.assertIsNotNone(fleet.cost(self.placement.candidate(host)))
        self.now += 601
        fleet = self.fleet(reader, 'a')
        self.assertIsNone(fleet.cost(self.placement.candidate('b')))

    def test_a_host_without_a_candidate_has_none_left(self):
        reader = self.reader()
        self.fleet(reader)
        self.placement.full = {'a'}
        fleet = self.fleet(reader, mark='claimed')
        self.assertEqual(
            math.inf, fleet.cost(self.placement.candidate('a')).loss)
        self.assertLess(fleet.cost(self.placement.candidate('b')).loss, 9)

    def test_a_failure_is_said_once_and_not_tried_at_once(self):
        reader = self.reader(keep=0.0)
        self.placement.status_code = 503
        for _ in range(3):
            self.assertIsNone(self.fleet(reader))
        self.assertEqual(1, len(self.placement.asked))
        self.assertIn('HTTP 503 answer 503', self.logged.output)
        self.now += 10
        self.assertIsNone(self.fleet(reader))
        self.assertEqual(2, len(self.placement.asked))
        self.assertEqual(1, self.logged.output.count('not weighed'))
        self.placement.status_code = 200
        self.now += 10
        self.assertIsNotNone(self.fleet(reader))
        self.assertEqual(1, self.logged.output.count('again'))

    def test_an_answer_without_sense_is_a_failure(self):
        self.placement.summaries = lambda host: {'x': {}}
        self.assertIsNone(self.fleet(self.reader()))
        self.assertIn('not weighed', self.logged.output)

    def test_nobody_waits_longer_than_the_limit(self):
        reader = self.reader()
        first = self.fleet(reader)
        leave = threading.Event()
        self.addCleanup(leave.set)
        self.placement.before = lambda: leave.wait(scope.HANG)
        waited = []
        reader._changed.wait_for = (
            lambda predicate, timeout: waited.append(timeout))
        for passed in (0.0, 0.75, 0.75):
            self.now += passed
            self.assertIs(first, reader.fleet(CLASS, {'a': 1, 'b': 1}))
        # Who comes later waits no longer than who came first.
        self.assertEqual([1.0, 0.25, -0.5], waited)
        del reader._changed.wait_for
        leave.set()
        self.idle(reader)
        self.assertIsNot(first, reader.fleet(CLASS, {'a': 1, 'b': 1}))

    def test_nobody_waits_for_hosts_that_are_only_old(self):
        reader = self.reader()
        first = self.fleet(reader)
        leave = threading.Event()
        self.addCleanup(leave.set)
        self.placement.before = lambda: leave.wait(scope.HANG)
        self.now += 5
        self.placement.read()
        self.assertIs(first, reader.fleet(CLASS, {'a': 0, 'b': 0}))
        leave.set()
        self.idle(reader)
        self.assertEqual(['a', 'b'], self.placement.read())

    def test_a_host_that_is_about_to_change_is_read_again_soon(self):
        reader = self.reader()
        for pause in (0, 5, 10):
            self.now += pause
            self.fleet(reader)
        self.placement.read()
        # Without the change, the reader would read it after 20 seconds.
        self.now += 5
        for expected in (['b'], []):
            self.fleet(reader, changing={'b'})
            self.assertEqual(expected, self.placement.read())


class PublishedTest(base.BaseTestCase):

    def test_a_gpu_is_what_its_providers_say(self):
        placement = Placement()
        known = {names.provider_uuid(name): name
                 for name in placement.names('a')}
        # Of one profile, more may be used than there is.
        for used, free in ((1, [6, 0, 1]), (3, [4, 0, 0])):
            placement.used = {'a': used}
            gpu, = published.gpus(placement.summaries('a'), known)
            self.assertEqual(('a', '0000:18:00.0'), (gpu.host, gpu.address))
            self.assertEqual(
                [(profile, used, left) for profile, left in zip(
                    ('1g.10gb', '1g.10gb+me', '3g.40gb'), free)],
                [(offer.profile, offer.used, offer.free)
                 for offer in gpu.offers])

    def test_classes_of_gpus(self):
        for name, expected in (
                ('PGPU', True), ('CUSTOM_NVIDIA_T4_2B', True),
                ('VGPU', False), ('FPGA', False), ('CUSTOM_FPGA', False)):
            self.assertEqual(expected, published.is_gpu(name), name)


class OptionsTest(base.BaseTestCase):

    def test_only_the_weigher_needs_nova(self):
        names = ('conf.weigher', 'nova.weigher_reader')
        program = ('import sys; sys.modules["nova"] = None; '
                   + '; '.join(f'import cyborg_gpu_driver.{name}'
                               for name in names))
        done = subprocess.run([sys.executable, '-c', program],
                              capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
