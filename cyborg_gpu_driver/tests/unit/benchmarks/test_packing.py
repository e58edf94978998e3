# SPDX-License-Identifier: Apache-2.0


"""The packing benchmark: its oracle, its traffic, its arithmetic."""

import contextlib
import importlib.util
import io
import itertools
import json
import pathlib
import random
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.partition import boards

ROOT = pathlib.Path(__file__).resolve().parents[4]


def program(name):
    """Import a file of benchmarks/, a folder that is not a package."""
    spec = importlib.util.spec_from_file_location(
        name, ROOT / 'benchmarks' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


oracle = program('oracle')
packing = program('packing')
measures, optimum = packing.measures, packing.optimum


def on_one_gpu():
    """Enumerate the combinations of profiles that one GPU can hold."""
    return {tuple(dict(held).get(number, 0) for number in range(5))
            for held in boards.packable(
                geometry.Geometry(packing.PROFILES))} | {(0,) * 5}


class OracleTest(base.BaseTestCase):

    def assert_exact(self, gpus):
        one = on_one_gpu()
        held = {(0,) * 5}
        for _ in range(gpus):
            held = {tuple(map(sum, zip(before, more)))
                    for before in held for more in one}
        # Up to one more of each profile than fits, to test refusals as well.
        tried = itertools.product(*(
            range(limit * gpus + 2) for limit in (7, 3, 2, 1, 1)))
        wrong = [counts for counts in tried
                 if oracle.fits(counts, gpus) != (counts in held)]
        self.assertEqual([], wrong)

    def test_one_gpu(self):
        self.assertEqual(38, len(on_one_gpu()))
        self.assert_exact(1)


class TrafficTest(base.BaseTestCase):

    def test_load_and_mix_are_as_asked(self):
        for lifetime, draw in packing.LIFETIMES.items():
            asked = list(itertools.islice(packing.requests(
                random.Random(7), 10, 0.85, (2, 1, 0, 0, 1), draw), 40000))
            used = sum((request.end - request.arrival)
                       * packing.SLICES[request.profile]
                       for request in asked)
            load = used / asked[-1].arrival / 70
            self.assertAlmostEqual(0.85, load, delta=0.03, msg=lifetime)
            shares = [sum(request.profile == number for request in asked)
                      / len(asked) for number in range(5)]
            for expected, share in zip((.5, .25, 0, 0, .25), shares):
                self.assertAlmostEqual(expected, share, delta=0.02)


class PlayTest(base.BaseTestCase):

    def play(self, cluster, *requests):
        # After the warm-up, so that all requests count.
        return packing.play(cluster, [
            packing.Request(packing.WARM_UP + arrival, profile,
                            packing.WARM_UP + end)
            for arrival, profile, end in requests])

    def test_an_end_makes_room(self):
        for name, cluster in packing.contestants(1).items():
            score = self.play(
                cluster, (0, 4, 2), (1, 0, 9), (2, 0, 9), (3, 4, 9))
            self.assertEqual([2, 0, 0, 0, 2], score.offered, name)
            self.assertEqual([1, 0, 0, 0, 1], score.accepted, name)
            self.assertEqual(0.5, score.acceptance)
            self.assertEqual(0.5, score.slice_acceptance)

    def test_what_tells_the_policies_apart(self):
        # First-fit's lowest start for the 1g leaves no room for a 4g.
        accepted = {name: self.play(cluster, (0, 0, 9), (1, 3, 9)).accepted
                    for name, cluster in packing.contestants(1).items()}
        self.assertEqual([1, 0, 0, 0, 0], accepted['first-fit'])
        for name in ('first-fit, driver starts', 'capacity-loss',
                     'repacking'):
            self.assertEqual([1, 0, 0, 1, 0], accepted[name], name)


class RelocatingTest(base.BaseTestCase):

    def test_a_move_makes_room(self):
        cluster = packing.contestants(2, [1])[packing.MOVES[1]]
        halves = {}
        for _ in range(4):
            half = cluster.request(2)
            halves.setdefault(cluster.gpu(half), []).append(half)
        for first, _second in halves.values():
            cluster.remove(first)
        self.assertIsNotNone(cluster.request(4))
        self.assertEqual(1, cluster.moves)
        self.assertIsNone(cluster.request(4))
        for _first, second in halves.values():
            cluster.remove(second)
        self.assertIsNotNone(cluster.request(4))
        self.assertEqual(1, cluster.moves)


class OptimumTest(base.BaseTestCase):

    SHARES = (.2,) * 5

    def solve(self, gpus, **kwargs):
        return optimum.Process(
            packing.GRID, gpus, packing.SLICES, self.SHARES,
            packing.rate_of(gpus, .85, (1,) * 5), **kwargs)

    def test_it_accepts_what_was_computed(self):
        traffic = list(itertools.islice(packing.requests(
            random.Random(3), 1, .85, (1,) * 5,
            packing.LIFETIMES['exponential']), 20000))
        found = {}
        for refuses in False, True:
            process = self.solve(1, refuses=refuses)
            found[refuses] = process.slice_acceptance
            played = packing.play(
                optimum.Optimal(process, packing.GRID, 1), traffic)
            self.assertAlmostEqual(process.slice_acceptance,
                                   played.slice_acceptance, delta=0.01)
        # Another program computed the same values.
        self.assertAlmostEqual(0.4894, found[False], delta=0.0002)
        self.assertAlmostEqual(0.4927, found[True], delta=0.0002)


class ProgramTest(base.BaseTestCase):

    def run_program(self, *arguments):
        printed, progress = io.StringIO(), io.StringIO()
        with (contextlib.redirect_stdout(printed),
              contextlib.redirect_stderr(progress)):
            code = packing.main([*arguments])
        return code, printed.getvalue(), progress.getvalue()

    @scope.only_in_all
    def test_json(self):
        code, printed, progress = self.run_program(
            '-f', 'json', '--gpus', '2', '--load', '0.9', '--mix',
            'small,0:0:0:0:1', '--requests', '1000', '--seeds', '2')
        self.assertEqual(0, code)
        answer = json.loads(printed)
        by_policy = {line['policy']: line for line in answer['cases']
                     if line['mix'] == 'small'}
        self.assertEqual(0, by_policy['first-fit']['gap_closed'])
        self.assertEqual(1, by_policy['repacking']['gap_closed'])
        self.assertLess(by_policy['first-fit']['acceptance'],
                        by_policy['repacking']['acceptance'])
        # With whole GPUs only, every policy accepts all it can: no gap.
        whole = [line for line in answer['cases']
                 if line['mix'] == '0:0:0:0:1']
        self.assertEqual({None}, {line['gap_closed'] for line in whole})
        self.assertEqual({1.0, whole[0]['acceptance']},
                         {1.0, *(line['acceptance'] for line in whole)})
        self.assertIn('2 of 2: 2 GPUs, load 0.9', progress)
        self.check_moves(by_policy)

    def check_moves(self, by_policy):
        """Each additional allowed move helps on two GPUs."""
        slices = [by_policy[policy]['slice_acceptance'] for policy in (
            'MFI', 'capacity-loss', *packing.MOVES.values(), 'repacking')]
        self.assertEqual(sorted(slices), slices)
        self.assertEqual(len(slices), len({*slices}))
        moves = [by_policy[policy]['moves'] for policy in (
            'capacity-loss', *packing.MOVES.values())]
        self.assertEqual([0, *sorted(moves[1:])], moves)
        self.assertLess(0, moves[1])

    @scope.only_in_all
    def test_a_missed_limit_is_an_error(self):
        for limit, expected in ((-9.0, 0), (1.01, 1)):
            self.useFixture(fixtures.MonkeyPatch(
                'packing.LIMITS', {2: limit}))
            code, printed, progress = self.run_program(
                '--gpus', '2', '--requests', '1000', '--seeds', '1')
            self.assertEqual(expected, code)
            self.assertIn(f'limit {limit:.2f}', printed)
            self.assertEqual(bool(expected),
                             'closed is less than 1.01' in progress)
