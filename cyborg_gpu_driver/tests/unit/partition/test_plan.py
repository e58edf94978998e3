# SPDX-License-Identifier: Apache-2.0


import collections
import dataclasses
import functools
import random

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import playing

Action = change.Action


@functools.cache
def states(board):
    """Every occupancy of a board with all its profiles."""
    return tuple(boards.states(geometry.Geometry(boards.ALL[board])))


@functools.cache
def by_multiset(board):
    """The occupancies of a board, grouped by multiset of instances."""
    groups = collections.defaultdict(list)
    for state in states(board):
        groups[boards.multiset(state)].append(state)
    return dict(groups)


def gpu_of(board, occupancy, enabled=True):
    """A GPU with that occupancy and with whole compute instances."""
    instances = tuple(
        model.GpuInstance(placement, profile_id, number)
        for number, (profile_id, placement) in enumerate(occupancy.taken))
    gpu = boards.gpu(boards.ALL[board], enabled=enabled)
    return playing.with_compute(dataclasses.replace(
        gpu, mig=dataclasses.replace(gpu.mig, instances=instances)))


def wanted_of(gpu, multiset):
    return target.wanted(gpu, True, {
        gpu.mig.profile_by_id(profile_id).name: count
        for profile_id, count in multiset})


def fewest(board, occupancy, multiset, fixed=frozenset()):
    """The fewest instances to destroy, by trying every layout; None if no
    layout keeps the fixed ones.
    """
    there = set(occupancy.taken)
    return min((len(there - set(state.taken))
                for state in by_multiset(board)[multiset]
                if fixed <= set(state.taken)), default=None)


@st.composite
def situations(draw):
    """Draw (board, occupancy, wanted multiset, instances in use)."""
    board = draw(st.sampled_from(sorted(boards.ALL)))
    occupancy = draw(st.sampled_from(states(board)))
    multiset = draw(st.sampled_from(sorted(by_multiset(board))))
    used = draw(st.sets(st.sampled_from(occupancy.taken))
                if occupancy.taken else st.just(set()))
    return board, occupancy, multiset, frozenset(used)


class EveryLayoutTestCase(base.BaseTestCase):

    @hypothesis.settings(max_examples=scope.examples(400))
    @hypothesis.given(situations())
    def test_from_anywhere_to_anything(self, situation):
        board, occupancy, multiset, used = situation
        gpu = gpu_of(board, occupancy)
        in_use = {placement: 'somebody' for _profile, placement in used}
        expected = fewest(board, occupancy, multiset, used)
        wanted = wanted_of(gpu, multiset)
        try:
            planned = plan.plan(gpu, wanted, in_use)
        except exception.ChangeRefused as error:
            self.assertIsNone(expected, str(error))
            self.assertIn('in use by somebody', str(error))
            return
        self.assertEqual(expected, len(planned.destroy))
        _mode, there = playing.play(planned, in_use)
        self.assertEqual(dict(multiset), collections.Counter(
            profile_id for profile_id, _placement in there))
        self.assertLessEqual(used, set(there))
        self.assertLessEqual(
            {(item.instance.profile_id, item.instance.placement)
             for item in planned.keep}, set(there))
        after = playing.made(planned)
        self.assertEqual(
            set(there), set(geometry.Geometry(
                gpu.mig.profiles).occupancy_of(after.mig.instances).taken))
        self.assertTrue(
            plan.plan(after, wanted, in_use).is_empty)


