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

import random

import hypothesis
from hypothesis import strategies as st
from oslotest import base

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

    def test_all_that_came_goes(self):
        for board, table in FULL.items():
            gpus = dict.fromkeys(range(6), geometry.EMPTY)
            cluster = online.Cluster(table, gpus)
            room = cluster.room
            for place in shake(cluster, 300, random.Random(board)):
                cluster.remove(place)
            self.assertEqual(gpus, gpus_of(cluster))
            self.assertEqual(room, cluster.room)

