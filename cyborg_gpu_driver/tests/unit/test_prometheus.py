# SPDX-License-Identifier: Apache-2.0

"""The answers of Prometheus, good and malformed."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import prometheus
from cyborg_gpu_driver.tests.unit.nova import prometheus as answers

answer, item = answers.answer, answers.item
LABELS = ('Hostname', 'address', 'more')


class ParseTest(base.BaseTestCase):

    def test_values_by_their_labels(self):
        self.assertEqual(
            {('compute1', '0000:18:00.0', ''): 0.5,
             ('compute2', '0000:2a:00.0', 'x'): 1.07},
            prometheus.parse(answer(
                item(), item('compute2', '0000:2a:00.0', '1.07', more='x')),
                LABELS))
        self.assertEqual({}, prometheus.parse(answer(), LABELS))

    def test_what_is_no_answer(self):
        for document in (
                None, [], 'success', {}, {'status': 'success'},
                {'status': 'success', 'data': []},
                {**answer(), 'status': 'late'},
                answer(resultType='matrix'), answer(result={'a': 1}),
                answer(1), answer({'metric': {}}),
                answer({'value': [0, '1']}), answer(item(value=0.5)),
                answer(item(value='NaN')), answer(item(value='much')),
                answer(item(host=None)), answer(item(address=['x'])),
                answer({**item(), 'value': [1]}),
                answer({**item(), 'value': None}),
                answer({**item(), 'value': [1, '1', 2]})):
            self.assertRaisesRegex(ValueError, 'no vector', prometheus.parse,
                                   document, LABELS)


class QueryTest(base.BaseTestCase):

    def test_trouble(self):
        server = self.useFixture(answers.Prometheus())
        self.assertEqual({('compute1',): 0.5}, prometheus.query(
            server.url, 'up', ('Hostname',), 10.0))
        good = dict(vars(server))
        for changes in ({'status': 500}, {'status': 302},
                        {'content': b'<html>'}, {'content': b'[' * 100000},
                        {'length': 1000000}):
            vars(server).update({**good, **changes})
            self.assertRaises(exception.InvalidValue, prometheus.query,
                              server.url, 'up', LABELS, 10.0)
        self.assertNotIn('/elsewhere', server.urls)
        server.release.clear()
        self.assertRaises(exception.InvalidValue, prometheus.query,
                          server.url, 'up', LABELS, 0.1)
