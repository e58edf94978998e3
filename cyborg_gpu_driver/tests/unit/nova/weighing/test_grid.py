# SPDX-License-Identifier: Apache-2.0


"""Inferring the instances on a GPU from Placement's figures."""

from __future__ import annotations

import testscenarios
from oslotest import base

from cyborg_gpu_driver.nova.weighing import grid as weigher_grid
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.nova import weigher_case
from cyborg_gpu_driver.tests.unit.partition import boards


def layout(table, occupancy):
    return sorted((table.profiles[number].name, placement.start)
                  for number, placement in occupancy.taken)


class EveryStateTest(testscenarios.WithScenarios, base.BaseTestCase):
    """Every possible state of a board is among the states that are inferred.
    """

    scenarios = [
        ('A100 40', {'board': boards.A100_40, 'scale': 1}),
        ('A100 80', {'board': boards.A100_80, 'scale': 1}),
        ('H100', {'board': boards.H100_80, 'scale': 1}),
        ('H200', {'board': boards.H200_141, 'scale': 1}),
        ('A30', {'board': boards.A30, 'scale': 1}),
        ('RTX PRO', {'board': boards.RTX_PRO_6000, 'scale': 3}),
    ]

    def check(self, choose):
        grid = geometry.Geometry(self.board)
        offered = [profile for profile in self.board
                   if choose(profile.name)]
        names = tuple(profile.name for profile in offered)
        tried = 0
        for occupancy in scope.some(boards.states(grid, offered)):
            rows = weigher_grid.rows(
                names,
                tuple(occupancy.counts[profile.profile_id]
                      for profile in offered),
                tuple(grid.creatable(occupancy, profile)
                      for profile in offered))
            known = {profile.profile_id: profile.name for profile in offered}
            self.assertIn(
                sorted((known[number], placement.start // self.scale)
                       for number, placement in occupancy.taken),
                [layout(row.table, row.occupancy) for row in rows])
            tried += 1
        return tried

    def test_plain_profiles(self):
        self.assertGreater(
            self.check(lambda name: '+' not in name and '-' not in name),
            2)


class RowsTest(base.BaseTestCase):

    def rows(self, *args, **kwargs):
        return weigher_grid.rows(*weigher_case.figures(
            weigher_case.gpu('host', 'gpu', *args, **kwargs)))

    def layouts(self, *args, **kwargs):
        return [layout(row.table, row.occupancy)
                for row in self.rows(*args, **kwargs)]

    def test_what_is_left_tells_where_it_lies(self):
        for start in (0, 4):
            self.assertEqual([[('3g.40gb', start)]],
                             self.layouts(taken=[('3g.40gb', start)]))
        self.assertEqual([[]], self.layouts())

    def test_what_looks_alike_is_all_there(self):
        self.assertEqual(
            [[('1g.10gb', 4), ('1g.10gb', 5)],
             [('1g.10gb', 4), ('1g.10gb', 6)],
             [('1g.10gb', 5), ('1g.10gb', 6)]],
            sorted(self.layouts(
                offered=('1g.10gb', '3g.40gb', '7g.80gb', '4g.40gb'),
                taken=[('1g.10gb', 4), ('1g.10gb', 6)])))

    def test_a_claim_lies_where_the_agent_will_put_it(self):
        self.assertEqual([[('3g.40gb', 4)]],
                         self.layouts(claimed=['3g.40gb']))
        self.assertEqual([[('1g.10gb', 6), ('3g.40gb', 0)]],
                         self.layouts(taken=[('3g.40gb', 0)],
                                      claimed=['1g.10gb']))

    def test_nothing_is_believed_that_the_figures_deny(self):
        # Another user has a part of the GPU, or an unknown limit applies.
        self.assertEqual((), weigher_grid.rows(
            ('1g.10gb', '3g.40gb'), (1, 0), (3, 0)))
        self.assertEqual((), weigher_grid.rows(
            ('1g.10gb', '3g.40gb'), (8, 0), (0, 0)))
        self.assertEqual((), weigher_grid.rows(
            ('5g.10gb', '3g.40gb'), (0, 0), (1, 2)))
        # No GPU instances at all.
        self.assertEqual((), weigher_grid.rows(('T4-2B',), (0,), (8,)))
        self.assertEqual((), weigher_grid.rows(('passthrough',), (0,), (1,)))
