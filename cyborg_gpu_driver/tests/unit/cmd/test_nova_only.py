# SPDX-License-Identifier: Apache-2.0

"""A host of a site without Cyborg: no module of Cyborg can be imported."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests import scope

_PROGRAM = """
import json, pathlib, sys
sys.modules['cyborg'] = None
from cyborg_gpu_driver.tests import command
for line in sys.stdin:
    arguments = json.loads(line)
    if arguments[0] == 'reboot':
        pathlib.Path(arguments[1]).unlink()
    else:
        print(json.dumps(command.run('--config-file', *arguments)))
"""
_LAYOUT = """
version: v1
mig-configs:
  halves:
    - devices: [0]
      mig-enabled: true
      mig-devices: {2g.12gb: 2}
"""


class NovaOnlyTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.work = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def conf(self, host, more=''):
        path = self.work / f'{host}.conf'
        path.write_text(
            '[agent]\nenabled_drivers = cyborg_gpu_driver\n'
            f'[gpu]\nsimulate = {host}\nstate_path = {self.work}/{host}\n'
            f'simulate_state = {self.work}/{host}.json\n{more}')
        return str(path)

    def reboot(self, host):
        return ['reboot', f'{self.work}/{host}.json']

    def results(self, *commands):
        """Return the output of each command, which all succeed."""
        done = subprocess.run(
            [sys.executable, '-c', _PROGRAM], text=True, capture_output=True,
            input=''.join(json.dumps(line) + '\n' for line in commands),
            check=False, timeout=scope.HANG)
        self.assertEqual(0, done.returncode, done.stderr)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([0] * len(results), [code for code, *_ in results],
                         results)
        return [output for _, output, _ in results]

    def test_fixed_vgpus(self):
        conf = self.conf('l40sx4', 'policies = render\n'
                         '[gpu_policy:render]\nmode = vgpu\n'
                         'fixed_vgpus = L40S-12Q:4\n')
        vgpus = [conf, 'vgpu', 'list', '--without-cloud', '-f', 'json']
        metrics = self.work / 'gpu.prom'
        _, before, nova, _, again, after = self.results(
            [conf, 'gpu', 'prepare', '--all'], vgpus, [conf, 'nova', 'config'],
            [conf, 'exporter', '--textfile', str(metrics)],
            self.reboot('l40sx4'), [conf, 'layout', 'restore'], vgpus)
        self.assertEqual(16, len(json.loads(before)))
        self.assertEqual(16, nova.count('device_spec = '))
        self.assertIn('cyborg_gpu_', metrics.read_text())
        self.assertEqual(4, again.count(' changed'))
        self.assertEqual(before, after)

    def test_layout(self):
        conf = self.conf('a30x4')
        layouts = self.work / 'layouts.yaml'
        layouts.write_text(_LAYOUT)
        self.results(
            [conf, 'layout', 'apply', '--layout-file', str(layouts),
             '-c', 'halves'], self.reboot('a30x4'),
            [conf, 'layout', 'restore'],
            # It succeeds if the layout is in effect.
            [conf, 'layout', 'plan', '--layout-file', str(layouts),
             '-c', 'halves'])
