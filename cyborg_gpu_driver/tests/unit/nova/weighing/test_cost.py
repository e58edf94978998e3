# SPDX-License-Identifier: Apache-2.0


"""The cost of a request on GPUs that are published in Placement."""

from __future__ import annotations

import dataclasses
import math
import statistics

from oslotest import base

from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.tests.unit.nova import weigher_case
from cyborg_gpu_driver.tests.unit.partition import boards


def vgpus(host, address, **figures):
    """A GPU that offers vGPU types, with the used and free amount of each."""
    return published.Gpu(host, address, tuple(
        published.Offer(f'{host}/{address}/{name}', name, name, used, free)
        for name, (used, free) in sorted(figures.items())))


class CostCase(base.BaseTestCase):

    def costs(self, gpus, *profiles):
        """The costs and addresses of the GPUs with room, cheapest first."""
        fleet = weigher_cost.Fleet(gpus)
        return sorted(
            (fleet.cost(weigher_case.asked(gpu, *profiles)), gpu.address)
            for gpu in gpus if all(
                offer.free for offer in gpu.offers
                if offer.profile in profiles))

    def order(self, gpus, *profiles):
        return [address for _cost, address in self.costs(gpus, *profiles)]


class GridTest(CostCase):

    empty = weigher_case.gpu('host', 'empty')
    left = weigher_case.gpu('host', 'left', taken=[('3g.40gb', 4)])
    right = weigher_case.gpu('host', 'right', taken=[('3g.40gb', 0)])
    hole = weigher_case.gpu('host', 'hole', taken=[
        ('3g.40gb', 0), ('2g.20gb', 4)])

    def test_a_hole_is_filled_first(self):
        # The order is the same with 20 more GPUs, where nothing is scarce.
        others = [weigher_case.gpu('other', f'other{number}')
                  for number in range(20)]
        gpus = [self.empty, self.left, self.right, self.hole]
        for more in ([], others):
            self.assertEqual('hole', self.order(
                gpus + more, '1g.10gb')[0])
            self.assertEqual('right', self.order(
                gpus + more, '2g.20gb')[0])
            self.assertEqual('right', self.order(
                gpus + more, '3g.40gb')[0])
            self.assertEqual('left', self.order(
                gpus + more, '4g.40gb')[0])

    def test_the_agent_loses_what_the_weigher_says(self):
        profiles = boards.named(boards.H100_80, *boards.BASE['H100-80'])
        grid = geometry.Geometry(profiles)
        taken = [('3g.40gb', 0)]
        gpu = weigher_case.gpu('host', 'gpu', profiles, taken=taken)
        row = geometry.of_grid(grid.profiles).row(grid.occupancy_of(
            boards.gpu(profiles, taken).mig.instances))
        fleet = weigher_cost.Fleet([gpu])
        for profile in profiles[:3]:
            start = geometry.choose_start(grid, row.occupancy, profile)
            after = row.table.row(row.occupancy.add(profile, start))
            self.assertAlmostEqual(
                geometry.loss(row.lost(after), geometry.prices(row.room)),
                fleet.cost(weigher_case.asked(gpu, profile.name)).loss)

    def test_what_looks_alike_costs_the_mean(self):
        offered = ('1g.10gb', '2g.20gb', '3g.40gb')
        profiles = [profile for profile in boards.H100_80
                    if profile.name in offered]
        # A 2g leaves the same amount at each of its three starts.
        table = geometry.Table(
            geometry.Geometry(boards.H100_80),
            sorted(profiles, key=lambda profile: profile.name))
        double, = (profile for profile in profiles
                   if profile.name == '2g.20gb')
        rows = [table.row(geometry.EMPTY.add(double, placement))
                for placement in double.placements]
        prices = geometry.prices(statistics.fmean(room) for room in zip(
            *(row.room for row in rows), strict=True))
        expected = [min(geometry.loss(option.lost, prices)
                        for option in row.options[0]) for row in rows]
        self.assertEqual(2, len(set(expected)))
        gpu = weigher_case.gpu('host', 'gpu', offered=offered,
                               taken=[('2g.20gb', 0)])
        self.assertAlmostEqual(
            statistics.fmean(expected),
            weigher_cost.Fleet([gpu]).cost(
                weigher_case.asked(gpu, '1g.10gb')).loss)


