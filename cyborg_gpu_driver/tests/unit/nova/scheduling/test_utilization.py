# SPDX-License-Identifier: Apache-2.0

"""How the weigher queries Prometheus, over HTTP on this machine."""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse

import fixtures
from oslotest import base

from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.nova.scheduling import utilization
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.metrics import monitored
from cyborg_gpu_driver.tests.unit.nova import prometheus

HOST, GPU = 'compute1', '0000:18:00.0'


class UtilizationCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.logged = self.useFixture(fixtures.FakeLogger())
        self.now = 1000.0
        self.prometheus = self.useFixture(prometheus.Prometheus())
        self.known = utilization.Utilization(
            self.prometheus.url, lambda: self.now)
        self.addCleanup(self.known.stop)

    def warnings(self):
        return self.logged.output.count('is not considered')


class AskTest(UtilizationCase):

    def test_the_question(self):
        self.known.ask()
        (url,) = self.prometheus.urls
        parts = urllib.parse.urlsplit(url)
        self.assertEqual('/prom/api/v1/query', parts.path)
        self.assertEqual({'query': [utilization.QUERY]},
                         urllib.parse.parse_qs(parts.query))

    def test_it_names_metrics_of_the_exporter(self):
        for part in ('', 'vgpu_', 'instance_'):
            metric = definitions.HARDWARE[f'{part}utilization_ratio']
            self.assertIn(f'({metric.full_name}[', utilization.QUERY)
            self.assertLessEqual({'Hostname', 'address'}, set(metric.labels))

    def test_gpus(self):
        self.known.ask()
        self.assertEqual(0.5, self.known.of(HOST, [GPU]))
        self.assertIsNone(self.known.of(HOST, [GPU, '0000:2a:00.0']))
        self.assertIsNone(self.known.of('compute2', [GPU]))
        self.assertIsNone(self.known.of(HOST, []))

    def test_busiest_of_several(self):
        self.prometheus.content = json.dumps(prometheus.answer(
            prometheus.item(), prometheus.item(
                address='0000:2a:00.0', value='1.07'))).encode()
        self.known.ask()
        self.assertEqual(1.0, self.known.of(HOST, [GPU, '0000:2a:00.0']))

    def test_old_answer(self):
        self.known.ask()
        self.prometheus.status = 503
        self.known.ask()
        self.now += 119
        self.assertEqual(0.5, self.known.of(HOST, [GPU]))
        self.now += 1
        self.assertIsNone(self.known.of(HOST, [GPU]))

    def test_problem_is_logged_once(self):
        for expected in 1, 2:
            self.prometheus.status = 500
            self.known.ask()
            self.known.ask()
            self.assertEqual(expected, self.warnings())
            self.prometheus.status = 200
            self.known.ask()
            self.assertIn('again', self.logged.output)


class BackgroundTest(UtilizationCase):

    def test_nobody_waits(self):
        self.prometheus.release.clear()
        self.assertIsNone(self.known.of(HOST, [GPU]))
        self.assertTrue(self.prometheus.asked.wait(scope.HANG))
        self.assertIsNone(self.known.of(HOST, [GPU]))
        self.prometheus.release.set()
        monitored.wait_for('the answer', lambda: self.known.of(
            HOST, [GPU]))
        self.assertEqual(1, len(self.prometheus.urls))

    def test_asks_again(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.utilization._EVERY', 0.01))
        self.known.of(HOST, [GPU])
        monitored.wait_for('a second question',
                           lambda: len(self.prometheus.urls) > 1)

    def test_off(self):
        self.assertIsNone(utilization.Utilization(None).of(HOST, [GPU]))
        self.assertEqual([], self.prometheus.urls)


class TroubleTest(UtilizationCase):

    def test_has_no_effect(self):
        good = dict(vars(self.prometheus))
        for number, changes in enumerate((
                {'status': 500}, {'status': 302}, {'content': b'<html>'},
                {'content': b'[]'}, {'content': b'[' * 100000},
                {'content': b' ' * ((16 << 20) + 1)},
                {'length': 1000000}), 1):
            vars(self.prometheus).update({**good, **changes})
            self.known.ask()
            self.assertIsNone(self.known.of(HOST, [GPU]))
            self.assertEqual(number, self.warnings())
        self.assertNotIn('/elsewhere', self.prometheus.urls)

    def test_slow(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.utilization._DEADLINE', 0.1))
        self.prometheus.release.clear()
        self.known.ask()
        self.assertEqual(1, self.warnings())


class PrometheusTest(base.BaseTestCase):
    """A real Prometheus with the metrics of this library's exporter."""

    def samples(self):
        """The vGPUs of one GPU, and a GPU that is busy without vGPUs."""
        now = time.time()
        for metric, address, vgpus in (
                ('vgpu_utilization_ratio', GPU, ('1', '2')),
                ('utilization_ratio', '0000:3b:00.0', ('',))):
            yield f'# TYPE cyborg_gpu_{metric} gauge\n'
            for vgpu in vgpus:
                for ago, value in (90, 0.2), (60, 0.4):
                    yield (f'cyborg_gpu_{metric}{{Hostname="{HOST}",'
                           f'address="{address}",vgpu="{vgpu}"}} {value} '
                           f'{now - ago}\n')
        yield '# EOF\n'

    def test_it_understands_the_query(self):
        if shutil.which('promtool') is None:
            self.skipTest('there is no prometheus: see bindep.txt')
        found = self.useFixture(monitored.Prometheus(self.samples()))
        known = utilization.Utilization(f'http://{found.address}')
        self.addCleanup(known.stop)
        known.ask()
        self.assertAlmostEqual(0.6, known.of(HOST, [GPU]))
        self.assertAlmostEqual(0.3, known.of(HOST, ['0000:3b:00.0']))
