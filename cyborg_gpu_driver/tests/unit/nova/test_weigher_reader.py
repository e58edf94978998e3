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


"""Reading the free capacity of GPUs from a fake Placement."""

from __future__ import annotations

import concurrent.futures
import math
import threading

import fixtures
from oslotest import base

from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests import scope

CLASS = 'CUSTOM_X'
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
    """

    def __init__(self):
        self.status_code = 200
        self.asked = []
        self.used = {}
        self.full = set()
        self.before = bool

    def get(self, url, version):
        self.before()
        path, _question, query = url.partition('?')
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
                'root_provider_uuid': host, 'traits': [published.TRAIT],
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

    def fleet(self, reader, hosts='ab', mark=0):
        return reader.fleet([CLASS], dict.fromkeys(hosts, mark))

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
        fleet = reader.fleet([CLASS], {'a': 0, 'b': 'changed'})
        self.assertEqual([('/allocation_candidates', 'b')],
                         self.placement.asked)
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
        hosts = [f'h{number:02}' for number in range(80)]
        found = []
        for _ in range(4):
            self.fleet(reader, hosts)
            found.append(self.placement.read())
        self.assertEqual([32, 32, 32, 32], list(map(len, found)))
        # Hosts that are due again do not delay new ones.
        self.assertEqual(hosts, sorted({
            host for part in found for host in part}))
        # A host that has changed comes before hosts that are only old.
        marks = dict.fromkeys(hosts, 0)
        marks['h79'] = 1
        reader.fleet([CLASS], marks)
        self.assertEqual('h79', self.placement.read()[0])

    def test_a_slow_placement_is_not_asked_long(self):
        def dawdle():
            self.now += 0.3

        self.placement.before = dawdle
        self.assertIsNotNone(self.fleet(self.reader(), 'abcdef'))
        self.assertEqual(['a', 'b'], self.placement.read())

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

    def test_nobody_waits_for_another_ones_reading(self):
        reader = self.reader()
        first = self.fleet(reader)
        self.placement.used = {'a': 1, 'b': 1}
        entered, leave = threading.Event(), threading.Event()

        def dawdle():
            entered.set()
            leave.wait(scope.HANG)

        self.placement.before = dawdle
        other = threading.Thread(target=self.fleet, args=(reader, 'ab', 1))
        other.start()
        self.assertTrue(entered.wait(scope.HANG))
        self.assertIs(first, self.fleet(reader, mark=1))
        leave.set()
        other.join(scope.HANG)
        self.placement.asked.clear()
        self.assertIsNot(first, self.fleet(reader, mark=1))
        self.assertEqual([], self.placement.asked)

    def test_the_first_request_is_waited_for(self):
        reader = self.reader()
        entered, leave = threading.Event(), threading.Event()

        def dawdle():
            entered.set()
            leave.wait(scope.HANG)

        self.placement.before = dawdle
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(self.fleet, reader)
            self.assertTrue(entered.wait(scope.HANG))
            second = pool.submit(self.fleet, reader)
            leave.set()
            self.assertIsNotNone(second.result(30).cost(
                self.placement.candidate('b')))
            self.assertIs(first.result(30), second.result(30))
        self.assertEqual(['a', 'b'], self.placement.read())

    def test_the_first_request_is_not_waited_for_for_good(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.weigher_reader._FIRST', 0.0))
        reader = self.reader()
        found = []
        self.placement.before = lambda: found.append(
            self.fleet(reader).cost(self.placement.candidate('a')))
        self.fleet(reader, 'a')
        self.assertEqual([None, None], found)

    def test_a_host_that_is_about_to_change_is_read_again_soon(self):
        reader = self.reader()
        for pause in (0, 5, 10):
            self.now += pause
            self.fleet(reader)
        self.placement.read()
        # Without the change, the reader would read it after 20 seconds.
        self.now += 5
        reader.fleet([CLASS], {'a': 0, 'b': 0}, changing={'b'})
        self.assertEqual(['b'], self.placement.read())
        reader.fleet([CLASS], {'a': 0, 'b': 0}, changing={'b'})
        self.assertEqual([], self.placement.read())

    def test_what_was_read_later_has_the_greater_number(self):
        reader = self.reader()
        self.assertEqual(0, reader.latest.number)
        first = self.fleet(reader)
        self.placement.used = {'a': 1}
        self.assertLess(first.number, self.fleet(reader, mark=1).number)
        self.assertEqual(1, reader.latest.offer(
            names.provider_uuid(self.placement.names('a')[0])).used)

    def test_when_each_host_was_asked(self):
        def dawdle():
            self.now += 0.25

        self.placement.before = dawdle
        reader = self.reader()
        self.assertEqual({'a': 100.0, 'b': 100.5}, self.fleet(reader).began)
        self.now = 103.0
        found = reader.fleet([CLASS], {'a': 0, 'b': 'changed'})
        self.assertEqual({'a': 100.0, 'b': 103.0}, found.after({}).began)
        # A host without an answer does not count as read.
        self.placement.status_code = 500
        reader.fleet([CLASS], {'b': 'changed again'})
        self.assertEqual({'a': 100.0, 'b': 103.0}, reader.latest.began)


class PublishedTest(base.BaseTestCase):

    def test_a_gpu_is_what_its_providers_say(self):
        placement = Placement()
        placement.used = {'a': 1}
        known = {names.provider_uuid(name): name
                 for name in placement.names('a')}
        gpu, = published.gpus(placement.summaries('a'), known)
        self.assertEqual(('a', '0000:18:00.0'), (gpu.host, gpu.address))
        self.assertEqual(
            [('1g.10gb', 1, 6), ('1g.10gb+me', 1, 0), ('3g.40gb', 1, 1)],
            [(offer.profile, offer.used, offer.free)
             for offer in gpu.offers])

    def test_more_used_than_there_is(self):
        placement = Placement()
        placement.used = {'a': 3}
        known = {names.provider_uuid(name): name
                 for name in placement.names('a')}
        gpu, = published.gpus(placement.summaries('a'), known)
        self.assertEqual([4, 0, 0], [offer.free for offer in gpu.offers])

    def test_what_is_not_ours_is_left_out(self):
        placement = Placement()
        summaries = placement.summaries('a')
        self.assertEqual((), published.gpus(summaries, {}))
        self.assertEqual((), published.gpus(
            summaries, dict.fromkeys(summaries, 'a_0000:18:00.0')))
        self.assertTrue(published.nameless(summaries, {}))
        self.assertFalse(published.nameless({'a': summaries['a']}, {}))

    def test_classes_of_gpus(self):
        for name, expected in (
                ('PGPU', True), ('CUSTOM_NVIDIA_T4_2B', True),
                ('VGPU', False), ('FPGA', False), ('CUSTOM_FPGA', False)):
            self.assertEqual(expected, published.is_gpu(name), name)
