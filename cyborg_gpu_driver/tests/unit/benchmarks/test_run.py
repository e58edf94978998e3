# SPDX-License-Identifier: Apache-2.0

"""Benchmarks that read, and the program that shows all in one table."""

from __future__ import annotations

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


scrape = test_packing.program('scrape')


class ScrapeTest(base.BaseTestCase):

    def test_it_counts_and_asks_no_more_than_a_bare_loop(self):
        # The speed of this machine is not tested here.
        limit = scrape.LIMIT_MS
        self.addCleanup(setattr, scrape, 'LIMIT_MS', limit)
        scrape.LIMIT_MS = float('inf')
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = scrape.main(['--repeat', '1', '-f', 'json'])
        found = {figure['name']: figure
                 for figure in json.loads(printed.getvalue())}
        self.assertEqual(
            (0, 56, 56), tuple(found[name]['value'] for name in (
                'scrape: NVML calls', 'assignments', 'GPU instances')))
        self.assertEqual(0, code)


weigher = test_packing.program('weigher')


class WeigherTest(base.BaseTestCase):

    def test_a_request_reads_what_has_changed(self):
        found = {figure.name: figure
                 for figure in weigher.measure((20, 80), 40, 30)}
        self.assertEqual([], [name for name, figure in found.items()
                              if figure.is_exceeded])
        for hosts in (20, 80):
            self.assertEqual(hosts, found[f'{hosts} hosts: hosts kept'].value)
            # Hosts that changed and hosts whose next read is due.
            mean = found[f'{hosts} hosts: requests to Placement for a request'
                         ].value
            self.assertLess(weigher.CHANGED - 1, mean)
            self.assertLess(mean, min(hosts, 40))
            self.assertLess(0, found[f'{hosts} hosts: memory'].value)

    def test_its_placement_has_what_the_weigher_wants(self):
        cloud = weigher.Cloud(1, 1)
        # Its figures, and the names of its providers.
        self.assertEqual(2, cloud.request()[1])
        fleet = cloud.reader.fleet(weigher.CLASS, {'host00000': 0})
        label = next(iter(weigher.PROFILES))
        full, used = (fleet.cost({
            f'host00000-{number}-{label}-{"0" * 20}': {
                'resources': {weigher.CLASS: 1}}}) for number in range(2))
        # The weigher packs: a GPU with a server costs less.
        self.assertLess(used, full)
