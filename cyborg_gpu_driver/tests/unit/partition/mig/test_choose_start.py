# SPDX-License-Identifier: Apache-2.0

import random

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition.mig import test_geometry


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

    @hypothesis.given(test_geometry.occupied_boards(),
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
