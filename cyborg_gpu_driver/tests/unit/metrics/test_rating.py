# SPDX-License-Identifier: Apache-2.0

"""The definitions for CloudKitty.

The released CloudKitty reads them where it is installed ("tox -e rating").
Elsewhere the tests compare them with the metrics of the exporter.
"""

import datetime
import fractions
import importlib
import pathlib

import yaml
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.tests.unit.metrics import monitored

_ETC = pathlib.Path(__file__).resolve().parents[4] / 'etc'
_CLOUDKITTY = _ETC / 'cloudkitty/metrics.yml'
_HOUR = 3600


def _read(path):
    return yaml.safe_load(path.read_text(encoding='utf-8'))


class CloudkittyTest(base.BaseTestCase):

    def service(self, name):
        """Return a module of a released service, or skip the test."""
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if error.name != name.partition('.')[0]:
                raise
            self.skipTest(f'{error.name} is not installed: tox -e rating')

    def setUp(self):
        super().setUp()
        (self.metric,) = _read(_CLOUDKITTY)['metrics'][
            definitions.ASSIGNMENT.full_name]
        self.labels = [*self.metric['groupby'], 'project',
                       *self.metric['metadata']]

    def query(self):
        """Return the query of build_query in CloudKitty 25.0.0 for an hour.

        See cloudkitty/collector/prometheus_base.py.
        """
        return (f'sum(sum_over_time({definitions.ASSIGNMENT.full_name}'
                f'{{project="ours"}}[{_HOUR}s])) by '
                f'({", ".join(self.labels)})')

    def test_cloudkitty_takes_it(self):
        collector = self.service(
            'cloudkitty.collector.prometheus').PrometheusCollector
        cfg.CONF.set_override('scope_key', 'project', 'collect')
        self.addCleanup(cfg.CONF.clear_override, 'scope_key', 'collect')
        conf = collector.check_configuration(_read(_CLOUDKITTY))
        ((name, metric),) = conf.items()
        self.assertEqual(f'{definitions.ASSIGNMENT.full_name}@#gpu', name)
        start = datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc)
        self.assertEqual(self.query(), collector.build_query(
            conf, name, start, start + datetime.timedelta(seconds=_HOUR),
            'project', 'ours', metric['groupby'], metric['metadata']))
        units = self.service('cloudkitty.utils')
        self.assertEqual(0.5, float(units.convert_unit(
            30, metric['factor'], metric['offset'])))

    def test_prometheus_counts_hours(self):
        labels = dict.fromkeys(definitions.ASSIGNMENT.labels, 'x')

        def series(minutes, **more):
            text = ','.join(f'{name}="{value}"' for name, value
                            in {**labels, **more}.items())
            return {'series': f'{definitions.ASSIGNMENT.full_name}{{{text}}}',
                    'values': f'_ 1x{minutes - 1}'}

        expected = {**dict.fromkeys(self.labels, 'x'), 'project': 'ours'}
        monitored.promtool(self, {'tests': [{
            'interval': '1m', 'input_series': [
                # Two slices of one project, one of another, one of none.
                series(30, project='ours', handle='1'),
                series(15, project='ours', handle='2'),
                series(59, project='theirs'), series(59, project='')],
            'promql_expr_test': [{
                'expr': self.query(), 'eval_time': '60m', 'exp_samples': [
                    {'labels': '{' + ','.join(
                        f'{name}="{value}"' for name, value
                        in expected.items()) + '}', 'value': 45}]}]}]})
        self.assertEqual(fractions.Fraction(3, 4),
                         45 * fractions.Fraction(self.metric['factor']))
