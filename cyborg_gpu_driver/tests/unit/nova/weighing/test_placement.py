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
"""Placement policies on published measurements, and wishes of flavors."""

from __future__ import annotations

import dataclasses
import math

import testscenarios
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.nova.weighing import published

load_tests = testscenarios.load_tests_apply_scenarios

PACK, SPREAD, STANDALONE, QUIET = placement.Placement
MEMORY = 12.0
"""GB of each of the paper's four GPUs."""


@dataclasses.dataclass(frozen=True)
class Application:
    """An application that the paper measured."""

    memory: float
    """GB."""
    utilisation: float
    """Mean, in percent."""
    alone: float
    """The shortest run time that was measured, in seconds."""


APPLICATIONS = {
    'L': Application(8.3, 23.0, 3009.0),
    'G': Application(0.6, 72.0, 2072.0),
    'T': Application(3.5, 88.0, 83.0),
    'Q': Application(5.3, 46.7, 801.0)}
"""LAMMPS, GROMACS, Tensorflow and QMCPACK."""

TOGETHER = {
    'L': {'L': (3067, 3009), 'T': (3105, 3111)},
    'G': {'G': (2072, 2089), 'Q': (2185, 2185)},
    'T': {'T': (147, 148), 'L': (83, 83)},
    'Q': {'Q': (854, 802), 'G': (905, 801)}}
"""Run times beside one other application, from the runs with standalone and
with load balancing. The tests predict the run with bin packing."""

MATRIX = published.Matrix({
    name: {other: sum(times) / len(times) / APPLICATIONS[name].alone
           for other, times in row.items()}
    for name, row in TOGETHER.items()})

ORDER = {PACK: 'LLQQTTGG', SPREAD: 'TTGGQQLL', STANDALONE: 'LLGGTTQQ',
         QUIET: 'TTGGQQLL'}
"""Pack: the largest memory first. Spread: the highest utilisation first."""


def place(policy):
    """The applications that the policy puts on each of four GPUs."""
    gpus = ['', '', '', '']
    for name in ORDER[policy]:
        figures = [figure(policy, name, gpu) for gpu in gpus]
        gpus[figures.index(min(figures))] += name
    return gpus


def figure(policy, name, gpu):
    there = [APPLICATIONS[other] for other in gpu]
    memory = sum(other.memory for other in there)
    fits = memory + APPLICATIONS[name].memory <= MEMORY
    empty = (1 - memory / MEMORY if policy is PACK else
             1 - sum(other.utilisation for other in there) / 200)
    return placement.figure(
        policy, weigher_cost.Cost(
            0.0 if fits or policy is not PACK else math.inf, empty, empty),
        placement.Company(
            len(gpu), sum(other != name for other in gpu),
            MATRIX.interference(name, gpu) if policy is QUIET else None))


def run_times(gpus, host):
    """The predicted run times of all applications, in seconds.

    :param host: seconds that an application loses for each second in which
        another GPU of the host runs something.
    """
    times = [[APPLICATIONS[name].alone * MATRIX.slowdown(
        name, gpu[:number] + gpu[number + 1:])
        for number, name in enumerate(gpu)] for gpu in gpus]
    return [own + host * sum(
        min(own, other) for elsewhere, others in enumerate(times)
        if elsewhere != here for other in others)
        for here, row in enumerate(times) for own in row]


class PaperTest(base.BaseTestCase):
    """Two instances of each of four applications on four GPUs."""

    def test_placements(self):
        self.assertEqual(['LT', 'LT', 'QQGG', ''], place(PACK))
        self.assertEqual(['TL', 'TL', 'GQ', 'GQ'], place(SPREAD))
        self.assertEqual(['LL', 'GG', 'TT', 'QQ'], place(STANDALONE))

    def test_makespans_are_in_the_order_that_was_measured(self):
        # 3067, 3111 and 3450 seconds.
        for host in (0.001, 0.01, 0.03):
            standalone, spread, pack = (
                max(run_times(place(policy), host))
                for policy in (STANDALONE, SPREAD, PACK))
            self.assertLess(standalone, spread)
            self.assertLess(spread, pack)

    def test_pairs_alone_tell_two_of_them_apart(self):
        # LAMMPS has the same neighbours with spread and with pack.
        standalone, spread, pack = (
            max(run_times(place(policy), 0.0))
            for policy in (STANDALONE, SPREAD, PACK))
        self.assertLess(standalone, spread)
        self.assertEqual(spread, pack)
        self.assertAlmostEqual(3038, standalone)
        self.assertAlmostEqual(3108, spread)

    def test_quiet_does_not_put_like_with_like_if_that_hurts(self):
        gpus = place(QUIET)
        # Two Tensorflow on one GPU take 1.8 times as long.
        self.assertNotIn(True, ['TT' in gpu for gpu in gpus], gpus)

        def slowdown(placed):
            return sum(MATRIX.slowdown(name, gpu[:number] + gpu[number + 1:])
                       for gpu in placed for number, name in enumerate(gpu))

        for policy in (PACK, SPREAD, STANDALONE):
            self.assertLessEqual(slowdown(gpus), slowdown(place(policy)),
                                 policy)


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

    def test_slowdowns_say_more(self):
        self.assert_order((1, 0.1, 0.2), (1, 0.1, 0.9), (1, 0.25, 0.0))

    def test_what_does_not_fit(self):
        self.assertEqual(math.inf, placement.figure(
            QUIET, weigher_cost.Cost(0.0, 0.5, 0.5),
            placement.Company(1, interference=math.inf), 0.0))

    def test_other_policies(self):
        for policy in PACK, SPREAD, STANDALONE:
            figures = {placement.figure(
                policy, weigher_cost.Cost(0.0, 0.5, 0.5),
                placement.Company(1), value) for value in (None, 0.0, 1.0)}
            self.assertEqual(1, len(figures))