class EstimateTest(CostCase):

    def test_a_vgpu_goes_where_the_other_types_are_lost_already(self):
        gpus = [vgpus('host', 'empty', T4_2B=(0, 8), T4_4Q=(0, 4)),
                vgpus('host', 'begun', T4_2B=(1, 7), T4_4Q=(0, 0))]
        (begun, _), (empty, _) = self.costs(gpus, 'T4_2B')
        self.assertEqual(['begun', 'empty'], self.order(gpus, 'T4_2B'))
        # One vGPU of 15, and one of 15 with an eighth of four others.
        self.assertAlmostEqual(1 / 15.5, begun.loss)
        self.assertAlmostEqual(1 / 15.5 + 0.5 / 4.5, empty.loss)

    def test_whole_gpus_cost_the_same_but_for_the_host(self):
        def whole(host, number, used):
            return vgpus(host, f'{host}{number}',
                         passthrough=(used, 1 - used))

        gpus = [whole('fuller', 1, 0), whole('fuller', 2, 1),
                whole('empty', 1, 0), whole('empty', 2, 0)]
        (fuller, first), (one, _), (two, _) = self.costs(
            gpus, 'passthrough')
        self.assertEqual('fuller1', first)
        self.assertEqual(one, two)
        self.assertEqual(fuller.loss, one.loss)
        self.assertLess(fuller.packing, one.packing)
        self.assertLess(fuller.spreading, one.spreading)

    def test_foreign_instances_are_no_obstacle(self):
        # Half of the GPU is used by an instance that Placement does not know.
        half = weigher_case.gpu('host', 'half', taken=[('3g.40gb', 4)])
        foreign = published.Gpu('host', 'foreign', tuple(
            dataclasses.replace(offer, used=0) for offer in half.offers))
        empty = weigher_case.gpu('host', 'empty')
        self.assertEqual('foreign', self.order(
            [empty, foreign], '1g.10gb')[0])
        # A quarter of the free capacity of this GPU: four 1g, two 1g with
        # double memory, two 2g, a 3g and a 4g.
        fleet = weigher_cost.Fleet([foreign])
        self.assertAlmostEqual(
            (4 / 4.5 + 2 * 2 / 2.5 + 2 * 1 / 1.5) / 4,
            fleet.cost(weigher_case.asked(foreign, '1g.10gb')).loss)


class RolesTest(CostCase):
    """GPUs that are offered in several roles at the same time."""

    @staticmethod
    def gpu(address, **figures):
        return vgpus('host', address, **{
            'passthrough': (0, 0), '1g.10gb': (0, 0), '2g.20gb': (0, 0),
            'T4-4C': (0, 0), **figures})

    idle = {'passthrough': (0, 1), '1g.10gb': (0, 7), '2g.20gb': (0, 3),
            'T4-4C': (0, 4)}

    def test_the_role_that_is_there_first(self):
        gpus = [self.gpu('a', **self.idle),
                self.gpu('mig', **{'1g.10gb': (1, 6), '2g.20gb': (0, 3)}),
                self.gpu('vgpu', **{'T4-4C': (1, 3)}),
                self.gpu('z', **self.idle)]
        self.assertEqual('mig', self.order(gpus, '1g.10gb')[0])
        self.assertEqual('mig', self.order(gpus, '2g.20gb')[0])
        self.assertEqual('vgpu', self.order(gpus, 'T4-4C')[0])
        self.assertEqual({'a', 'z'}, {*self.order(gpus, 'passthrough')})

    def test_what_one_server_has_excludes_the_other_roles(self):
        """This holds before the agent knows and reserves the other roles."""
        def summary(used, capacity):
            return {'used': used, 'capacity': capacity}

        names = {label: f'host_gpu_0000:41:00.0_{label}'
                 for label in ('passthrough', '1g.10gb', 'T4-4C')}
        for taken in names:
            gpu, = published.gpus({label: {
                'root_provider_uuid': 'root', 'traits': [],
                'resources': {'CUSTOM': summary(int(label == taken), 4)}}
                for label in names}, names)
            self.assertEqual(
                {label: 3 if label == taken else 0 for label in names},
                {offer.provider: offer.free for offer in gpu.offers})


class WeightsTest(base.BaseTestCase):
    """The weights of hosts."""

    def test_weights(self):
        none = weigher_cost.IMPOSSIBLE
        for figures, expected in (
                ([2.0, 5.0, 1.0], [0.75, 0, 1]), ([2, 2], [0, 0]),
                # The unknown is as the mean.
                ([3, None, 1], [0, 0.5, 1]), ([None, None], [0, 0]),
                ([3, math.inf, 1], [0, none, 1]), ([math.inf], [none])):
            self.assertEqual(expected, weigher_cost.weights(figures))
