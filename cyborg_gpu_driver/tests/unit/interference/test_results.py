# SPDX-License-Identifier: Apache-2.0

"""The file with measured slowdowns, and what they predict."""

from __future__ import annotations

import itertools
import json
import math

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications
from cyborg_gpu_driver.interference import prediction
from cyborg_gpu_driver.interference import results
from cyborg_gpu_driver.nova.weighing import published

Outcome = results.Outcome
Runs = results.Runs


def measured():
    """Return the results of two applications, with several outcomes."""
    return results.Results(
        [applications.Application(name, ('true',)) for name in 'ab'], 3, 0, {
            ('a', None): Runs(seconds=(1.0, 9.0, 2.0)),
            ('b', None): Runs(seconds=(4.0,), gpu_memory_mib=7),
            ('a', 'a'): Runs(seconds=(3.0,)),
            ('a', 'b'): Runs(Outcome.OUT_OF_MEMORY, problem='exit code 2'),
            ('b', 'a'): Runs(Outcome.FAILED, problem='exit code 1'),
            ('b', 'b'): Runs(seconds=(4001.0,))})


class ResultsTest(base.BaseTestCase):

    def test_slowdown_is_the_ratio_of_medians(self):
        self.assertEqual({'a': {'a': 1.5, 'b': None}},
                         measured().slowdowns())
        self.assertEqual(1000.25, measured().ratio('b', 'b'))

    def test_nova_reads_the_file(self):
        matrix = published.parse(json.loads(measured().dump()))
        self.assertEqual(1.5, matrix.slowdown('a', ['a']))
        self.assertEqual(float('inf'), matrix.slowdown('a', ['b']))

    def test_what_is_written_is_read(self):
        found = results.parse(measured().dump(), 'file')
        self.assertEqual(measured().runs, found.runs)
        self.assertEqual(measured().slowdowns(), found.slowdowns())
        self.assertTrue(found.describes(measured()))
        self.assertEqual(measured().dump(), found.dump())

    def test_failures_are_tried_again(self):
        self.assertEqual([('b', 'a')], measured().open_steps())

    def test_steps_begin_with_each_alone(self):
        found = results.Results(measured().applications)
        self.assertEqual(
            [('a', None), ('b', None), ('a', 'a'), ('a', 'b'), ('b', 'a'),
             ('b', 'b')], found.steps())
        self.assertEqual(found.steps(), found.open_steps())

    def test_errors_name_the_place(self):
        for change in (
                {'slowdown': 1}, {'slowdown': {'a': {'b': 0}}},
                {'kind': 'other'}, {'version': 2}, {'repeats': 0},
                {'applications': {'a': {}}}, {'alone': {'a': {
                    'seconds': [0]}}}, {'pairs': {'a': {'b': {
                        'seconds': 1}}}}, {'pairs': {'a': {'b': {
                            'seconds': [], 'outcome': 'well'}}}}):
            document = {**json.loads(measured().dump()), **change}
            error = self.assertRaises(
                exception.DocumentError, results.parse, json.dumps(document),
                'results.json')
            self.assertIn(f'results.json: {next(iter(change))}', str(error))


Job = prediction.Job


class PredictorTest(base.BaseTestCase):

    predictor = prediction.Predictor({
        'a': {'a': 1.0, 'b': 2.0, 'c': 1.5},
        'b': {'a': 1.5, 'b': None, 'c': 0.9},
        'c': {'a': 1.25, 'b': 1.0, 'c': 1.0}})

    def test_alone(self):
        self.assertEqual([1.0], self.predictor.slowdowns([Job('a', 10)]))
        self.assertEqual([10.0], self.predictor.ends([Job('a', 10)]))
        self.assertEqual([], self.predictor.ends([]))
        self.assertEqual(0.0, self.predictor.makespan([]))

    def test_who_is_left_goes_on_faster(self):
        # After 15 s, b has ended and a has done half of its 15 s.
        self.assertEqual([22.5, 15.0], self.predictor.ends(
            [Job('a', 15), Job('b', 10)]))

    def test_two_that_do_not_fit(self):
        jobs = [Job('b', 1), Job('b', 1)]
        self.assertEqual([math.inf] * 2, self.predictor.ends(jobs))
        self.assertEqual(math.inf, self.predictor.makespan(
            [*jobs, Job('a', 1)]))


class CompareTest(base.BaseTestCase):

    def compare(self, jobs, gpus, predictor):
        found = prediction.compare(jobs, gpus, predictor)
        self.assertEqual(['predicted', 'pack', 'spread'],
                         [plan.name for plan in found])
        for plan in found:
            self.assertEqual(gpus, len(plan.groups))
            self.assertCountEqual(jobs, itertools.chain(*plan.groups))
            self.assertLessEqual(found[0].makespan, plan.makespan)
        return found

    def test_many(self):
        predictor = prediction.Predictor({
            'a': {'a': 3.0, 'b': 1.0}, 'b': {'a': 1.0, 'b': 3.0}})
        jobs = [Job(name, 10) for name in 'ab'] * 6
        found = self.compare(jobs, 12, predictor)
        self.assertEqual(10, found[0].makespan)
        found = self.compare(jobs, 6, predictor)
        self.assertEqual({'a', 'b'}, {
            job.application for job in found[0].groups[0]})
        self.assertEqual(10, found[0].makespan)


class WaysTest(base.BaseTestCase):
    """Jobs with an amount of memory in MiB and a run time in seconds."""

    lammps, gromacs, training, assembly = jobs = (
        Job('lammps', 3060, 8300), Job('gromacs', 2080, 600),
        Job('training', 83, 3500), Job('assembly', 800, 5300))

    def placed(self, name, jobs, gpus, memory_mib=None):
        return {plan.name: plan.groups for plan in prediction.compare(
            jobs, gpus, prediction.Predictor({}, memory_mib))}[name]

    def test_pack(self):
        self.assertEqual(
            ((self.lammps, self.training), (self.lammps, self.training),
             (self.assembly, self.assembly, self.gromacs, self.gromacs), ()),
            self.placed('pack', self.jobs * 2, 4, 12000))

    def test_spread(self):
        five, four, three, two = jobs = [
            Job('a', seconds) for seconds in (5, 4, 3, 2)]
        self.assertEqual(
            ((five, two), (four, three)),
            self.placed('spread', jobs, 2))
