# SPDX-License-Identifier: Apache-2.0

import collections
import random

from oslotest import base as test_base

from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import moves as planner
from cyborg_gpu_driver.tests.unit.partition import boards

SMALL, HALF, WHOLE = '1g.6gb', '2g.12gb', '4g.24gb'


def table(board):
    return geometry.of_grid(
        boards.named(boards.ALL[board], *boards.BASE[board]))


def gpu(name, board, *instances, mobility=planner.Mobility.MOVABLE):
    """A GPU with instances, each a profile's name and a start."""
    occupancy, holders = geometry.EMPTY, []
    profiles = {one.name: one for one in table(board).profiles}
    for number, (profile, start) in enumerate(instances):
        place, = (one for one in profiles[profile].placements
                  if one.start == start)
        occupancy = occupancy.add(profiles[profile], place)
        holders.append(planner.Holder(
            f'{name}-{number}', planner.Want(profile), mobility, place))
    return planner.Gpu(name, (table(board).row(occupancy),), tuple(holders))


def a30(name, *instances, **kwargs):
    return gpu(name, 'A30', *instances, **kwargs)


def steps(answer):
    return [(move.server, move.origin, move.destination)
            for move in answer.plan.moves]


class FindTest(test_base.BaseTestCase):

    def test_room_that_is_there_needs_no_move(self):
        answer = planner.find(
            [a30('a', (SMALL, 0)), a30('b')], planner.Want(WHOLE))
        self.assertEqual(planner.Answer(
            planner.Plan('b', (), (), True), True), answer)

    def test_idle_instances_go_before_servers_move(self):
        answer = planner.find(
            [a30('a', (SMALL, 0)), a30('b', (HALF, 2)),
             a30('c', (SMALL, 0), (SMALL, 3),
                 mobility=planner.Mobility.IDLE)], planner.Want(WHOLE))
        self.assertEqual(planner.Plan(
            'c', ('c-0', 'c-1'), (), True), answer.plan)

    def test_only_the_idle_instances_that_are_in_the_way_go(self):
        answer = planner.find(
            [a30('a', (SMALL, 0), (SMALL, 1), (SMALL, 2),
                 mobility=planner.Mobility.IDLE)], planner.Want(HALF))
        self.assertEqual(('a-2',), answer.plan.idle)

    def test_a_server_makes_way_for_another(self):
        only = frozenset({'a', 'b'})
        gpus = [a30('a', (HALF, 0)), a30('b', (HALF, 0), (SMALL, 3)),
                planner.Gpu('c', (table('A30').row(geometry.EMPTY),))]
        pinned = [planner.Gpu(one.name, one.rows, tuple(
            planner.Holder(holder.name, planner.Want(
                holder.want.profile,
                only if holder.want.profile == HALF else None),
                         holder.mobility, holder.placement)
            for holder in one.holders)) for one in gpus]
        answer = planner.find(
            pinned, planner.Want(WHOLE, frozenset({'a'})))
        self.assertEqual([('b-1', 'b', 'c'), ('a-0', 'a', 'b')],
                         steps(answer))

    def test_more_moves_than_allowed(self):
        gpus = [a30('a', (SMALL, 0), (SMALL, 3)),
                a30('b', (SMALL, 0), (SMALL, 1))]
        wanted = planner.Want(WHOLE)
        self.assertIsNone(planner.find(gpus, wanted, moves=1).plan)
        self.assertEqual(2, len(planner.find(gpus, wanted).plan.moves))

    def test_the_limit_is_not_taken_for_an_answer(self):
        gpus = [a30('a', (SMALL, 0), (SMALL, 3)),
                a30('b', (SMALL, 0), (SMALL, 1))]
        self.assertEqual(
            planner.Answer(None, False),
            planner.find(gpus, planner.Want(WHOLE), limit=3))

    def test_whole_gpus(self):
        here, there = frozenset({'a'}), frozenset({'a', 'b'})
        answer = planner.find(
            [planner.whole(planner.Holder('s', planner.Want(
                planner.WHOLE, there)), 'a'), planner.whole(name='b')],
            planner.Want(planner.WHOLE, here))
        self.assertEqual([('s', 'a', 'b')], steps(answer))

    def test_a_gpu_of_which_only_the_free_profiles_are_known(self):
        answer = planner.find(
            [a30('a', (SMALL, 0), (SMALL, 3)),
             planner.only_free([SMALL, HALF], 'b')], planner.Want(WHOLE))
        self.assertIsNone(answer.plan)
        answer = planner.find(
            [a30('a', (SMALL, 0)),
             planner.only_free([SMALL, HALF], 'b')], planner.Want(WHOLE))
        self.assertEqual([('a-0', 'a', 'b')], steps(answer))


