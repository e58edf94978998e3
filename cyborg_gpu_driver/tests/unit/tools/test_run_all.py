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

"""How ``tools/test`` runs environments, with a script instead of tox."""

import os
import pathlib
import shutil
import signal
import subprocess

import fixtures
from oslotest import base

_SCRIPT = pathlib.Path(__file__).resolve().parents[4] / 'tools' / 'test'
_TOX = '''\
#!/bin/bash
environment=${!#}
echo "begin $environment"
. "./$environment.sh"
echo "- Passed: 2"
echo "end $environment"
'''


class RunTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.root / 'tools').mkdir()
        shutil.copy(_SCRIPT, self.root / 'tools')
        self.write('.venv-test/bin/tox', _TOX).chmod(0o755)
        for environment in ('py3', 'docs', 'integration', 'baremetal'):
            self.does(environment, ':')
        os.mkfifo(self.root / 'meeting')

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def does(self, environment, code):
        """Set what an environment runs in bash, with the tree as directory."""
        self.write(f'{environment}.sh', code)

    def start(self, *environments, **variables):
        # A test runner in the background may ignore SIGINT.
        return subprocess.Popen(
            ['env', '--default-signal=INT', 'bash', '-c',
             '. tools/test; make_venv() { :; }; main "$@"',
             '-', *environments], cwd=self.root,
            env={**os.environ, **variables}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)

    def run_tests(self, *environments, code=0, **variables):
        process = self.start(*environments, **variables)
        output = process.communicate()[0]
        self.assertEqual(code, process.returncode, output)
        return output

    def test_unit_is_another_name_of_py3(self):
        output = self.run_tests('unit')
        self.assertIn('begin py3\n', output)
        self.assertIn('all of py3 passed\n2 passed, 0 failed', output)

    def test_waiting_environments_run_beside_the_others(self):
        """Each end of a pipe waits until the other end is opened."""
        self.does('py3', 'echo met >meeting')
        self.does('baremetal', 'cat meeting')
        output = self.run_tests('py3', 'integration', 'baremetal', 'docs')
        lines = [line for line in output.splitlines()
                 if line.startswith(('begin', 'end', 'met'))]
        self.assertEqual(
            ['begin py3', 'end py3', 'begin docs', 'end docs',
             'begin integration', 'end integration',
             'begin baremetal', 'met', 'end baremetal'], lines)
        self.assertEqual('8 passed, 0 failed, 0 skipped',
                         output.splitlines()[-1])

    def test_failure_beside_the_others_is_counted(self):
        self.does('integration', 'exit 3')
        output = self.run_tests('py3', 'integration', 'baremetal', code=1)
        self.assertIn('integration ended with 3', output)
        self.assertIn('FAILED: integration (see', output)
        self.assertEqual('4 passed, 1 failed, 0 skipped',
                         output.splitlines()[-1])

    def test_environment_that_hangs_is_interrupted(self):
        os.mkfifo(self.root / 'never')
        self.does('integration', 'exec cat never')
        output = self.run_tests('integration', code=1, DEADLINE='1')
        self.assertIn('integration was interrupted, 1 s after the start',
                      output)
        self.assertIn('FAILED: integration (see', output)

    def test_ctrl_c_ends_what_runs_beside(self):
        """As from a terminal, the signal goes to the process group."""
        os.mkfifo(self.root / 'ready')
        self.does('py3', 'echo >meeting; sleep 600')
        self.does('integration', '''
trap 'echo interrupted >result; kill %1; exit 1' INT
sleep 600 &
cat meeting >ready
wait
''')
        process = self.start('py3', 'integration')
        self.addCleanup(process.stdout.close)
        (self.root / 'ready').read_text()
        os.killpg(process.pid, signal.SIGINT)
        self.assertEqual(130, process.wait())
        self.assertEqual('interrupted\n',
                         (self.root / 'result').read_text())

    def test_temporary_files_in_memory_go_away(self):
        self.does('py3', 'echo "in ${TMPDIR:-}"; touch "$TMPDIR/left"')
        output = self.run_tests('py3', TMPDIR='')
        (directory,) = [line.removeprefix('in ')
                        for line in output.splitlines()
                        if line.startswith('in ')]
        if not directory:
            self.skipTest('no room in /dev/shm')
        self.assertTrue(directory.startswith('/dev/shm/'), directory)
        self.assertFalse(os.path.exists(directory))

    def test_given_directory_is_kept(self):
        self.does('py3', 'echo "in $TMPDIR"')
        output = self.run_tests('py3', TMPDIR=str(self.root))
        self.assertIn(f'in {self.root}\n', output)
