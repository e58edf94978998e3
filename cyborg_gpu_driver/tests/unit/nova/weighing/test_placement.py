# SPDX-License-Identifier: Apache-2.0

"""Placement policies, measured slowdowns, and wishes of flavors."""

from __future__ import annotations

import math

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.nova.weighing import published

_, _, STANDALONE, QUIET = placement.Placement


class FigureTest(base.BaseTestCase):

    def figures(self, policy, *gpus):
        return [placement.figure(policy, weigher_cost.Cost(*cost), company)
                for cost, company in gpus]

    def test_standalone_prefers_a_gpu_of_its_own(self):
        own, empty, foreign, full = self.figures(
            STANDALONE,
            ((9.0, 0.5, 0.5), placement.Company(2)),
            ((0.0, 1.0, 1.0), placement.Company()),
            ((0.0, 0.1, 0.1), placement.Company(2, strangers=1)),
            ((math.inf, 0.0, 0.0), placement.Company(7)))
        self.assertLess(own, empty)
        self.assertEqual([math.inf] * 2, [foreign, full])

    def test_quiet_counts_without_measurements(self):
        loud, one, empty, emptier = self.figures(
            QUIET,
            ((0.0, 0.9, 0.9), placement.Company(2)),
            ((9.0, 0.1, 0.1), placement.Company(1)),
            ((0.0, 1.0, 0.5), placement.Company()),
            ((0.0, 1.0, 0.9), placement.Company()))
        self.assertEqual([emptier, empty, one, loud],
                         sorted([loud, one, empty, emptier]))

    def test_quiet_goes_by_measurements(self):
        measured, counted = self.figures(
            QUIET,
            ((0.0, 0.5, 0.5), placement.Company(6, interference=0.1)),
            ((0.0, 0.5, 0.5), placement.Company(1, interference=0.9)))
        self.assertLess(measured, counted)

    def test_quiet_refuses_what_has_no_room(self):
        full, fits = self.figures(
            QUIET, ((math.inf, 0.0, 0.0), placement.Company()),
            ((0.0, 0.0, 0.0), placement.Company(6)))
        self.assertEqual(math.inf, full)
        self.assertLess(fits, full)


class WishTest(base.BaseTestCase):

    def test_what_a_flavor_says(self):
        self.assertEqual(
            placement.Wish(QUIET, 'LAMMPS'),
            placement.wish({
                'gpu:strategy': 'quiet', 'gpu:application': 'LAMMPS',
                'accel:device_profile': 'gpu'}, 'm1'))
        self.assertEqual(placement.Wish(),
                         placement.wish({'hw:cpu_policy': 'shared'}, 'm1'))


    def test_error_says_what_would_be_right(self):
        for key, value, expected in (
                ('gpu:strategy', 'tight', 'pack, spread, standalone, quiet'),
                ('gpu:application', 'a b', 'letters, digits')):
            error = self.assertRaises(exception.InvalidValue, placement.wish,
                                      {key: value}, 'm1.gpu')
            for part in (key, 'm1.gpu', expected):
                self.assertIn(part, str(error))


class MatrixTest(base.BaseTestCase):

    matrix = published.parse({'slowdown': {
        'a': {'a': 1.5, 'b': 1.25}, 'b': {'a': 2, 'c': None}}})

    def test_slowdown_is_not_symmetric(self):
        self.assertEqual(1.25, self.matrix.slowdown('a', ['b']))
        self.assertEqual(2.0, self.matrix.slowdown('b', ['a']))
        self.assertEqual(1.0, self.matrix.slowdown('a', []))

    def test_two_that_do_not_fit_together(self):
        self.assertEqual(math.inf, self.matrix.interference('c', ['b']))
        self.assertEqual(math.inf, self.matrix.slowdown('b', ['a', 'c']))

    def test_what_was_not_measured_counts_as_the_mean(self):
        mean = (1.5 + 1.25 + 2) / 3
        self.assertAlmostEqual(mean, self.matrix.slowdown('a', ['']))
        self.assertAlmostEqual(
            2 * mean - 2, self.matrix.interference('', ['a']))
        self.assertEqual(1.0, published.parse(
            {'slowdown': {}}).slowdown('a', ['b']))


    def test_error_shows_the_form(self):
        for document in (
                None, [], {}, {'slowdown': []}, {'slowdown': {'a': 1}},
                *({'slowdown': {'a': {'b': value}}}
                  for value in (True, '1', -1, 0, 3067, 10 ** 400, math.inf,
                                math.nan, []))):
            error = self.assertRaises(exception.InvalidValue,
                                      published.parse, document)
            self.assertIn('{"slowdown": {"A": {"B": 1.25}}}', str(error))
