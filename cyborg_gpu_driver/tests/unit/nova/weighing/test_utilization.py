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

"""Parsing good and malformed answers of Prometheus."""

from __future__ import annotations

import testscenarios
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.nova.scheduling import utilization
from cyborg_gpu_driver.tests.unit.nova import prometheus

load_tests = testscenarios.load_tests_apply_scenarios

answer, item = prometheus.answer, prometheus.item


class ParseTest(base.BaseTestCase):

    def test_gpus(self):
        self.assertEqual(
            {('compute1', '0000:18:00.0'): 0.5,
             ('compute2', '0000:2a:00.0'): 1.0,
             ('compute3', '0000:18:00.0'): 0.0},
            utilization.parse(answer(
                item(), item('compute2', '0000:2a:00.0', '1.07'),
                item('compute3', value='-1e-9'))))

    def test_nothing(self):
        self.assertEqual({}, utilization.parse(answer()))

    def test_query_names_metrics_of_the_exporter(self):
        for quantity in (definitions.telemetry.Quantity.UTILIZATION,
                         definitions.telemetry.Quantity.VGPU_UTILIZATION):
            metric = definitions.HARDWARE[quantity]
            self.assertIn(f'({metric.full_name}[', utilization.QUERY)
            self.assertLessEqual({'Hostname', 'address'},
                                 set(metric.labels))


class WrongTest(base.BaseTestCase):

    scenarios = [(str(number), {'document': document})
                 for number, document in enumerate((
        None, [], 'success', {}, {'status': 'error', 'error': 'x'},
        {'status': 'success'}, {'status': 'success', 'data': []},
        answer(resultType='matrix'), answer(result={}), answer(1),
        answer({'metric': {}}), answer({'value': [0, '1']}),
        answer(item(value=0.5)), answer(item(value='NaN')),
        answer(item(value='much')), answer(item(host=None)),
        answer(item(address=['x'])), answer({**item(), 'value': [1]}),
        answer({**item(), 'value': None}),
        answer({**item(), 'value': [1, '1', 2]})))]

    def test_refused(self):
        self.assertRaises(exception.InvalidValue, utilization.parse,
                          self.document)
