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


"""tools/hardware-check on the simulated library, under the real pynvml."""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver.simulator.abi import symbols
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.tools import documents
from cyborg_gpu_driver.tests.unit.tools import test_checks

PROGRAM = documents.ROOT / 'tools' / 'hardware-check'
SITE = """\
import os
import sys
import time
sys.path[1:1] = os.environ['SIMULATOR_PATH'].split(os.pathsep)
from cyborg_gpu_driver.simulator.machine import machine
machine.Machine.load(os.environ['SIMULATED_HOST']).install()
import pynvml
if 'HANGING' in os.environ:
    setattr(pynvml, os.environ['HANGING'], lambda gpu: time.sleep(1000))
if 'CRASHING' in os.environ:
    setattr(pynvml, os.environ['CRASHING'], lambda gpu: os.abort())
"""
"""Puts the simulated library under pynvml in any Python that starts with it
on its path."""


class TestAllowed(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.check = test_checks.script('hardware-check')

    def test_it_imports_the_standard_library_and_pynvml_only(self):
        found = set()
        for node in ast.walk(ast.parse(PROGRAM.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module.split('.')[0])
        self.assertEqual({'pynvml'}, found - set(sys.stdlib_module_names))

    def test_a_call_that_changes_something_is_refused(self):
        for name, symbol in symbols.TABLE.items():
            if symbol.writes and not name.startswith((
                    'nvmlEventSet', 'nvmlDeviceRegisterEvents', 'nvmlInit',
                    'nvmlShutdown')):
                self.assertRaises(ValueError, self.check.function_of, name)
        for name in ('nvmlDeviceSetMigMode', 'nvmlDeviceCreateGpuInstance',
                     'nvmlGpuInstanceDestroy', 'nvmlDeviceClearEccErrorCounts',
                     'nvmlDeviceResetGpuLockedClocks', 'nvmlDeviceRemoveGpu',
                     'nvmlDeviceModifyDrainState',
                     'nvmlGpmSetStreamingEnabled',
                     'nvmlDeviceReadWritePRM_v1', 'nvmlSetVgpuVersion',
                     'nvmlDeviceGetConfComputeGpuCertificate',
                     'nvmlDeviceGetNameAndSetMigMode()', ''):
            self.assertRaises(ValueError, self.check.function_of, name)
        self.assertTrue(callable(self.check.function_of('nvmlDeviceGetName')))

    def test_nvidia_smi_only_lists(self):
        for words in self.check.SMI:
            self.assertEqual([], [word for word in words if word in (
                '-pm', '-r', '-mig', '-cgi', '-cci', '-dgi', '-dci', '-e',
                '-pl', '--gpu-reset', '-i', '-c', '-srs', '-sc')
                and words[0] != 'vgpu' and words[0] != 'nvlink'])


class TestStages(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.check = test_checks.script('hardware-check')

    def run_stages(self, host, *names):
        """Return the calls and facts of stages, run in this process."""
        machine = machine_module.Machine.load(host)
        with machine:
            for name in names:
                stream = io.StringIO()
                self.check.STAGES[name][0](
                    self.check.Report(name, set(), stream))
                self.lines = [json.loads(line) for line in
                              stream.getvalue().splitlines()]
        return machine, [line['record'] for line in self.lines
                         if 'record' in line]

    def test_the_calls_change_nothing(self):
        for stage in ('mig', 'product', 'fields', 'links', 'sweep', 'vgpu'):
            machine, calls = self.run_stages('h100nvlx2', stage)
            self.assertTrue(calls, stage)
            self.assertEqual(set(), {
                name for name in machine.calls
                if symbols.TABLE[name].writes} - {
                    'nvmlInitWithFlags', 'nvmlShutdown'})
            self.assertEqual([], [
                record for record in calls
                if record.get('error', {}).get('code', 0) is None])

    def test_profiles_of_version_three_and_placements(self):
        _, calls = self.run_stages('h100nvlx2', 'mig')
        profiles = {record['result']['name']: record['result']
                    for record in calls if 'result' in record
                    and record['call'] ==
                    'nvmlDeviceGetGpuInstanceProfileInfoV'}
        profile = profiles['MIG 3g.47gb']
        self.assertEqual((9, 3), (profile['id'], profile['sliceCount']))
        starts = [record['result'] for record in calls
                  if record['call'] ==
                  'nvmlDeviceGetGpuInstancePossiblePlacements'
                  and record['args'] == ['gpu:0', 9]]
        self.assertEqual([{'start': 0, 'size': 4}, {'start': 4, 'size': 4}],
                         starts[-1])

    def test_each_step_has_the_descriptors(self):
        self.run_stages('t4x4', 'descriptors')
        steps = [line['value'] for line in self.lines
                 if line.get('fact', '').startswith('step ')]
        names = [step['step'] for step in steps]
        self.assertEqual(['start', 'nvmlInit'], names[:2])
        for name in ('nvmlDeviceGetHandleByIndex 3', 'nvmlShutdown',
                     'nvmlInitWithFlags 1', 'nvmlInitWithFlags 2'):
            self.assertIn(name, names)
        self.assertTrue(all(step['open'] for step in steps))


class TestProgram(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.check = test_checks.script('hardware-check')
        self.directory = self.useFixture(fixtures.TempDir())
        with open(self.directory.join('sitecustomize.py'), 'w') as stream:
            stream.write(SITE)

    def set_host(self, **variables):
        variables = {'PYTHONPATH': self.directory.path,
                     'SIMULATED_HOST': 't4x4',
                     'SIMULATOR_PATH': os.pathsep.join(
                         [str(documents.ROOT), *sys.path]), **variables}
        for name, value in variables.items():
            self.useFixture(fixtures.EnvironmentVariable(name, value))

    def collect(self, limit, *stages):
        self.check.STAGES = {name: (self.check.STAGES[name][0], limit)
                             for name in stages}
        with contextlib.redirect_stderr(io.StringIO()):
            return self.check.collect()

    def test_a_call_that_crashes_costs_one_call(self):
        self.set_host(SIMULATED_HOST='h100nvlx2',
                      CRASHING='nvmlDeviceGetSerial')
        found = self.collect(100, 'product')
        self.assertEqual(
            ['nvmlDeviceGetSerial ["gpu:0"]', 'nvmlDeviceGetSerial ["gpu:1"]'],
            [one['last'] for one in found['stages']['product']][:2])
        self.assertIsNone(found['stages']['product'][-1]['last'])
        self.assertEqual({1}, {
            len([record for record in found['calls']
                 if record['call'] == 'nvmlDeviceGetHandleByPciBusId'
                 and record['args'] == ['0000:ff:1f.0']])})

    @scope.only_in_all
    def test_the_whole_program_in_less_than_three_minutes(self):
        self.set_host(SIMULATED_HOST='hgx-h100')
        path = self.directory.join('found.json')
        done = subprocess.run(
            [sys.executable, str(PROGRAM), '--anonymise', '--output', path],
            capture_output=True, text=True, timeout=180)
        self.assertEqual((0, ''), (done.returncode, done.stdout))
        with open(path, encoding='utf-8') as stream:
            found = json.load(stream)
        self.assertEqual(set(self.check.STAGES), set(found['stages']))
        self.assertNotIn('GPU-', json.dumps(found['calls']).replace(
            'GPU-00000000-0000-4000-8000-', ''))
