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

"""The policies that the packing benchmark compares."""

import math
import random

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests.unit.benchmarks import test_packing
from cyborg_gpu_driver.tests.unit.partition import boards

online = test_packing.program('online')

# The tables are shared: the rows of a full A100 take most of a second.
FULL = {board: geometry.Table(geometry.Geometry(profiles))
        for board, profiles in boards.ALL.items()}
BASE = {board: geometry.Table(geometry.Geometry(
    boards.named(boards.ALL[board], *names)))
    for board, names in boards.BASE.items()}
TABLES = st.sampled_from([*FULL.values(), *BASE.values()])


@st.composite
def clusters(draw):
    """A cluster of a few GPUs, filled and emptied step by step."""
    table = draw(TABLES)
    cluster = online.Cluster(
        table, dict.fromkeys(range(draw(st.integers(1, 5))),
                             geometry.EMPTY),
        draw(st.sampled_from(online.Policy)))
    shake(cluster, draw(st.integers(0, 40)),
          random.Random(draw(st.integers(0, 2 ** 16))))
    return cluster


def shake(cluster, steps, chance):
    """Request and remove at random. Return the places still in use."""
    places = []
    for _ in range(steps):
        if places and chance.random() < 0.4:
            cluster.remove(places.pop(chance.randrange(len(places))))
            continue
        place = cluster.request(
            chance.choice(cluster.table.profiles).profile_id)
        if place is not None:
            places.append(place)
    return places


def gpus_of(cluster):
    return {gpu: cluster.occupancy(gpu) for gpu in cluster._rows}


class DemandTest(base.BaseTestCase):

    def test_what_is_asked_for_weighs_more(self):
        demand = online.Demand([19, 0])
        self.assertEqual(demand.roots[0], demand.roots[1])
        for _ in range(2):
            demand.note(19)
        self.assertEqual((math.sqrt(3 / 4), math.sqrt(1 / 4)),
                         demand.roots)

    def test_what_is_long_ago_fades(self):
        demand = online.Demand([19, 0])
        for profile_id in (19, 0):
            for _ in range(4 * online.MEMORY):
                demand.note(profile_id)
        self.assertLess(demand.roots[0], 0.3)
        self.assertGreater(demand.roots[1], 0.95)


