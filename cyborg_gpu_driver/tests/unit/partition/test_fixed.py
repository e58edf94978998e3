# SPDX-License-Identifier: Apache-2.0

import dataclasses

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import fixed
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import test_vgpu_type

# Type number, name, framebuffer in GiB, maximum of instances.
L40S = ((1, 'L40S-48Q', 48, 1), (2, 'L40S-24Q', 24, 2), (3, 'L40S-12Q', 12, 4),
        (4, 'L40S-12A', 12, 4), (5, 'L40S-2B', 2, 24))
# The same, then GPU instance profile and vGPUs per GPU instance.
PRO_6000 = ((11, 'DC-1-24Q', 24, 4, 47, 1), (12, 'DC-1-12Q', 12, 8, 47, 2),
            (13, 'DC-1-8Q', 8, 12, 47, 3), (14, 'DC-1-8A', 8, 12, 47, 3),
            (15, 'DC-2-48Q', 48, 2, 35, 1), (16, 'DC-2-24Q', 24, 4, 35, 2))


def types(rows):
    return tuple(
        model.VgpuType(number, name, 'Quadro', size * 1024, most, *more)
        for number, name, size, most, *more in rows)


def functions(count, carried=()):
    """Virtual functions of vendor VFIO.

    :param carried: the vGPU types of the first functions, as numbers
        (0 for none) or as (number, fields).
    """
    made = []
    for number, function in enumerate(boards.vfs(count)):
        there = carried[number] if number < len(carried) else 0
        type_id, fields = there if isinstance(there, tuple) else (there, {})
        made.append(dataclasses.replace(
            function, current_vgpu_type=type_id, **fields))
    return tuple(made)


def l40s(*carried, vfs=8, **fields):
    return boards.gpu((), **{
        'mig': None, 'framework': model.Framework.VENDOR_VFIO,
        'vgpu_types': types(L40S), 'vfs': functions(vfs, carried),
        **fields})


def pro_6000(*carried, live=(), vfs=16):
    return boards.gpu(
        boards.RTX_PRO_6000, live, framework=model.Framework.VENDOR_VFIO,
        vgpu_types=types(PRO_6000), vfs=functions(vfs, carried))


def a100(*carried, mixed=True):
    """An A100-40 in mixed-size mode, by default."""
    return l40s(*carried, vfs=16, mixed_sizes=mixed, vgpu_types=tuple(
        dataclasses.replace(kind, free_placements=None)
        for kind in test_vgpu_type.kinds(40)))


def rules(mode='vgpu', mixed_sizes=False, **numbers):
    return policy.Policy(
        'p', policy.Mode(mode), mixed_sizes=mixed_sizes, fixed_vgpus=tuple(
            (name.replace('_', '-'), number)
            for name, number in numbers.items()))


def where(gpu, plan):
    """Names of the planned types, by number of the virtual function."""
    indices = {function.address: function.index for function in gpu.vfs}
    return {indices[item.function]: item.name for item in plan.vgpus}


class FixedCase(base.BaseTestCase):

    def given(self, gpu, governing, **remembered):
        """:param remembered: type by ``f<number of the function>``."""
        addresses = {f'f{function.index}': function.address
                     for function in gpu.vfs}
        plan = fixed.plan(gpu, governing, {
            addresses[name]: text for name, text in remembered.items()})
        return where(gpu, plan)

    def refused(self, gpu, governing):
        error = self.assertRaises(exception.InvalidConfiguration, fixed.plan,
                                  gpu, governing, {})
        return str(error)


