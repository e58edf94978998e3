# SPDX-License-Identifier: Apache-2.0

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
