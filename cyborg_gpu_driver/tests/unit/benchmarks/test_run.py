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

"""The program that shows all benchmarks in one table."""

import contextlib
import io
import json
import pathlib

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

run = test_packing.program('run')
figures = run.figures


class FigureTest(base.BaseTestCase):

    def cells(self, **fields):
        return figures.cells(figures.Figure('a', **fields))

    def test_ratio_to_the_baseline(self):
        self.assertEqual(('a', '3', 'ms', '2', '1', '1.5', 'limit 4'),
                         self.cells(value=3, unit='ms', baseline=2.0,
                                    floor=1.0, limit=4))
        self.assertEqual(('a', '0.123', '', '', '', '', 'target 5'),
                         self.cells(value=0.12345, target=5))
        self.assertEqual(('a', '1235', '', '0', '', '', ''),
                         self.cells(value=1234.5678, baseline=0))

    def test_a_limit_is_exceeded_by_more_than_it(self):
        for value, exceeded in ((3, False), (3.1, True)):
            self.assertEqual(exceeded, figures.Figure(
                'a', value, limit=3).is_exceeded)
        self.assertFalse(figures.Figure('a', 9, target=3).is_exceeded)

    def test_misses(self):
        for fields, miss in (
                ({'value': 3}, ''),
                ({'value': 3, 'baseline': 3}, ''),
                ({'value': 3.1, 'baseline': 3}, ''),
                ({'value': 4, 'baseline': 3}, 'baseline'),
                ({'value': 4, 'baseline': 3, 'more': True}, ''),
                ({'value': 2, 'baseline': 3, 'more': True}, 'baseline'),
                ({'value': 4, 'baseline': 5, 'target': 3}, 'target'),
                ({'value': 4, 'baseline': 5, 'limit': 3}, 'limit')):
            self.assertEqual(miss, figures.Figure('a', **fields).miss,
                             fields)