class TestOneSize(FixedCase):

    def test_lowest_functions_in_the_policys_order(self):
        self.assertEqual(
            {0: 'L40S-12Q', 1: 'L40S-12Q', 2: 'L40S-12A'},
            self.given(l40s(), rules(L40S_12Q=2, L40S_12A=1)))
        self.assertEqual(
            {0: 'L40S-12A', 1: 'L40S-12Q', 2: 'L40S-12Q'},
            self.given(l40s(), rules(L40S_12A=1, L40S_12Q=2)))

    def test_as_the_driver_takes_it(self):
        plan = fixed.plan(l40s(), policy.Policy(
            'p', policy.Mode.VGPU, fixed_vgpus=(('nvidia-3', 1),)), {})
        self.assertEqual(fixed.FixedPlan((spec.VgpuSpec(
            l40s().vfs[0].address, 'nvidia-3'),)), plan)
        self.assertEqual('L40S-12Q', plan.vgpus[0].name)

    def test_what_was_there_before_stays(self):
        self.assertEqual(
            {0: 'L40S-12Q', 3: 'L40S-12A', 5: 'L40S-12Q'},
            self.given(l40s(), rules(L40S_12Q=2, L40S_12A=1),
                       f5='L40S-12Q', f3='nvidia-4', f1='L40S-24Q'))

    def test_what_is_there_goes_before_what_was(self):
        self.assertEqual(
            {2: 'L40S-12Q'},
            self.given(l40s(0, 0, 3), rules(L40S_12Q=1), f0='L40S-12Q'))

    def test_again_and_again_it_is_the_same(self):
        governing = rules(L40S_12Q=2, L40S_12A=1)
        first = fixed.plan(l40s(), governing, {})
        made = l40s(*(vgpu_name.type_number(item.type_id)
                      for item in first.vgpus))
        self.assertEqual(first, fixed.plan(made, governing, {}))
        remembered = {item.function: item.name
                      for item in first.vgpus}
        self.assertEqual(first, fixed.plan(l40s(), governing, remembered))

    def test_a_function_that_carries_something_else_is_not_taken(self):
        self.assertEqual({1: 'L40S-12Q'},
                         self.given(l40s(4), rules(L40S_12Q=1)))

    def test_functions_without_the_drivers_files_are_not_taken(self):
        self.assertEqual({1: 'L40S-12Q'},
                         self.given(l40s(None), rules(L40S_12Q=1)))

    def test_refused(self):
        for gpu, governing, said in (
                (l40s(), rules(L40S_12Q=1, L40S_24Q=1),
                 '(12288 MiB, 24576 MiB) need mixed_sizes'),
                (l40s(), rules(L40S_12Q=5), '5 of L40S-12Q, but at most 4'),
                (l40s(), rules(L40S_12Q=3, L40S_12A=2),
                 '5 vGPUs, but at most 4 fit'),
                (l40s(), rules(L40S_7Q=1),
                 'no vGPU type L40S-7Q; it has L40S-48Q (nvidia-1)'),
                (l40s(vfs=2), rules(L40S_12Q=3), "2 of the GPU's 2 are"),
                (l40s(vfs=0), rules(L40S_12Q=1), "0 of the GPU's 0 are"),
                (l40s(2), rules(L40S_12Q=1),
                 'existing vGPUs that are not in fixed_vgpus: nvidia-2 on '
                 '0000:07:00.4'),
                (l40s(4), rules(L40S_12Q=4),
                 'at most 4 fit on one GPU; existing vGPUs that are not in '
                 'fixed_vgpus: nvidia-4'
                 )):
            message = self.refused(gpu, governing)
            self.assertIn(said, message)
            self.assertIn('GPU 0000:07:00.0: fixed_vgpus of policy p',
                          message)

    def test_max_instances(self):
        governing = dataclasses.replace(
            rules(L40S_12Q=3), max_instances=(('L40S-12Q', 2),))
        self.assertIn('at most 2', self.refused(l40s(), governing))

    def test_only_for_vendor_vfio(self):
        for framework in (model.Framework.MDEV_PF, model.Framework.MDEV_VF):
            self.assertEqual(fixed.FixedPlan(), fixed.plan(
                l40s(framework=framework), rules(L40S_12Q=1), {}))
        self.assertEqual(fixed.FixedPlan(), fixed.plan(
            l40s(), policy.Policy('p', policy.Mode.PASSTHROUGH), {}))


class TestMixedSizes(FixedCase):

    def places(self, gpu, **numbers):
        plan = fixed.plan(gpu, rules(mixed_sizes=True, **numbers), {})
        return {item.name: item.placement_id for item in plan.vgpus}

    def test_the_largest_are_placed_first(self):
        self.assertEqual({'X-20Q': 0, 'X-10Q': 20, 'X-5Q': 30},
                         self.places(a100(), X_5Q=1, X_10Q=1, X_20Q=1))

    def test_before_the_mode_is_on(self):
        self.assertEqual({'X-20Q': 0},
                         self.places(a100(mixed=False), X_20Q=1))

    def test_what_is_there_keeps_its_place(self):
        gpu = a100((5, {'placement_id': 5}))
        self.assertEqual({'X-5Q': 5, 'X-20Q': 20},
                         self.places(gpu, X_5Q=1, X_20Q=1))

    def test_what_is_not_wanted_is_in_the_way(self):
        gpu = a100((5, {'placement_id': 5}))
        self.assertIn(
            'no placement left for X-40Q on 0000:07:00.5 next to the others; '
            'existing vGPUs that are not in fixed_vgpus: nvidia-5 on '
            '0000:07:00.4',
            self.refused(gpu, rules(mixed_sizes=True, X_40Q=1)))

    def test_a_gpu_that_cannot(self):
        self.assertIn('does not support mixed sizes', self.refused(
            l40s(), rules(mixed_sizes=True, L40S_12Q=1)))

