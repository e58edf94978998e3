# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu interference``, with small real commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.interference import commands


def _entry(argv):
    try:
        return main.main(argv)
    except SystemExit as error:
        return error.code


class InterferenceCase(commands.CommandsCase):

    def setUp(self):
        super().setUp()
        self.path = self.directory / 'results.json'

    def run_program(self, *arguments, code=0):
        result, output, errors = command.run(
            '--simulate', 'l40sx4', 'interference', *arguments,
            entry=_entry)
        self.assertEqual(code, result, errors)
        return output, errors

    def measure(self, *arguments, code=0):
        return self.run_program(
            'measure', '--repeats', 1, '--warmups', 0, '--output', self.path,
            *arguments, code=code)

    def rows(self, *arguments):
        return json.loads(self.run_program(*arguments, '-f', 'json')[0])

    def write(self, document):
        self.path.write_text(json.dumps(document))


class MeasureTest(InterferenceCase):

    TWO = ('--application', 'a=true', '--application', "b=sh -c 'exit 0'")

    def test_all_pairs(self):
        output, errors = self.measure(*self.TWO, '-f', 'json')
        self.assertEqual(
            [('a', None), ('b', None), ('a', 'a'), ('a', 'b'), ('b', 'a'),
             ('b', 'b')], [(row['Application'], row['Beside'])
                           for row in json.loads(output)])
        self.assertIn('5 of 6 measured, now b beside b', errors)
        document = json.loads(self.path.read_text())
        self.assertEqual(['sh', '-c', 'exit 0'],
                         document['applications']['b']['command'])
        published.parse(document)
        for row in json.loads(output):
            if row['Beside']:
                # None if noise moved such a short run's slowdown out of
                # the limits.
                self.assertEqual(row['Slowdown'], document['slowdown'].get(
                    row['Application'], {}).get(row['Beside']))
        self.assertEqual(json.loads(output),
                         self.rows('predict', '--file', self.path))

    def test_file_of_applications(self):
        file = self.directory / 'applications.yaml'
        file.write_text('version: 1\napplications:\n  a: {command: "true"}\n')
        self.measure('--file', file)
        self.assertEqual(['a'], list(
            json.loads(self.path.read_text())['pairs']))

    def test_nothing_is_measured_twice(self):
        self.measure('--application', f'a={self.counted()}')
        first = self.path.read_text()
        before = self.logged()
        _, errors = self.measure('--application', f'a={self.counted()}')
        self.assertEqual(before, self.logged())
        self.assertNotIn('now a', errors)
        self.assertEqual(first, self.path.read_text())
        self.measure('--application', f'a={self.counted()}', '--force')
        self.assertGreater(len(self.logged()), len(before))

    def test_results_of_other_applications(self):
        self.measure('--application', 'a=true')
        before = self.path.read_text()
        _, errors = self.measure('--application', 'a=false', code=1)
        self.assertIn('--force', errors)
        self.assertEqual(before, self.path.read_text())

    def test_pair_that_fails(self):
        _, errors = self.measure(
            '--application', f'a={self.second_fails()}', code=1)
        self.assertIn('Some pairs failed', errors)
        row = self.rows('predict', '--file', self.path)[1]
        self.assertEqual(('failed', 'a: exit code 7'),
                         (row['Outcome'], row['Problem']))

    def test_ctrl_c(self):
        """Ctrl-C ends the applications and keeps what was measured."""
        os.mkfifo(self.directory / 'ready')
        application = self.script(
            'a', 'echo $$ >> $D/pids; [ "$(wc -l < $D/pids)" -lt 3 ] || '
            '{ : > $D/ready; mkfifo $D/f; read x < $D/f; }')
        process = subprocess.Popen(
            # The tests may run with SIGINT ignored.
            [sys.executable, '-c', 'import signal, sys\nsignal.signal('
             'signal.SIGINT, signal.default_int_handler)\n'
             'from cyborg_gpu_driver.cmd import start\n'
             'sys.exit(start.main())',
             '--simulate', 'l40sx4', 'interference', 'measure',
             '--repeats', '1', '--warmups', '0', '--output', self.path,
             '--application', f"a=sh -c '{application.command[-1]}'"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.addCleanup(process.kill)
        (self.directory / 'ready').read_text()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=scope.HANG)
        self.assertNotEqual(0, process.returncode)
        self.assertIn('1 of 2 steps are in', errors)
        self.assert_ended(self.pids())
        self.assertEqual(
            ['a'], list(json.loads(self.path.read_text())['alone']))

    def counted(self):
        return f"sh -c 'echo x >> {self.log}'"

    def second_fails(self):
        """A command that succeeds only in its first run."""
        return (f"sh -c '[ ! -e {self.directory}/fail ] || exit 7; "
                f": > {self.directory}/fail'")


    def test_wrong_options(self):
        a = '--application', 'a=true'
        for arguments, words, code in (
                ((), '--application', 1),
                (('--application', 'a'), 'NAME=COMMAND', 1),
                ((*a, *a), "'a'", 1), (('--file', '/none'), '/none', 1),
                (('--application', 'a=/none'), 'command of a', 1),
                ((*a, '--repeats', '0'), '--repeats', 2),
                ((*a, '--warmups', '-1'), '--warmups', 2),
                ((*a, '--timeout', 'nan'), '--timeout', 2),
                ((*a, '--oom-exit-code', '256'), '--oom-exit-code', 2)):
            self.assertIn(words, self.measure(*arguments, code=code)[1])
            self.assertFalse(self.path.exists())


class PredictionTest(InterferenceCase):

    def setUp(self):
        super().setUp()
        self.write({
            'alone': {'a': {'seconds': [10, 30, 20], 'gpu_memory_mib': 8},
                      'b': {'seconds': [40], 'gpu_memory_mib': 4}},
            'slowdown': {'a': {'a': 2, 'b': 1}, 'b': {'a': 1, 'b': None}}})

    def test_predict(self):
        rows = self.rows('predict', '--file', self.path, 'a', 'a=10', 'b')
        self.assertEqual(
            [('a', 20.0, 2.0, 30.0), ('a', 10.0, 2.0, 20.0),
             ('b', 40.0, 1.0, 40.0)],
            [(row['Application'], row['Alone'], row['Slowdown'], row['End'])
             for row in rows])

    def test_two_that_do_not_fit(self):
        for arguments in ('b', 'b'), ('a', 'b', '--memory', 11):
            output, errors = self.run_program(
                'predict', '--file', self.path, *arguments)
            self.assertIn('does not fit', output)
            self.assertIn('do not fit together', errors)

    def test_plan(self):
        arguments = ('predict', '--file', self.path, '--gpus', 2, *'aabb')
        rows = self.rows(*arguments)
        self.assertEqual(
            ['predicted'] * 2 + ['pack'] * 2 + ['spread'] * 2,
            [row['Placement'] for row in rows])
        self.assertEqual([['a', 'b'], ['a', 'b']],
                         [sorted(row['Applications']) for row in rows[:2]])
        self.assertEqual({40.0}, {row['Makespan'] for row in rows[:2]})

    def test_pair_whose_slowdown_cannot_be(self):
        self.write({
            'alone': {'a': {'seconds': [1]}},
            'pairs': {'a': {'a': {'seconds': [5000]},
                            'b': {'seconds': [2]}}},
            'slowdown': {'a': {'b': 2}, 'b': {'a': 3}}})
        rows = self.rows('predict', '--file', self.path)
        self.assertEqual(
            [('a', None, None), ('a', 'a', None), ('a', 'b', 2.0),
             ('b', 'a', 3)],
            [(row['Application'], row['Beside'], row['Slowdown'])
             for row in rows])
        self.assertIn('too short', rows[1]['Problem'])

    def test_tables_are_narrow(self):
        for arguments in (('predict', '--file', self.path),
                          ('predict', '--file', self.path, 'a', 'b'),
                          ('predict', '--file', self.path, '--gpus', 2,
                           *'aaaaaabbbb')):
            output = self.run_program(*arguments)[0]
            self.assertLessEqual(max(map(len, output.splitlines())), 80)

    def test_wrong_jobs(self):
        one = {'slowdown': {'a': {'b': 1}}}
        for document, arguments, words in (
                (one, ('c=1',), 'a, b'), (one, ('a',), 'NAME=SECONDS'),
                (one, ('a=0',), 'positive number'),
                (one, ('a=1', '--memory', 5), 'leave --memory out'),
                ({'slowdown': {'a': 1}}, ('a=1',), 'slowdown')):
            self.write(document)
            for gpus in (), ('--gpus', 2):
                self.assertIn(words, self.run_program(
                    'predict', *gpus, '--file', self.path, *arguments,
                    code=1)[1])