class UncertainTest(test_base.BaseTestCase):
    """Only the possible placements are known, not the actual ones."""

    def _gpu(self, name, *arrangements):
        known = [a30(name, *instances) for instances in arrangements]
        holders = tuple(
            planner.Holder(one.name, one.want) for one in known[0].holders)
        return planner.Gpu(
            name, tuple(one.rows[0] for one in known), holders)

    def test_a_plan_that_works_in_each_arrangement(self):
        answer = planner.find(
            [self._gpu('a', [(SMALL, 0), (SMALL, 1)],
                       [(SMALL, 1), (SMALL, 2)]), a30('b', (HALF, 0))],
            planner.Want(WHOLE))
        self.assertTrue(answer.plan.certain)
        self.assertEqual(2, len(answer.plan.moves))

    def test_a_plan_that_may_work(self):
        # Of three in a row, the server's may be one at an end or the middle.
        answer = planner.find(
            [self._gpu('a', [(SMALL, 0), (SMALL, 1), (SMALL, 2)]),
             planner.only_free([SMALL], 'b')], planner.Want(HALF), moves=1)
        self.assertFalse(answer.plan.certain)
        self.assertEqual(1, len(answer.plan.moves))


def fewest(gpus, wanted, most):
    """Return the fewest moves, by trying every sequence of moves."""
    for moves in range(most + 1):
        if _reachable({one.name: one.rows for one in gpus}, [
                (holder, one) for one in gpus for holder in one.holders],
                {one.name: one for one in gpus}, wanted, moves):
            return moves
    return None


def _fits(gpu, rows, want):
    return planner.arrived(rows, (gpu.numbers[want.profile],), True)


def _reachable(rows, there, by_name, wanted, moves):
    if not moves:
        return any(_fits(one, rows[one.name], wanted)
                   for one in by_name.values())
    for index, (holder, origin) in enumerate(there):
        if holder.mobility is not planner.Mobility.MOVABLE:
            continue
        left = {**rows, origin.name: planner.without(
            rows[origin.name], holder)}
        for to in by_name.values():
            after = _fits(to, left[to.name], holder.want)
            if after and _reachable(
                    {**left, to.name: after},
                    there[:index] + there[index + 1:], by_name, wanted,
                    moves - 1):
                return True
    return False


def cluster(chance, board, most):
    """Crowded GPUs on which instances came and went."""
    found = []
    for name in range(chance.randint(2, most)):
        row, holders = table(board).row(geometry.EMPTY), []
        for _ in range(12):
            profile = chance.choice(table(board).profiles[:-1])
            places = table(board).grid.free_placements(
                row.occupancy, profile)
            if not places:
                continue
            place = chance.choice(places)
            row = table(board).row(row.occupancy.add(profile, place))
            holders.append(planner.Holder(
                f'{name}-{len(holders)}', planner.Want(profile.name),
                chance.choices(list(planner.Mobility)[:2], [1, 5])[0], place))
        kept = [one for one in holders if chance.random() < 0.7]
        for one in holders:
            if one not in kept:
                row, = planner.without((row,), one)
        found.append(planner.Gpu(name, (row,), tuple(kept)))
    profiles = [one.name for one in table(board).profiles[1:]]
    return found, planner.Want(chance.choice(profiles))


class ExactTest(test_base.BaseTestCase):
    """The planner needs no more moves than the best sequence of moves."""

    def test_four_slices(self):
        self._compare('A30', 3, 400)

    def test_seven_slices(self):
        self._compare('A100-80', 3, 150)

    def _compare(self, board, gpus, seeds):
        counts = collections.Counter()
        for seed in range(seeds):
            drawn = cluster(random.Random(f'{board}/{seed}'), board, gpus)
            best = fewest(*drawn, 2)
            answer = planner.find(*drawn, 2)
            self.assertTrue(answer.complete)
            self.assertEqual(
                best, answer.plan and len(answer.plan.moves), seed)
            if answer.plan:
                self._carry_out(*drawn, answer.plan)
            counts[best] += 1
        # Every outcome occurred, not only the easy ones.
        self.assertLess(5, min(counts[best] for best in (0, 1, 2, None)),
                        counts)

    def _carry_out(self, gpus, wanted, plan):
        by_name = {one.name: one for one in gpus}
        rows = {one.name: one.rows for one in gpus}
        holders = {holder.name: holder for one in gpus
                   for holder in one.holders}
        for move in plan.moves:
            holder = holders[move.server]
            rows[move.origin] = planner.without(rows[move.origin], holder)
            rows[move.destination] = _fits(
                by_name[move.destination], rows[move.destination],
                holder.want)
            self.assertTrue(rows[move.destination])
        self.assertTrue(_fits(by_name[plan.gpu], rows[plan.gpu], wanted))