class ClusterTest(base.BaseTestCase):

    def cluster(self, policy, *gpus, board='A100-80'):
        """A cluster of GPUs, numbered from 0; each a list of (name, start)."""
        table = BASE[board]
        return online.Cluster(table, {
            number: table.grid.occupancy_of(boards.gpu(
                boards.ALL[board], live).mig.instances)
            for number, live in enumerate(gpus)}, policy)

    def chosen(self, cluster, name):
        profile, = boards.named(cluster.table.profiles, name)
        place = cluster.choose(profile.profile_id)
        return place and (place.gpu, place.placement.start)

    def test_first_fit(self):
        cluster = self.cluster(
            online.Policy.FIRST_FIT, [('4g.40gb', 0), ('3g.40gb', 4)],
            [('1g.10gb', 1)], [])
        self.assertEqual((1, 0), self.chosen(cluster, '1g.10gb'))
        self.assertEqual((1, 4), self.chosen(cluster, '3g.40gb'))
        self.assertEqual((2, 0), self.chosen(cluster, '7g.80gb'))

    def test_best_fit(self):
        cluster = self.cluster(
            online.Policy.BEST_FIT, [], [('1g.10gb', 1)],
            [('4g.40gb', 0), ('1g.10gb', 4)], [('3g.40gb', 0)])
        self.assertEqual((2, 5), self.chosen(cluster, '1g.10gb'))
        self.assertEqual((3, 4), self.chosen(cluster, '3g.40gb'))
        self.assertEqual((0, 0), self.chosen(cluster, '7g.80gb'))

    def test_capacity_loss_differs_from_best_fit(self):
        # Best-fit splits the last free half of GPU 0 for a 1g. Capacity-loss
        # takes GPU 1, which is emptier but already split.
        gpus = [('4g.40gb', 0)], [('1g.10gb', 0), ('1g.10gb', 4)], []
        best = self.cluster(online.Policy.BEST_FIT, *gpus)
        loss = self.cluster(online.Policy.CAPACITY_LOSS, *gpus)
        self.assertEqual(0, self.chosen(best, '1g.10gb')[0])
        self.assertEqual(1, self.chosen(loss, '1g.10gb')[0])

    @hypothesis.given(clusters())
    def test_refused_only_if_nothing_fits(self, cluster):
        grid = cluster.table.grid
        for profile in cluster.table.profiles:
            place = cluster.choose(profile.profile_id)
            fitting = {
                (gpu, placement) for gpu, occupancy in
                gpus_of(cluster).items() for placement in
                grid.free_placements(occupancy, profile)}
            if place is None:
                self.assertEqual(set(), fitting)
            else:
                self.assertIn((place.gpu, place.placement), fitting)

    @hypothesis.given(clusters())
    def test_the_least_loss_of_all(self, cluster):
        cluster = online.Cluster(cluster.table, gpus_of(cluster))
        table = cluster.table
        prices = [1 / (0.5 + room) for room in cluster.room.values()]

        def loss(gpu, profile, placement):
            occupancy = cluster.occupancy(gpu)
            after = occupancy.add(profile, placement)
            return sum(price * (had - has) for price, had, has in zip(
                prices, table.row(occupancy).room, table.row(after).room))

        for profile in table.profiles:
            losses = [loss(gpu, profile, placement) for gpu in
                      gpus_of(cluster) for placement in
                      table.grid.free_placements(cluster.occupancy(gpu),
                                                 profile)]
            place = cluster.choose(profile.profile_id)
            if losses:
                self.assertAlmostEqual(min(losses), loss(
                    place.gpu, profile, place.placement))

    def test_all_that_came_goes(self):
        for board, table in FULL.items():
            gpus = dict.fromkeys(range(6), geometry.EMPTY)
            cluster = online.Cluster(table, gpus)
            room = cluster.room
            for place in shake(cluster, 300, random.Random(board)):
                cluster.remove(place)
            self.assertEqual(gpus, gpus_of(cluster))
            self.assertEqual(room, cluster.room)

    def test_demand_decides(self):
        # Next to the other 1g, a 1g keeps room for a 4g from coming back soon.
        # Next to the 4g, it costs a 2g and a 3g.
        gpus, chosen = ([('1g.10gb', 0)], [('4g.40gb', 0)]), {}
        for wanted in ('1g.10gb', '4g.40gb'):
            cluster = self.cluster(online.Policy.CAPACITY_LOSS, *gpus)
            profile, = boards.named(cluster.table.profiles, wanted)
            for _ in range(1000):
                cluster.demand.note(profile.profile_id)
            chosen[wanted] = self.chosen(cluster, '1g.10gb')
        self.assertEqual({'1g.10gb': (0, 1), '4g.40gb': (1, 6)}, chosen)

    def test_requests_are_demand_whether_met_or_not(self):
        cluster = self.cluster(online.Policy.CAPACITY_LOSS,
                               [('7g.80gb', 0)])
        before = cluster.demand.roots
        self.assertIsNone(cluster.choose(0))
        self.assertEqual(before, cluster.demand.roots)
        self.assertIsNone(cluster.request(0))
        self.assertEqual(math.sqrt(2 / 6), cluster.demand.roots[-1])

    def test_add_is_what_others_chose(self):
        cluster = self.cluster(online.Policy.CAPACITY_LOSS, [], [])
        place = online.Place(1, 19, model.Placement(3, 1))
        cluster.add(place)
        self.assertEqual(place.placement.mask, cluster.occupancy(1).mask)
        self.assertRaises(exception.InvalidValue, cluster.add, place)
        cluster.remove(place)
        self.assertRaises(exception.InvalidValue, cluster.remove, place)

    def test_what_is_unknown_is_refused(self):
        cluster = self.cluster(online.Policy.CAPACITY_LOSS, [])
        for call, *arguments in (
                (cluster.choose, 99), (cluster.request, 99),
                (cluster.occupancy, 7), (cluster.add, 7, 19, 0),
                (cluster.add, 0, 99, 0), (cluster.add, 0, 19, 7),
                (cluster.remove, 7, 19, 0)):
            if len(arguments) > 1:
                gpu, profile, start = arguments
                arguments = [online.Place(
                    gpu, profile, model.Placement(start, 1))]
            self.assertRaises(exception.InvalidValue, call, *arguments)
        self.assertEqual(geometry.EMPTY, cluster.occupancy(0))

    def test_instances_of_unknown_profiles_take_their_room(self):
        table = BASE['A30']
        foreign = model.GpuInstance(model.Placement(2, 1), 77, 3)
        for policy in online.Policy:
            cluster = online.Cluster(table, {
                'a': table.grid.occupancy_of([foreign])}, policy)
            self.assertIsNone(cluster.choose(0))
            self.assertEqual(0, cluster.choose(5).placement.start)
            cluster.remove(online.Place('a', 77, foreign.placement))
            self.assertIsNotNone(cluster.choose(0))
