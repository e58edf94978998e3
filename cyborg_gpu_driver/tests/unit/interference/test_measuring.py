# SPDX-License-Identifier: Apache-2.0

"""A measurement of small real commands, step by step."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import measuring
from cyborg_gpu_driver.interference import process
from cyborg_gpu_driver.interference import results
from cyborg_gpu_driver.tests.unit.interference import commands

Outcome = results.Outcome


class MeasureTest(commands.CommandsCase):

    here = process.Machine(600.0)

    def setUp(self):
        super().setUp()
        self.path = self.directory / 'results.json'

    def measure(self, *found, repeats=1, warmups=0, where=None):
        self.found = results.Results(found, repeats, warmups)
        self.go_on(where)

    def go_on(self, where=None):
        self.steps = []
        measuring.measure(self.found, where or self.here,
                          str(self.path), self.steps.append)

    def written(self):
        return results.parse(self.path.read_text(), 'file')

    def test_runs_of_each_step(self):
        self.measure(self.logging('a'), self.logging('b'), repeats=2,
                     warmups=1)
        self.assertEqual(self.found.steps(), self.steps)
        self.assertEqual(['a'] * 3 + ['b'] * 3, self.logged()[:6])
        self.assertEqual({'a', 'b'}, set(self.logged()[6:]))
        for runs in self.found.runs.values():
            self.assertEqual(2, len(runs.seconds))
        self.assertEqual({step: runs.outcome for step, runs
                          in self.written().runs.items()},
                         dict.fromkeys(self.steps, Outcome.MEASURED))

    def test_results_are_kept_after_each_step(self):
        def fail(step):
            if step == ('a', 'a'):
                raise KeyboardInterrupt

        self.found = results.Results([self.logging('a')], 1, 0)
        self.assertRaises(KeyboardInterrupt, measuring.measure, self.found,
                          self.here, str(self.path), fail)
        self.found = self.written()
        self.assertEqual([('a', None)], list(self.found.runs))
        self.go_on()
        self.assertEqual([('a', 'a')], self.steps)
        self.assertEqual([], self.written().open_steps())
        self.go_on()
        self.assertEqual([], self.steps)

    def test_failure_alone_ends_it(self):
        error = self.assertRaises(
            exception.InvalidValue, self.measure,
            self.script('a', 'echo no >&2; exit 9'), self.logging('b'))
        self.assertIn('a: exit code 9: no', str(error))
        self.assertEqual([], self.logged())
        self.assertEqual([('a', None), ('b', None)],
                         self.written().open_steps()[:2])

    def measure_then_fail(self, codes=(), where=None):
        """Measure all with success, then the pair again, which fails."""
        self.measure(self.script('a', '[ ! -e $D/fail ] || exit 7', codes),
                     where=where)
        (self.directory / 'fail').touch()
        self.fail_again(where)

    def fail_again(self, where):
        del self.found.runs['a', 'a']
        self.go_on(where)
        return self.found.runs['a', 'a'].outcome

    def test_pair_that_fails(self):
        self.measure_then_fail()
        self.assertEqual([('a', 'a')], self.written().open_steps())
        self.assertEqual({}, self.written().slowdowns())

    def test_pair_that_runs_out_of_memory(self):
        self.measure_then_fail([7])
        self.assertEqual([], self.written().open_steps())
        self.assertEqual({'a': {'a': None}}, self.written().slowdowns())

    def test_gpu_that_is_too_small(self):
        where = process.Machine(600.0, lambda _pids: 6 << 20, 11)
        self.measure_then_fail(where=where)
        self.assertEqual(6, self.found.runs['a', None].gpu_memory_mib)
        self.assertEqual(Outcome.OUT_OF_MEMORY,
                         self.found.runs['a', 'a'].outcome)
        self.assertEqual(Outcome.FAILED, self.fail_again(
            dataclasses.replace(where, gpu_memory_mib=12)))

    def test_pair_that_takes_too_long(self):
        self.measure(self.script('a', '[ ! -e $D/stop ] || sleep 600'))
        (self.directory / 'stop').touch()
        del self.found.runs['a', 'a']
        self.go_on(process.Machine(0.2))
        self.assertEqual(Outcome.TIMED_OUT,
                         self.found.runs['a', 'a'].outcome)
        self.assertEqual({}, self.written().slowdowns())

    def test_file_that_cannot_be_written(self):
        self.path = self.directory / 'none' / 'results.json'
        error = self.assertRaises(exception.InvalidValue, self.measure,
                                  self.script('a', 'true'))
        self.assertIn(str(self.path), str(error))
        self.assertEqual({}, self.found.runs)
