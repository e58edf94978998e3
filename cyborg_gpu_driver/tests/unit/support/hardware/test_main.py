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


"""The hardware check: its files, its last line and its exit code."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys

import fixtures

import cyborg_gpu_driver
from cyborg_gpu_driver.support.hardware import main
from cyborg_gpu_driver.tests.unit.support.hardware import base


class TestMain(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.directory, 'found.json')

    def _run(self, *arguments):
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(
                said):
            code = main.main(list(arguments))
        return code, out.getvalue(), said.getvalue()

    def _record(self, host):
        self.assertEqual(0, self._run('--simulate', host, '--output',
                                      self.path)[0])
        with open(self.path, encoding='utf-8') as stream:
            return json.load(stream)

    def _store(self, found):
        with open(self.path, 'w', encoding='utf-8') as stream:
            json.dump(found, stream)

    def test_to_standard_output(self):
        code, out, said = self._run('--simulate', 't4x4', '--output', '-')
        self.assertEqual(0, code)
        self.assertEqual(4, len(json.loads(out)['library']['gpu list'][
            'rows']))
        self.assertIn('NVML calls', said)

    def test_a_machine_without_gpus(self):
        empty = os.path.join(self.directory, 'sys')
        os.mkdir(empty)
        config = os.path.join(self.directory, 'cyborg.conf')
        pathlib.Path(config).write_text(f'[gpu]\nsysfs_root = {empty}\n')
        code, out, _ = self._run('--config-file', config, '--output', '-')
        found = json.loads(out)
        self.assertEqual(0, code)
        self.assertEqual({}, found['sysfs']['functions'])
        self.assertIn('release', found['system']['kernel'])

    def test_default_name_of_the_file(self):
        self.useFixture(fixtures.MonkeyPatch('socket.gethostname',
                                             lambda: 'host7'))
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.directory)
        self._run('--simulate', 't4x4')
        self._run('--simulate', 't4x4', '--anonymise')
        self.assertEqual(
            ['hardware-check-anonymous.json', 'hardware-check-host7.json'],
            sorted(os.listdir(self.directory)))
        self.assertIn('host7', pathlib.Path(
            'hardware-check-host7.json').read_text())
        self.assertNotIn('host7', pathlib.Path(
            'hardware-check-anonymous.json').read_text())

    def test_a_model_does_not_differ_from_itself(self):
        for host, name in (('a30x4', 'a30'), ('t4x4', 't4'),
                           ('mixed', 'h100-80'),
                           ('rtxpro6000x8', 'rtx-pro-6000')):
            self._record(host)
            code, out, said = self._run('--compare', self.path, name)
            self.assertEqual((0, ''), (code, out))
            self.assertIn('0 differences', said)

    def test_only_boards_of_the_models_kind_are_compared(self):
        self._record('mixed')
        _, _, said = self._run('--compare', self.path, 'a100-80')
        self.assertEqual(1, said.count('gpu:'))

    def test_differences_are_listed(self):
        found = self._record('a30x4')
        for record in found['nvml']:
            if (record['call'] == 'nvmlDeviceGetGpuInstanceProfileInfo'
                    and record['args'] == ['gpu:2', 0, 2]):
                record['result']['memorySizeMB'] = 5950
            if (record['call'] == 'nvmlDeviceGetGpuInstancePossiblePlacements'
                    and record['args'] == ['gpu:2', 5]):
                record['result'].pop()
        self._store(found)
        code, out, said = self._run('--compare', self.path, 'a30')
        self.assertEqual(1, code)
        self.assertIn('2 differences', said)
        lines = out.splitlines()
        self.assertEqual(['gpu', 'fact', 'recorded', 'simulated'],
                         lines[0].split())
        self.assertIn('gpu:2  GPU instance profile 0 memory_mib', lines[1])
        self.assertEqual(['placements', '0:2', '0:2', '2:2'],
                         lines[2].split()[-4:])

    def test_an_error_code_is_compared_too(self):
        found = self._record('a30x4')
        for record in found['nvml']:
            if (record['call'] == 'nvmlDeviceGetGpuInstanceProfileInfo'
                    and record['args'][:2] == ['gpu:0', 4]):
                record['error'] = {'code': 2, 'symbol': 'INVALID_ARGUMENT'}
        self._store(found)
        code, out, _ = self._run('--compare', self.path, 'a30')
        self.assertEqual(1, code)
        self.assertIn('INVALID_ARGUMENT', out)

    def test_what_cannot_be_compared(self):
        self._store({'kind': 'something else'})
        code, _, said = self._run('--compare', self.path, 'a30')
        self.assertEqual(2, code)
        self.assertIn(self.path, said)
        self._record('a30x4')
        code, _, said = self._run('--compare', self.path, 'a31')
        self.assertEqual(2, code)
        self.assertIn('a31', said)

    def test_it_runs_without_cyborg(self):
        program = (
            'import sys\n'
            'sys.modules["cyborg"] = None\n'
            'from cyborg_gpu_driver.support.hardware import main\n'
            'sys.exit(main.main(sys.argv[1:]))\n')
        root = pathlib.Path(cyborg_gpu_driver.__file__).parent.parent
        done = subprocess.run(
            [sys.executable, '-c', program, '--simulate', 't4x4',
             '--output', self.path],
            cwd=root, capture_output=True, text=True, timeout=120)
        self.assertEqual((0, ''), (done.returncode, done.stdout))
        with open(self.path, encoding='utf-8') as stream:
            views = json.load(stream)['library']
        self.assertEqual([None] * 4,
                         [view.get('error') for view in views.values()])
