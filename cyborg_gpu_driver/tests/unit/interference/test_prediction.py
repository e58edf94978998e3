# SPDX-License-Identifier: Apache-2.0

"""Predicted run times on one GPU, and which application runs on which."""

from __future__ import annotations

import itertools
import math

from oslotest import base

from cyborg_gpu_driver.interference import prediction

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
