# SPDX-License-Identifier: Apache-2.0

"""Prometheus' rules, the names of metrics and the exporter's unit."""

import configparser
import pathlib
import shlex
import shutil
import subprocess

import yaml
from oslotest import base

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.tests import scope

_ROOT = pathlib.Path(__file__).resolve().parents[4]
_RULES = _ROOT / 'etc/prometheus/rules.yaml'
_TESTS = pathlib.Path(__file__).with_name('rules.test.yaml')
_UNIT = _ROOT / 'etc/systemd/cyborg-gpu-exporter.service'
_DROP_IN = _ROOT / 'etc/systemd-drop-ins/cyborg-gpu-exporter-nvml.conf'


class RulesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        groups = yaml.safe_load(_RULES.read_text(encoding='utf-8'))['groups']
        self.rules = [rule for group in groups for rule in group['rules']]

    def test_each_alert_fires_when_it_should_and_only_then(self):
        """promtool also checks the rules before it tests them."""
        if shutil.which('promtool') is None:
            self.skipTest('there is no promtool: see bindep.txt, prometheus')
        done = subprocess.run(
            ['promtool', 'test', 'rules', str(_TESTS)], text=True,
            capture_output=True, check=False, timeout=scope.HANG)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_prometheus_can_load_the_whole_directory(self):
        for path in _RULES.parent.iterdir():
            self.assertEqual(
                {'groups'}, set(yaml.safe_load(path.read_text('utf-8'))))

    def test_each_alert_has_a_test_of_both(self):
        tests = yaml.safe_load(_TESTS.read_text(encoding='utf-8'))['tests']
        found = sorted(
            (case['alertname'], bool(case['exp_alerts']))
            for test in tests for case in test.get('alert_rule_test', ()))
        self.assertEqual(sorted(
            (rule['alert'], fires) for rule in self.rules
            if 'alert' in rule for fires in (False, True)), found)

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


class UnitTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.service = _read(_UNIT)['Service']

    def test_systemd_understands_it(self):
        if shutil.which('systemd-analyze') is None:
            self.skipTest('there is no systemd-analyze')
        done = subprocess.run(
            ['systemd-analyze', 'verify', str(_UNIT)], capture_output=True,
            text=True, check=False, timeout=scope.HANG)
        self.assertEqual((0, ''), (done.returncode, done.stderr))

    def test_it_runs_our_exporter(self):
        words = shlex.split(self.service['ExecStart'])
        self.assertEqual(['/usr/bin/env', 'cyborg-gpu', '--config-file',
                          '/dev/null', 'exporter'], words[:5])
        app = main.CyborgGpu()
        factory, name, rest = app.command_manager.find_command(words[4:-2])
        parser = factory(app, None).get_parser(name)
        parsed = parser.parse_args(rest)
        self.assertEqual(('/var/lib/cyborg/gpu', False),
                         (parsed.state_path, parsed.nvml))
        self.assertEqual(['$HARDWARE', '$OPTIONS'], words[-2:])
        added = _read(_DROP_IN)['Service']
        name, _, option = added['Environment'].partition('=')
        self.assertEqual('HARDWARE', name)
        self.assertTrue(parser.parse_args([*rest, option]).nvml)

    def test_the_drop_in_opens_nvidias_devices_and_no_others(self):
        added = _read(_DROP_IN)['Service']
        self.assertEqual(
            {'PrivateDevices': 'no', 'DevicePolicy': 'closed',
             'DeviceAllow': 'char-nvidia* rw'},
            {name: value for name, value in added.items()
             if name != 'Environment'})

def _read(unit):
    """Return a systemd unit by section."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(unit.read_text(encoding='utf-8').replace('\\\n', ''))
    return parser
