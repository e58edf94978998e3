# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import vgpu_type
from cyborg_gpu_driver.tests.unit.partition import boards


def nvml(type_id, name, framebuffer, maximum, profile_id=None):
    return model.VgpuType(type_id, name, 'Compute', framebuffer, maximum,
                          profile_id)


class TestTypesOf(base.BaseTestCase):

    def test_nvml_and_sysfs_are_one(self):
        gpu = boards.gpu(
            boards.A100_40,
            vgpu_types=(nvml(474, 'A100-1-5C', 4864, 7, 19),),
            vfs=boards.vfs(2, (
                model.MdevType('nvidia-474', 'A100-1-5C', 1, 1),
                model.MdevType('nvidia-91', 'A100-4C', 1, 10, 4096))))
        self.assertEqual((
            model.VgpuType(91, 'A100-4C', '', 4096, 10),
            nvml(474, 'A100-1-5C', 4864, 7, 19),
        ), vgpu_type.types_of(gpu))

    def test_on_the_gpu_itself(self):
        gpu = boards.gpu((), mdev_types=(
            model.MdevType('nvidia-231', 'T4-2B', 8),))
        self.assertEqual((model.VgpuType(231, 'T4-2B', '', 0, None),),
                         vgpu_type.types_of(gpu))

    def test_mig_backed(self):
        for name, profile_id, expected in (
                ('A100-1-5C', None, True), ('A100-1-5C', 19, True),
                ('A100-4C', None, False), ('what is this', None, False),
                ('what is this', 0, True)):
            self.assertIs(expected, vgpu_type.is_mig_backed(
                nvml(1, name, 0, None, profile_id)), name)

    def test_of_mode(self):
        gpu = boards.gpu(boards.A100_40, vgpu_types=(
            nvml(468, 'A100-4C', 4096, 10),
            nvml(474, 'A100-1-5C', 4864, 7, 19)))
        for mode, expected in ((policy.Mode.VGPU, 'A100-4C'),
                               (policy.Mode.MIG, 'A100-1-5C')):
            entry, = vgpu_type.of_mode(gpu, mode)
            self.assertEqual(expected, entry.name)

    def test_most(self):
        for told, capped, expected in (
                (7, (), 7), (None, (), None), (0, (), None),
                (7, (('T4-2B', 5),), 5), (7, (('nvidia-231', 9),), 7),
                (0, (('nvidia-231', 9),), 9), (7, (('T4-1B', 1),), 7)):
            rules = policy.Policy('x', policy.Mode.VGPU,
                                  max_instances=capped)
            self.assertEqual(expected, vgpu_type.most(
                nvml(231, 'T4-2B', 0, told), rules))

    def test_as_large_as(self):
        two, other, four = (
            nvml(number, '', size * 1024, None)
            for number, size in enumerate((2, 2, 4)))
        self.assertTrue(two.is_as_large_as(other))
        self.assertFalse(two.is_as_large_as(four))
        unknown = [nvml(number, '', 0, None) for number in (1, 2)]
        self.assertFalse(unknown[0].is_as_large_as(unknown[1]))
        self.assertTrue(unknown[0].is_as_large_as(unknown[0]))


class TestBacking(base.BaseTestCase):

    GFX, = boards.named(boards.RTX_PRO_6000, '1g.24gb+gfx')

    def types(self, *rows):
        return [nvml(number, name, framebuffer, None, profile_id)
                for number, name, framebuffer, profile_id in rows]

    def test_largest_framebuffer_then_series(self):
        types = self.types(
            (1, 'DC-1-12C', 12288, 47), (2, 'DC-1-24A', 24576, 47),
            (3, 'DC-1-24B', 24576, 47), (4, 'DC-1-24Q', 24576, 47),
            (5, 'DC-1-24C', 24576, 47), (6, 'DC-2-48C', 49152, 35))
        for expected in ('DC-1-24C', 'DC-1-24Q', 'DC-1-24B', 'DC-1-24A',
                         'DC-1-12C'):
            found = vgpu_type.backing(types, self.GFX)
            self.assertEqual(expected, found.name)
            types.remove(found)
        self.assertIsNone(vgpu_type.backing(types, self.GFX))

    def test_preferred(self):
        types = self.types(
            (1, 'DC-1-12C', 12288, 47), (2, 'DC-1-24A', 24576, 47),
            (6, 'DC-2-48C', 49152, 35))
        for preferred, expected in (
                (('DC-1-12C',), 'DC-1-12C'), (('nvidia-1',), 'DC-1-12C'),
                (('DC-2-48C', 'DC-1-12C', 'DC-1-24A'), 'DC-1-12C'),
                (('DC-2-48C',), 'DC-1-24A')):
            self.assertEqual(expected, vgpu_type.backing(
                types, self.GFX, preferred).name, preferred)

    def test_what_shares_an_instance_does_not_back_its_profile(self):
        types = [model.VgpuType(size, f'DC-1-{size}Q', '', size * 1024,
                                None, 47, per_instance)
                 for size, per_instance in ((8, 3), (12, 2), (24, 1))]
        self.assertEqual((types[2],), vgpu_type.filling(types, self.GFX))
        self.assertEqual(types[2], vgpu_type.backing(
            types, self.GFX, ('DC-1-8Q',)))
        # The largest type fills the instance, whatever NVML says.
        self.assertEqual(types[1], vgpu_type.backing(types[:2], self.GFX))

    def test_equal_types_go_by_number(self):
        types = self.types((100, 'DC-1-24Q', 24576, 47),
                           (99, 'DC-1-24QGFX', 24576, 47))
        for order in (types, types[::-1]):
            self.assertEqual(99, vgpu_type.backing(
                order, self.GFX).type_id)

    def test_profile_id_0_is_a_profile(self):
        whole = boards.A100_40[-1]
        self.assertEqual(0, whole.profile_id)
        sliced, = self.types((1, 'A100-40C', 40960, None))
        self.assertIsNone(vgpu_type.backing([sliced], whole))
        backed, = self.types((2, 'A100-7-40C', 40960, 0))
        self.assertEqual(backed, vgpu_type.backing([sliced, backed],
                                                   whole))
        smaller, = self.types((3, 'A100-7-20C', 20480, 0))
        self.assertEqual(smaller, vgpu_type.backing([smaller], whole))

    def test_by_name_alone(self):
        types = self.types(
            (474, 'A100-1-5C', 0, None), (706, 'A100-1-5CME', 0, None),
            (480, 'A100-1-10C', 0, None), (475, 'A100-2-10C', 0, None),
            (468, 'A100-5C', 0, None))
        found = {profile.name: vgpu_type.backing(types, profile)
                 for profile in boards.A100_40}
        self.assertEqual(
            {'1g.5gb': 'A100-1-5C', '1g.5gb+me': 'A100-1-5CME',
             '1g.10gb': 'A100-1-10C', '2g.10gb': 'A100-2-10C'},
            {name: entry.name for name, entry in found.items() if entry})

    def test_by_name_alone_with_attributes(self):
        types = self.types(
            (1, 'DC-1-24QNOME', 0, None), (2, 'DC-1-24QMEALL', 0, None),
            (3, 'DC-1-24QGFX', 0, None))
        for profile, type_id in (('1g.24gb-me', 1), ('1g.24gb+me.all', 2),
                                 ('1g.24gb+gfx', 3)):
            profile, = boards.named(boards.RTX_PRO_6000, profile)
            self.assertEqual(
                type_id, vgpu_type.backing(types, profile).type_id)
