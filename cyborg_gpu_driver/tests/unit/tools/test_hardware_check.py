# SPDX-License-Identifier: Apache-2.0


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

from cyborg_gpu_driver.simulator import abi
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.tools import documents
from cyborg_gpu_driver.tests.unit.tools import test_checks

PROGRAM = documents.ROOT / 'tools' / 'hardware-check'
RECORDED = (documents.ROOT / 'cyborg_gpu_driver' / 'tests' / 'data' / 'real'
            / 'h200-580.159.04.json')
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
        for name, symbol in abi.TABLE.items():
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
                if abi.TABLE[name].writes} - {
                    'nvmlInitWithFlags', 'nvmlShutdown'})
            self.assertEqual([], [
                record for record in calls
                if record.get('error', {}).get('code', 0) is None])


class TestFile(base.BaseTestCase):
    """--compare and --anonymise of a recorded file."""

    def setUp(self):
        super().setUp()
        self.check = test_checks.script('hardware-check')
        self.path = self.useFixture(fixtures.TempDir()).join('found.json')
        with open(RECORDED, encoding='utf-8') as stream:
            self.found = json.load(stream)

    def run_program(self, *arguments):
        """Return the exit code and the output for the changed record."""
        with open(self.path, 'w', encoding='utf-8') as stream:
            json.dump(self.found, stream)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = self.check.main([*arguments, self.path])
        return code, out.getvalue()

    def refuted(self):
        """Return the claims that the changed record refutes."""
        code, output = self.run_program('--compare')
        lines = [line for line in output.splitlines()
                 if line.startswith('REFUTED')]
        self.assertEqual(int(bool(lines)), code)
        return [line.split(None, 1)[1].partition(':')[0] for line in lines]

    def steps(self, name):
        return [step for step in self.found['facts']['descriptors'].values()
                if step['step'] == name]

    def test_nodes_that_are_open(self):
        for step in self.steps('nvmlInit'):
            step['open'].remove('/dev/nvidia0')
        for name in ('nvmlShutdown', 'nvmlInitWithFlags 2'):
            for step in self.steps(name):
                step['open'].append('/dev/nvidia0')
        self.steps('nvmlEventSetFree')[0]['open'].append('/dev/nvidia0')
        self.assertEqual(
            ['nvmlInit opens the node of each GPU',
             'nvmlShutdown closes all nodes',
             'an event set keeps no node open once it is free',
             'nvmlInitWithFlags(NO_GPUS) opens the nodes too, NO_ATTACH '
             'opens none'], self.refuted())

    def test_what_nvml_answers(self):
        refusal = {'code': 4, 'symbol': 'NO_PERMISSION'}
        for record in self.found['calls']:
            if record['call'] == 'nvmlDeviceGetGpuInstances':
                if record['stage'] == 'nobody':
                    record['error'] = refusal
            elif record['call'] == 'nvmlInit':
                record['seconds'] = 31
            elif record['call'] == 'nvmlDeviceGetRemappedRows':
                record['error'] = record.pop('result') and refusal
            elif record['call'] == 'nvmlDeviceGetArchitecture':
                record['result'] = 7
        listing = self.found['facts']['smi']['nvidia-smi mig -lgip']
        listing['out'] = listing['out'].replace('1g.18gb+me      20',
                                                '1g.18gb+me      21')
        self.assertEqual(
            ['a user without rights reads the same about MIG',
             'MIG mode changes without a reset from Hopper (architecture 9) '
             'on', 'each call ends within 30 s',
             'the first session of an idle machine begins within 3.7 s',
             'nvidia-smi lists the same MIG profiles as NVML',
             'row remapping, recovery action and module id can be read'],
            self.refuted())

    def test_a_recorded_file_without_identities(self):
        gpu = 'GPU-8f9b4e3a-1111-4222-8333-444455556666'
        self.found.update(
            hostname='compute7', anonymised=False, calls=[
                {'stage': 'sweep', 'call': call, 'args': [], 'result': result}
                for call, result in (
                    ('nvmlDeviceGetUUID', gpu),
                    ('nvmlDeviceGetSerial', '1320021'),
                    ('nvmlDeviceGetPdi', 4711471147114711))],
            facts={
                'host': {'kernel': {'release': '6.8.0-acme-7',
                                    'node': 'compute7'}},
                'pci': {'pci/0': {'values': {'serial_number': '42-a1'}}},
                'holders': {'holders': [
                    {'pid': 4712, 'name': 'acme-train', 'open': []},
                    {'pid': 4713, 'name': 'nv-hostengine', 'open': []}]},
                'smi': {'-q -x': f'<serial>1320021</serial><uuid>{gpu}</uuid>'
                                 '<process_name>acme</process_name>'},
                'sweep': {'clusterUuid': [0, 0], 'ibGuid': 'cafe'},
                'driver': {'version': 'Release Build  (joe@acme)'}})
        code, output = self.run_program('--anonymise')
        self.assertEqual(0, code)
        for word in (gpu, '1320021', '4711', '471', 'compute7', 'acme',
                     '42-a1', 'cafe', 'joe'):
            self.assertNotIn(word, output)
        found = json.loads(output[:output.rindex('}') + 1])
        self.assertTrue(found['anonymised'])
        # What is the same stays the same, and what is empty stays so.
        self.assertIn(found['calls'][0]['result'],
                      found['facts']['smi']['-q -x'])
        self.assertEqual({'clusterUuid': False, 'ibGuid': True},
                         found['facts']['sweep'])
        self.assertEqual('6.8.0', found['facts']['host']['kernel']['release'])
        self.assertEqual(
            ['another program', 'nv-hostengine'],
            [item['name'] for item in found['facts']['holders']['holders']])


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

    def test_a_few_stages_and_the_json(self):
        self.set_host()
        self.check.STAGES = {name: self.check.STAGES[name]
                             for name in ('host', 'driver', 'product')}
        path = self.directory.join('found.json')
        with contextlib.redirect_stderr(io.StringIO()):
            code = self.check.main(['--output', path, '--anonymise'])
        self.assertEqual(0, code)
        found = self.check.loads(path)
        self.assertTrue(found['anonymised'])
        self.assertEqual({'host', 'driver', 'product'}, set(found['stages']))
        self.assertEqual([None] * 3, [
            one['last'] for (one,) in found['stages'].values()])
        self.assertEqual(4, len([
            record for record in found['calls']
            if record['call'] == 'nvmlDeviceGetHandleByUUID']))

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
