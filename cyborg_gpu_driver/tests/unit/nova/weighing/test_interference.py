# SPDX-License-Identifier: Apache-2.0
"""Measured slowdowns and the file that contains them."""

from __future__ import annotations

import math

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import published


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
