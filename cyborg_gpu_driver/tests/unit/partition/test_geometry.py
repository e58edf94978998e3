# SPDX-License-Identifier: Apache-2.0

import itertools
import random

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests.unit.partition import boards

BOARDS = st.sampled_from(sorted(boards.ALL))


@st.composite
def occupied_boards(draw):
    """A board and an occupancy that was reached step by step."""
    profiles = boards.ALL[draw(BOARDS)]
    return filled(profiles, draw(st.integers(0, 12)),
                  random.Random(draw(st.integers(0, 2 ** 16))))


def filled(profiles, steps, chance):
    grid = geometry.Geometry(profiles)
    occupancy = geometry.EMPTY
    for _ in range(steps):
        free = [(profile, placement) for profile in profiles
                for placement in grid.free_placements(occupancy, profile)]
        if not free:
            break
        occupancy = occupancy.add(*chance.choice(free))
    return grid, occupancy


def most(grid, occupancy, profile):
    """How many of one profile can be added, by trying everything."""
    return max((1 + most(grid, occupancy.add(profile, placement), profile)
                for placement in grid.free_placements(occupancy, profile)),
               default=0)


class TestGeometry(base.BaseTestCase):

    def grid(self, board):
        return geometry.Geometry(boards.ALL[board])

    def occupied(self, board, *live):
        gpu = boards.gpu(boards.ALL[board], live)
        grid = self.grid(board)
        return grid, grid.occupancy_of(gpu.mig.instances)

    def creatable(self, board, *live):
        grid, occupancy = self.occupied(board, *live)
        return {profile.name: grid.creatable(occupancy, profile)
                for profile in grid.profiles}

    def test_units(self):
        self.assertEqual(
            {'A100-40': 8, 'A100-80': 8, 'H100-80': 8, 'H200-141': 8,
             'A30': 4, 'RTX PRO 6000': 12},
            {board: self.grid(board).units for board in boards.ALL})

    def test_no_profiles(self):
        grid = geometry.Geometry(())
        self.assertEqual(0, grid.units)
        self.assertEqual((), grid.profiles)

    def test_empty_gpu_has_nvmls_counts(self):
        for board, profiles in boards.ALL.items():
            self.assertEqual(
                {profile.name: profile.max_instances
                 for profile in profiles}, self.creatable(board), board)

    def test_fragmentation_seen_on_a_real_h100(self):
        counts = self.creatable('H100-80', ('1g.10gb', 0), ('1g.10gb', 1),
                                ('1g.10gb', 5))
        self.assertEqual(0, counts['3g.40gb'])
        self.assertEqual(1, counts['2g.20gb'])

    def test_media_engines(self):
        """What some instances leave of profiles with media extensions."""
        quarter, half = '1g.24gb+me.all', '2g.48gb+me.all'
        for board, name, expected in (
                ('A100-80', '1g.10gb+me',
                 {'1g.10gb+me': 0, '7g.80gb': 0, '1g.10gb': 6}),
                ('A30', '1g.6gb+me', {'2g.12gb+me': 0, '2g.12gb': 1}),
                *(('RTX PRO 6000', name, {quarter: 0, half: 0}) for name in (
                    '1g.24gb', '1g.24gb+me', '1g.24gb+gfx', '2g.48gb')),
                ('RTX PRO 6000', '1g.24gb-me', {quarter: 1, half: 1})):
            counts = self.creatable(board, (name, 0))
            self.assertEqual(expected, {
                key: counts[key] for key in expected}, name)
        for name in (quarter, half):
            self.assertEqual({'1g.24gb-me', '2g.48gb-me'}, {
                key for key, count in self.creatable(
                    'RTX PRO 6000', (name, 0)).items() if count}, name)

    def test_engine_count_that_every_profile_gives_alike(self):
        # Even if the whole GPU reports one decoder, seven instances with one
        # decoder each are possible, because NVML allows seven of them.
        profile = model.GpuInstanceProfile(
            19, '1g.23gb', 1, 23000, 7,
            tuple(model.Placement(start, 1) for start in range(7)),
            engines=model.Engines(decoders=1))
        self.assertEqual(7, geometry.Geometry([profile]).creatable(
            geometry.EMPTY, profile))

    def test_maximum_holds_where_there_is_room(self):
        grid, occupancy = self.occupied('A100-80', ('4g.40gb', 0))
        four, = boards.named(grid.profiles, '4g.40gb')
        moved = model.GpuInstanceProfile(
            **dict(vars(four), placements=(*four.placements,
                                           model.Placement(4, 4))))
        self.assertEqual((), grid.free_placements(occupancy, moved))

    def test_unknown_instances_take_their_units(self):
        grid = self.grid('A100-80')
        occupancy = grid.occupancy_of([
            model.GpuInstance(model.Placement(4, 2), 99, 3),
            model.GpuInstance(model.Placement(1, 3), 19, 4)])
        self.assertEqual(0b111110, occupancy.mask)
        one, two, three = boards.named(grid.profiles, '1g.10gb', '2g.20gb',
                                       '3g.40gb')
        self.assertEqual(
            (model.Placement(0, 1), model.Placement(6, 1)),
            grid.free_placements(occupancy, one))
        self.assertEqual((0, 0), (grid.creatable(occupancy, two),
                                  grid.creatable(occupancy, three)))

    def test_instances_past_the_grid(self):
        grid = self.grid('A30')
        occupancy = grid.occupancy_of([
            model.GpuInstance(model.Placement(3, 8), 99, 3)])
        self.assertEqual(3, grid.creatable(occupancy, grid.profiles[0]))

    @hypothesis.given(occupied_boards())
    def test_creatable_is_exact(self, reached):
        grid, occupancy = reached
        for profile in grid.profiles:
            self.assertEqual(most(grid, occupancy, profile),
                             grid.creatable(occupancy, profile),
                             profile.name)

    @hypothesis.given(occupied_boards())
    def test_free_placements_are_what_can_be_placed(self, reached):
        grid, occupancy = reached
        for profile in grid.profiles:
            free = grid.free_placements(occupancy, profile)
            self.assertEqual(bool(free),
                             grid.creatable(occupancy, profile) > 0)
            for placement in free:
                self.assertFalse(placement.mask & occupancy.mask)
                self.assertIn(placement, profile.placements)


