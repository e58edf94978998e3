# SPDX-License-Identifier: Apache-2.0
"""Placement policies on published measurements, and wishes of flavors."""

from __future__ import annotations

import math

import testscenarios
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import placement

load_tests = testscenarios.load_tests_apply_scenarios

PACK, SPREAD, STANDALONE, QUIET = placement.Placement


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
            placement.Wish(QUIET, 'LAMMPS', (
                ('CUSTOM_GPU_ARCH_HOPPER', 2.5),
                ('CUSTOM_GPU_NUMA_1', -1.0))),
            placement.wish({
                'gpu:placement': 'quiet', 'gpu:application': 'LAMMPS',
                'gpu:prefer:CUSTOM_GPU_NUMA_1': '-1',
                'gpu:prefer:CUSTOM_GPU_ARCH_HOPPER': '2.5',
                'accel:device_profile': 'gpu'}, 'm1'))
        self.assertEqual(placement.Wish(),
                         placement.wish({'hw:cpu_policy': 'shared'}, 'm1'))


class WrongWishTest(base.BaseTestCase):

    scenarios = [
        ('placement', {'key': 'gpu:placement', 'value': 'tight',
                       'expected': 'pack, spread, standalone, quiet'}),
        ('application', {'key': 'gpu:application', 'value': 'a b',
                         'expected': 'letters, digits'}),
        ('trait', {'key': 'gpu:prefer:hopper', 'value': '1',
                   'expected': 'trait'}),
        ('weight', {'key': 'gpu:prefer:CUSTOM_X', 'value': 'nan',
                    'expected': 'number'}),
        ('huge weight', {'key': 'gpu:prefer:CUSTOM_X', 'value': '1' * 400,
                         'expected': 'number'}),
        ('other digits', {'key': 'gpu:prefer:CUSTOM_X', 'value': '\u0661',
                          'expected': 'number'}),
        ('no weight', {'key': 'gpu:prefer:CUSTOM_X', 'value': '',
                       'expected': 'number'})]

    def test_error_says_what_would_be_right(self):
        error = self.assertRaises(exception.InvalidValue, placement.wish,
                                  {self.key: self.value}, 'm1.gpu')
        for part in (self.key, 'm1.gpu', self.expected):
            self.assertIn(part, str(error))


class UtilizationTest(base.BaseTestCase):
    """The policy quiet, with the current utilization from Prometheus."""

    def order(self, *gpus):
        """GPUs by neighbours, interference and utilization, best first."""
        return sorted(gpus, key=lambda gpu: placement.figure(
            QUIET, weigher_cost.Cost(0.0, 0.5, 0.5),
            placement.Company(gpu[0], interference=gpu[1]), gpu[2]))

    def assert_order(self, *gpus):
        self.assertEqual(list(gpus), self.order(*gpus))
        self.assertEqual(list(gpus), self.order(*reversed(gpus)))

    def test_neighbours_that_are_idle(self):
        self.assert_order((0, None, None), (3, None, 0.0), (1, None, 0.5),
                          (2, None, 0.5), (1, None, 1.0), (2, None, None))

    def test_unknown_counts_as_busy(self):
        self.assert_order((1, None, 0.85), (1, None, None),
                          (2, None, None))

    def test_other_policies(self):
        for policy in PACK, SPREAD, STANDALONE:
            figures = {placement.figure(
                policy, weigher_cost.Cost(0.0, 0.5, 0.5),
                placement.Company(1), value) for value in (None, 0.0, 1.0)}
            self.assertEqual(1, len(figures))
