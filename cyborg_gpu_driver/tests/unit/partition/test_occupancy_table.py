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

"""What each occupancy of a GPU leaves room for."""

import hypothesis
from oslotest import base as test_base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import occupancy_table
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import test_geometry


def base(board):
    """The table of a board with no more than its base profiles."""
    return occupancy_table.Table(geometry.Geometry(
        boards.named(boards.ALL[board], *boards.BASE[board])))


class TableTest(test_base.BaseTestCase):

    def test_room_of_an_empty_gpu(self):
        for profiles in boards.ALL.values():
            table = occupancy_table.Table(geometry.Geometry(profiles))
            self.assertEqual(
                tuple(profile.max_instances for profile in table.profiles),
                table.row(geometry.EMPTY).room)

    def test_room_counts_what_may_end(self):
        table = base('A30')
        one, two, four = table.profiles
        occupancy = geometry.EMPTY.add(one, model.Placement(1, 1))
        # 3 of 4 small ones, 1 of 2 halves, and all of it with 1/8.
        self.assertEqual((3.125, 1.125, 0.125), table.row(occupancy).room)
        occupancy = occupancy.add(two, model.Placement(2, 2))
        self.assertEqual((1 + 1 / 8 + 2 / 8, 2 / 8, 1 / 64),
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
        table = occupancy_table.Table(grid)
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
                    all(map(float.__le__, option.loss, loss))
                    for option in options), placement)

    def test_only_the_offered_profiles_count(self):
        profiles = boards.ALL['A100-80']
        small, = boards.named(profiles, '1g.10gb')
        table = occupancy_table.Table(geometry.Geometry(profiles), [small])
        row = table.row(geometry.EMPTY)
        self.assertEqual((7.0,), row.room)
        # Where it costs nothing else, all starts are alike: the highest.
        self.assertEqual([6], [option.placement.start
                               for option in row.options[0]])
        self.assertRaises(exception.InvalidValue, table.index, 0)
