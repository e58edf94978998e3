# SPDX-License-Identifier: Apache-2.0

"""tools/test, with shell scripts in place of the parts."""

import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import fixtures
from oslotest import base

_SCRIPT = pathlib.Path(__file__).resolve().parents[4] / 'tools' / 'test'
_LOG = '''\
{0} tests.LifeTest.test_life(whole GPU) [0.5s] ... ok
{1} tests.LifeTest.test_life(two modes) [1.027933s] ... FAILED

Captured traceback:
~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):

      File "/usr/lib/python3/testtools/case.py", line 1, in run
    self.run()

      File "/cyborg_gpu_driver/tests/test_life.py", line 65, in test_life
    self.boot()
    ^^^^^^^^^

      File "/cyborg_gpu_driver/tests/base.py", line 9, in boot
    self.until(lambda: self.servers())

    tests.MismatchError: !=:
reference = []
actual    = ['a server']


Captured traceback-1:
~~~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):

    ValueError: of a cleanup

{0} tests.OtherTest.test_other [2.0s] ... FAILED

Captured pythonlogging:
~~~~~~~~~~~~~~~~~~~~~~~
    DEBUG [a.logger] KeyError: not this

Captured traceback:
~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):
      File "tests.py", line 1, in test_other
    KeyError: 'x'

{0} tests.OtherTest.test_all ... SKIPPED: tools/test all runs it
======
Totals
======
'''
# The released stestr would find no tests in the tree of the test.
_STESTR = '''\
#!/bin/bash
part=$(basename "$2")
name="cyborg_gpu_driver.tests.Test.test_$part"
if [ "$5" = init ]; then
    mkdir "$4/.stestr"
    exit
fi
[ -e "$4/.stestr" ] || exit 1
if [ "$5" = list ]; then
    echo "$part $*"
    . "./$part.list"
    echo "$name"
    exit
fi
. "./$part.sh"
echo "{0} $name [0.1s] ... ok"
'''
_TEST = 'cyborg_gpu_driver.tests.OtherTest.test_'
# Run a script of this name, but with the environment that the test has made.
_START = '''
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.SourceFileLoader('run', 'tools/test')
run = importlib.util.module_from_spec(
    importlib.util.spec_from_loader('run', loader))
sys.modules['run'] = run
loader.exec_module(run)
run.make_environment = lambda python: None
try:
    sys.exit(run.main(sys.argv[1:]))
except KeyboardInterrupt:
    sys.exit(130)
'''


def _load():
    loader = importlib.machinery.SourceFileLoader('run_all', str(_SCRIPT))
    spec = importlib.util.spec_from_loader('run_all', loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules['run_all'] = module
    loader.exec_module(module)
    return module


class ReaderTest(base.BaseTestCase):

    def test_each_failure_is_named_with_its_exception_and_lines(self):
        run_all = _load()
        reader = run_all.Reader()
        failed = [reader.read(line) for line in _LOG.splitlines(True)]
        self.assertEqual(
            ['tests.LifeTest.test_life(two modes)',
             'tests.OtherTest.test_other'],
            [test for test in failed if test])
        self.assertEqual([
            'FAILED tests.LifeTest.test_life(two modes)',
            '    tests.MismatchError: !=: reference = [] '
            "actual    = ['a server']",
            '    at test_life.py:65 base.py:9',
            'FAILED tests.OtherTest.test_other',
            "    KeyError: 'x'",
        ], [line for failure in reader.results.failures
            for line in run_all.describe(failure)])
        results = reader.results
        # Scenarios of one test have ended as one.
        self.assertEqual((1, 2, 1, 3), (results.passed, results.failed,
                                        results.skipped, results.ended))


class RunTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.root / 'tools').mkdir()
        shutil.copy(_SCRIPT, self.root / 'tools')
        self.write('.venv-test/bin/stestr', _STESTR).chmod(0o755)
        self.write('tools/style', '#!/bin/bash\n. ./style.sh\n').chmod(0o755)
        for part in ('unit', 'nova', 'integration', 'style'):
            self.does(part, ':')
            self.write(f'{part}.list', ':')
        os.mkfifo(self.root / 'meeting')

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def does(self, part, code):
        """Set what a part runs in bash, with the tree as directory."""
        self.write(f'{part}.sh', code)

    def start(self, *arguments, **variables):
        # A test runner in the background may ignore SIGINT.
        return subprocess.Popen(
            ['env', '--default-signal=INT', sys.executable, '-c', _START,
             *arguments], cwd=self.root, env={**os.environ, **variables},
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)

    def run_tests(self, *arguments, code=0, **variables):
        process = self.start(*arguments, **variables)
        output = process.communicate()[0]
        self.assertEqual(code, process.returncode, output)
        return output

    def log(self, part):
        return (self.root / f'.venv-test/logs/{part}.log').read_text()

    def test_a_failed_test_is_named_at_once_and_at_the_end(self):
        self.write('log', _LOG)
        self.does('unit', "cat log; trap 'exit 1' EXIT")
        output = self.run_tests('unit', 'nova', code=1)
        self.assertIn('1 of 2, unit: FAILED tests.OtherTest.test_other\n',
                      output)
        self.assertIn("FAILED tests.OtherTest.test_other\n    KeyError: 'x'\n",
                      output)
        self.assertEqual('3 passed, 2 failed, 1 skipped',
                         output.splitlines()[-1])

    def test_tests_that_are_listed_and_not_run_have_failed(self):
        """As if a process of stestr had died between two tests."""
        self.write('unit.list', f'for i in {{1..9}}; do echo {_TEST}$i; done')
        output = self.run_tests('unit', code=1)
        self.assertIn(f'FAILED 9 of 10 tests did not run\n    {_TEST}1 ',
                      output)
        self.assertEqual('1 passed, 9 failed, 0 skipped',
                         output.splitlines()[-1])

    def test_a_class_that_is_skipped_as_a_whole_has_run(self):
        self.write('unit.list', f'for i in {{1..3}}; do echo {_TEST}$i; done')
        self.does('unit', "echo 'setUpClass (cyborg_gpu_driver.tests."
                          "OtherTest) ... SKIPPED: no helm' | sed 's/^/{0} /'")
        self.assertEqual('1 passed, 0 failed, 1 skipped',
                         self.run_tests('unit').splitlines()[-1])

    def test_ctrl_c_ends_what_runs(self):
        """As from a terminal, the signal reaches the script alone."""
        os.mkfifo(self.root / 'ready')
        self.does('integration', '''
trap 'echo interrupted >result; kill %1; exit 1' INT
sleep 600 &
echo >ready
wait
''')
        process = self.start('integration')
        self.addCleanup(process.stdout.close)
        (self.root / 'ready').read_text()
        os.killpg(process.pid, signal.SIGINT)
        self.assertEqual(130, process.wait())
        self.assertEqual('interrupted\n',
                         (self.root / 'result').read_text())

    def test_a_part_on_demand(self):
        run_all = _load()
        chosen = [[part.name for part in run_all.choose(
            names, sys.executable, everything)] for names, everything in (
                ([], False), ([], True), (['installers'], False))]
        self.assertEqual([False, True, True],
                         ['installers' in parts for parts in chosen])