class TestEnumeration(base.BaseTestCase):
    """The numbers that the rules of geometry must produce."""

    def figures(self, board, *more):
        grid = geometry.Geometry(boards.ALL[board])
        profiles = boards.named(boards.ALL[board], *boards.BASE[board],
                                *more)
        states = list(boards.states(grid, profiles))
        full = [state for state in states if not any(
            grid.creatable_of_each(state, profiles))]
        return (len(full), len({*map(boards.multiset, full)}),
                len(states), len(boards.packable(grid, profiles)))

    def test_numbers(self):
        for board, more, expected in (
                *((board, (), (19, 14, 298, 37)) for board in (
                    'A100-40', 'A100-80', 'H100-80', 'H200-141')),
                ('A100-40', ('1g.10gb',), (78, 38, 723)),
                ('H200-141', ('1g.35gb',), (78, 38, 723)),
                ('A30', (), (5, 4, 26)), ('RTX PRO 6000', (), (5, 4, 26))):
            self.assertEqual(
                expected, self.figures(board, *more)[:len(expected)], board)


def plain_table(board):
    """The table of a board with its base profiles only."""
    return geometry.Table(geometry.Geometry(
        boards.named(boards.ALL[board], *boards.BASE[board])))


class TableTest(base.BaseTestCase):

    def test_room_counts_what_may_end(self):
        table = plain_table('A30')
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
        table = plain_table('A100-80')
        one, two, three, _four, _seven = table.profiles
        whole = geometry.EMPTY.add(three, model.Placement(0, 4))
        parts = geometry.EMPTY.add(two, model.Placement(0, 2)).add(
            two, model.Placement(2, 2))
        self.assertEqual(whole.mask, parts.mask)
        self.assertGreater(table.row(whole).room[-1],
                           table.row(parts).room[-1])

    @hypothesis.given(occupied_boards())
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


