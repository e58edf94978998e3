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


"""Reading what the GPUs have left, from a Placement of plain answers."""

from __future__ import annotations

import math
import threading

import fixtures
from oslotest import base

from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import names

CLASS = 'CUSTOM_NVIDIA_3G_40GB'
LABELS = {'1g.10gb': 7, '3g.40gb': 2, '1g.10gb.me': 1}


class Answer:

    def __init__(self, status_code, body):
        self.status_code = status_code
        self.text = f'answer {status_code}'
        self._body = body

    def json(self):
        return self._body


class Placement:
    """Answers as Placement does, about hosts with one GPU each."""

    def __init__(self, *hosts):
        self.hosts = list(hosts)
        self.status_code = 200
        self.urls = []
        self.used = 0
        self.before = bool

    def get(self, url, version):
        self.urls.append(url)
        self.before()
        if self.status_code != 200:
            return Answer(self.status_code, None)
        if url.startswith('/allocation_candidates'):
            return Answer(200, {
                'allocation_requests': [{}] * len(self.hosts),
                'provider_summaries': self.summaries()})
        return Answer(200, {'resource_providers': [
            {'uuid': names.provider_uuid(name), 'name': name,
             'root_provider_uuid': host}
            for host in self.hosts for name in self.names(host)]})

    def names(self, host):
        return [f'{host}_gpu_0000:18:00.0_{label}' for label in LABELS]

    def summaries(self):
        found = {host: {'root_provider_uuid': host, 'traits': [],
                        'resources': {'VCPU': {'capacity': 8, 'used': 0}}}
                 for host in self.hosts}
        for host in self.hosts:
            for name, total in zip(self.names(host), LABELS.values()):
                found[names.provider_uuid(name)] = {
                    'root_provider_uuid': host,
                    'traits': [published.TRAIT],
                    'resources': {'CUSTOM_X': {
                        'capacity': total, 'used': self.used}}}
        return found

    def candidate(self, host):
        return {names.provider_uuid(self.names(host)[1]): {
            'resources': {'CUSTOM_X': 1}}}


class Clock(fixtures.Fixture):

    now = 100.0

    def _setUp(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.weigher_reader.time.monotonic',
            lambda: self.now))


class ReaderTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.clock = self.useFixture(Clock())
        self.placement = Placement('a', 'b')
        self.logged = self.useFixture(fixtures.FakeLogger())

    def reader(self, keep=5.0):
        return weigher_reader.Reader(self.placement.get, keep, 77)

    def test_two_requests_tell_all(self):
        fleet = self.reader().fleet([CLASS])
        self.assertEqual(
            [f'/allocation_candidates?limit=77&resources_GPU={CLASS}:1'
             '&required_GPU=OWNER_CYBORG',
             '/resource_providers?required=OWNER_CYBORG'],
            self.placement.urls)
        for host in 'ab':
            self.assertIsNotNone(fleet.cost(self.placement.candidate(host)))

    def test_names_are_asked_for_when_one_is_new(self):
        reader = self.reader(keep=0.0)
        reader.fleet([CLASS])
        reader.fleet([CLASS])
        self.assertEqual(3, len(self.placement.urls))
        self.placement.hosts = ['b', 'c']
        fleet = reader.fleet([CLASS])
        self.assertEqual(5, len(self.placement.urls))
        self.assertIsNotNone(fleet.cost(self.placement.candidate('c')))
        # A host that is no more has no say in what is scarce.
        self.assertIsNone(fleet.cost(self.placement.candidate('a')))

    def test_a_host_that_is_not_in_the_answer_has_none_left(self):
        for limit, expected in ((77, math.inf), (1, None)):
            self.placement.hosts = ['a', 'b']
            reader = weigher_reader.Reader(self.placement.get, 0.0, limit)
            reader.fleet(['CUSTOM_X'])
            self.placement.hosts = ['b']
            fleet = reader.fleet(['CUSTOM_X'])
            loss = fleet.cost(self.placement.candidate('a')).loss
            if expected is None:
                # Placement may have more than it was asked to tell.
                self.assertLess(loss, 9)
            else:
                self.assertEqual(expected, loss)

    def test_an_answer_holds_for_a_while(self):
        reader = self.reader()
        first = reader.fleet([CLASS])
        self.clock.now += 4.9
        self.assertIs(first, reader.fleet([CLASS]))
        self.assertEqual(2, len(self.placement.urls))
        self.clock.now += 0.1
        self.assertIsNot(first, reader.fleet([CLASS]))
        self.assertEqual(3, len(self.placement.urls))

    def test_read_anew(self):
        reader = self.reader()
        first = reader.fleet([CLASS])
        self.assertIsNot(first, reader.fleet([CLASS], anew=True))
        self.placement.status_code = 503
        for _ in range(2):
            self.assertIsNone(reader.fleet([CLASS], anew=True))
        self.assertEqual(4, len(self.placement.urls))

    def test_each_class_is_asked_for(self):
        reader = self.reader()
        reader.fleet([CLASS, 'PGPU'])
        reader.fleet(['PGPU'])
        self.assertEqual(1, sum(
            'PGPU:1' in url for url in self.placement.urls))

    def test_a_failure_is_said_once_and_not_tried_at_once(self):
        reader = self.reader(keep=0.0)
        self.placement.status_code = 503
        for _ in range(3):
            self.assertIsNone(reader.fleet([CLASS]))
        self.assertEqual(1, len(self.placement.urls))
        self.assertIn('HTTP 503 answer 503', self.logged.output)
        self.clock.now += 10
        self.assertIsNone(reader.fleet([CLASS]))
        self.assertEqual(2, len(self.placement.urls))
        self.assertEqual(1, self.logged.output.count('not weighed'))
        self.placement.status_code = 200
        self.clock.now += 10
        self.assertIsNotNone(reader.fleet([CLASS]))
        self.assertEqual(1, self.logged.output.count('again'))

    def test_an_answer_without_sense_is_a_failure(self):
        self.placement.summaries = lambda: {'x': {}}
        self.assertIsNone(self.reader().fleet([CLASS]))
        self.assertIn('not weighed', self.logged.output)

    def test_nobody_waits_for_another_ones_reading(self):
        reader = self.reader()
        first = reader.fleet([CLASS])
        self.clock.now += 9
        entered, leave = threading.Event(), threading.Event()

        def dawdle():
            entered.set()
            leave.wait(30)

        self.placement.before = dawdle
        other = threading.Thread(target=reader.fleet, args=([CLASS],))
        other.start()
        self.assertTrue(entered.wait(30))
        self.assertIs(first, reader.fleet([CLASS]))
        leave.set()
        other.join(30)
        self.assertIsNot(first, reader.fleet([CLASS]))
        self.assertEqual(3, len(self.placement.urls))


class PublishedTest(base.BaseTestCase):

    def test_a_gpu_is_what_its_providers_say(self):
        placement = Placement('a')
        placement.used = 1
        known = {names.provider_uuid(name): name
                 for name in placement.names('a')}
        gpu, = published.gpus(placement.summaries(), known)
        self.assertEqual(('a', '0000:18:00.0'), (gpu.host, gpu.address))
        self.assertEqual(
            [('1g.10gb', 1, 6), ('1g.10gb+me', 1, 0), ('3g.40gb', 1, 1)],
            [(offer.profile, offer.used, offer.free)
             for offer in gpu.offers])

    def test_more_used_than_there_is(self):
        placement = Placement('a')
        placement.used = 3
        known = {names.provider_uuid(name): name
                 for name in placement.names('a')}
        gpu, = published.gpus(placement.summaries(), known)
        self.assertEqual([4, 0, 0], [offer.free for offer in gpu.offers])

    def test_what_is_not_ours_is_left_out(self):
        placement = Placement('a')
        summaries = placement.summaries()
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