class StepsTestCase(base.BaseTestCase):

    def plan(self, gpu, devices, in_use=None):
        return plan.plan(
            gpu, target.wanted(gpu, True, devices), in_use or {})

    def test_an_engine_is_freed_before_it_is_taken(self):
        gpu = playing.with_compute(boards.gpu(
            boards.A100_40, [('1g.5gb+me', 0), ('1g.5gb', 1),
                             ('1g.5gb', 2), ('1g.5gb', 3)]))
        wanted = {'1g.5gb': 3, '1g.5gb+me': 1}
        self.assertTrue(self.plan(gpu, wanted).is_empty)
        gpu = playing.with_compute(boards.gpu(
            boards.RTX_PRO_6000, [('1g.24gb+me', 0), ('1g.24gb', 3)]))
        planned = self.plan(gpu, {'2g.48gb-me': 1, '1g.24gb+me.all': 1})
        playing.play(planned)
        self.assertEqual(2, len(planned.destroy))

    def test_mode_comes_first_when_on_and_last_when_off(self):
        off = boards.gpu(boards.A100_40, enabled=False)
        planned = self.plan(off, {'7g.40gb': 1})
        self.assertIs(Action.ENABLE_MIG, planned.steps[0].action)
        mode, there = playing.play(planned)
        self.assertEqual((True, 1), (mode, len(there)))
        busy = playing.with_compute(
            boards.gpu(boards.A100_40, [('7g.40gb', 0)]))
        planned = plan.plan(busy, target.Wanted(False))
        self.assertIs(Action.DISABLE_MIG, planned.steps[-1].action)
        self.assertEqual((False, {}), playing.play(planned))

    def test_a_pending_mode_is_not_the_mode(self):
        gpu = boards.gpu(boards.A100_40)
        leaving = dataclasses.replace(gpu, mig=dataclasses.replace(
            gpu.mig, pending=False))
        self.assertEqual(
            [Action.ENABLE_MIG],
            [step.action for step in self.plan(leaving, {}).steps])
        self.assertEqual(
            [Action.DISABLE_MIG],
            [step.action for step in plan.plan(
                leaving, target.Wanted(False)).steps])

    def test_mode_stays_while_an_instance_is_in_use(self):
        gpu = playing.with_compute(
            boards.gpu(boards.A100_40, [('1g.5gb', 2), ('1g.5gb', 3)]))
        error = self.assertRaises(
            exception.ChangeRefused, plan.plan, gpu,
            target.Wanted(False), {model.Placement(2, 1): 'process 4711'})
        self.assertIn('1g.5gb at 2:1, in use by process 4711', str(error))
        self.assertNotIn('3:1', str(error))

    def test_a_gpu_without_mig_is_as_wanted_with_mode_off(self):
        gpu = boards.gpu((), mig=None)
        self.assertTrue(
            plan.plan(gpu, target.Wanted(False)).is_empty)
        self.assertRaises(exception.ChangeRefused, plan.plan,
                          gpu, target.Wanted(True))

    def test_the_one_in_the_way_is_named_and_no_other(self):
        gpu = playing.with_compute(
            boards.gpu(boards.A100_40, [('1g.5gb', 2), ('3g.20gb', 4)]))
        error = self.assertRaises(
            exception.ChangeRefused, self.plan, gpu,
            {'4g.20gb': 1, '3g.20gb': 1},
            {model.Placement(2, 1): 'process 4711',
             model.Placement(4, 4): 'mdev 1'})
        self.assertIn('1g.5gb at 2:1, in use by process 4711', str(error))
        self.assertNotIn('mdev 1', str(error))
        self.assertIn('room for 3g.20gb', str(error))

    def test_an_instance_of_a_profile_nvml_hides_goes_or_blocks(self):
        gpu = boards.gpu(boards.A100_40)
        odd = model.GpuInstance(model.Placement(0, 2), 99, 3)
        gpu = dataclasses.replace(gpu, mig=dataclasses.replace(
            gpu.mig, instances=(odd,)))
        self.assertEqual((odd,), self.plan(gpu, {'7g.40gb': 1}).destroy)
        error = self.assertRaises(
            exception.ChangeRefused, self.plan, gpu, {'7g.40gb': 1},
            {odd.placement: 'somebody'})
        self.assertIn('profile 99 at 0:2', str(error))

    def test_a_plan_can_be_read(self):
        gpu = playing.with_compute(
            boards.gpu(boards.A100_40, [('1g.5gb', 0), ('1g.5gb', 6)]))
        planned = self.plan(gpu, {'3g.20gb': 1, '1g.5gb': 1})
        self.assertEqual({
            'address': '0000:07:00.0', 'mig_enabled': True,
            'wanted': {'3g.20gb': 1, '1g.5gb': 1},
            'keep': [{'profile': '1g.5gb', 'start': 0, 'size': 1,
                      'in_use': None}],
            'destroy': [{'profile': '1g.5gb', 'start': 6, 'size': 1}],
            'create': [{'profile': '3g.20gb', 'start': 4, 'size': 4,
                        'compute': [3]}],
            'steps': [
                {'action': 'destroy-compute-instance', 'profile': '1g.5gb',
                 'start': 6, 'size': 1, 'compute_slices': 1,
                 'compute_start': 0},
                {'action': 'destroy-instance', 'profile': '1g.5gb',
                 'start': 6, 'size': 1},
                {'action': 'create-instance', 'profile': '3g.20gb',
                 'start': 4, 'size': 4},
                {'action': 'create-compute-instance', 'profile': '3g.20gb',
                 'start': 4, 'size': 4, 'compute_slices': 3}],
        }, planned.to_dict())
        text = '\n'.join(planned.lines())
        self.assertIn('will be 3g.20gb, 1g.5gb', text)
        self.assertIn('2. destroy instance 1g.5gb at 6:1', text)
        self.assertTrue(all(len(line) <= 80 for line in planned.lines()))

    def test_a_plan_without_steps_says_so(self):
        planned = self.plan(boards.gpu(boards.A100_40), {})
        self.assertEqual(
            ('0000:07:00.0: unchanged (MIG mode on, no instances)',),
            planned.lines())


