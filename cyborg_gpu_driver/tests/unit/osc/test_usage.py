# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu usage`` with a real Prometheus."""

import shutil
import time
import uuid

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.osc import usage
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.metrics import monitored
from cyborg_gpu_driver.tests.unit.nova import prometheus
from cyborg_gpu_driver.tests.unit.osc import running

_PHYSICS, _BIOLOGY = (uuid.UUID(int=number).hex for number in (1, 2))
_PROVIDER = '{}_gpu_0000:3b:00.0_1g.10gb'
_STEP = 60
_HOURS = 4
"""How long Prometheus has scraped, up to half an hour ago."""


class _Case(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.EnvironmentVariable(usage._URL))
        self.placed = ['compute1', 'compute2']
        projects = [{'id': _PHYSICS, 'name': 'physics'}]
        self.openstack = running.Openstack(self.useFixture(services.Services({
            'placement': services.documents({
                '/': services.PLACEMENT,
                '/resource_providers': lambda query: {'resource_providers': [
                    {'uuid': name, 'name': _PROVIDER.format(name),
                     'root_provider_uuid': name} for name in self.placed]}}),
            'identity': services.documents({
                '/v3/projects': lambda query: {'projects': [
                    item for item in projects
                    if query in ('', f'name={item["name"]}')]}},
                services.KEYSTONE)})).cloud)

    def run_usage(self, *arguments, code=0):
        return self.openstack.run(usage.ShowUsage, '--prometheus-url',
                                  self.url, *arguments, code=code)

    def rows(self, *arguments, code=0):
        return self.openstack.rows(usage.ShowUsage, '--prometheus-url',
                                   self.url, *arguments, code=code)


class UsageTest(_Case):

    def setUp(self):
        super().setUp()
        if shutil.which('promtool') is None:
            self.skipTest('there is no promtool: see bindep.txt, prometheus')
        self.end = time.time() // _STEP * _STEP - 1800
        found = self.useFixture(monitored.Prometheus(self.samples()))
        self.url = f'http://{found.address}/'

    def samples(self):
        """Two slices of a project on one host, one on another, one unknown.

        Two jobs scrape the first host. The counters do not begin at 0.
        """
        for metric, series in (
                (definitions.TIME, (
                    ('compute1', _PHYSICS, 2, 'a'),
                    ('compute1', _PHYSICS, 2, 'b'),
                    ('compute2', _PHYSICS, 1, 'a'),
                    ('compute2', _BIOLOGY, 0.5, 'a'),
                    ('compute2', '', 1, 'a'))),
                (definitions.BUILD, (('compute1', None, 0, 'a'),
                                     ('compute2', None, 0, 'a')))):
            yield (f'# TYPE {definitions.PREFIX}{metric.name} '
                   f'{metric.kind.value}\n')
            for host, project, speed, job in series:
                labels = {'Hostname': host, 'job': job}
                if project is not None:
                    labels |= {'address': '0000:3b:00.0', 'UUID': 'GPU-1',
                               'profile': '1g.10gb', 'project': project}
                text = ','.join(f'{name}="{value}"'
                                for name, value in labels.items())
                for step in range(_HOURS * 3600 // _STEP + 1):
                    yield (f'{metric.full_name}{{{text}}} '
                           f'{9000 + step * _STEP * speed} '
                           f'{self.end - _HOURS * 3600 + step * _STEP}\n')
        yield '# EOF\n'

    def period(self, hours):
        """The arguments for the last hours before the end."""
        return [word for option, moment in (
            ('--start', self.end - hours * 3600), ('--end', self.end))
            for word in (option, time.strftime('%Y-%m-%dT%H:%M:%SZ',
                                               time.gmtime(moment)))]

    def test_sums(self):
        period = self.period(2)
        self.assertEqual([
            (None, None, '1g.10gb', 2.0),
            ('physics', _PHYSICS, '1g.10gb', 6.0),
            # A project that has been deleted from Keystone.
            (_BIOLOGY, _BIOLOGY, '1g.10gb', 1.0)], [
            (row['Project'], row['Project ID'], row['Profile'],
             round(row['Hours'], 1)) for row in self.rows(*period)])
        self.assertEqual(
            [('compute1', '0000:3b:00.0', 4.0),
             ('compute2', '0000:3b:00.0', 5.0)],
            [(row['Host'], row['GPU'], round(row['Hours'], 1))
             for row in self.rows(*period, '--by', 'gpu')])
        output, _ = self.run_usage(*period, '--project', 'physics', '-f',
                                   'csv')
        first, second = output.splitlines()
        self.assertEqual(
            '"Project","Project ID","Profile","Seconds","Hours"', first)
        self.assertIn(_PHYSICS, second)
        # The project that has been deleted from Keystone.
        (row,) = self.rows(*period, '--project', str(uuid.UUID(_BIOLOGY)))
        self.assertEqual(1.0, round(row['Hours'], 1))
        # All that is recorded.
        (row,) = self.rows('--project', 'physics')
        self.assertLess(abs(12.0 - row['Hours']), 0.1)

    def test_what_is_not_counted(self):
        self.assertRaises(exception.CloudError, self.run_usage, '--project',
                          'chemistry')
        self.placed.append('compute3')
        output, errors = self.run_usage(
            *self.period(1), '--by', 'host', '-f', 'value', code=1)
        self.assertIn('no metrics of host compute3', errors)
        self.assertIn('has to scrape "cyborg-gpu exporter"', errors)
        self.assertEqual(2, len(output.splitlines()))
        _, errors = self.run_usage('--start', '10m', code=1)
        self.assertEqual(3, errors.count('Not counted'))


class AnswerTest(_Case):

    def setUp(self):
        super().setUp()
        self.server = self.useFixture(prometheus.Prometheus())
        self.url = self.server.url

    def complaint(self):
        return str(self.assertRaises(exception.InvalidValue, self.run_usage))

    def test_what_prometheus_refuses(self):
        self.server.status = 400
        self.server.content = (b'{"status": "error", "errorType": "bad_data", '
                               b'"error": "no such thing"}')
        self.assertIn('no such thing', self.complaint())

    def test_no_prometheus(self):
        self.url = ''
        self.assertIn(usage._URL, self.complaint())
        self.url = 'http://127.0.0.1:1'
        self.assertIn('127.0.0.1', self.complaint())

    def test_a_start_that_is_none(self):
        self.assertIn('--start', str(self.assertRaises(
            exception.InvalidValue, self.run_usage, '--start', 'x')))
