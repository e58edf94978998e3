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

"""``/usage`` of the exporter, over HTTP."""

import json
import os
import threading

from oslotest import base

from cyborg_gpu_driver.metrics.usage import document
from cyborg_gpu_driver.metrics.usage import endpoint
from cyborg_gpu_driver.tests.unit.metrics import exporters

_HANDLE = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_SECOND = '0d7e5b36-92a4-4c37-8b0f-3b8e7f0a1c55'
_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
_START = 1793491200.0
"""2026-11-01T00:00Z."""


class EndpointTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.exporter = self.useFixture(exporters.Exporter())

    def usage(self, query='?end=2026-11-01T02:00'):
        status, headers, body = self.exporter.get(f'/usage{query}')
        self.assertEqual(200, status, body)
        self.assertEqual('application/json', headers['Content-Type'])
        return document.decode(json.loads(body))

    def test_sums(self):
        self.exporter.name('compute1')
        for number in range(2):
            self.exporter.used(_HANDLE, _START + number * 1000,
                               _START + number * 1000 + 600.25,
                               server=_SERVER, project='ours')
        self.exporter.uses(_SECOND, _START + 3600, '2g.20gb')
        found = self.usage()
        self.assertEqual(('compute1', 0.0, _START + 7200, ()), (
            found.host, found.start, found.end, found.missing))
        self.assertEqual((
            document.Sum(exporters.GPU, '1g.10gb', 2, 1200.5, _SERVER,
                         'ours'),
            document.Sum(exporters.GPU, '2g.20gb', 1, 3600.0)), found.sums)

    def test_a_period(self):
        self.exporter.used(_HANDLE, _START, _START + 5400)
        (item,) = self.usage('?start=2026-11-01T00:30'
                             '&end=2026-11-01T00:40:00%2B00:00').sums
        self.assertEqual(600.0, item.seconds)
        self.assertEqual((), self.usage('?end=2026-10-31').sums)
        # A period ends now at the latest.
        self.assertLess(self.usage('?end=9999-01-01').end, 253e9)
        self.assertEqual(1, len(self.usage('').sums))

    def test_a_period_that_is_none(self):
        for query, expected in (
                ('start=yesterday', 'start'), ('end=7', 'end'),
                ('start=2026-11-02&end=2026-11-01', 'before end'),
                ('start=2026-11-01T00:00:00+00:00', 'start'),
                ('begin=2026-11-01', 'only start and end'),
                ('start=1h&start=2h', 'each at most once'), ('start', 'start'),
                ('start=%ff', 'not valid'), ('start=' + '1' * 65, 'too long'),
                ('&'.join(['start=1h'] * 9), 'not valid')):
            status, _, body = self.exporter.get(f'/usage?{query}')
            self.assertEqual(400, status, query)
            self.assertIn(expected, body)
        status, headers, _ = self.exporter.get('/usage', 'POST')
        self.assertEqual((405, 'GET'), (status, headers['Allow']))

    def test_what_is_not_counted_is_said(self):
        self.exporter.uses(_HANDLE, _START)
        path = os.path.join(self.exporter.state_path, 'gpus',
                            f'{exporters.GPU}.json')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('no record')
        (text,) = self.usage().missing
        self.assertIn(f'in use on GPU {exporters.GPU} now are not counted',
                      text)

    def test_records_that_may_not_be_read(self):
        with open(os.path.join(self.exporter.state_path, 'gpus'), 'wb'):
            pass
        status, _, body = self.exporter.get('/usage')
        self.assertEqual(500, status)
        self.assertIn('gpus', body)

    def test_a_scrape_waits_for_nobody(self):
        # The records are a pipe: a reader waits.
        path = os.path.join(self.exporter.state_path, 'audit.jsonl')
        os.mkfifo(path)
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(self.exporter.get('/usage')))
        asking.start()
        with open(path, 'wb'):
            # The other process has opened the pipe as well, and reads.
            self.assertEqual(200, self.exporter.get('/metrics')[0])
            self.assertEqual([], answers)
        asking.join()
        ((status, _, body),) = answers
        self.assertEqual(200, status, body)

    def test_only_one_at_a_time_reads(self):
        busy = endpoint.Endpoint(self.exporter.state_path, 'x', seconds=0.01)
        said = []
        with busy._turn:
            body = b''.join(busy({'REQUEST_METHOD': 'GET'},
                                 lambda *status: said.append(status)))
        self.assertIn(b'busy', body)
        self.assertEqual('503 Service Unavailable', said[0][0])

    def test_records_that_are_not_read_in_time(self):
        os.mkfifo(os.path.join(self.exporter.state_path, 'audit.jsonl'))
        slow = endpoint.Endpoint(self.exporter.state_path, 'x', seconds=0.01)
        said = []
        body = b''.join(slow({'REQUEST_METHOD': 'GET'},
                             lambda *status: said.append(status)))
        self.assertIn(b'in 0.01 s', body)
        self.assertEqual('500 Internal Server Error', said[0][0])


class DocumentTest(base.BaseTestCase):

    def test_what_is_no_document(self):
        item = {'gpu': '0000:3b:00.0', 'profile': '1g.10gb', 'count': 1,
                'seconds': 1}
        whole = {'version': 1, 'host': 'compute1', 'start': 0, 'end': 1}
        self.assertEqual(1, document.decode(
            {**whole, 'sums': [item]}).sums[0].count)
        for content, expected in (
                ([], 'version 1'), ({'version': 2}, 'version 1'),
                ({'version': True, **whole, 'host': 7}, 'host'),
                ({**whole, 'more': 1}, 'more'),
                ({**whole, 'end': float('nan')}, 'end'),
                ({**whole, 'missing': ['\x1b[2J']}, 'line of text'),
                ({**whole, 'sums': [{**item, 'gpu': '../..'}]}, 'gpu'),
                ({**whole, 'sums': [{**item, 'count': -1}]}, 'count'),
                ({**whole, 'sums': [{**item, 'seconds': '1'}]}, 'seconds'),
                ({**whole, 'sums': [{**item, 'profile': 'x' * 1001}]},
                 'profile'),
                ({**whole, 'sums': [{**item, 'server': '../../x'}]},
                 'server')):
            error = self.assertRaises(ValueError, document.decode, content)
            self.assertIn(expected, str(error))