class ComputeTestCase(base.BaseTestCase):

    def plan(self, gpu, devices, in_use=None):
        return plan.plan(
            gpu, target.wanted(gpu, True, devices), in_use or {})

    def test_parts_that_lie_apart_are_right_as_they_are(self):
        gpu = playing.with_compute(
            boards.gpu(boards.A100_40, [('3g.20gb', 0), ('3g.20gb', 4)]),
            {0: (1,), 4: (1, 1)})
        self.assertTrue(self.plan(gpu, {'1c.3g.20gb': 3}).is_empty)

    def test_an_instance_with_other_parts_is_replaced(self):
        gpu = playing.with_compute(
            boards.gpu(boards.A100_40, [('4g.20gb', 0)]), {0: (1, 1, 2)})
        planned = self.plan(gpu, {'1c.4g.20gb': 4})
        self.assertEqual(gpu.mig.instances, planned.destroy)
        self.assertEqual({0: [1, 1, 1, 1]}, {
            placement.start: sizes for (_profile, placement), sizes in
            playing.play(planned)[1].items()})

    def test_parts_go_elsewhere_before_one_is_destroyed(self):
        gpu = boards.gpu(boards.A100_40, [('3g.20gb', 0)])
        item, = gpu.mig.instances
        gpu = dataclasses.replace(gpu, mig=dataclasses.replace(
            gpu.mig, instances=(dataclasses.replace(item, compute=(
                model.ComputeInstance(1, 1, 0),)),)))
        planned = self.plan(gpu, {'1c.3g.20gb': 1, '2c.3g.20gb': 1})
        self.assertEqual(
            ['create-instance', 'create-compute-instance'],
            [step.action.value for step in planned.steps])

    def test_the_instance_with_the_right_parts_keeps_them(self):
        gpu = playing.with_compute(
            boards.gpu(boards.A100_40, [('3g.20gb', 0), ('3g.20gb', 4)]),
            {0: (3,), 4: (1, 1, 1)})
        planned = self.plan(gpu, {'1c.3g.20gb': 3})
        self.assertEqual([0], [item.placement.start
                               for item in planned.destroy])
        self.assertEqual(2, len(planned.steps))
        self.assertEqual([4], [item.instance.placement.start
                               for item in planned.keep])

    def test_parts_of_an_instance_in_use_stay(self):
        gpu = playing.with_compute(
            boards.gpu(boards.A100_40, [('3g.20gb', 4)]), {4: (1,)})
        used = {model.Placement(4, 4): 'process 4711'}
        error = self.assertRaises(
            exception.ChangeRefused, self.plan, gpu, {'3g.20gb': 1},
            used)
        self.assertIn('3g.20gb (1c.3g.20gb) at 4:4', str(error))
        planned = self.plan(gpu, {'3g.20gb': 1, '1c.3g.20gb': 1}, used)
        self.assertEqual({4: [1], 0: [3]}, {
            placement.start: sizes for (_profile, placement), sizes in
            playing.play(planned, used)[1].items()})

    def test_a_guests_instance_without_parts_is_as_wanted(self):
        gpu = boards.gpu(boards.A100_40, [('3g.20gb', 4)])
        used = {model.Placement(4, 4): 'mdev 1'}
        self.assertTrue(self.plan(gpu, {'3g.20gb': 1}, used).is_empty)
        self.assertFalse(self.plan(gpu, {'3g.20gb': 1}).is_empty)

    @hypothesis.settings(max_examples=scope.examples(200))
    @hypothesis.given(st.randoms(use_true_random=False))
    def test_from_any_parts_to_any_parts(self, chance: random.Random):
        board = chance.choice(['A100-40', 'A30', 'RTX PRO 6000'])
        before, after = (gpu_of(board, chance.choice(states(board)))
                         for _number in range(2))
        before, after = (playing.with_compute(gpu, {
            item.placement.start: _cut(chance, gpu, item)
            for item in gpu.mig.instances}) for gpu in (before, after))
        counts = collections.Counter(
            target.device_name(
                after.mig.profile_by_id(item.profile_id), part.size)
            for item in after.mig.instances for part in item.compute)
        wanted = target.wanted(before, True, counts)
        planned = plan.plan(before, wanted)
        _mode, there = playing.play(planned)
        self.assertEqual(counts, collections.Counter(
            target.device_name(before.mig.profile_by_id(profile_id), size)
            for (profile_id, _placement), sizes in there.items()
            for size in sizes))
        self.assertTrue(
            plan.plan(playing.made(planned), wanted).is_empty)


def _cut(chance, gpu, instance):
    """Random sizes that fill an instance."""
    left = gpu.mig.profile_by_id(instance.profile_id).slices
    sizes = []
    while left:
        sizes.append(chance.randint(1, left))
        left -= sizes[-1]
    return tuple(sizes)


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
