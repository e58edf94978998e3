# SPDX-License-Identifier: Apache-2.0

"""Time-sliced vGPUs: sizes that exclude each other, and mixed sizes."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import test_fixed
from cyborg_gpu_driver.tests.unit.partition import test_vgpu_type

TWELVE = ('L40S-12Q', 'L40S-12A')


def rules(*types, **fields):
    return policy.Policy('p', policy.Mode.VGPU, vgpu_types=types, **fields)


def mdev(*used, available=1, vfs=8, **fields):
    """An L40S with mdev."""
    return dataclasses.replace(
        test_fixed.l40s(**fields), framework=model.Framework.MDEV_VF,
        vfs=boards.vfs(vfs, tuple(
            model.MdevType(f'nvidia-{number}', name, available)
            for number, name, *_more in test_fixed.L40S), used))


def creatable(board, *types, **fields):
    return {offer.profile: offer.creatable for offer in offers.offers(
        board, rules(*types, **fields))}


class TestOneSize(base.BaseTestCase):

    def test_types_of_one_size_share_what_fits(self):
        for board in (mdev('nvidia-3', 'nvidia-4', 'nvidia-4'),
                      mdev('nvidia-3', 'nvidia-4', 'nvidia-4',
                           available=None),
                      test_fixed.l40s(3, 4, 4)):
            self.assertEqual(
                {'L40S-12Q': 1, 'L40S-12A': 1, 'L40S-24Q': 0},
                creatable(board, *TWELVE, 'L40S-24Q'))

    def test_a_type_that_is_not_known_is_of_another_size(self):
        self.assertEqual({'L40S-12Q': 0},
                         creatable(mdev('nvidia-99'), 'L40S-12Q'))

    def test_on_the_gpu_itself_only_the_very_same_type_fits(self):
        board = boards.gpu(
            (), mig=None, framework=model.Framework.MDEV_PF,
            mdev_types=tuple(
                model.MdevType(f'nvidia-{number}', name, None, most,
                               size * 1024)
                for number, name, size, most in test_fixed.L40S),
            mdevs=(model.Mdev('u', boards.gpu(()).address, 'nvidia-3'),))
        self.assertEqual({'L40S-12Q': 3, 'L40S-12A': 0},
                         creatable(board, *TWELVE))

    def test_types_of_one_size_have_functions_of_their_own(self):
        one, other = offers.offers(mdev(vfs=6), rules(*TWELVE))
        self.assertEqual(6, len({*one.parents, *other.parents}))
        # With too few functions, the last type gets what is left, if any.
        for vfs, rest in ((6, 2), (4, 0)):
            one, other = offers.offers(mdev(vfs=vfs), rules(*TWELVE))
            self.assertEqual((4, rest), (one.total, other.total))
            self.assertFalse({*one.parents} & {*other.parents})
            self.assertEqual(not rest, 'every virtual function is reserved'
                             in other.problem)

    def test_sizes_that_never_meet_share_functions(self):
        large, small = offers.offers(mdev(vfs=4), rules('L40S-12Q',
                                                        'L40S-24Q'))
        self.assertEqual((2, 4), (large.total, small.total))
        self.assertLess({*large.parents}, {*small.parents})

    def test_an_mdev_made_by_hand_takes_the_handle_of_its_function(self):
        board = mdev('nvidia-4', vfs=6)
        one, other = offers.offers(board, rules(*TWELVE))
        self.assertIn(board.vfs[0].address, one.parents)
        self.assertEqual([(4, 3), (2, 1)], [
            (offer.total, offer.creatable) for offer in (one, other)])
        board = mdev('nvidia-9', vfs=6)
        self.assertEqual({'L40S-12Q': 0, 'L40S-12A': 0},
                         creatable(board, *TWELVE))

    def test_what_the_kernel_says_of_functions_is_a_limit(self):
        self.assertEqual({'L40S-12Q': 0},
                         creatable(mdev(available=0), 'L40S-12Q'))
        for types, expected in (((), 0), ((3,), 4), (None, 4), ((4,), 0)):
            board = test_fixed.l40s(
                *[(0, {'creatable_types': types})] * 8)
            self.assertEqual({'L40S-12Q': expected},
                             creatable(board, 'L40S-12Q'), types)

    def test_max_instances(self):
        limits = (('L40S-12Q', 3), ('nvidia-4', 9))
        found = offers.offers(mdev('nvidia-3'), rules(
            *TWELVE, max_instances=limits))
        self.assertEqual([(3, 2), (4, 3)], [
            (offer.total, offer.creatable) for offer in found])

    def test_max_instances_where_nobody_else_says(self):
        unknown = tuple(dataclasses.replace(entry, max_instances=0)
                        for entry in test_fixed.types(test_fixed.L40S))
        board = mdev('nvidia-4', vgpu_types=unknown)
        offer, = offers.offers(board, rules('L40S-12Q'))
        self.assertEqual(0, offer.total)
        self.assertIn('how many L40S-12Q fit: add it to max_instances of '
                      'policy p', offer.problem)
        offer, = offers.offers(board, rules(
            'L40S-12Q', max_instances=(('L40S-12Q', 4),)))
        self.assertEqual(('', 4, 3), (offer.problem, offer.total,
                                      offer.creatable))

    @hypothesis.given(st.lists(st.integers(1, 5), max_size=8))
    def test_never_more_than_what_is_left(self, used):
        board = mdev(*(f'nvidia-{number}' for number in used))
        names = [row[1] for row in test_fixed.L40S]
        for offer in offers.offers(board, rules(*names)):
            self.assertTrue(0 <= offer.creatable
                            <= max(0, offer.total - offer.in_use), offer)


class TestVendorVfio(base.BaseTestCase):

    def test_a_function_without_the_drivers_files_takes_none(self):
        offer, = offers.offers(test_fixed.l40s(None, vfs=3),
                               rules('L40S-12Q'))
        self.assertEqual((3, 2), (offer.total, offer.creatable))

    def test_fixed_ones_are_left_to_nova(self):
        for types in ((), ('L40S-24Q',)):
            governing = rules(*types, fixed_vgpus=(('L40S-12Q', 2),))
            offer, = offers.offers(test_fixed.l40s(), governing)
            self.assertEqual('L40S-12Q', offer.profile)
            self.assertIn('Nova assigns', offer.problem)
        offer, = offers.offers(mdev(), governing)
        self.assertEqual(('L40S-24Q', ''), (offer.profile, offer.problem))


class TestMixedSizes(base.BaseTestCase):

    def gpu(self, taken=(), mixed=True, vfs=16, **fields):
        kinds = test_vgpu_type.kinds(40, taken)
        used = [size for _start, size in taken]
        return test_fixed.l40s(
            *used, vfs=vfs, mixed_sizes=mixed,
            vgpu_types=tuple(kinds), **fields)

    def offers(self, board, mixed=True, **fields):
        return {offer.profile: offer for offer in offers.offers(
            board, rules('X-20Q', 'X-8Q', 'X-4Q', mixed_sizes=mixed,
                         **fields))}

    def test_types_fit_wherever_a_placement_is_free(self):
        self.assertEqual(
            {'X-20Q': (2, 0, 2), 'X-8Q': (4, 0, 4), 'X-4Q': (8, 0, 8)},
            self.numbers(self.gpu()))
        self.assertEqual(
            {'X-20Q': (2, 1, 0), 'X-8Q': (4, 0, 1), 'X-4Q': (8, 1, 3)},
            self.numbers(self.gpu([(0, 20), (26, 4)])))

    def numbers(self, board, **fields):
        return {name: (offer.total, offer.in_use, offer.creatable)
                for name, offer in self.offers(board, **fields).items()}

    def test_limits(self):
        # One function serves one handle. The last types get what is left.
        few = self.numbers(self.gpu(vfs=5))
        self.assertEqual(
            {'X-20Q': (2, 0, 2), 'X-8Q': (3, 0, 3), 'X-4Q': (0, 0, 0)}, few)
        self.assertIn('every virtual function is reserved',
                      self.offers(self.gpu(vfs=5))['X-4Q'].problem)
        self.assertEqual((2, 0, 2), self.numbers(
            self.gpu(), max_instances=(('X-4Q', 2),))['X-4Q'])
        # Of equal sizes 10 would fit, but mixed sizes have 8 placements.
        fewer = dataclasses.replace(self.gpu(), vgpu_types=tuple(
            dataclasses.replace(kind, max_instances=10)
            for kind in self.gpu().vgpu_types))
        self.assertEqual((8, 0, 8), self.numbers(fewer)['X-4Q'])

    def test_a_maximum_is_not_needed(self):
        board = dataclasses.replace(self.gpu(), vgpu_types=tuple(
            dataclasses.replace(kind, max_instances=0)
            for kind in self.gpu().vgpu_types))
        offer = self.offers(board)['X-8Q']
        self.assertEqual(('', 4), (offer.problem, offer.total))

    def test_what_was_not_read_is_taken(self):
        for taken, expected in (((), 4), ([(0, 20)], 0)):
            board = self.gpu(taken)
            board = dataclasses.replace(board, vgpu_types=tuple(
                dataclasses.replace(kind, free_placements=None)
                for kind in board.vgpu_types))
            self.assertEqual(expected, self.numbers(board)['X-8Q'][2])

    def test_problems(self):
        for board, mixed, said in (
                (self.gpu(mixed=None), True, 'set mixed_sizes to false'),
                (self.gpu(mixed=False), True,
                 'mixed-size mode is off; it will be turned on when the GPU '
                 'is idle'),
                (self.gpu(mixed=True), False,
                 'mixed-size mode is on; it will be turned off when'),
                (self.gpu(mixed=False), False, ''),
                (self.gpu(mixed=None), False, '')):
            for offer in self.offers(board, mixed).values():
                self.assertIn(said, offer.problem)
                self.assertEqual(not said, not offer.problem)

    def test_a_type_without_placements(self):
        board = dataclasses.replace(self.gpu(), vgpu_types=tuple(
            dataclasses.replace(kind, placements=(), free_placements=())
            for kind in self.gpu().vgpu_types))
        self.assertIn('X-8Q does not support other sizes on the same GPU',
                      self.offers(board)['X-8Q'].problem)

    def test_totals_do_not_follow_the_mode(self):
        on, off = (self.numbers(self.gpu(mixed=mixed))
                   for mixed in (True, False))
        self.assertEqual(on, off)
