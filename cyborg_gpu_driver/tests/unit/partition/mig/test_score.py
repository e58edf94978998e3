# SPDX-License-Identifier: Apache-2.0

"""What each occupancy of a GPU leaves room for, and what that costs."""

import itertools

import hypothesis
from oslotest import base as test_base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition.mig import test_geometry


def base(board):
    """The table of a board with its base profiles only."""
    return geometry.Table(geometry.Geometry(
        boards.named(boards.ALL[board], *boards.BASE[board])))


class TableTest(test_base.BaseTestCase):

    def test_room_counts_what_may_end(self):
        table = base('A30')
        one, two, four = table.profiles
        occupancy = geometry.EMPTY.add(one, model.Placement(1, 1))
        # Room for 3 of 4 small ones and 1 of 2 halves. If the instance ends,
        # there is room for one more of each.
        end = geometry.ENDING
        self.assertEqual((3 + end, 1 + end, end), table.row(occupancy).room)
        occupancy = occupancy.add(two, model.Placement(2, 2))
        self.assertEqual((1 + end + 2 * end, 2 * end, end * end),
                         table.row(occupancy).room)

    def test_what_ends_together_is_worth_more(self):
        table = base('A100-80')
        one, two, three, _four, _seven = table.profiles
        whole = geometry.EMPTY.add(three, model.Placement(0, 4))
        parts = geometry.EMPTY.add(two, model.Placement(0, 2)).add(
            two, model.Placement(2, 2))
        self.assertEqual(whole.mask, parts.mask)
        self.assertGreater(table.row(whole).room[-1],
                           table.row(parts).room[-1])

    @hypothesis.given(test_geometry.occupied_boards())
    def test_options_are_the_free_starts_that_cost_least(self, reached):
        grid, occupancy = reached
        table = geometry.Table(grid)
        row = table.row(occupancy)
        for number, profile in enumerate(table.profiles):
            free = grid.free_placements(occupancy, profile)
            options = row.options[number]
            self.assertEqual(bool(free), bool(options))
            self.assertLessEqual({option.placement for option in options},
                                 set(free))
            for placement in free:
                after = table.row(occupancy.add(profile, placement))
                loss = [had - has for had, has in zip(row.room, after.room)]
                self.assertTrue(any(
                    all(map(float.__le__, option.lost, loss))
                    for option in options), placement)

    def test_only_the_offered_profiles_count(self):
        profiles = boards.ALL['A100-80']
        small, = boards.named(profiles, '1g.10gb')
        table = geometry.Table(geometry.Geometry(profiles), [small])
        row = table.row(geometry.EMPTY)
        self.assertEqual((7.0,), row.room)
        # All starts cost the same here, so the highest is chosen.
        self.assertEqual([6], [option.placement.start
                               for option in row.options[0]])

    def test_more_instances_than_any_board_has(self):
        profile = boards.profile(1, '1g.1gb', 1, 64, range(64), 1, 1)
        table = geometry.Table(geometry.Geometry([profile]))
        occupancy = geometry.Occupancy(tuple(
            (1, model.Placement(start, 1)) for start in range(40)))
        # Only 8 of the 40 are assumed to end, which limits the work.
        self.assertEqual((24 + 8 * geometry.ENDING,),
                         table.row(occupancy).room)


class PriceTest(test_base.BaseTestCase):

    def test_what_is_scarce_is_expensive(self):
        self.assertEqual((2.0, 0.4), geometry.prices([0, 2]))

    def test_demand_weighs(self):
        self.assertEqual((1.0, 1.2), geometry.prices([0, 2], [0.5, 3]))

    def test_the_order_of_profiles_decides_nothing(self):
        lost, at = (0.1, 1e16, -1e16, 0.2), (1, 1, 1, 1)
        found = {geometry.loss(order, at)
                 for order in itertools.permutations(lost)}
        self.assertEqual(1, len(found))


class CostTest(test_base.BaseTestCase):

    @hypothesis.given(test_geometry.occupied_boards())
    def test_each_instance_adds_to_it(self, reached):
        grid, occupancy = reached
        before = geometry.cost(grid, occupancy)
        for profile in grid.profiles:
            for placement in grid.free_placements(occupancy, profile):
                self.assertLess(before, geometry.cost(
                    grid, occupancy.add(profile, placement)))

    def test_holes_cost_more_than_what_lies_together(self):
        grid = geometry.Geometry(boards.H100_80)
        one, = boards.named(boards.H100_80, '1g.10gb')
        together, apart = (
            geometry.cost(grid, geometry.Occupancy(tuple(
                (one.profile_id, model.Placement(start, 1))
                for start in starts)))
            for starts in ((4, 5), (0, 4)))
        self.assertLess(together, apart)


class ChooseStartTest(test_base.BaseTestCase):

    @hypothesis.given(test_geometry.occupied_boards())
    def test_no_start_loses_less(self, reached):
        grid, occupancy = reached
        row = geometry.of_grid(grid.profiles).row(occupancy)
        at = geometry.prices(row.room)

        def lost(profile, placement):
            return geometry.loss(row.lost(row.table.row(
                occupancy.add(profile, placement))), at)
        for profile in grid.profiles:
            chosen = geometry.choose_start(grid, occupancy, profile)
            free = grid.free_placements(occupancy, profile)
            if chosen is None:
                self.assertEqual((), free)
                continue
            least = lost(profile, chosen)
            for placement in free:
                self.assertLessEqual(least, lost(profile, placement))
                if placement > chosen:
                    self.assertLess(least, lost(profile, placement))
