# SPDX-License-Identifier: Apache-2.0

"""Prometheus' rules and the names of metrics."""


import yaml
from oslotest import base

from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.tests.unit.metrics import monitored

_RULES = monitored.RULES
_OFFER = 'mode="mig", profile="1g.10gb", resource_class="R"'
_EACH = 430
"""Minutes of a series."""
_ALERTS = (
    ('DisabledButOpen', 'address="a", profile="1g.10gb", severity="critical"',
     (f'offer_open{{address="a", {_OFFER}}}', 1, 0),
     ('cordoned{address="a"}', 1, 1)),
    ('UnhealthyInUse', 'address="a", severity="critical"',
     ('healthy{address="a"}', 0, 0),
     ('assignment_info{address="a", handle="x"}', 1, None),
     ('assignment_info{address="b", handle="x"}', None, 1)),
    ('Unhealthy', 'address="a", severity="warning"',
     ('healthy{address="a"}', 0, 1)),
    ('Drift', 'kind="vgpu-gone", severity="warning"',
     ('drift{kind="vgpu-gone"}', 2, 0)),
    ('NoReport', 'severity="critical"',
     ('last_report_timestamp_seconds{}', 0, f'0+60x{_EACH}')),
    ('DeadlineMissed', 'severity="warning"',
     ('nvml_missed_deadlines_total{}', '0x415 1x10', 3)),
    ('BindsFail', 'severity="warning"',
     ('operations_total{operation="bind", result="refused"}',
      f'0+1x{_EACH}', None),
     ('operations_total{operation="bind", result="success"}',
      None, f'0+1x{_EACH}'),
     ('operations_total{operation="unbind", result="late"}',
      None, f'0+1x{_EACH}')),
    ('UnbindsStuck', 'address="a", severity="warning"',
     ('claims{address="a", phase="unbinding"}', 1, 0),
     ('claims{address="a", phase="bound"}', None, 1)),
    ('Unclean', 'address="a", severity="warning"',
     ('unclean{address="a"}', 1, 0)),
    ('CapacityExhausted', 'profile="1g.10gb", severity="warning"',
     (f'offer_open{{address="a", {_OFFER}}}', 0, 0),
     (f'offer_open{{address="b", {_OFFER}}}', None, 1),
     (f'offer_capacity{{address="a", {_OFFER}}}', 7, 7)),
    ('Fragmented', 'address="a", severity="info"',
     ('mig_free_slices{address="a"}', 4, 4),
     ('mig_largest_creatable_slices{address="a"}', 2, 3)),
    ('RecordsUnreadable', 'severity="warning"',
     ('unreadable_records{}', 1, 0), ('unwritten_records{}', None, 0)),
)
"""Each alert with labels, and series of a host: the values with which it
fires, and those with which it does not."""


class RulesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        groups = yaml.safe_load(_RULES.read_text(encoding='utf-8'))['groups']
        self.rules = [rule for group in groups for rule in group['rules']]

    def check(self, *tests):
        """Let promtool evaluate the rules, which it also checks.

        :param tests: each with its series, and the expected value by query.
        """
        monitored.promtool(self, {
            'rule_files': [str(_RULES)],
            # Each evaluation takes time. The times of the rules are
            # multiples of it.
            'evaluation_interval': '5m',
            'tests': [{
                'interval': '1m',
                'input_series': [
                    {'series': 'cyborg_gpu_' + name, 'values': (
                        value if isinstance(value, str)
                        else f'{value}x{_EACH}')}
                    for name, value in series],
                'promql_expr_test': [
                    {'expr': query, 'eval_time': '7h', 'exp_samples': [
                        {'labels': '{}', 'value': value}] if value else []}
                    for query, value in expected.items()]}
                for series, expected in tests]})

    def test_each_alert_fires_when_it_should_and_only_then(self):
        self.assertEqual(
            [rule['alert'] for rule in self.rules if 'alert' in rule],
            [f'CyborgGpu{name}' for name, *_ in _ALERTS])
        self.check(*(
            ([(series[0].replace('{', '{Hostname="h", '), series[1 + quiet])
              for series in given if series[1 + quiet] is not None],
             {f'count(ALERTS{{alertname="CyborgGpu{name}", {labels}, '
              'alertstate="firing"})': int(not quiet)})
            for name, labels, *given in _ALERTS for quiet in (False, True)))

    def test_parts_of_gpus_by_project(self):
        """Two of seven slices, half of another GPU, a whole one, and a group
        of two GPUs, which only its first GPU offers.
        """
        def capacity(host, profile, value):
            return (f'offer_capacity{{Hostname="{host}", address="a", '
                    f'profile="{profile}"}}', value)

        self.check(([(
            f'assignment_info{{Hostname="{host}", address="{address}", '
            f'profile="{profile}", project="{project}", handle="{handle}"}}',
            1) for host, address, profile, project, handle in (
                ('h', 'a', '1g.10gb', 'p', 1), ('h', 'a', '1g.10gb', 'p', 2),
                ('h', 'a', '3g.40gb', 'q', 3),
                ('i', 'a', 'passthrough', 'p', 4),
                ('j', 'a', 'nvlink-2', 'q', 5),
                ('j', 'b', 'nvlink-2', 'q', 5))] + [
            capacity('j', 'nvlink-2', 1), capacity('h', '1g.10gb', 7),
            capacity('h', '3g.40gb', 2), capacity('i', 'passthrough', 1)],
            {f'sum({name}{{profile="{profile}", project="{project}"}})': value
             for profile, project, count, gpus in (
                 ('1g.10gb', 'p', 2, 4), ('3g.40gb', 'q', 1, 7),
                 ('nvlink-2', 'q', 2, 28), ('passthrough', 'p', 1, 14))
             for name, value in (
                 ('project_profile:cyborg_gpu_assignments:count', count),
                 ('14 * project_profile:cyborg_gpu_gpus:sum', gpus))}))

    def test_prometheus_can_load_the_whole_directory(self):
        for path in _RULES.parent.iterdir():
            self.assertEqual(
                {'groups'}, set(yaml.safe_load(path.read_text('utf-8'))))


class NamesTest(base.BaseTestCase):

    def test_names_follow_the_conventions(self):
        for metric in definitions.ALL:
            self.assertRegex(metric.name, '^[a-z]+(_[a-z]+)*$')
            self.assertFalse(metric.name.endswith('_total'), metric.name)
            self.assertTrue(metric.help.endswith('.'), metric.name)
            if metric.kind is definitions.Kind.HISTOGRAM:
                self.assertTrue(metric.name.endswith('_seconds'))
            self.assertLessEqual(set(metric.labels),
                                 set(definitions.LABELS))
