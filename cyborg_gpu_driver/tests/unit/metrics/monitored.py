# SPDX-License-Identifier: Apache-2.0

"""A real Prometheus and promtool, an agent, and what the exporter shows."""

import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import fixtures
import prometheus_client
import yaml
from oslo_config import cfg
from prometheus_client import parser

from cyborg_gpu_driver import agent
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.tests import scope

RULES = pathlib.Path(__file__).resolve().parents[4] / (
    'etc/prometheus/rules.yaml')


def samples(collector):
    """Return the samples of a scrape: name to list of (labels, value)."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    found = {}
    for family in parser.text_string_to_metric_families(
            prometheus_client.generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(
                (sample.labels, sample.value))
    return found


def start_agent(state_path, placement, **options):
    """Return an agent on a simulated host, with options of ``[gpu]``."""
    conf = cfg.ConfigOpts()
    gpu_conf.register_opts(conf)
    conf([], default_config_files=[])
    for name, value in {'state_path': state_path, 'health_events': False,
                        'clean_poll_interval': 0, **options}.items():
        conf.set_override(name, value, group='gpu')
    return agent.Agent(conf, policies.read(conf), 'host1', placement)


def promtool(test, content):
    """Run a test of rules or queries in promtool."""
    if shutil.which('promtool') is None:
        test.skipTest('there is no promtool: see bindep.txt, prometheus')
    path = test.useFixture(fixtures.TempDir()).join('test.yaml')
    with open(path, 'w', encoding='utf-8') as stream:
        yaml.safe_dump(content, stream)
    done = subprocess.run(
        ['promtool', 'test', 'rules', path], text=True, capture_output=True,
        check=False, timeout=scope.HANG)
    test.assertEqual(0, done.returncode, done.stdout + done.stderr)


def wait_for(what, condition):
    """Wait for the first answer of ``condition`` that is true, and return it.

    :raises AssertionError: with ``what``, after a minute.
    """
    end = time.monotonic() + scope.HANG
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f'waited in vain: {what}')
        time.sleep(0.05)


class Prometheus(fixtures.Fixture):
    """A real Prometheus.

    :param samples: lines of OpenMetrics with the samples that it has.
    """

    def __init__(self, samples):
        super().__init__()
        self._samples = samples

    def _setUp(self):
        directory = self.useFixture(fixtures.TempDir()).path
        samples, config, data = (os.path.join(directory, name) for name in (
            'samples', 'prometheus.yml', 'data'))
        with open(samples, 'w', encoding='utf-8') as stream:
            stream.writelines(self._samples)
        with open(config, 'w', encoding='utf-8') as stream:
            stream.write('{}')
        subprocess.run(['promtool', 'tsdb', 'create-blocks-from',
                        'openmetrics', samples, data], check=True,
                       capture_output=True)
        self._log = os.path.join(directory, 'log')
        with open(self._log, 'wb') as stream:
            process = subprocess.Popen(
                ['prometheus', f'--config.file={config}',
                 f'--storage.tsdb.path={data}',
                 '--web.listen-address=127.0.0.1:0'],
                stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self._process = process
        self.address = wait_for('Prometheus listens', self._listens)
        wait_for('Prometheus is ready', self._is_ready)

    def _listens(self):
        with open(self._log, encoding='utf-8') as stream:
            text = stream.read()
        if self._process.poll() is not None:
            raise AssertionError(f'Prometheus has ended: {text}')
        found = re.search(r'msg="Listening on".* address=(\S+)', text)
        return found and found[1]

    def _is_ready(self):
        try:
            with urllib.request.urlopen(f'http://{self.address}/-/ready',
                                        timeout=scope.HANG):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
