# SPDX-License-Identifier: Apache-2.0


from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import playing


class WantedTestCase(base.BaseTestCase):

    def wanted(self, **devices):
        return target.wanted(boards.gpu(boards.A100_40), True, {
            name.replace('_', '.'): count
            for name, count in devices.items()})

    def packings(self, **devices):
        return [[(item.profile.name, item.compute) for item in packing]
                for packing in self.wanted(**devices).packings()]

    def test_zero_is_none(self):
        gpu = boards.gpu(boards.A100_40)
        self.assertEqual(target.Wanted(True),
                         target.wanted(gpu, True, {'1g.5gb': 0}))

    def test_whole_instances_pack_in_one_way(self):
        self.assertEqual(
            [[('2g.10gb', (2,)), ('2g.10gb', (2,)), ('1g.5gb', (1,))]],
            self.packings(**{'2g_10gb': 2, '1g_5gb': 1}))

    def test_parts_fill_few_instances_first(self):
        self.assertEqual(
            [[('3g.20gb', (1, 1, 1))],
             [('3g.20gb', (1, 1)), ('3g.20gb', (1,))]],
            self.packings(**{'1c_3g_20gb': 3}))
        self.assertEqual(
            [[('3g.20gb', (3,)), ('3g.20gb', (2, 1))]],
            self.packings(**{'1c_3g_20gb': 1, '2c_3g_20gb': 1,
                             '3g_20gb': 1}))

    def test_too_many_pack_in_no_way(self):
        self.assertEqual([], self.packings(**{'4g_20gb': 2}))
        self.assertEqual([], self.packings(**{'1c_4g_20gb': 10 ** 9}))

    def test_attributes_are_part_of_a_name(self):
        gpu = boards.gpu(boards.RTX_PRO_6000)
        wanted = target.wanted(gpu, True, {
            '1g.24gb+me.all': 1, '1g.24gb-me': 3})
        self.assertEqual(
            [65, 67], [item.profile.profile_id for item in wanted.devices])
        wanted = target.wanted(gpu, True, {'1c.2g.48gb+gfx': 2})
        self.assertEqual((35, 1), (wanted.devices[0].profile.profile_id,
                                   wanted.devices[0].slices))

    def test_what_the_gpu_does_not_have(self):
        for name in ('1g.6gb', '1g.5gb+gfx', '5gb', '1c.7g.80gb'):
            self.assertRaises(
                exception.InvalidValue, target.wanted,
                boards.gpu(boards.A100_40), True, {name: 1})
        self.assertRaises(
            exception.InvalidValue, target.wanted,
            boards.gpu((), mig=None), True, {})


class ComputeChangeTestCase(base.BaseTestCase):

    def change(self, live, wanted, profile='4g.20gb'):
        """Return ([(start, size) destroyed], sizes created)."""
        profile, = boards.named(boards.A100_40, profile)
        instance = model.GpuInstance(
            model.Placement(0, 4), profile.profile_id, 1, compute=tuple(
                model.ComputeInstance(start, size, number)
                for number, (start, size) in enumerate(live)))
        destroy, create = change.change(
            instance, target.WantedInstance(profile, wanted))
        return [(item.start, item.size) for item in destroy], create

    def test_changes(self):
        for live, wanted, destroyed, created in (
                ([], (4,), [], (4,)),
                ([(0, 4)], (4,), [], ()),
                ([(0, 4)], (2, 1, 1), [(0, 4)], (2, 1, 1)),
                ([(0, 1), (1, 1)], (2, 1, 1), [], (2,)),
                ([(1, 1), (2, 1)], (2, 1, 1), [(2, 1)], (2, 1)),
                ([(1, 1), (3, 1)], (2, 1), [(3, 1)], (2,)),
                ([(0, 1), (3, 1)], (2, 1, 1), [(3, 1)], (2, 1)),
                ([(0, 2), (2, 2)], (2, 1, 1), [(2, 2)], (1, 1))):
            self.assertEqual((destroyed, created),
                             self.change(live, wanted), (live, wanted))

    def test_in_use_is_all_or_nothing(self):
        profile, = boards.named(boards.A100_40, '4g.20gb')
        wanted = target.WantedInstance(profile, (2, 2))
        for sizes, expected in (((2, 2), (0, 0)), ((), (0, 0)),
                                ((2,), None), ((4,), None)):
            instance = model.GpuInstance(
                model.Placement(0, 4), profile.profile_id, 1,
                compute=playing.end_to_end(sizes))
            self.assertEqual(expected, change.cost(
                instance, wanted, in_use=True))