class TestInstances(FixedCase):

    def instances(self, gpu, **numbers):
        plan = fixed.plan(gpu, rules('mig', **numbers), {})
        return [(gpu.mig.profile_by_id(item.profile_id).name,
                 item.placement.start) for item in plan.instances]

    def test_shared_ones_are_packed(self):
        for count, instances in ((1, 1), (3, 1), (4, 2), (12, 4)):
            self.assertEqual(instances, len(self.instances(
                pro_6000(), DC_1_8Q=count)), count)

    def test_an_instance_has_one_size(self):
        self.assertEqual(1, len(self.instances(
            pro_6000(), DC_1_8Q=1, DC_1_8A=2)))
        self.assertEqual(2, len(self.instances(
            pro_6000(), DC_1_8Q=1, DC_1_12Q=1)))

    def test_large_ones_first(self):
        found = self.instances(pro_6000(), DC_1_24Q=2, DC_2_48Q=1)
        self.assertEqual(
            [('1g.24gb+gfx', 0), ('1g.24gb+gfx', 3), ('2g.48gb+gfx', 6)],
            sorted(found))

    def test_instances_that_are_there_are_used(self):
        used = (13, {'gpu_instance_id': 7})
        gpu = pro_6000(used, live=[('1g.24gb+gfx', 9)])
        self.assertEqual([], self.instances(gpu, DC_1_8Q=3))
        self.assertEqual(1, len(self.instances(gpu, DC_1_8Q=4)))
        self.assertEqual(1, len(self.instances(gpu, DC_1_8Q=1, DC_1_12Q=1)))
        empty = pro_6000(live=[('1g.24gb+gfx', 9)])
        self.assertEqual([], self.instances(empty, DC_1_8Q=3))
        self.assertEqual(1, len(self.instances(
            empty, DC_1_8Q=3, DC_1_12Q=1)))

    def test_what_is_not_wanted_takes_room(self):
        used = (14, {'gpu_instance_id': 7})
        gpu = pro_6000(used, used, live=[('1g.24gb+gfx', 9)])
        self.assertEqual([], self.instances(gpu, DC_1_8Q=1))
        self.assertEqual(1, len(self.instances(gpu, DC_1_8Q=2)))

    def test_placed_around_what_is_there(self):
        gpu = pro_6000(live=[('1g.24gb', 3)])
        self.assertEqual([('2g.48gb+gfx', 6)],
                         self.instances(gpu, DC_2_48Q=1))
        self.assertIn('no room for 2 x 2g.48gb+gfx', self.refused(
            gpu, rules('mig', DC_2_48Q=2)))

    def test_refused(self):
        self.assertIn('no room', self.refused(
            pro_6000(), rules('mig', DC_1_24Q=3, DC_2_48Q=1)))
        self.assertIn('no vGPU type L40S-12Q', self.refused(
            pro_6000(), rules('mig', L40S_12Q=1)))
        self.assertIn('no profile with id 99', self.refused(
            dataclasses.replace(pro_6000(), vgpu_types=types(
                [(11, 'DC-1-24Q', 24, 4, 99, 1)])),
            rules('mig', DC_1_24Q=1)))
        without = dataclasses.replace(pro_6000(), mig=None)
        self.assertIn('not support MIG', self.refused(
            without, rules('mig', DC_1_8Q=1)))

    @hypothesis.given(st.lists(st.sampled_from(
        [row[1] for row in PRO_6000]), min_size=1, max_size=12, unique=True),
        st.data())
    def test_a_plan_can_be_carried_out(self, names, data):
        governing = policy.Policy('p', policy.Mode.MIG, fixed_vgpus=tuple(
            (name, data.draw(st.integers(1, 3))) for name in names))
        gpu = pro_6000()
        try:
            plan = fixed.plan(gpu, governing, {})
        except exception.InvalidConfiguration:
            return
        grid = geometry.Geometry(gpu.mig.profiles)
        occupancy = geometry.EMPTY
        for item in plan.instances:
            profile = gpu.mig.profile_by_id(item.profile_id)
            self.assertIn(item.placement, grid.free_placements(
                occupancy, profile))
            occupancy = occupancy.add(profile, item.placement)
        self.assertEqual(dict(governing.fixed_vgpus), {
            name: sum(item.name == name for item in plan.vgpus)
            for name in names})


class TestSurplus(FixedCase):

    def surplus(self, gpu, governing, *remembered):
        addresses = [function.address for function in gpu.vfs]
        found = fixed.surplus(gpu, governing, dict(
            zip(addresses, remembered, strict=False)))
        return [addresses.index(address) for address in found]

    def test_of_what_was_made(self):
        gpu = l40s(3, 3, 3)
        made = ('L40S-12Q',) * 3
        for governing, expected in (
                (rules(L40S_12Q=3), []), (rules(L40S_12Q=1), [1, 2]),
                (rules(L40S_24Q=1), [0, 1, 2]), (None, [0, 1, 2])):
            self.assertEqual(expected, self.surplus(gpu, governing, *made))

    def test_never_what_somebody_else_made(self):
        self.assertEqual([], self.surplus(l40s(3), None))
        self.assertEqual([], self.surplus(l40s(3), None, 'L40S-24Q'))
        self.assertEqual([], self.surplus(l40s(99), None, 'L40S-12Q'))
        self.assertEqual([], self.surplus(l40s(0), None, 'L40S-12Q'))
