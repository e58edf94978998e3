# SPDX-License-Identifier: Apache-2.0


from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.tests.unit.partition import boards


class WantedTestCase(base.BaseTestCase):

    def wanted(self, **devices):
        return target.wanted(boards.gpu(boards.A100_40), True, {
            name.replace('_', '.'): count
            for name, count in devices.items()})

    def test_zero_is_none(self):
        gpu = boards.gpu(boards.A100_40)
        self.assertEqual(target.Wanted(True),
                         target.wanted(gpu, True, {'1g.5gb': 0}))

    def test_devices_fill_the_fewest_instances(self):
        for devices, packed in (
                ({'2g_10gb': 2, '1g_5gb': 1},
                 [('2g.10gb', (2,)), ('2g.10gb', (2,)), ('1g.5gb', (1,))]),
                ({'1c_3g_20gb': 3}, [('3g.20gb', (1, 1, 1))]),
                ({'1c_3g_20gb': 1, '2c_3g_20gb': 1, '3g_20gb': 1},
                 [('3g.20gb', (3,)), ('3g.20gb', (2, 1))])):
            self.assertEqual(packed, [
                (item.profile.name, item.compute)
                for item in self.wanted(**devices).packed()])

    def test_too_many_pack_in_no_way(self):
        for name, count in (('4g_20gb', 2), ('1c_4g_20gb', 10 ** 9)):
            self.assertIsNone(self.wanted(**{name: count}).packed())

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
