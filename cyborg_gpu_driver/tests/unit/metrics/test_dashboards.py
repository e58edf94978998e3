# SPDX-License-Identifier: Apache-2.0

"""Grafana's dashboards: their structure, and their queries on Prometheus."""

import json
import pathlib
import re

import yaml
from oslotest import base

from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.tests.unit.metrics import monitored

_ROOT = pathlib.Path(__file__).resolve().parents[4]
_FILES = sorted((_ROOT / 'etc/grafana').glob('*.json'))
_ALL = '.*'
_OURS = re.compile(r'(?<![\w:])(?:[a-z_]+:)?cyborg_gpu_\w+(?::\w+)?')
_SELECTOR = re.compile(r'([\w:]+)\{([^}]*)\}')
_MATCHER = re.compile(r'(\w+) *(?:=~|!~|!=|=) *"')
_GROUPED = re.compile(r'\b(?:by|on|group_left) *\(([^)]*)\)')
_LABEL_VALUES = re.compile(r'label_values\((.+), *(\w+)\)')
_ALERT_LABELS = {'alertname', 'alertstate', 'severity'}
_DCGM_LABELS = {'gpu', 'UUID', 'Hostname', 'GPU_I_ID', 'GPU_I_PROFILE'}
"""The labels of dcgm-exporter (internal/pkg/rendermetrics) in use here."""
_ENDS = ('', '_bucket', '_count', '_sum')


def _dashboards():
    return [json.loads(path.read_text(encoding='utf-8')) for path in _FILES]


def _panels(dashboard):
    return [panel for panel in dashboard['panels'] if panel['type'] != 'row']


def _variables(dashboard):
    return [item for item in dashboard['templating']['list']
            if item['type'] == 'query']


def _with(expression, values):
    """Return an expression as Grafana sends it."""
    for name, value in values.items():
        expression = expression.replace(f'${name}', value)
    return expression.replace('$__rate_interval', '2m')


class StructureTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        rules = yaml.safe_load(monitored.RULES.read_text(encoding='utf-8'))
        self.recorded = {rule['record']: rule['expr']
                         for group in rules['groups']
                         for rule in group['rules'] if 'record' in rule}
        self.labels = {metric.full_name + end: set(metric.labels)
                       for metric in definitions.ALL for end in _ENDS}
        for labels in (self.labels[metric.full_name + '_bucket']
                       for metric in definitions.ALL
                       if metric.kind is definitions.Kind.HISTOGRAM):
            labels.add('le')
        self.labels['ALERTS'] = _ALERT_LABELS | set(definitions.LABELS)
        for name, expression in self.recorded.items():
            self.labels[name] = self._labels_of(name, expression)

    def _labels_of(self, name, expression):
        """Return the labels that a recording rule's aggregation names."""
        found = re.match(r'\w+ by \(([^)]*)\)', expression)
        if found:
            return set(found[1].replace(' ', '').split(','))
        return self.labels[_OURS.search(expression)[0]]

    def expressions(self):
        for dashboard in _dashboards():
            for panel in _panels(dashboard):
                for target in panel['targets']:
                    yield dashboard, panel, target, target['expr']
            for variable in _variables(dashboard):
                yield dashboard, {}, {}, _LABEL_VALUES.fullmatch(
                    variable['definition'])[1]

    def test_ids_are_unique_and_panels_do_not_overlap(self):
        self.assertEqual(['fleet', 'host', 'project'],
                         [path.stem for path in _FILES])
        dashboards = _dashboards()
        self.assertEqual(3, len({item['uid'] for item in dashboards}))
        for dashboard in dashboards:
            panels = dashboard['panels']
            self.assertEqual(len(panels), len({item['id']
                                               for item in panels}))
            cells = [(x, y) for panel in panels
                     for at in [panel['gridPos']]
                     for x in range(at['x'], at['x'] + at['w'])
                     for y in range(at['y'], at['y'] + at['h'])]
            self.assertEqual(len(cells), len(set(cells)))
            self.assertLess(max(x for x, _ in cells), 24)
            titles = [panel['title'] for panel in panels]
            self.assertEqual(sorted(set(titles)), sorted(titles))

    def test_every_variable_that_is_used_is_there(self):
        for dashboard, _, target, expression in self.expressions():
            known = {item['name'] for item in _variables(dashboard)}
            used = re.findall(r'\$(\w+)', expression
                              + target.get('legendFormat', ''))
            self.assertLessEqual(set(used) - {'__rate_interval'}, known)

    def test_every_label_exists(self):
        for _, panel, target, expression in self.expressions():
            for name, matchers in _SELECTOR.findall(expression):
                self.assertLessEqual(set(_MATCHER.findall(matchers)),
                                     self.labels[name], expression)
            grouped = {label for labels in _GROUPED.findall(expression)
                       for label in re.findall(r'\w+', labels)}
            names = _OURS.findall(expression) or ['ALERTS']
            known = set.union(*(self.labels[name] for name in names),
                              _DCGM_LABELS if 'DCGM_' in expression else ())
            shown = set(re.findall(r'\{\{(\w+)\}\}',
                                   target.get('legendFormat', '')))
            if panel.get('type') == 'table':
                # The columns of the whole panel, which its queries share.
                (shown_only,) = (
                    set(step['options']['include']['names'])
                    for step in panel['transformations']
                    if step['id'] == 'filterFieldsByName')
                self.assertLessEqual(
                    {label for label in shown_only
                     if not label.startswith('Value')},
                    set.union(known, *(
                        self.labels[name] for other in panel['targets']
                        for name in _OURS.findall(other['expr']))),
                    panel['title'])
            self.assertLessEqual(grouped | shown, known, expression)


class SeriesTest(base.BaseTestCase):
    """Queries over series that a test chooses."""

    def check(self, title, series, expected):
        """Check the values of the panel of a host ``h``."""
        (expression,) = (
            target['expr'] for dashboard in _dashboards()
            for panel in _panels(dashboard) if panel['title'] == title
            for target in panel['targets'])
        monitored.promtool(self, {'tests': [{
            'interval': '1m',
            'input_series': [{'series': name, 'values': f'{value}x5'}
                             for name, value in series.items()],
            'promql_expr_test': [{
                'expr': _with(expression, {'host': 'h', 'gpu': _ALL}),
                'eval_time': '5m',
                'exp_samples': [{'labels': labels, 'value': value}
                                for labels, value in expected.items()]}]}]})

    def test_gpus_without_a_uuid_hide_no_other(self):
        """NVML has never read GPUs that were bound to vfio-pci at boot."""
        for title, name in (('Utilisation', 'GPU_UTIL'),
                            ('Power', 'POWER_USAGE'),
                            ('Temperature', 'GPU_TEMP')):
            self.check(title, {
                'cyborg_gpu_info{Hostname="h", address="a", UUID=""}': 1,
                'cyborg_gpu_info{Hostname="h", address="b", UUID=""}': 1,
                'cyborg_gpu_info{Hostname="h", address="c", UUID="u"}': 1,
                f'DCGM_FI_DEV_{name}{{UUID="u"}}': 50},
                {'{address="c", UUID="u"}':
                 0.5 if name == 'GPU_UTIL' else 50})