class RunTest(base.BaseTestCase):
    """The program, with benchmarks of a few lines."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch('run.FOLDER', self.folder))
        self.programs = {}
        self.useFixture(fixtures.MonkeyPatch('run.BENCHMARKS',
                                             self.programs))

    def add(self, name, figure, code=0):
        (self.folder / f'{name}.py').write_text(
            f'print({json.dumps(json.dumps([figure]))})\n'
            f'raise SystemExit({code})\n', encoding='utf-8')
        self.programs[name] = run.Benchmark()

    def run_program(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(errors):
            code = run.main([*arguments])
        return code, output.getvalue(), errors.getvalue()

    def test_all_in_one_table(self):
        self.add('one', {'name': 'calls', 'value': 3, 'baseline': 6})
        self.add('two', {'name': 'time', 'value': 4, 'unit': 'ms'})
        code, output, _errors = self.run_program()
        self.assertEqual(0, code)
        self.assertIn('one (', output)
        self.assertIn(['calls', '3', '6', '0.5'],
                      [line.split() for line in output.splitlines()])
        self.assertIn(['time', '4', 'ms'],
                      [line.split() for line in output.splitlines()])

    def test_what_failed_is_named(self):
        self.add('one', {'name': 'calls', 'value': 3, 'limit': 2}, 1)
        self.add('two', {'name': 'time', 'value': 4}, 1)
        self.add('three', {'name': 'time', 'value': 4})
        code, _output, errors = self.run_program()
        self.assertEqual(1, code)
        self.assertEqual(['one.py failed: calls',
                          'two.py failed: see above'],
                         errors.splitlines()[-2:])

    def test_the_others_run_after_one_that_prints_nothing(self):
        (self.folder / 'bad.py').write_text('raise SystemExit(1)\n',
                                            encoding='utf-8')
        self.programs['bad'] = run.Benchmark()
        self.add('one', {'name': 'calls', 'value': 3})
        code, output, errors = self.run_program()
        self.assertEqual(1, code)
        self.assertIn('one (', output)
        self.assertIn('bad.py ended with 1 and printed no JSON', errors)
        self.assertEqual('bad.py failed: see above', errors.splitlines()[-1])

    def test_the_others_run_after_one_that_does_not_end(self):
        self.useFixture(fixtures.MonkeyPatch('run.TIMEOUT', 0.01))
        self.add('one', {'name': 'calls', 'value': 3})
        self.add('two', {'name': 'calls', 'value': 3})
        code, _output, errors = self.run_program()
        self.assertEqual(1, code)
        for name in ('one', 'two'):
            self.assertIn(f'{name}.py has not ended within', errors)

    def written(self, name):
        return (self.tables / name).read_text(encoding='utf-8')

    def test_csv_files(self):
        self.tables = self.folder / 'tables'
        self.tables.mkdir()
        self.add('one', {'name': 'calls', 'value': 3, 'baseline': 2})
        self.add('two', {'name': 'time', 'value': 4, 'unit': 'ms',
                         'target': 5})
        self.run_program('--write', str(self.tables))
        columns = 'figure,value,unit,baseline,floor,ratio,bound\n'
        self.assertEqual(columns + 'calls,3,,2,,1.5,\n',
                         self.written('one.csv'))
        self.assertEqual(columns + 'time,4,ms,,,,target 5\n',
                         self.written('two.csv'))
        self.assertEqual([['one', 'calls', '3', '', '2', '', '1.5', '',
                           'baseline']],
                         run.tables.read(self.tables / 'misses.csv'))
        # A run of one benchmark keeps the other's rows in the files.
        self.add('two', {'name': 'time', 'value': 6, 'target': 5})
        self.run_program('two', '--write', str(self.tables))
        self.assertEqual(
            [('one', 'calls', 'baseline'), ('two', 'time', 'target')],
            [(row[0], row[1], row[-1]) for row in run.tables.read(
                self.tables / 'misses.csv')])
        self.assertEqual(['one', 'two'], [row[0] for row in run.tables.read(
            self.tables / 'runs.csv')])

    def test_what_is_refused(self):
        self.add('one', {'name': 'calls', 'value': 3})
        for arguments, said in (
                (['--write', str(self.folder / 'none')],
                 'none: expected a directory'),
                (['other'], 'no benchmark other; there are one')):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                self.assertRaises(SystemExit, run.main, arguments)
            self.assertIn(said, errors.getvalue())


class AdaptersTest(base.BaseTestCase):
    """The adapters of programs that do not print figures themselves."""

    def figures(self, name, answer):
        return [*run.BENCHMARKS[name].read(answer)]

    def test_packing(self):
        accepted, slices, points, moves = self.figures('packing', {
            'cases': [
                {'gpus': 8, 'load': 0.85, 'mix': 'small', 'policy': policy,
                 'acceptance': value, 'slice_acceptance': value / 2}
                for policy, value in (
                    ('first-fit', 0.5), ('capacity-loss', 0.7),
                    ('repacking', 0.8))],
            'points': [{
                'gpus': 8, 'policy': 'capacity-loss', 'points': 1.5,
                'reference': 'repacking', 'limit': 2.0, 'moves': 0.2,
                'most_moves': 0.1}]})
        self.assertEqual((70.0, 50.0, 80.0), (
            accepted.value, accepted.baseline, accepted.floor))
        self.assertEqual((35.0, 25.0, 40.0), (
            slices.value, slices.baseline, slices.floor))
        self.assertFalse(points.is_exceeded)
        self.assertTrue(moves.is_exceeded)

    def test_scheduling(self):
        figure, isolated, elastic, gap = self.figures('scheduling', {
            'elastic': {'gap_closed': 0.75, 'limit': 0.7, 'cases': [
                {'gpus': 16, 'load': 0.85, 'mix': 'all alike', 'way': way,
                 'acceptance': value}
                for way, value in (('static split', 0.5), ('elastic', 0.8),
                                   ('clairvoyant split', 0.9))]},
            'cases': [
            {'hosts': 8, 'load': 0.85, 'mix': 'small', 'way': way,
             'acceptance': value}
            for way, value in (('Nova alone', 0.5), ('weigher', 0.75),
                               ('weigher, isolation', 0.6),
                               ('repacking', 1.0))]})
        self.assertEqual((75.0, 50.0, 100.0), (
            figure.value, figure.baseline, figure.floor))
        self.assertEqual((60.0, 75.0), (isolated.value, isolated.baseline))
        self.assertEqual((80.0, 50.0, 90.0), (
            elastic.value, elastic.baseline, elastic.floor))
        self.assertEqual(25.0, gap.value)
        self.assertFalse(gap.is_exceeded)