class PriceTest(base.BaseTestCase):

    def test_what_is_scarce_is_expensive(self):
        self.assertEqual((2.0, 0.4), geometry.prices([0, 2]))

    def test_demand_weighs(self):
        self.assertEqual((1.0, 1.2), geometry.prices([0, 2], [0.5, 3]))

    def test_the_order_of_profiles_decides_nothing(self):
        lost, at = (0.1, 1e16, -1e16, 0.2), (1, 1, 1, 1)
        found = {geometry.loss(order, at)
                 for order in itertools.permutations(lost)}
        self.assertEqual(1, len(found))


class CostTest(base.BaseTestCase):

    @hypothesis.given(occupied_boards())
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


class ChooseStartTest(base.BaseTestCase):

    @hypothesis.given(occupied_boards())
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


def place(grid, occupancy, profiles):
    """Return the starts chosen in turn (None: no room) and the occupancy."""
    starts = []
    for profile in profiles:
        chosen = geometry.choose_start(grid, occupancy, profile)
        starts.append(chosen and chosen.start)
        if chosen is None:
            break
        occupancy = occupancy.add(profile, chosen)
    return starts, occupancy


class TestChooseStart(base.BaseTestCase):

    def starts(self, board, *names):
        profiles = boards.ALL[board]
        return place(geometry.Geometry(profiles), geometry.EMPTY,
                     boards.named(profiles, *names))[0]

    def test_small_ones_leave_the_halves(self):
        for board in ('A100-40', 'A100-80', 'H100-80', 'H200-141'):
            one, two, three, four, _seven = boards.BASE[board]
            self.assertEqual([6, 4], self.starts(board, one, two), board)
            self.assertEqual([6, 0], self.starts(board, one, three), board)
            self.assertEqual([6, 0], self.starts(board, one, four), board)
            self.assertEqual([4, 6], self.starts(board, two, one), board)
            self.assertEqual([4, 0], self.starts(board, three, four), board)
            self.assertEqual([4, 0], self.starts(board, three, three))
            self.assertEqual([0, 4], self.starts(board, four, three))

    def test_small_ones_one_after_the_other(self):
        for board, profile, starts in (
                ('A100-80', '1g.10gb', [6, 5, 4, 3, 2, 1, 0, None]),
                ('A100-80', '1g.20gb', [6, 4, 2, 0, None]),
                ('A100-80', '2g.20gb', [4, 2, 0, None]),
                ('A100-80', '1g.10gb+me', [6, None]),
                ('A30', '1g.6gb', [3, 2, 1, 0, None]),
                ('RTX PRO 6000', '1g.24gb+gfx', [9, 6, 3, 0, None])):
            self.assertEqual(
                starts, self.starts(board, *[profile] * len(starts)))

    @hypothesis.given(occupied_boards(),
                      st.integers(0, 2 ** 16))
    def test_order_of_profiles_and_instances_does_not_matter(
            self, reached, seed):
        grid, occupancy = reached
        chance = random.Random(seed)
        profiles = list(grid.profiles)
        taken = list(occupancy.taken)
        chance.shuffle(profiles)
        chance.shuffle(taken)
        other = geometry.Geometry(profiles)
        for profile in profiles:
            self.assertEqual(
                geometry.choose_start(grid, occupancy, profile),
                geometry.choose_start(
                    other, geometry.Occupancy(tuple(taken)), profile))

    def test_whatever_fits_together_is_placed_largest_first(self):
        for board, profiles in boards.ALL.items():
            self.assert_all_placed(board, profiles)

    def test_base_profiles_alone_are_placed_largest_first(self):
        # With fewer profiles listed, the same starts cost something else.
        for board, names in boards.BASE.items():
            self.assert_all_placed(
                board, boards.named(boards.ALL[board], *names))

    def assert_all_placed(self, board, profiles):
        """Assert that each multiset that fits is placed, the largest first."""
        grid = geometry.Geometry(profiles)
        by_id = {profile.profile_id: profile for profile in profiles}
        for multiset in boards.packable(grid):
            wanted = sorted(
                (by_id[profile_id] for profile_id, count in multiset
                 for _ in range(count)), reverse=True,
                key=lambda item: (item.placements[0].size, item.slices))
            starts, _occupancy = place(grid, geometry.EMPTY, wanted)
            self.assertNotIn(None, starts,
                             f'{board}: {[p.name for p in wanted]}')
